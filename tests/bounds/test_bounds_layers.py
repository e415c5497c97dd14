"""The search of one device in layers: with enough nodes the optimum of the best-first search, never more with few."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from bound_cases import devices_of
from greedy_cases import uniform
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import SEEDS, limited, profiles
from tiny_cases import tiny, tiny_with_levels

from optpipe_sim import CostProfile
from optpipe_sim.bounds.device.device_bound import device_bound, layered_bound
from optpipe_sim.bounds.device.prices import prices
from optpipe_sim.bounds.device.problem import OneDevice

OBJECTIVES = ("flush", "span")
ALL = 1 << 30  # so many nodes of the same counts that none are merged


def assert_agrees(problem: OneDevice, random: Random) -> tuple[int, int]:
    """Return the optimum of a device, and the best that few nodes prove; (0, 0) where it is not found quickly."""
    optimum, final = device_bound(problem, nodes=20_000)
    if not final or not problem.possible:
        return 0, 0
    few = []
    for priced in (None, prices(problem)):
        found, final = layered_bound(problem, priced, ALL)
        assert (found, final) in ((optimum, True), (0, True))  # 0: no order of ops goes through
        if not found:
            return 0, 0
        few += [layered_bound(problem, priced, width)[0] for width in (1, 2, 5)]
        assert layered_bound(problem, priced, ALL, most=random.randint(1, 60))[0] <= optimum
        goal = max(1, optimum + random.randint(-3, 3))
        assert layered_bound(problem, priced, ALL, goal)[0] == min(goal, optimum)
        assert layered_bound(problem, priced, 1, goal)[0] <= min(goal, optimum)
    assert max(few) <= optimum
    return optimum, max(few)


@pytest.mark.parametrize(("make", "count"), [(tiny, 15), (tiny_with_levels, 11)])
def test_it_finds_the_optimum_and_never_more(
    make: Callable[[Random], tuple[CostProfile, int]], count: int
) -> None:
    solved = met = 0
    # among them 110: a merged node that dominates others must not keep its own, higher estimate
    for seed in range(100, 100 + count):
        random = Random(seed)
        profile, microbatches = make(random)
        microbatches = min(microbatches + random.randint(0, 4), 8 // profile.chunks)
        for problem in devices_of(profile, microbatches, random.choice(OBJECTIVES)):
            optimum, few = assert_agrees(problem, random)
            solved += optimum > 0
            met += 0 < optimum == few
    assert solved >= count // 2
    assert met >= 0.8 * solved


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(profiles(offload=True, max_chunks=2), st.integers(1, 6), SEEDS)
def test_it_agrees_with_the_best_first_search(
    profile: CostProfile, microbatches: int, seed: int
) -> None:
    random = Random(seed)
    for problem in devices_of(limited(profile, random), microbatches, random.choice(OBJECTIVES)):
        assert_agrees(problem, random)


def test_more_nodes_prove_more_than_the_best_first_search_does() -> None:
    problem = devices_of(uniform(8, 300, 40), 24)[0]  # three slots, copies as long as four F's
    priced = prices(problem)
    few, more = (layered_bound(problem, priced, width)[0] for width in (4, 64))
    assert few < device_bound(problem, priced, 30_000)[0] == 980 < more == 1071
