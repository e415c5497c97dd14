"""The corrected replay: ops that take longer beside copies and after a gap, by arithmetic and by properties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowered_cases import lowered_cases
from strategies import cases

from optpipe_sim import Schedule, load_profile
from optpipe_sim.errors import ProfileError
from optpipe_sim.ops import F, parse_op
from optpipe_sim.profile_io import profile_to_json
from optpipe_sim.schedule.shape import Shape
from optpipe_sim.sim.interference import Interference, replay_with_interference
from optpipe_sim.sim.lower import Lowered, lower
from optpipe_sim.sim.simpy_engine import _Run

MS = 1_000_000
NEVER = 10**15
PROFILE = {
    "name": "one",
    "devices": 1,
    "stages": {"t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 10, "act_bytes": 100, "w_bytes": 50},
    "offload": {"t_offload_ms": 4, "t_reload_ms": 8},
}
PROGRAM = ["F0.0", "O0.0", "F0.1", "R0.0", "B0.0", "W0.0", "B0.1", "W0.1"]


def found(idle_ns: int = NEVER, copies: dict[str, float] | None = None, **f: float) -> Interference:
    return Interference(({"F": f},), copies or {}, idle_ns)


def lowered_of(program: list[str] = PROGRAM, profile: dict[str, Any] = PROFILE) -> Lowered:
    costs = load_profile(profile)
    return lower(Schedule(Shape(1, 1, 2), [program]), costs)


def duration(lowered: Lowered, by: Interference, op: str) -> int:
    trace = replay_with_interference(lowered, by)
    row = lowered.schedule.row(parse_op(op))
    return int(trace.end_ns[row] - trace.start_ns[row])


def test_an_op_takes_longer_as_far_as_copies_run_beside_it():
    """F0.1 runs from 10 ms on; beside it first an O for 4 ms, then its R (it starts with F0.1's end)."""
    plain = lowered_of()
    assert duration(plain, found(), "F0.1") == 10 * MS
    # of 4 ms beside the copy 2 are lost
    assert duration(plain, found(d2h=2.0), "F0.1") == 12 * MS
    assert duration(plain, found(h2d=2.0, both=5.0), "F0.1") > 10 * MS
    assert duration(plain, found(d2h=2.0), "F0.0") == 10 * MS
    assert duration(plain, found(d2h=0.5), "F0.1") == 10 * MS  # what is below 1 is noise


def test_copies_both_ways_slow_each_other():
    """R0.0 runs from 14 to 22 ms, O0.1 from 20 on: half as fast for 2 ms, then 3 ms more."""
    program = ["F0.0", "O0.0", "F0.1", "O0.1", "R0.0", "B0.0", "W0.0", "R0.1", "B0.1", "W0.1"]
    lowered = lowered_of(program)
    slower = found(copies={"d2h": 2.0})
    assert duration(lowered, found(), "O0.1") == 4 * MS
    assert duration(lowered, slower, "O0.1") == 5 * MS
    assert duration(lowered, slower, "R0.0") == 8 * MS


def test_after_a_gap_an_op_takes_longer():
    """B0.0 waits 8 ms for its R, which started with W0.1."""
    program = ["F0.0", "F0.1", "O0.0", "B0.1", "W0.1", "R0.0", "B0.0", "W0.0"]
    copies = {"t_offload_ms": 4, "t_reload_ms": 18}
    lowered = lowered_of(program, PROFILE | {"offload": copies})
    by = Interference(({"B": {"idle": 1.5}, "W": {"idle": 3.0}},), {}, 8 * MS)
    assert duration(lowered, by, "B0.0") == 15 * MS
    assert duration(lowered, by, "B0.1") == 10 * MS
    assert duration(lowered, by, "W0.0") == 10 * MS
    assert duration(lowered, replace(by, idle_ns=8 * MS + 1), "B0.0") == 10 * MS


FACTORS = st.floats(0.5, 3.0)


@st.composite
def interferences(draw: Any) -> Interference:
    one = {
        op: {how: draw(FACTORS) for how in ("d2h", "h2d", "both", "idle")}
        for op in ("F", "B", "W", "BW")
    }
    return Interference(
        (one,), {"d2h": draw(FACTORS), "h2d": draw(FACTORS)}, draw(st.integers(0, 50))
    )


@given(lowered_cases(levels=True), interferences())
def test_it_is_never_faster_and_keeps_order_and_memory(lowered: Lowered, by: Interference):
    plain, slow = lowered.replay(), replay_with_interference(lowered, by)
    assert slow.makespan_ns >= plain.makespan_ns
    own, took = (trace.end_ns - trace.start_ns for trace in (plain, slow))
    assert (took >= own).all()
    assert (took <= np.round(9.0 * own) + 1).all()  # idle times the most that copies do
    if lowered.memory_limit is not None:
        assert all(
            peak <= limit for peak, limit in zip(slow.peak_bytes, lowered.memory_limit, strict=True)
        )


@given(cases(), interferences())
def test_both_engines_give_these_durations_the_same_times(case: Any, by: Interference):
    """The discrete-event simulator with the durations that the correction has settled on."""
    profile, schedule = case
    lowered = lower(schedule, replace(profile, memory_limit=None))
    slow = replay_with_interference(lowered, by)
    run = _Run(lowered.schedule, lowered.profile, None)
    run.durations = (slow.end_ns - slow.start_ns).tolist()
    run.env.run()
    assert run.start == slow.start_ns.tolist()
    assert run.end == slow.end_ns.tolist()


@given(lowered_cases())
def test_factors_of_one_change_nothing(lowered: Lowered):
    ones = {op: dict.fromkeys(("d2h", "h2d", "both", "idle"), 1.0) for op in ("F", "B", "W", "BW")}
    same = replay_with_interference(lowered, Interference((ones,), {"d2h": 1.0, "h2d": 0.9}, 0))
    assert np.array_equal(same.start_ns, lowered.replay().start_ns)


def test_a_profile_keeps_them_and_any_other_reader_may_ignore_them():
    meta = {"stages": [{"F": {"d2h": 1.2}}], "copies": {"h2d": 1.1}, "idle_ns": 5}
    profile = load_profile(PROFILE | {"meta": {"interference": meta}})
    assert profile == load_profile(PROFILE)  # no part of the costs
    again = load_profile(profile_to_json(profile))
    got = Interference.of(again)
    assert got is not None
    assert (got.stages, got.copies, got.idle_ns) == (({"F": {"d2h": 1.2}},), {"h2d": 1.1}, 5)
    assert got.lines() == ["F 1.200 d2h", "copies both ways at once: h2d 1.100"]
    assert Interference.of(load_profile(PROFILE)) is None
    # of other stages than were measured: the median
    assert got.factor(F, "d2h", 3, 4) == 1.2
    with pytest.raises(
        ProfileError, match=r"profile one: meta.interference: expected stages, copies"
    ):
        Interference.of(load_profile(PROFILE | {"meta": {"interference": {"stages": 3}}}))
