"""`solve`: one door; what it returns is checked by code that shares nothing with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from background import hard, until
from hypothesis import given, settings
from search_cases import uniform
from solving import sleeps, verify
from strategies import profiles

from optpipe_sim import CostProfile, Schedule, build, check, simulate
from optpipe_sim.errors import NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.solvers import search
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.race import jobs
from optpipe_sim.solvers.race.race import Race, run_race
from optpipe_sim.solvers.solve import solve


@settings(max_examples=15)
@given(profiles(max_devices=3, max_chunks=2))
def test_any_profile_is_solved_within_its_limits(profile: CostProfile) -> None:
    result = solve(profile, 3, engine="search", evaluations=300, time_limit=5)
    verify(result, profile, None)


@pytest.mark.parametrize(
    ("p", "m", "limit", "copy", "best"),
    [(4, 8, 400, 5, 273), (4, 8, 200, 5, 291), (8, 16, 266, 5, 614), (8, 16, 400, 16, 587)],
)
def test_known_optima_are_found_and_proven(
    p: int, m: int, limit: int, copy: int, best: int
) -> None:
    result = solve(uniform(p, copy), m, limit, time_limit=30, chunks="own")
    verify(result, uniform(p, copy), limit)
    assert (result.status, result.objective_ns) == ("optimal", best)


@pytest.mark.parametrize("objective", ["flush", "span"])
def test_it_is_never_worse_than_a_fixed_schedule_that_fits(objective: str) -> None:
    profile = uniform(4)
    for limit in (200, 300, 400):
        result = solve(profile, 8, limit, "search", 10, objective, evaluations=200)
        verify(result, profile, limit, objective)
        for name in ("gpipe", "1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p"):
            schedule = build(name, profile, 8)
            trace = simulate(schedule, profile, enforce=False, objective=objective)
            if max(trace.peak_bytes) <= limit:
                assert result.objective_ns <= trace.cost_ns


def test_chunks_may_be_free() -> None:
    profile = uniform(4)
    one, free = (
        solve(profile, 8, 400, time_limit=2, workers=1, chunks=chunks) for chunks in ("own", "any")
    )
    verify(free, profile, 400)
    assert free.objective_ns < one.objective_ns  # two chunks fill the pipeline sooner
    assert free.lower_bound_ns <= free.objective_ns
    trace = simulate(build("zb-v", profile, 8), profile)
    assert free.objective_ns <= trace.makespan_ns


def test_a_warm_start_is_a_floor_and_its_incumbents_are_reported() -> None:
    profile = uniform(4, 16)
    reported: list[int] = []
    start = solve(profile, 8, 200, "search", 20, evaluations=4000).schedule
    result = solve(
        profile,
        8,
        200,
        "search",
        5,
        warm_start=start,
        evaluations=10,
        on_incumbent=lambda _, cost: reported.append(cost),
    )
    assert start is not None
    assert result.objective_ns <= simulate(start, profile, 200).makespan_ns
    assert reported == [cost for _, cost in result.incumbents]


def test_a_killed_solver_leaves_the_best_so_far(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    code = (
        "import sys; from background import hard; from optpipe_sim import solve;"
        "solve(hard(), 12, 250, time_limit=120, save=sys.argv[1], chunks='own')"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as solver:
        until(path.exists)
        solver.kill()
        assert solver.wait(10) == -signal.SIGKILL
    assert check(Schedule.load(path), hard(), 250) == []


def test_the_file_holds_the_schedule_of_the_result(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    result = solve(uniform(4), 8, 200, "adaoffload", save=path, chunks="own")
    assert Schedule.load(path) == result.schedule


def _dies(*_: Any) -> None:
    raise RuntimeError("no luck")


def _finds(problem: Problem, report: Any, _: Any) -> None:
    report("incumbent", (build("zb-h1", problem.profile, problem.microbatches), "good"))
    report("bound", 1)
    report("size", (2, 3))


def test_a_race_outlives_its_engines_and_keeps_to_its_time() -> None:
    race = Race(make_problem(uniform(4), 8, 400))
    good = partial(_finds, race.problem)
    run_race(race, [("bad", _dies), ("slow", sleeps), ("good", good)], until=3.0)
    assert race.seconds < 10
    assert race.failures == {"bad": "RuntimeError: no luck"}
    assert race.engine == "good"
    assert (race.bound_ns, race.variables, race.constraints) == (1, 2, 3)


def _waits_for_word(problem: Problem, report: Any, others: Any) -> None:
    while (schedule := others()) is None:
        pass
    report("bound", problem.replay(schedule).cost_ns)


def test_engines_receive_each_others_incumbents() -> None:
    race = Race(make_problem(uniform(4), 8, 400))
    waits, good = (partial(engine, race.problem) for engine in (_waits_for_word, _finds))
    run_race(race, [("waits", waits), ("good", good)], until=20.0)
    assert race.proven
    assert race.bound_name == "waits"
    assert race.seconds < 10


def test_a_part_of_a_search_continues_while_it_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(search.time, "monotonic", lambda: now[0])
    clock = search._Clock(10.0)

    def until_over(gains_at: tuple[float, ...]) -> float:
        clock.share(0.1, 0.5)
        began = now[0]
        while not clock.over():
            if round(now[0] - began, 1) in gains_at:
                clock.gained()
            now[0] += 0.1
        return round(now[0] - began, 1)

    assert until_over(()) == 1.1  # just above the least
    assert until_over((0.2,)) == 1.1
    assert until_over((0.8, 1.3)) == 2.7  # twice as long as to the last gain
    assert until_over((1.0, 2.0, 3.0, 4.0)) == 5.1  # but no more than the most
    assert round(clock.left, 1) == 0.0


def _refuses(*_: Any) -> None:
    raise NoSolution("too much to ask")


def test_an_engine_alone_is_held_to_the_clock_and_its_refusal_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "run_engine", sleeps)
    found = solve(uniform(4, 16), 8, 200, engine="cpsat", time_limit=1)
    assert found.seconds < 5
    monkeypatch.setattr(jobs, "run_engine", _refuses)
    with pytest.raises(NoSolution, match="too much to ask"):
        solve(uniform(4, 16), 8, 200, engine="milp", time_limit=5)


def test_what_any_shape_finds_is_saved_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    costs = []

    def improved(schedule: Schedule, cost: int) -> None:
        assert Schedule.load(path).programs == schedule.programs
        costs.append(cost)

    found = solve(
        uniform(4), 8, 300, time_limit=2, workers=1, save=path, on_incumbent=improved, chunks="any"
    )
    assert costs == [cost for _, cost in found.incumbents]
    assert found.schedule is not None
    assert Schedule.load(path).programs == found.schedule.programs
    with pytest.raises(OptPipeError, match="warm start: a schedule is of one shape"):
        solve(uniform(4), 8, 300, warm_start="best.json", chunks="any")


def test_interrupted_it_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("optpipe_sim.solvers.race.jobs.run_race", interrupt)
    result = solve(uniform(4, 16), 8, 200, time_limit=5, chunks="own")
    verify(result, uniform(4, 16), 200)
    assert result.info["interrupted"]


def test_what_makes_no_sense_is_refused() -> None:
    profile = uniform(4)
    with pytest.raises(OptPipeError, match="time limit: must be above 0 seconds, got 0"):
        solve(profile, 8, 400, time_limit=0, chunks="own")
    with pytest.raises(OptPipeError, match="engine: expected one of auto, adaoffload"):
        solve(profile, 8, 400, engine="magic", chunks="own")
    with pytest.raises(OptPipeError, match="objective: expected flush or span"):
        solve(profile, 8, 400, objective="speed", chunks="own")
    with pytest.raises(OptPipeError, match="microbatches: must be a whole number"):
        solve(profile, 0, 400, chunks="own")
    with pytest.raises(OutOfMemory, match="the least limit that works is 100B"):
        solve(profile, 8, 99, chunks="own")
    # two chunks on a device with room for one: the other must go to the host, which has no room
    copies = {"t_offload_ns": 5, "t_reload_ns": 5, "host_limit_bytes": 0}
    with pytest.raises(NoSolution, match="host limit"):
        solve(uniform(4, offload=copies).rechunk(2, "vee"), 8, 60, "adaoffload", chunks="own")
