"""Megatron-LM's deferred gradients of the head's weights."""

from __future__ import annotations

import pytest
from unit_profiles import unit_profile

from optpipe_sim import build, check, simulate
from optpipe_sim.costs import estimate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.frameworks.megatron.family import Choice, choices, member, nearest, plan_of
from optpipe_sim.ops import BW, B, W


@pytest.mark.parametrize(("p", "v", "m", "deferred"), [(4, 1, 8, 0), (4, 2, 8, 0), (2, 3, 6, 2)])
def test_the_order_is_1f1b_and_the_heads_weights_come_last(
    p: int, v: int, m: int, deferred: int
) -> None:
    profile = unit_profile(p, v)
    schedule = build("megatron-defer", profile, m, chunks=v, deferred=deferred)
    assert check(schedule, profile) == []
    name = "1f1b" if v == 1 else f"1f1b-i:chunks={v}"
    base = build(name, profile, m)
    assert schedule.flat_programs[:-1] == base.flat_programs[:-1]
    own, late = schedule.flat_programs[-1], deferred or m
    assert [op.kind for op in own[-late:]] == [W] * late
    whole = [op._replace(kind=BW) if op.kind is B else op for op in own[:-late]]
    assert tuple(whole) == base.flat_programs[-1]
    split = [op.microbatch for op in own if op.kind is B]
    assert split == [op.microbatch for op in own if op.kind is W] == list(range(late))
    assert not schedule.issued_split  # its trainer splits no other backward


def test_what_is_deferred_runs_while_the_last_rank_would_wait() -> None:
    """Each of the six backwards of the last stage is 1 shorter, and so is every wait for the first of them: 27 becomes 25."""
    profile = unit_profile(4, 1)
    plain, late = (
        simulate(build(name, profile, 6), profile) for name in ("1f1b", "megatron-defer")
    )
    assert (plain.makespan_ns, late.makespan_ns) == (27_000_000, 25_000_000)


def test_a_last_stage_with_layers_is_refused_and_a_head_alone_is_in_the_family() -> None:
    run = {"model": "qwen3-0.6b", "machine": "h100", "devices": 4, "levels": False, "items": True}
    with pytest.raises(InvalidSchedule, match="has layers beside the head"):
        build("megatron-defer", estimate(**run, layers=[8, 8, 8, 4]), 8)
    profile = estimate(**run, layers=[9, 9, 10, 0])
    assert Choice(1, deferred=0) in list(choices(profile, 8, 1))
    schedule = build("megatron-defer:deferred=4", profile, 8)
    choice = member(schedule, profile)
    assert choice == Choice(1, deferred=4)
    assert not nearest(schedule, profile)[1].lost
    options = plan_of(choice, profile, 8)[0].options()
    assert options["defer-embedding-wgrad-compute"] is True
    assert options["wgrad-deferral-limit"] == 4


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(InvalidSchedule, match="deferred: must be at least 0"):
        build("megatron-defer:deferred=-1", unit_profile(2, 1), 4)
    with pytest.raises(InvalidSchedule, match="one chunk has no groups"):
        build("megatron-defer:group=4", unit_profile(2, 1), 4)
