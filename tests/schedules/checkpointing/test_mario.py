"""Mario's recomputation: C's in idle time, the limit, and never slower than C's where they are due."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recompute_cases import profile
from unit_profiles import unit_profile

from optpipe_sim import build, check, load_profile, simulate
from optpipe_sim.errors import Deadlock, InvalidSchedule, OutOfMemory
from optpipe_sim.ops import C


def test_worked_by_hand() -> None:
    """Two devices, F = B = W = C = 1 ns, all dropped. Rank 0 idles from 2 to 4, until the first
    gradient comes: C0 and C1 run then, so that only C2 and C3 delay their backwards; rank 1, each
    of whose backwards follows its forward, recomputes nothing."""
    stages = {"t_f_ns": 1, "t_b_ns": 1, "t_w_ns": 1, "act_bytes": 10}
    costs = load_profile(
        {
            "name": "two",
            "devices": 2,
            "stages": {**stages, "recompute": [{"name": "full", "t_ns": 1, "keep_bytes": 0}]},
        }
    )
    schedule = build("mario", costs, 4, limit=20)
    rank_0, rank_1 = (" ".join(map(str, program)) for program in schedule.programs)
    assert rank_1 == "F1.0 BW1.0 F1.1 BW1.1 F1.2 BW1.2 F1.3 BW1.3"
    assert rank_0.startswith("F0.0 F0.1 C0.0 C0.1 BW0.0")
    trace = simulate(schedule, costs, 20)
    assert max(trace.peak_bytes) <= 20
    plain = simulate(build("1f1b", costs, 4), costs)
    assert trace.makespan_ns == plain.makespan_ns


@settings(max_examples=40)
@given(
    st.integers(2, 5),
    st.integers(1, 8),
    st.integers(1, 2),
    st.integers(150, 600),
    st.integers(0, 6),
)
def test_keeps_the_limit_and_is_never_slower_than_apart(
    p: int, rounds: int, chunks: int, limit: int, hop: int
) -> None:
    costs = profile(p, memory_limit_bytes=limit, t_comm_ns=hop)
    microbatches = rounds * p if chunks > 1 else rounds
    schedule = build("mario", costs, microbatches, chunks=chunks)
    assert check(schedule, costs, 10**6) == []
    base = "1f1b" if chunks == 1 else f"1f1b-i:chunks={chunks}"
    colon = ":" if chunks == 1 else ","
    fitting = []
    for level in ("light", "full"):
        apart = build(f"{base}{colon}recompute={level},apart=yes", costs, microbatches)
        try:
            fitting.append(simulate(apart, costs).makespan_ns)
        except (Deadlock, OutOfMemory):
            continue
    if fitting:
        trace = simulate(schedule, costs)
        assert max(trace.peak_bytes) <= limit
        assert trace.makespan_ns <= min(fitting)


@pytest.mark.parametrize("level", ["light", "full"])
def test_without_a_limit_it_takes_no_more_memory_than_apart(level: str) -> None:
    costs = profile(6)
    trace = simulate(build(f"mario:level={level}", costs, 12), costs)
    apart = simulate(build(f"1f1b:recompute={level},apart=yes", costs, 12), costs)
    assert trace.makespan_ns < apart.makespan_ns
    assert max(trace.peak_bytes) <= max(apart.peak_bytes)
    assert set(trace.schedule.recompute.values()) == {level}


def test_what_fits_is_kept_whole() -> None:
    """At 1F1B's own peak nothing is recomputed."""
    costs = profile(4)
    schedule = build("mario:limit=400B", costs, 8)
    trace = simulate(schedule, costs, 400)
    assert trace.makespan_ns == simulate(build("1f1b", costs, 8), costs).makespan_ns


def test_a_level_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidSchedule, match="the profile small has no such level; it has light"):
        build("mario:level=ful", profile(2), 2)


def test_without_levels_it_is_1f1b() -> None:
    plain = unit_profile(3)
    schedule = build("mario:limit=1GiB", plain, 4)
    assert schedule == build("1f1b", plain, 4)
    assert not any(op.kind is C for program in schedule.programs for op in program)
