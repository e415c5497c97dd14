"""Megatron-LM's offloading: what stays on the device, when copies are issued, what is refused."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, build, check, simulate
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.ops import BW, F, O, R


def profile_of(p: int, chunks: int = 1, copy_ms: int = 1) -> CostProfile:
    return unit_profile(
        p, chunks, offload={"t_offload_ms": copy_ms, "t_reload_ms": copy_ms}, t_comm_ms=0
    )


def offloaded(schedule: Schedule, rank: int) -> list[int]:
    """The microbatches that a device offloads, one chunk per device."""
    return [op.microbatch for op in schedule.programs[rank] if op.kind is O]


def test_what_stays_by_default() -> None:
    """The first backward's; all of the last device, where each backward follows its forward."""
    schedule = build("megatron-offload", profile_of(4), 8)
    for rank in range(3):
        assert offloaded(schedule, rank) == [1, 2, 3, 4, 5, 6, 7]
    assert offloaded(schedule, 3) == []
    assert check(schedule, profile_of(4)) == []


@pytest.mark.parametrize("delta", [50, 100, 130, 250])
def test_later_ranks_keep_delta_more_each(delta: int) -> None:
    """100 bytes per activation: rank r keeps ceil(r * delta / 100) after the first one."""
    schedule = build(f"megatron-offload:delta={delta}B", profile_of(4), 12)
    for rank in range(3):
        kept = min(11, ceil(rank * delta / 100))
        assert offloaded(schedule, rank) == list(range(1 + kept, 12))


@pytest.mark.parametrize(("fraction", "count"), [("0", 0), ("0.25", 3), ("0.5", 6), ("1", 11)])
def test_a_share_of_what_is_left_leaves(fraction: str, count: int) -> None:
    schedule = build(f"megatron-offload:fraction={fraction}", profile_of(4), 12)
    assert [len(offloaded(schedule, rank)) for rank in range(4)] == [count, count, count, 0]


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_order_is_that_of_1f1b_and_reloads_are_one_ahead(chunks: int) -> None:
    profile = profile_of(4, chunks)
    schedule = build("megatron-offload", profile, 8)
    base = build("1f1b" if chunks == 1 else "1f1b-i", profile, 8)
    assert check(schedule, profile) == []
    spans = {span.op: span for span in simulate(schedule, profile).spans}
    assert {op.kind for op in spans} >= {O, R}
    for program, ordered in zip(schedule.programs, base.programs, strict=True):
        assert tuple(op for op in program if op.kind in (F, BW)) == ordered
        backwards = [op for op in program if op.kind is BW]
        for before, after in pairwise(backwards):
            reload = after._replace(kind=R)
            if reload in spans:
                assert program[program.index(before) + 1] == reload
                assert spans[reload].start_ns >= spans[before].start_ns
        for at, op in enumerate(program):
            assert op.kind is not O or program[at - 1] == op._replace(kind=F)


def test_fast_copies_cost_no_time_and_leave_three_on_the_device() -> None:
    """Copies shorter than any op: on rank 0 of 8 the first activation, one that runs, one that comes
    back are there at a time, of 1F1B's 8; and nothing waits."""
    stages = {"t_f_us": 1000, "t_b_us": 1000, "t_w_us": 1000, "act_bytes": 100, "w_bytes": 0}
    profile = unit_profile(8, stages=stages, offload={"t_offload_us": 500, "t_reload_us": 500})
    trace = simulate(build("megatron-offload", profile, 32), profile)
    plain = simulate(build("1f1b", profile, 32), profile)
    assert trace.makespan_ns == plain.makespan_ns
    assert (trace.peak_bytes[0], plain.peak_bytes[0]) == (300, 800)


def test_refused() -> None:
    with pytest.raises(InvalidSchedule, match="the profile unit has no offload section"):
        build("megatron-offload", unit_profile(4), 4)
    with pytest.raises(InvalidSchedule, match="delta: must be at least 0 bytes, got -1"):
        build("megatron-offload", profile_of(4), 4, delta=-1)
    with pytest.raises(InvalidSchedule, match=r"fraction: must be from 0 to 1, got 1\.5"):
        build("megatron-offload", profile_of(4), 4, fraction=1.5)
    with pytest.raises(OptPipeError, match="'2' is not a share: write a number from 0 to 1"):
        build("megatron-offload:fraction=2", profile_of(4), 4)
    with pytest.raises(InvalidSchedule, match="microbatches must be a multiple of the devices, 4"):
        build("megatron-offload:chunks=2", profile_of(4), 6)
