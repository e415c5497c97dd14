"""Slices of the sequence: notation, files, costs, keys and values, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import cases, profiles
from unit_profiles import UNIT, unit_profile

from optpipe_sim import CostProfile, Schedule, build, check, load_profile, simulate
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.bounds.slices import fill_and_drain
from optpipe_sim.errors import InvalidSchedule, OutOfMemory, ProfileError
from optpipe_sim.ops import B, F, O, Op, SliceOp, dependencies, parse_op
from optpipe_sim.profile_io import profile_to_json
from optpipe_sim.schedule import Shape
from optpipe_sim.sim.lower import lower
from optpipe_sim.stage_cost import without_overhead


def sliced(slices: int = 2, devices: int = 1, offload: Any = None, **stage: Any) -> CostProfile:
    costs = {"t_f_ns": 10, "t_b_ns": 10, "t_w_ns": 10, "act_bytes": 100, "w_bytes": 0, **stage}
    data = {"devices": devices, "slices": slices, "stages": costs}
    return load_profile(data | ({"offload": offload} if offload else {}))


def test_notation_and_dependencies() -> None:
    op = parse_op("B3.7/2")
    assert (str(op), op.slice, op.stage, op.microbatch) == ("B3.7/2", 2, 3, 7)
    assert parse_op("F3.7") == Op(F, 3, 7)
    assert parse_op("F3.7").slice is None
    needs = {str(need) for need in dependencies(op)}
    assert {"F3.7/2", "B4.7/2", "B3.7/3", "BW3.7/3", "R3.7/2", "C3.7/2"} <= needs
    assert {str(need) for need in dependencies(parse_op("F0.7/2"))} == {"F0.7/1"}
    assert set(dependencies(Op(F, 0, 7))) == set()


def test_shapes_count_units() -> None:
    shape = Shape(2, 1, 3, slices=4)
    assert shape.units == 12
    assert shape.op(B, 1, 6) == SliceOp(B, 1, 1, 2)
    assert shape.unit(SliceOp(B, 1, 1, 2)) == 6
    assert Shape(2, 1, 3).op(B, 1, 2) == Op(B, 1, 2)


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        ("F0.0", "1: F0.0: sequences are cut into 2 slices: write F0.0/0"),
        ("F0.0/2", "write F0.0/0"),
    ],
)
def test_ops_name_a_slice_that_there_is(op: str, problem: str) -> None:
    with pytest.raises(InvalidSchedule, match=problem):
        Schedule(Shape(2, 1, 1, slices=2), [[], [op]])
    with pytest.raises(InvalidSchedule, match=r"cut into 1 slice: write F0\.0$"):
        Schedule(Shape(1, 1, 1), [["F0.0/0"]])


@settings(max_examples=60)
@given(cases(levels=True, slices=True, differ=True, pairs=True))
def test_files_read_back_what_was_written(case: tuple[CostProfile, Schedule]) -> None:
    profile, schedule = case
    assert load_profile(profile_to_json(profile)) == profile
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert Schedule.from_text(schedule.shape, schedule.to_text()) == schedule
    assert ("slices" in schedule.to_json()["shape"]) == (profile.slices > 1)


def test_numbers_of_a_stage_may_be_lists() -> None:
    profile = sliced(
        t_f_ns=[3, 5],
        act_bytes=[40, 60],
        kv_bytes=10,
        static_bytes=7,
        recompute=[{"name": "full", "t_ns": [2, 4], "keep_bytes": 20}],
        offload={"t_offload_ns": [[6, 8]], "t_reload_ns": 9},
    )
    first, second = profile.stages[0].slices
    assert (first.t_f_ns, second.t_f_ns, first.t_b_ns, second.t_b_ns) == (3, 5, 10, 10)
    assert (first.t_offload_ns, second.t_offload_ns, second.t_reload_ns) == (6, 8, 9)
    assert [part.recompute[0].t_ns for part in (first, second)] == [2, 4]
    whole = profile.with_slices(1).stages[0]
    assert (whole.t_f_ns, whole.t_b_ns, whole.act_bytes, whole.static_bytes) == (8, 20, 100, 7)
    assert (whole.recompute[0].t_ns, whole.recompute[0].keep_bytes) == (6, 40)


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        ({"t_f_ns": [1, 2, 3]}, "stages.t_f_ns: lists 3 slices, expected 2"),
        ({"kv_bytes": 101}, "kv_bytes: 101 B is more than act_bytes, 100 B"),
        (
            {"kv_bytes": 50, "recompute": [{"name": "full", "t_ns": 1, "keep_bytes": 40}]},
            "keep_bytes: 40 B is less than kv_bytes, 50 B, which are never dropped",
        ),
    ],
)
def test_bad_slices_are_refused_by_name(stage: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        sliced(**stage)


@settings(max_examples=60)
@given(profiles(levels=True), st.integers(2, 4))
def test_equal_slices_add_up_to_the_sequence(profile: CostProfile, slices: int) -> None:
    bare = [without_overhead(cost) for cost in profile.stages]
    shortest = min(min(c.t_f_ns, c.t_b_ns, c.fused_ns) for c in bare)
    if shortest < slices:
        with pytest.raises(ProfileError, match="cannot be cut"):
            profile.with_slices(slices)
        return
    cut = profile.with_slices(slices)
    whole = cut.with_slices(1)
    for one, other in zip(profile.stages, whole.stages, strict=True):
        assert (one.work_ns, one.act_bytes, one.w_bytes) == (
            other.work_ns,
            other.act_bytes,
            other.w_bytes,
        )
    with pytest.raises(InvalidSchedule, match=f"the costs of {slices} slices"):
        cut.with_slices(slices + 1)


def test_keys_and_values_leave_behind_the_last_forward() -> None:
    """Of 100 bytes 30 are keys and values: an O before the last slice's F moves 70 in 7 ns; one
    behind it waits for that F and moves all in 10 ns."""
    copies = {"t_offload_ns": 10, "t_reload_ns": 10}
    profile = sliced(kv_bytes=30, offload=copies)
    back = ["B0.0/1", "W0.0/1", "R0.0/0", "B0.0/0", "W0.0/0"]
    shape = profile.shape(1)
    early = Schedule(shape, [["F0.0/0", "O0.0/0", "F0.0/1", *back]])
    late = Schedule(shape, [["F0.0/0", "F0.0/1", "O0.0/0", *back]])
    for schedule, start, end, held in ((early, 10, 17, 130), (late, 20, 30, 100)):
        for engine in ("replay", "simpy"):
            trace = simulate(schedule, profile, engine=engine)
            span = trace.span(parse_op("O0.0/0"))
            assert (span.start_ns, span.end_ns) == (start, end)
            steps = trace.memory[0]
            assert steps.bytes[np.searchsorted(steps.times_ns, end, "right") - 1] == held
        assert check(schedule, profile) == []
        assert lower(schedule, profile).replay().makespan_ns == trace.makespan_ns
    # what no copy takes along anyway needs no wait
    some = sliced(kv_bytes=30, offload_bytes=60, offload=copies)
    assert simulate(late, some).span(parse_op("O0.0/0")).start_ns == 10


@pytest.mark.parametrize("kv", [0, 30])
def test_lowering_moves_an_offload_across_the_last_forward_where_that_changes_nothing(
    kv: int,
) -> None:
    """Only one activation fits: F0.0/1 waits until O0.0/0, which follows it in the program, has ended. Lowered, the O precedes it;
    it moves 60 bytes on either side, of 100, at most 30 of them keys and values."""
    profile = sliced(kv_bytes=kv, offload_bytes=60, offload={"t_offload_ns": 5, "t_reload_ns": 5})
    program = "F0.0/0 F0.0/1 O0.0/0 BW0.0/1 R0.0/0 BW0.0/0"
    schedule = Schedule(profile.shape(1), [program.split()])
    trace = simulate(schedule, profile, 140)
    assert trace.span(parse_op("F0.0/1")).start_ns == 15
    lowered = lower(schedule, profile, 140)
    assert sorted(lowered.replay().spans) == sorted(trace.spans)
    assert lowered.schedule.to_text() == "0: F0.0/0 O0.0/0 F0.0/1 BW0.0/1 R0.0/0 BW0.0/0\n"


def test_backwards_come_in_reverse() -> None:
    profile = sliced()
    wrong = Schedule(
        profile.shape(1), [["F0.0/0", "F0.0/1", "B0.0/0", "B0.0/1", "W0.0/0", "W0.0/1"]]
    )
    (problem,) = check(wrong, profile)
    assert "circle" in problem


def test_chunks_of_a_device_take_slices_in_any_order() -> None:
    """Two chunks on one device: if each slice passes both before the next one, 24 bytes are enough. Recomputed are
    the first chunk and the second one's first slice."""
    level = {"name": "full", "t_ns": 3}
    first = {"act_bytes": 12, "kv_bytes": [0, 2], "recompute": [{**level, "keep_bytes": [8, 6]}]}
    second = {"act_bytes": [12, 6], "kv_bytes": 2, "recompute": [{**level, "keep_bytes": [4, 2]}]}
    times = {"t_f_ns": 4, "t_b_ns": 5, "t_w_ns": 4}
    data = {"devices": 1, "chunks": 2, "slices": 2, "stages": [times | first, times | second]}
    profile = load_profile(data)
    program = ["F0.0/0", "F1.0/0", "F0.0/1", "F1.0/1", "BW1.0/1", "BW0.0/1", "BW1.0/0", "BW0.0/0"]
    levels = {"0": "full", "1.0/0": "full"}
    schedule = Schedule(profile.shape(1), [program], recompute=levels)
    assert simulate(schedule, profile, 24).peak_bytes == (24,)
    assert simulate(schedule, profile, 24, engine="simpy").peak_bytes == (24,)
    assert check(schedule, profile, 24) == []
    assert profile.least_limits == (24,)
    with pytest.raises(OutOfMemory, match="no limit works below 24B, with 2 chunks"):
        simulate(schedule, profile, 23)


