"""Which shape the search over all chunks turns to, and from what it starts there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from optpipe_sim import load_profile, solve
from optpipe_sim.profile import CostProfile
from optpipe_sim.solvers import shapes
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race import shapes as races
from optpipe_sim.solvers.race.portfolio import Race
from optpipe_sim.solvers.result import SolveResult


def layered(devices: int = 4) -> CostProfile:
    """Stages of two layers that may be recomputed in full."""
    stage = {
        "t_f_ns": 20, "t_b_ns": 20, "t_w_ns": 16, "act_bytes": 40, "w_bytes": 20, "layers": 2,
        "recompute": [{"name": "full", "t_ns": 20, "keep_bytes": 4}],
    }  # fmt: skip
    return load_profile({"name": "layered", "devices": devices, "stages": stage})


@pytest.mark.parametrize("workers", [1, 2])
def test_adaoffload_with_levels_has_time_of_its_own_and_the_search_begins_with_it(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """However long the published schedules take: the search of 16 devices else found nothing in 21 s."""

    def slow(races: Sequence[Race], rules: Any, over: Callable[[], bool], _: int) -> int:
        while not over():
            time.sleep(0.01)
        return len(rules)

    begun: list[tuple[int, Sequence[Any]]] = []

    def solve_problem(
        problem: Any, options: Any, start: Any, hooks: Any, chosen: Any, brief: bool
    ) -> SolveResult:
        begun.append((problem.shape.chunks, chosen))
        return real(problem, options, start, hooks, chosen, brief)

    real = shapes.solve_problem
    monkeypatch.setattr(races, "run_rules", slow)
    monkeypatch.setattr(shapes, "solve_problem", solve_problem)
    monkeypatch.setattr(races, "LEAST_S", 0.0)
    found = solve(layered(), 8, 90, time_limit=2, chunks="any", workers=workers)
    assert found.info["untried"] > 0
    assert begun
    assert all(chosen for _, chosen in begun)


def test_a_shape_promises_more_the_longer_it_is_searched_and_the_fewer_ops_it_has() -> None:
    one, two = layered(8).rechunk(1, "loop"), layered(8).rechunk(2, "loop")
    problems = [make_problem(each, 32, 200) for each in (one, two)]
    common = races.Shapes(problems, Race(problems[0]))
    assert common.promise(0, 1.0) == float("inf")  # nothing is known of it yet
    for at, own in enumerate(common.races):
        races.run_adaoffload(own, 0.0)
        cost, bound = common.costs[at], common.bounds[at].ns
        promised = [common.promise(at, seconds) for seconds in (-9e9, 0.0, 0.01, 0.1, 1.0, 100.0)]
        assert promised[0] == promised[1] == cost  # no time is left
        assert promised == sorted(promised, reverse=True)
        assert promised[-1] == pytest.approx(cost - races.CLOSED * (cost - bound))
    shares = [
        (common.costs[at] - common.promise(at, 0.2)) / (common.costs[at] - common.bounds[at].ns)
        for at in (0, 1)
    ]
    assert shares[0] > shares[1]


def test_the_shape_of_the_least_bound_has_an_early_turn_whatever_its_patterns() -> None:
    shapes_of = [layered(8).rechunk(count, "loop") for count in (1, 2)]
    problems = [make_problem(each, 32, 200) for each in (*shapes_of, shapes_of[0], shapes_of[0])]
    common = races.Shapes(problems, Race(problems[0]))
    for at in (0, 2, 3):
        races.run_adaoffload(common.races[at], 0.0)
    assert common.bounds[1].ns < common.bounds[0].ns
    assert common.starts[1] is None  # so that it promises nothing
    assert next(common.turns(60.0))[0] == 0
    assert common._by_promise(30.0)[1] == 1


def test_turns_become_longer_for_fewer_shapes_and_only_the_last_are_not_brief(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = [make_problem(layered().rechunk(count, "loop"), 8, 90) for count in (1, 2)]
    common = races.Shapes([*problems, *problems], Race(problems[0]))
    for own in common.races:
        races.run_adaoffload(own, 0.0)
    clock = [0.0]
    monkeypatch.setattr(Race, "seconds", property(lambda _: clock[0]))
    turns = []
    for at, seconds, brief in common.turns(12.0):
        turns.append((at, round(seconds, 3), brief))
        clock[0] += seconds
    assert [turn[1:] for turn in turns] == [(1.333, True)] * 3 + [(2.0, True)] * 2 + [(4.0, False)]
