"""Which shape the search over all chunks turns to, from what it starts there, and how few calls lead there."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optpipe_sim import build, load_profile, simulate, solve
from optpipe_sim.cli import main
from optpipe_sim.profile import CostProfile
from optpipe_sim.solvers import portfolio
from optpipe_sim.solvers.axes import candidate_shapes
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.solvers.portfolio import Portfolio
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race import jobs
from optpipe_sim.solvers.race import race as races
from optpipe_sim.solvers.race.race import Race


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

    def slow(races: Sequence[Race], rules: Any, over: Callable[[], bool], *_: Any) -> int:
        while not over():
            time.sleep(0.01)
        return len(rules)

    begun: list[Race] = []

    def compete(race: Race, *rest: Any) -> None:
        begun.append(race)
        real(race, *rest)

    real = portfolio.compete
    monkeypatch.setattr(portfolio, "run_rules", slow)
    monkeypatch.setattr(portfolio, "compete", compete)
    monkeypatch.setattr(portfolio, "FLOORS_S", 0.0)
    monkeypatch.setattr(
        portfolio, "QUICK_SHARE", 0.7
    )  # to start processes takes long on a busy machine
    found = solve(layered(), 8, 90, time_limit=3, chunks="any", workers=workers)
    assert found.info["untried"] > 0
    assert begun
    assert begun[0].starts


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("chunks", ["any", "own"])
def test_no_search_ends_above_adaoffload_that_recomputes(
    monkeypatch: pytest.MonkeyPatch, chunks: str, workers: int
) -> None:
    """Although nothing else has a turn: each shape has it as soon as the published schedules have been tried."""
    monkeypatch.setattr(portfolio, "run_rules", lambda _races, rules, *_: len(rules))
    monkeypatch.setattr(portfolio, "run_adaoffload", lambda *_: None)
    monkeypatch.setattr(Portfolio, "turns", lambda *_: iter(()))
    profile = replace(layered(), memory_limit=(80,) * 4)
    shapes = [profile] if chunks == "own" else candidate_shapes(profile)
    costs = [make_problem(one, 8).replay(build("adaoffload-r", one, 8)).cost_ns for one in shapes]
    found = solve(profile, 8, time_limit=30, chunks=chunks, workers=workers, cache=False)
    assert found.objective_ns <= min(costs)
    assert found.info["found_by"] == "adaoffload-r"


def test_a_shape_promises_more_the_longer_it_is_searched_and_the_fewer_ops_it_has() -> None:
    one, two = layered(8).rechunk(1, "loop"), layered(8).rechunk(2, "loop")
    problems = [make_problem(each, 32, 200) for each in (one, two)]
    common = Portfolio(problems, SolveOptions())
    assert common.promise(common.races[0], 1.0) == float("inf")  # nothing is known of it yet
    for race in common.races:
        portfolio.run_adaoffload(race, 0.0)
        cost, bound = race.cost_ns, race.bound_ns
        promised = [common.promise(race, seconds) for seconds in (-9e9, 0.0, 0.01, 0.1, 1.0, 100.0)]
        assert promised[0] == promised[1] == cost  # no time is left
        assert promised == sorted(promised, reverse=True)
        assert promised[-1] == pytest.approx(cost - portfolio.CLOSED * (cost - bound))
    shares = [
        (race.cost_ns - common.promise(race, 0.2)) / (race.cost_ns - race.bound_ns)
        for race in common.races
    ]
    assert shares[0] > shares[1]


def test_the_shape_of_the_least_bound_has_an_early_turn_whatever_its_patterns() -> None:
    shapes_of = [layered(8).rechunk(count, "loop") for count in (1, 2)]
    problems = [make_problem(each, 32, 200) for each in (*shapes_of, shapes_of[0], shapes_of[0])]
    common = Portfolio(problems, SolveOptions())
    for at in (0, 2, 3):
        portfolio.run_adaoffload(common.races[at], 0.0)
    assert common.races[1].bound_ns < common.races[0].bound_ns
    assert common.races[1].best is None  # so that it promises nothing
    assert next(common.turns(60.0))[0] is common.races[0]
    assert common._by_promise(30.0)[1] is common.races[1]
    common.races[1].take(common.races[0].best, 9 * common.races[0].cost_ns, "bad")
    assert common.promise(common.races[1], 30.0) > common.whole.cost_ns
    assert common._by_promise(30.0)[1] is common.races[1]
    common.races[1].turns = 1
    assert common.races[1] not in common._by_promise(30.0)


def test_so_has_the_shape_of_the_incumbent_although_others_promise_more() -> None:
    problems = [
        make_problem(layered(8).rechunk(count, "loop"), 32, 200) for count in (1, 2, 2, 2, 2)
    ]
    common = Portfolio(problems, SolveOptions())
    for race in common.races:
        portfolio.run_adaoffload(race, 0.0)
    one = common.races[0]
    one.take(one.best, min(race.cost_ns for race in common.races) - 1, "good")
    assert common.leader is one
    promised = sorted(common.races, key=lambda race: common.promise(race, 30.0))
    assert promised[-1] is one
    assert one in common._by_promise(30.0)[:3]


def test_turns_become_longer_for_fewer_shapes_and_only_the_last_are_not_brief(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = [make_problem(layered().rechunk(count, "loop"), 8, 90) for count in (1, 2)]
    common = Portfolio([*problems, *problems], SolveOptions())
    for race in common.races:
        portfolio.run_adaoffload(race, 0.0)
    clock = [0.0]
    monkeypatch.setattr(Race, "seconds", property(lambda _: clock[0]))
    turns = []
    for _, seconds, brief in common.turns(12.0):
        turns.append((round(seconds, 3), brief))
        clock[0] += seconds
    assert turns == [(1.2, True)] * 3 + [(1.05, True)] * 2 + [(6.3, False)]


def test_later_rounds_are_for_shapes_that_ran_and_may_still_end_below_the_incumbent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = [make_problem(layered(8).rechunk(count, "loop"), 32, 200) for count in (1, 2, 1, 2)]
    common = Portfolio(problems, SolveOptions())
    for race in common.races:
        portfolio.run_adaoffload(race, 0.0)
    clock = [0.0]
    monkeypatch.setattr(Race, "seconds", property(lambda _: clock[0]))
    ran: list[Race] = []
    for race, seconds, _ in common.turns(60.0):
        ran.append(race)
        clock[0] += seconds
        if len(ran) == 3:  # one of them is now ahead of what the others may gain
            leader = min(ran, key=lambda race: race.bound_ns)
            assert leader.best is not None
            leader.take(leader.best, leader.bound_ns + 1, "search")
    assert len(set(map(id, ran[:3]))) == 3
    assert ran[3:] == [leader]
    assert clock[0] == pytest.approx(60.0)


def test_a_dozen_calls_lead_from_the_command_to_the_engines_and_to_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The calls themselves are followed, and the page of the architecture names each of their files."""
    routes: list[list[str]] = []
    package = Path(inspect.getfile(portfolio)).parents[1]

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            files = [Path(frame.filename) for frame in inspect.stack()[1:]]
            inside = [path for path in files if path.is_relative_to(package)]
            routes.append([path.relative_to(package).as_posix() for path in reversed(inside)])
            return function(*given, **named)

        return call

    monkeypatch.setattr(jobs, "run_race", noted(jobs.run_race))
    monkeypatch.setattr(races, "make_result", noted(races.make_result))
    costs = tmp_path / "costs.yaml"
    stages = "{t_f_ns: 10, t_b_ns: 11, t_w_ns: 9, act_bytes: 100, w_bytes: 50, layers: 2}"
    costs.write_text(f"devices: 4\nstages: {stages}\n")
    words = ["solve", str(costs), "-m", "12", "--memory-limit", "290B", "--time-limit", "2"]
    assert main([*words, "--quiet"]) == 0
    page = (package.parent / "docs" / "architecture.md").read_text()
    walk = page[page.index("## A walk from `solve`") : page.index("## The annealer")]
    assert {route[-1] for route in routes} == {"solvers/race/jobs.py", "solvers/race/race.py"}
    for route in routes:
        assert len(route) <= 12
        assert [name for name in route[2:] if f"`{name}`" not in walk] == []


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_a_busy_machine_does_not_lose_the_plan_that_is_run_today(
    monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    """Bounds take long, no rule has its turn and the search none either; 1F1B, or interleaved 1F1B in the chunks of the
    profile, is replayed all the same."""

    def prove(race: Race, *bound: Any) -> None:
        time.sleep(0.15)
        real(race, *bound)

    real = Race.prove
    monkeypatch.setattr(Race, "prove", prove)
    monkeypatch.setattr(portfolio, "run_rules", lambda _races, rules, *_: len(rules))
    monkeypatch.setattr(portfolio, "run_adaoffload", lambda *_: None)
    monkeypatch.setattr(portfolio, "run_each", lambda *_: None)
    monkeypatch.setattr(Portfolio, "turns", lambda *_: iter(()))
    profile = load_profile(
        {"devices": 4, "chunks": chunks, "stages": {"t_f_ms": 4, "t_b_ms": 5, "t_w_ms": 3, "act_mib": 8, "layers": 8}}
    )  # fmt: skip
    found = solve(profile, 8, None, time_limit=2, chunks="any", cache=False)
    name = "1f1b" if chunks == 1 else "1f1b-i"
    today = simulate(build(name, profile, 8), profile)
    assert found.objective_ns is not None
    assert found.objective_ns <= today.makespan_ns