@settings(max_examples=80)
@given(cases(levels=True, slices=True, differ=True, pairs=True))
def test_no_schedule_stays_below_the_least_limits(case: tuple[CostProfile, Schedule]) -> None:
    profile, schedule = case
    peaks = simulate(schedule, profile, enforce=False).peak_bytes
    assert all(map(int.__le__, profile.least_limits, map(int, peaks)))
    assert not any("below the" in said for said in check(schedule, profile, list(map(int, peaks))))


@settings(max_examples=80)
@given(cases(levels=True, slices=True, differ=True, pairs=True), st.sampled_from(("flush", "span")))
def test_no_replay_beats_the_bound(case: tuple[CostProfile, Schedule], objective: str) -> None:
    profile, schedule = case
    assume(profile.slices > 1)
    trace = simulate(schedule, profile, enforce=False, objective=objective)
    for limits in (None, trace.peak_bytes):
        m, pairs = schedule.shape.microbatches, schedule.has_pairs
        bound = lower_bound(profile, m, objective, limits, pairs)
        assert bound.ns <= trace.cost_ns


def test_memory_bounds_what_slices_take() -> None:
    """Four devices, two slices of F = B = W = 1 ms: the first backward of the first device begins
    no sooner than five F's and three B's after the start, and three F's fit before it."""
    profile = unit_profile(4, slices=2, stages=UNIT | {"act_bytes": 10, "w_bytes": 0})
    m, ms = 8, 1_000_000
    assert lower_bound(profile, m).ns == (3 + m * 2 * 3) * ms
    assert fill_and_drain(profile, m, "flush", 30) == (m * 2 * 3 + 8 - 3) * ms
    assert lower_bound(profile, m, "flush", 20) == ((m * (10 + 8) // 2) * ms, "residency")


def test_without_a_name_for_slices_sequences_stay_whole() -> None:
    profile = sliced(slices=2, devices=2)
    assert build("1f1b", profile, 2).shape.slices == 1
    assert build("seq1f1b", profile, 2).shape.slices == 2
    assert build("gis:slices=2", profile, 2).shape.slices == 2
    whole = simulate(build("1f1b", profile, 2), profile)
    assert whole.profile.stages[0].t_f_ns == 20
    assert {
        op.slice
        for op in build(
            "sppo", sliced(devices=2, offload={"t_offload_ns": 1, "t_reload_ns": 1}), 4
        ).programs[0]
        if op.kind is O
    } == {0}
