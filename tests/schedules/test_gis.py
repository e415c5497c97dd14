"""GIS, GIS-H and any group size: the published bubble and peak, and what is not admitted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, build, load_profile, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.schedule import validate

UNIT, UNEQUAL = (1, 1, 1), (10, 12, 9)


def profile_of(p: int, v: int, times: tuple[int, int, int]) -> CostProfile:
    f, b, w = times
    stages = {"t_f_ms": f, "t_b_ms": b, "t_w_ms": w, "act_bytes": 100, "w_bytes": 100}
    return unit_profile(p, v, stages=stages)


def bubble_and_peak(schedule: Schedule, profile: CostProfile) -> tuple[int, int]:
    """In ms and chunk activations."""
    trace = simulate(schedule, profile)
    return (trace.makespan_ns - max(trace.busy_ns)) // 1_000_000, max(trace.peak_bytes) // 100


def formula(p: int, v: int, g: int, times: tuple[int, int, int]) -> int:
    """(d-1)(TF+TB) + (d-g)(v-1)(TF+TB-TW): PipeOffload, table 1 and section 4."""
    f, b, w = times
    return (p - 1) * (f + b) + (p - g) * (v - 1) * (f + b - w)


def test_official_scheduler_at_unit_costs() -> None:
    profile = profile_of(8, 4, UNIT)
    assert bubble_and_peak(build("gis", profile, 32), profile) == (14, 32)
    assert bubble_and_peak(build("gis-h", profile, 32), profile) == (26, 20)


@pytest.mark.parametrize("times", [UNIT, UNEQUAL, (2, 3, 2), (1, 2, 1)])
@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 3), (8, 2), (5, 4)])
@pytest.mark.parametrize("groups", [2, 5])
def test_gis_formulas(p: int, v: int, times: tuple[int, int, int], groups: int) -> None:
    profile = profile_of(p, v, times)
    found = bubble_and_peak(build("gis", profile, groups * p), profile)
    assert found == (formula(p, v, p, times), p * v)
    if p % 2 == 0:
        found = bubble_and_peak(build("gis-h", profile, groups * p), profile)
        assert found == (formula(p, v, p // 2, times), p // 2 * (v - 1) + p)


@pytest.mark.parametrize("times", [UNIT, UNEQUAL, (2, 3, 2)])
@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 3), (8, 2), (5, 4)])
def test_late_weight_gradients_fill_the_drain(p: int, v: int, times: tuple[int, int, int]) -> None:
    """Each that the last device postpones takes a W off the bubble, down to ZB-H1's, at GIS's memory; each F
    that the first device runs ahead takes the memory of one more activation."""
    profile = profile_of(p, v, times)
    f, b, w = times
    for late in range(p):
        found = bubble_and_peak(build(f"gis:late={late}", profile, 2 * p), profile)
        assert found == ((p - 1) * (f + b) - late * w, p * v)
    peak = bubble_and_peak(build(f"gis:late={p - 1},early=1", profile, 2 * p), profile)[1]
    assert peak == p * v + 1


@pytest.mark.parametrize("times", [UNIT, UNEQUAL])
@pytest.mark.parametrize("g", [4, 5, 6, 7, 8])
def test_any_group_size(g: int, times: tuple[int, int, int]) -> None:
    """Exact at unit costs; elsewhere closing the gaps can only do better."""
    profile = profile_of(8, 3, times)
    bubble, peak = bubble_and_peak(build(f"gis:group={g}", profile, 3 * g), profile)
    assert bubble <= formula(8, 3, g, times)
    assert peak == 2 * g + 8
    if times == UNIT:
        assert bubble == formula(8, 3, g, times)


def test_gis_h_of_odd_devices_takes_the_larger_half() -> None:
    profile = profile_of(5, 2, UNIT)
    assert build("gis-h", profile, 6) == build("gis", profile, 6, group=3)


def test_incomplete_group_costs_extra_but_no_memory() -> None:
    profile = profile_of(4, 2, UNIT)
    bubble, peak = bubble_and_peak(build("gis", profile, 9), profile)
    assert bubble > formula(4, 2, 4, UNIT)
    assert peak == 8


def test_slow_forwards_keep_more_under_way() -> None:
    """Where half the devices do not cover the forward latency, GIS-H spends memory, so that the
    bubble does not grow with m."""
    profile = profile_of(8, 2, (4, 1, 1))
    bubbles = {bubble_and_peak(build("gis-h", profile, m), profile)[0] for m in (16, 32)}
    assert len(bubbles) == 1


def test_worked_case_with_hops_keeps_the_authors_peak() -> None:
    """4 devices of 4 chunks in groups of 2, a hop of 10 % of a device's F: 10 chunk activations."""
    stages = {"t_f_us": 2500, "t_b_us": 2750, "t_w_us": 2250, "act_bytes": 100, "w_bytes": 100}
    profile = unit_profile(4, 4, stages=stages, t_comm_us=1000)
    assert bubble_and_peak(build("gis:group=2", profile, 8), profile)[1] == 10


