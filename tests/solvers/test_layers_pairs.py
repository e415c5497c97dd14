"""Layers to stages where a forward and a backward run as one op: what runs is balanced, not the sums of ops."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.frameworks.megatron.best_plan import best
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile.items import deal_items
from optpipe_sim.solvers.layers.bound import layout_bound
from optpipe_sim.solvers.layers.moved import counts_of, device_work, moves, one_by_one, solve_layers

# Without pairs a layer with experts takes longer than a dense one, 40 against 30; in a pair, which hides its exchange, less: 24.
DENSE = {
    "name": "dense", "t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 10, "act_mib": 1,
    "streams": {"forward_ms": [10, 0, 0, 0], "backward_ms": [0, 0, 0, 20]},
}  # fmt: skip
EXPERTS = {
    "name": "experts", "t_f_ms": 16, "t_b_ms": 16, "t_w_ms": 8, "act_mib": 1,
    "streams": {"forward_ms": [4, 4, 4, 4], "backward_ms": [4, 8, 4, 8]},
}  # fmt: skip
A, B = [4, 7, 9, 4], [5, 7, 6, 6]


def _profile(work: dict[str, Any]) -> CostProfile:
    items = [{**one, "count": 6} for one in (DENSE, EXPERTS, DENSE, EXPERTS)]
    return load_profile(
        {
            "devices": 2,
            "chunks": 2,
            "items": items,
            "t_comm_us": 100,
            "meta": {"work": work, "model": {"kind": "experts"}},
        }
    )


def _ns(profile: CostProfile, pairs: str) -> int:
    return simulate(build(f"1f1b-i:chunks=2,pairs={pairs}", profile, 16), profile).makespan_ns


def test_the_better_partition_is_another_with_pairs() -> None:
    """As Tessera (OSDI 2026) reports: of two partitions one is faster without overlap, the other with it."""
    profile = _profile({})
    a, b = (profile.with_layout(counts) for counts in (A, B))
    assert _ns(a, "no") < 0.9 * _ns(b, "no")
    assert _ns(b, "yes") < 0.9 * _ns(a, "yes")


def test_what_an_item_takes_in_a_pair() -> None:
    dense, experts = (_profile({}).items[at] for at in (0, 6))
    assert dense.paired_ns == dense.cost.work_ns == 30_000_000
    assert experts.paired_ns == 24_000_000
    assert experts.computing.cost.work_ns == 24_000_000
    assert dense.computing == dense


def test_a_balanced_layout_is_balanced_in_what_runs() -> None:
    profile = _profile({})

    def busiest(counts: list[int], pairs: bool) -> int:
        busy = [0, 0]
        for stage, (first, last) in enumerate(pairwise([0, *accumulate(counts)])):
            run = profile.items[first:last]
            busy[stage % 2] += sum(one.paired_ns if pairs else one.cost.work_ns for one in run)
        return max(busy)

    apart, paired = (
        deal_items(profile.items, profile.placement, pairs=pairs) for pairs in (False, True)
    )
    assert busiest(apart, False) < busiest(paired, False)
    assert busiest(paired, True) < busiest(apart, True)
    assert max(device_work(profile.with_layout(apart))) == busiest(apart, False)


@pytest.mark.parametrize(("work", "wins"), [({"exchange": "plain"}, A), ({"pairs": "combined"}, B)])
def test_megatrons_best_plan_has_the_partition_that_wins(
    work: dict[str, Any], wins: list[int]
) -> None:
    """Its order has pairs where the exchange overlaps, and layers are moved by what the replay takes."""
    profile = _profile(work)
    found = best(profile, 16, chunks=[2], recompute=False, seconds=20)
    assert found.choice.pairs is ("pairs" in work)
    pairs = "yes" if found.choice.pairs else "no"
    assert found.trace.cost_ns <= 1.02 * _ns(profile.with_layout(wins), pairs)
    counts = [cost.layers or 0 for cost in found.trace.profile.stages]
    loser = next(one for one in (A, B) if one != wins)
    assert found.trace.cost_ns < 0.9 * _ns(profile.with_layout(loser), pairs)
    assert sum(counts) == len(profile.items)


def test_the_search_balances_what_runs() -> None:
    """On one chunk each, as long as it may pair and as long as it may not; bounds are of the problem that was asked."""
    profile = _profile({}).rechunk(1)
    paired, apart = (
        solve_layers(profile, 6, time_limit=2.0, pairs=pairs, workers=1, chunks=1)
        for pairs in (True, False)
    )
    assert paired.result.schedule is not None
    assert apart.result.schedule is not None
    assert paired.result.objective_ns < apart.result.objective_ns
    assert not apart.result.schedule.has_pairs
    bounds = [layout_bound(each, 6)[0].ns for each in (profile, one_by_one(profile))]
    assert bounds[0] < bounds[1] <= apart.result.objective_ns
    assert bounds[0] <= paired.result.objective_ns


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_bound_of_all_layouts_holds_with_pairs(chunks: int) -> None:
    profile = _profile({}).rechunk(chunks)
    bound, _ = layout_bound(profile, 16, seconds=1.0)
    start = counts_of(profile)
    for counts in (start, *moves(start, profile), *([A, B] if chunks == 2 else [])):
        layout = profile.with_layout(counts)
        order = f"1f1b-i:chunks={chunks},pairs=yes"
        assert bound.ns <= simulate(build(order, layout, 16), layout).makespan_ns
    compute = sum(item.computing.cost.work_ns for item in profile.items)
    assert bound.ns >= 16 * compute // 2
    plain = replace(profile, items=tuple(replace(item, streams=None) for item in profile.items))
    assert (
        layout_bound(plain, 16)[0].ns < bound.ns
    )  # then only that a pair takes no less than either op
