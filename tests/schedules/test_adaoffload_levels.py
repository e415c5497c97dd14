"""AdaOffload with levels: worked cells, validity on any profile, and never slower than without."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recompute_cases import profile
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, build, check, load_profile, simulate
from optpipe_sim.errors import NoSolution, OutOfMemory


@pytest.mark.parametrize(
    ("devices", "microbatches", "copy_ns", "most_ns"),
    [
        (4, 8, 5, 291),  # copies hide: all is offloaded, as the optimum has it
        (4, 8, 24, 300),  # the best known without a fused backward was 305
        (8, 16, 24, 650),  # offloading alone takes 795, recomputing alone 720
        (16, 32, 24, 1345),  # 1631 and 1622
    ],
)
def test_two_slots_at_several_speeds_of_copies(
    devices: int, microbatches: int, copy_ns: int, most_ns: int
) -> None:
    offload = {"t_offload_ns": copy_ns, "t_reload_ns": copy_ns}
    costs = profile(devices, offload=offload, memory_limit_bytes=200)
    schedule = build("adaoffload-r", costs, microbatches)
    assert check(schedule, costs) == []
    trace = simulate(schedule, costs)
    assert max(trace.peak_bytes) <= 200
    assert trace.makespan_ns <= most_ns
    assert (trace.recomputed > 0) is (copy_ns > 5)


@st.composite
def uneven(draw: st.DrawFn) -> CostProfile:
    """Up to three devices and two chunks, each stage with up to two levels; with or without a
    host link."""
    number = st.integers(1, 30)
    chunks = draw(st.integers(1, 2))
    stages = []
    for _ in range(chunks * draw(st.integers(1, 3))):
        act = draw(st.integers(60, 100))
        levels = [
            {
                "name": name,
                "t_ns": draw(number),
                "keep_bytes": draw(st.integers(0, act)),
                "work_bytes": draw(st.integers(0, 40)),
            }
            for name in draw(st.sampled_from([[], ["a"], ["a", "b"]]))
        ]
        times = {"t_f_ns": draw(number), "t_b_ns": draw(number), "t_w_ns": draw(number)}
        w = {"w_bytes": draw(st.integers(0, 60))}
        stages.append({**times, **w, "act_bytes": act, "recompute": levels})
    data = {"name": "uneven", "devices": len(stages) // chunks, "chunks": chunks, "stages": stages}
    if draw(st.booleans()):
        time = draw(st.integers(0, 60))
        engines = draw(st.sampled_from(["separate", "shared"]))
        data["offload"] = {"t_offload_ns": time, "t_reload_ns": time, "copy_engines": engines}
    return load_profile(data)


@settings(max_examples=30, deadline=None)
@given(uneven(), st.integers(1, 6), st.integers(100, 500))
def test_valid_within_the_limit_and_never_slower_than_without_levels(
    costs: CostProfile, microbatches: int, limit: int
) -> None:
    plain = None
    with contextlib.suppress(OutOfMemory, NoSolution):
        plain = simulate(build("adaoffload", costs, microbatches, limit=limit), costs, limit)
    try:
        schedule = build("adaoffload-r", costs, microbatches, limit=limit)
    except (OutOfMemory, NoSolution):
        assert plain is None
        return
    assert check(schedule, costs, limit) == []
    trace = simulate(schedule, costs, limit)
    assert max(trace.peak_bytes) <= limit
    if plain is not None:
        assert trace.makespan_ns <= plain.makespan_ns


def test_recomputation_moves_out_of_backwards_where_devices_wait() -> None:
    """Inside backwards alone this takes 294: the C's run while gradients are under way."""
    offload = {"t_offload_ns": 24, "t_reload_ns": 24}
    costs = profile(4, offload=offload, memory_limit_bytes=200)
    schedule = build("adaoffload-r", costs, 8)
    counts = schedule_counts(schedule)
    assert 0 < counts["C"] < sum(row > 0 for row in schedule.levels.table.flat)
    assert check(schedule, costs) == []
    assert simulate(schedule, costs).makespan_ns == 291


def schedule_counts(schedule: Schedule) -> Counter[str]:
    return Counter(op.kind.name for program in schedule.programs for op in program)


def test_without_levels_or_limit_it_is_adaoffload() -> None:
    plain = unit_profile(3, memory_limit_bytes=200, offload={"t_offload_ms": 1, "t_reload_ms": 1})
    assert build("adaoffload-r", plain, 5) == build("adaoffload", plain, 5)
    assert build("adaoffload-r", profile(3), 5).recompute == {}


def test_with_full_recomputation_backwards_run_as_one_where_w_needs_more() -> None:
    """6 of 100 bytes are kept, W needs 50: a split B would hold those; AdaOffload with B and W apart
    came to a deadlock under this limit."""
    costs = profile(4, memory_limit_bytes=200)
    for apart in ("no", "yes"):
        schedule = build(f"adaoffload:recompute=full,apart={apart}", costs, 8)
        assert check(schedule, costs) == []
        assert {op.kind.name for op in schedule.programs[0]} >= {"F", "BW"}
        assert max(simulate(schedule, costs).peak_bytes) <= 200
    light = build("adaoffload:recompute=light", costs, 8)
    assert "BW" not in {op.kind.name for op in light.programs[0]}