@settings(deadline=None, max_examples=25)
@given(
    st.integers(2, 6),
    st.integers(2, 4),
    st.data(),
    st.tuples(st.integers(5, 20), st.integers(5, 20), st.integers(0, 20)),
    st.integers(1, 100),
)
def test_hops_add_no_memory(
    p: int, v: int, data: st.DataObject, times: tuple[int, int, int], hop: int
) -> None:
    """The order, and with it what devices hold, is that of the same costs without hops."""
    group, microbatches = data.draw(st.integers(1, p)), data.draw(st.integers(1, 3 * p))
    f, b, w = times
    stages = {"t_f_us": f, "t_b_us": b, "t_w_us": w, "act_bytes": 100, "w_bytes": 100}
    near = unit_profile(p, v, stages=stages)
    far = unit_profile(p, v, stages=stages, t_comm_us=hop)
    peaks = [
        simulate(build("gis", profile, microbatches, group=group), profile).peak_bytes
        for profile in (near, far)
    ]
    assert peaks[1] == peaks[0]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(*[st.integers(1, 50)] * 2, st.integers(0, 50)), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(0, 60),
)
def test_uneven_costs_run_through(
    times: list[tuple[int, int, int]], chunks: int, group: int, microbatches: int, comm: int
) -> None:
    p = -(-len(times) // chunks)
    times = (times * chunks)[: p * chunks]
    stages = [{"t_f_us": f, "t_b_us": b, "t_w_us": w, "act_bytes": 10} for f, b, w in times]
    profile = load_profile({"devices": p, "chunks": chunks, "stages": stages, "t_comm_us": comm})
    schedule = build("gis", profile, microbatches, chunks=chunks, group=group)
    validate(schedule)
    simulate(schedule, profile)
    for program in schedule.programs:  # W right behind its B
        weights = [at for at, op in enumerate(program) if op.kind.name == "W"]
        assert all(program[at - 1][1:] == program[at][1:] for at in weights)


@pytest.mark.parametrize("options", [{"group": 0}, {"group": -2}, {"chunks": 0}])
def test_refused(options: dict[str, int]) -> None:
    (key,) = options
    with pytest.raises(InvalidSchedule, match=f"{key}: must be at least 1, got {options[key]}"):
        build("gis", unit_profile(4), 4, **options)


@pytest.mark.parametrize("name", ["gis", "po"])
@pytest.mark.parametrize("option", ["early", "late"])
def test_negative_shifts_are_refused(name: str, option: str) -> None:
    profile = unit_profile(4, 2, offload={"t_offload_ms": 1, "t_reload_ms": 1})
    with pytest.raises(InvalidSchedule, match=f"^{option}: must not be negative, got -1$"):
        build(f"{name}:{option}=-1", profile, 4)
