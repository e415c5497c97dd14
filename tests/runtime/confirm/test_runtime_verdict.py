"""What a confirmation compares, and when a prediction holds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from slow_stages import MS

from optpipe_sim import Schedule, build
from optpipe_sim.ops import B, F, Op, parse_op
from optpipe_sim.runtime.confirm.one_device import message_arrivals
from optpipe_sim.runtime.confirm.verdict import (
    Confirmation,
    compare_gradients,
    conditions,
    peaks_after_ops,
)
from optpipe_sim.runtime.settings import Tolerances
from optpipe_sim.sim.difference import compare_traces
from optpipe_sim.sim.lower import lower


def test_makespans_beyond_the_tolerance_do_not_hold(unit) -> None:
    profile = unit(2)
    lowered = lower(build("1f1b", profile, 4), profile)
    exact = lowered.replay()
    durations = exact.end_ns - exact.start_ns
    for factor, mode, holds in (
        (1.04, "synthetic", True),
        (1.06, "synthetic", False),
        (0.9, "replay", False),
        (1.5, "gradient", True),
    ):
        trace = lowered.replay((durations * factor).astype(int))
        found = Confirmation(mode, "cpu", compare_traces(lowered, trace), (trace.makespan_ns,))
        assert found.holds is holds
    loop = {"difference": compare_traces(lowered, exact), "makespans_ns": (exact.makespan_ns,)}
    assert Confirmation("loop", "cpu", **loop, closure_ns=0).holds
    twice = compare_traces(lowered, lowered.replay(2 * durations))
    late = Confirmation("loop", "cpu", twice, (exact.makespan_ns,), closure_ns=MS)
    assert len(late.problems) == 2
    assert "composed of per-op medians" in late.problems[0]
    assert "not come to rest" in late.problems[1]


def test_what_copies_cost_is_said_where_ops_ran_beside_them_and_where_they_ran_alone(unit) -> None:
    factors = {op: {"d2h": 2.0, "h2d": 2.0, "both": 2.0} for op in ("F", "B", "W")}
    factors = {"stages": [factors] * 2, "copies": {}, "idle_ns": 10**15}
    plain = unit(2, offload={"t_offload_ms": 1, "t_reload_ms": 1})
    profile = replace(plain, meta={**plain.meta, "interference": factors})
    lowered = lower(build("po-h", profile, 6), profile)
    exact = lowered.replay()
    corrected = compare_traces(lowered, exact, concurrent=True).corrected
    # rank by rank in a loop: a run as slow as the factors say is off, and the sentence says why
    loop = compare_traces(lowered, corrected, concurrent=True)
    (said,) = Confirmation("loop", "cpu", loop, (corrected.makespan_ns,)).problems
    assert "predicted; +0.0% from the" in said
    assert Confirmation("loop", "cpu", loop, (corrected.makespan_ns,)).together is None
    # op by op: nothing ran beside anything; with the factors it is what the loop found
    replay = Confirmation("replay", "cpu", compare_traces(lowered, exact), (exact.makespan_ns,))
    assert replay.holds
    assert replay.together.makespan_ns == corrected.makespan_ns
    assert replay.to_json()["together_makespan_ns"] == corrected.makespan_ns
    slept = Confirmation("synthetic", "cpu", compare_traces(lowered, exact), (exact.makespan_ns,))
    assert slept.together is None


def test_gradients_are_compared_bit_by_bit_and_by_size() -> None:
    wanted = {"a": torch.tensor([1.0, -4.0]), "b": torch.zeros(2), "c": torch.ones(1)}
    same = compare_gradients(wanted, 1.0, wanted, 1.0)
    assert (same.parameters, same.bitwise, same.problems(0)) == (3, 3, [])
    off = {**wanted, "a": torch.tensor([1.0, -4.002])}
    found = compare_gradients(off, 1.0, wanted, 1.0)
    assert (found.bitwise, found.worst) == (2, "a")
    assert found.relative == pytest.approx(0.0005, rel=1e-3)
    assert found.problems(1e-3) == []
    assert found.problems(1e-4)
    for broken in ({**off, "b": torch.tensor([0.0, math.nan])}, {**off, "b": torch.ones(2)}):
        assert compare_gradients(broken, 1.0, wanted, 1.0).worst == "b"
        assert compare_gradients(broken, 1.0, wanted, 1.0).problems(0.5)
    assert "no gradient of c" in compare_gradients({"a": wanted["a"]}, 1, wanted, 1).problems(1)
    assert "loss is 2" in compare_gradients(wanted, 2.0, wanted, 1.0).problems(1e-5)[0]
    assert compare_gradients(wanted, math.nan, wanted, 1.0).problems(1e-5)


def test_bytes_after_ops_follow_the_schedule(unit) -> None:
    profile = unit(1, offload={"t_offload_ms": 1, "t_reload_ms": 1})  # 100 bytes, 50 to W
    ops = ["F0.0", "O0.0", "R0.0", "R0.0", "B0.0", "W0.0"]
    schedule = Schedule(profile.shape(1), [dict.fromkeys(ops)])
    held = [100, 0, 100, 100, 50, 0]
    rows = list(zip(map(parse_op, ops), held, strict=True))
    (peak,) = peaks_after_ops(schedule, profile, [rows])
    assert (peak.predicted_bytes, peak.measured_bytes, peak.off_bytes) == (100, 100, 0)
    (peak,) = peaks_after_ops(schedule, profile, [[*rows[:4], (rows[4][0], 80), rows[5]]])
    assert (peak.worst_op, peak.off_bytes) == ("B0.0", 30)
    assert peak.problem(Tolerances()) is None
    assert "30 B more than predicted after B0.0" in peak.problem(Tolerances(memory_bytes=0))


def test_serial_links_carry_one_message_at_a_time(unit) -> None:
    profile = replace(unit(2), latency_ns=2, occupancy_ns=10)
    sent = {Op(F, 0, 0): 0, Op(F, 0, 1): 1, Op(B, 1, 0): 1}
    schedule = build("1f1b", profile, 2)
    assert message_arrivals(lower(schedule, profile), sent) == {
        op: t + 12 for op, t in sent.items()
    }
    profile = replace(profile, links="serial")
    came = message_arrivals(lower(schedule, profile), sent)
    assert [came[op] for op in sent] == [12, 22, 13]


def test_what_ratios_depend_on_besides_the_ops(unit) -> None:
    """The host, clocks, and memory that the allocator does not have; nothing where that is not known."""
    plain = unit(2)
    times = [{"F": {"median": 2000.0, "issue": 500.0}}, {"F": {"median": 1000.0, "issue": 950.0}}]
    gpu = {"kind": "nvidia-h200", "clocks_under_load": {"clocks.sm": "1755"}}
    meta = {
        "device": gpu,
        "stages": [{"times_us": one} for one in times],
        "reserved_bytes": {"context": 512 * 2**20, "communicator": "not measured: no NCCL"},
    }
    said = conditions(replace(plain, meta=meta), {"clocks_under_load": {"clocks.sm": "1980"}})
    assert said == [
        "profiled, the host issues F 950 us of 1 ms; F as long as the host takes",
        "clocks: SM 1755 MHz when profiled, SM 1980 MHz at the run",
        "outside of torch's allocator: the CUDA context 512 MiB, a communicator of NCCL not measured: no NCCL",
    ]
    cpu = {"kind": "cpu", "clocks_mhz": {"least": 2100.0, "most": 2600.0}}
    said = conditions(replace(plain, meta=meta | {"device": cpu, "reserved_bytes": None}), cpu)
    assert said == ["clocks: 2100 to 2600 MHz when profiled, 2100 to 2600 MHz at the run"]
    assert conditions(plain, {}) == []
