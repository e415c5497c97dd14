"""`solve` while disks fill, engines die, Ctrl-C comes and time is short: the best is kept, and said."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from search_cases import uniform
from solving import verify
from unit_profiles import unit_profile

from optpipe_sim import Schedule, solve
from optpipe_sim.errors import Infeasible, NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.sim.scenarios import Noise
from optpipe_sim.solvers import portfolio
from optpipe_sim.solvers.axes import candidate_shapes, problems_of, shapes_of
from optpipe_sim.solvers.cpsat.cpsat import solve_cpsat
from optpipe_sim.solvers.cpsat.proving import Search
from optpipe_sim.solvers.known import known_bound, note
from optpipe_sim.solvers.milp import milp as milp
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race import jobs, rules
from optpipe_sim.solvers.race.cache import open_cache
from optpipe_sim.solvers.race.identity import identity
from optpipe_sim.solvers.race.race import Race
from optpipe_sim.solvers.race.rules import rules_of, run_rules
from optpipe_sim.solvers.reports import Job
from optpipe_sim.solvers.robust import solve_robust
from optpipe_sim.units import size_above

# -- disks, dead engines, Ctrl-C --------------------------------------------------------------------


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A disk that is full after one schedule; what has been asked of it."""
    asked: list[Any] = []
    save = Schedule.save

    def full(self: Schedule, to: Any) -> Path:
        asked.append(to)
        if len(asked) > 1:
            raise OptPipeError(f"{to}: cannot be written: No space left on device")
        return save(self, to)

    monkeypatch.setattr(Schedule, "save", full)
    return asked


def test_a_disk_that_fills_does_not_end_the_search(tmp_path: Path, saves: list[Any]) -> None:
    path = tmp_path / "best.json"
    found = solve(uniform(4, 16), 8, 200, "search", evaluations=2000, time_limit=5, save=path)
    assert len(saves) > 1
    assert "No space left" in found.info["failures"]["save"]
    verify(found, uniform(4, 16), 200)
    saves.append(path)
    with pytest.raises(OptPipeError, match="No space left"):  # at once, before anything is lost
        solve(uniform(4, 16), 8, 200, time_limit=5, save=path, chunks="own")


def _dies(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("engine", ["auto", "search"])
def test_killed_engines_are_named_and_the_best_is_kept(engine: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(jobs, "run_engine", _dies)
    found = solve(uniform(4, 16), 8, 200, engine, time_limit=20, chunks="own")
    verify(found, uniform(4, 16), 200)
    assert found.info["failures"]["search"] == "its process was killed by SIGKILL"
    assert found.seconds < 15


def _breaks(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("by nought")


def test_an_engine_alone_that_breaks_is_no_answer(monkeypatch: Any) -> None:
    monkeypatch.setattr(jobs, "run_engine", _breaks)
    with pytest.raises(OptPipeError, match="cpsat: ZeroDivisionError: by nought"):
        solve(uniform(4, 16), 8, 200, "cpsat", time_limit=5)


def test_ctrl_c_while_it_tidies_up(monkeypatch: Any) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(portfolio, "tidy", interrupt)
    found = solve(uniform(4, 16), 8, 200, time_limit=1, chunks="own")
    assert found.info["interrupted"]
    verify(found, uniform(4, 16), 200)


@pytest.mark.parametrize("calls", [1, 3, 6])
def test_ctrl_c_between_shapes_keeps_the_best(calls: int, monkeypatch: Any, tmp_path: Path) -> None:
    left, offer = [calls], Race.offer

    def count(self: Race, schedule: Schedule, engine: str) -> bool:
        taken = offer(self, schedule, engine)
        # from the first on that fits: before, there is nothing to keep
        left[0] -= taken or left[0] < calls
        if not left[0]:
            raise KeyboardInterrupt
        return taken

    monkeypatch.setattr(Race, "offer", count)
    path = tmp_path / "best.json"
    found = solve(uniform(4, 16), 8, 200, time_limit=5, save=path, chunks="any", workers=1)
    assert found.info["interrupted"]
    assert found.seconds < 4
    verify(found, uniform(4, 16), 200)
    assert found.schedule is not None
    assert Schedule.load(path).programs == found.schedule.programs


# -- time -------------------------------------------------------------------------------------------


def test_any_shape_keeps_to_its_time_and_tells_of_all_shapes_as_one() -> None:
    seen: list[tuple[float, int, int]] = []

    def watch(race: Race) -> None:
        if race.best is not None:
            seen.append((race.seconds, race.cost_ns, race.bound_ns))

    found = solve(uniform(8, 16), 16, 300, time_limit=2, watch=watch, chunks="any")
    assert found.seconds < 6
    for (before, cost, bound), (after, less, more) in pairwise(seen):
        assert before <= after
        assert cost >= less
        assert bound <= more
    assert seen[-1][1] == found.objective_ns
    assert seen[-1][2] == found.lower_bound_ns


def test_without_time_shapes_are_left_out(monkeypatch: Any) -> None:
    slow = rules.plain_schedules

    tried = []

    def slowly(problem: Any, *rest: Any) -> Any:
        tried.append(problem)
        for pair in slow(problem, *rest):
            time.sleep(1.0)
            yield pair

    monkeypatch.setattr(rules, "plain_schedules", slowly)
    found = solve(uniform(4), 8, 400, time_limit=0.5, chunks="any", workers=1)
    assert found.seconds < 5
    assert len(tried) < 4
    assert found.info["untried"] > 5
    assert 0 < found.lower_bound_ns <= found.objective_ns  # also of the others


def test_windows_that_take_all_the_time_keep_the_incumbent(monkeypatch: Any) -> None:
    tried: list[float] = []

    def late(self: Search, upper_ns: int, seconds: float) -> Any:
        tried.append(seconds)
        time.sleep(seconds * 2.5)
        return ()

    monkeypatch.setattr(Search, "narrow", late)
    problem = make_problem(uniform(4, 16), 6, 200)
    found = solve_cpsat(problem, 2.0)
    assert tried
    assert "windows" not in [phase["order"] for phase in found.info["phases"]]
    assert found.trace is not None
    assert found.lower_bound_ns <= found.objective_ns


def test_evaluations_are_for_the_search_and_know_no_clock() -> None:
    with pytest.raises(OptPipeError, match="only the engine 'search' counts them, not 'auto'"):
        solve(uniform(4), 8, 400, evaluations=5)
    found = [
        solve(uniform(6, 16), 12, 250, "search", limit, evaluations=1500, seed=3)
        for limit in (1e-6, 30)
    ]
    assert found[0].schedule == found[1].schedule
    assert [cost for _, cost in found[0].incumbents] == [cost for _, cost in found[1].incumbents]


def test_options_that_would_do_nothing_are_refused() -> None:
    for options in ({"solver": "nosuch"}, {"force": True}):
        with pytest.raises(OptPipeError, match="are for the engine 'milp', not 'auto'"):
            solve(uniform(4), 8, 400, **options, chunks="own")  # type: ignore[arg-type]
    with pytest.raises(OptPipeError, match="'nosuch' is not available"):
        solve(uniform(4), 8, 10_000, "milp", solver="nosuch")  # AdaOffload would prove it
    with pytest.raises(OptPipeError, match=r"MILP would have .* constraints"):
        solve(uniform(4), 100_000, 400, "milp", time_limit=5)
    with pytest.raises(OptPipeError, match=r"gap: must be a share from 0 to below 1, as in 0\.01"):
        solve(uniform(4), 8, 400, gap=1, chunks="own")


def test_a_bound_on_all_shapes_is_in_no_unit_of_one_of_them() -> None:
    """One chunk costs whole ms, two cost halves: rounded up to ms a bound of 25.5 would be wrong."""
    profile = unit_profile(4)
    found = solve(profile, 8, 400, time_limit=1.5, chunks="any")
    assert found.lower_bound_ns <= found.objective_ns
    assert found.objective_ns % 10**6 != 0


def test_one_shape_that_fails_is_not_all(monkeypatch: Any) -> None:
    def only_vee(race: Race, *rest: Any) -> None:
        if race.problem.shape.placement_name != "vee":
            raise NoSolution("not this one")
        compete(race, *rest)

    compete = portfolio.compete
    monkeypatch.setattr(portfolio, "compete", only_vee)
    for name in ("run_adaoffload", "run_each"):
        monkeypatch.setattr(portfolio, name, lambda *_: None)
    monkeypatch.setattr(portfolio, "run_rules", lambda *_: 0)
    monkeypatch.setattr(portfolio, "told_schedules", lambda _: ())
    found = solve(uniform(4), 6, 400, time_limit=1.5, chunks="any")
    assert found.schedule is not None
    assert found.schedule.shape.placement_name == "vee"


def test_shared_links_are_solved_without_copies_first(monkeypatch: Any) -> None:
    """So that all treatments together never end above recomputation alone in half the time."""
    solved: list[bool] = []

    def record(race: Race, options: SolveOptions, until: float, *rest: Any) -> None:
        solved.append(race.problem.may_offload)
        compete(race, options, min(until, race.seconds + 0.2), *rest)

    compete = portfolio.compete
    monkeypatch.setattr(portfolio, "compete", record)
    level = {"name": "full", "t_ns": 10, "keep_bytes": 6}
    stages = {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50}
    links = {"t_offload_ns": 16, "t_reload_ns": 16, "host_link_groups": [[0, 1], [2, 3]]}
    profile = uniform(4, stages={**stages, "layers": 2, "recompute": [level]}, offload=links)
    found = solve(profile, 8, 300, time_limit=4, chunks="any", workers=1)
    assert solved == sorted(solved)
    assert not solved[0]
    assert found.schedule is not None


def test_what_rules_find_is_for_the_search_without_copies_too() -> None:
    """They run once, and what they find that offloads nothing is where that search begins."""
    level = {"name": "full", "t_ns": 10, "keep_bytes": 6}
    stages = {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50}
    links = {"t_offload_ns": 16, "t_reload_ns": 16, "host_link_groups": [[0, 1], [2, 3]]}
    profile = uniform(4, stages={**stages, "layers": 2, "recompute": [level]}, offload=links)
    options = SolveOptions(chunks="any", time_limit=4.0)
    problems = problems_of(shapes_of(profile, options), 8, 300, options)
    simpler = portfolio.without_copies(problems, options)
    assert {each.shape for each in simpler} == {each.shape for each in problems}
    assert not any(each.may_offload for each in simpler)
    found = {}
    for processes in (1, 2):
        races, others = (list(map(Race, some)) for some in (problems, simpler))
        rules = rules_of(problems, [0] * len(problems), stretched=False)
        assert run_rules(races, rules, lambda: False, processes, dict(enumerate(others))) == 0
        known = [race for race in others if race.best is not None]
        assert known
        for race in known:
            assert race.problem.replay(race.best).cost_ns == race.cost_ns
        found[processes] = min(race.cost_ns for race in known)
        assert min(race.cost_ns for race in races) <= found[processes]
    assert found[1] == found[2]


def test_a_disk_that_fills_ends_no_search_over_shapes(tmp_path: Path, saves: list[Any]) -> None:
    path = tmp_path / "best.json"
    found = solve(uniform(4, 16), 8, 200, time_limit=2, save=path, chunks="any")
    assert len(saves) > 1
    assert "No space left" in found.info["failures"]["save"]
    verify(found, uniform(4, 16), 200)


def test_robust_ends_with_ctrl_c_and_keeps_the_best(monkeypatch: Any) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("optpipe_sim.solvers.robust.greedy_search", interrupt)
    monkeypatch.setattr("optpipe_sim.solvers.robust.NOMINAL", 0.02)  # and ample time for the rest
    found = solve_robust(uniform(4, 16), 6, 200, noise=Noise(0.1), samples=20, time_limit=50)
    assert found.interrupted
    assert found.objective_ns <= found.nominal_objective_ns


# -- what is proven ---------------------------------------------------------------------------------


def test_from_nothing_is_without_adaoffload_for_the_milp_too() -> None:
    class First(Exception):
        pass

    def report(what: str, value: Any) -> None:
        if what == "incumbent":
            raise First(problem.replay(value[0]).cost_ns)

    problem = make_problem(uniform(3, 16), 4, 200)
    known = solve(uniform(3, 16), 4, 200, "adaoffload", chunks="own")
    costs = []
    for start in (known.schedule, None):
        with pytest.raises(First) as first:
            milp.run(Job(problem, start, SolveOptions(engine="milp", workers=1)), report)
        costs.append(first.value.args[0])
    assert costs[0] == known.objective_ns
    assert costs[1] != known.objective_ns


def test_what_solve_proved_is_known_later(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("OPTPIPE_SIM_CACHE", str(tmp_path))
    profile = uniform(4, 16)
    problem = make_problem(profile, 8, 200)
    found = solve(profile, 8, 200, "adaoffload", chunks="own")
    assert found.schedule is not None
    cost = found.objective_ns
    quick = known_bound(problem, found.schedule, cost, 0.0)
    note(problem, found.schedule, cost - 1, "a proof")
    kept = Schedule.from_json(json.loads(json.dumps(found.schedule.to_json())))
    assert known_bound(problem, kept, cost, 0.0) == (cost - 1, "a proof")
    # of another problem it says nothing, and what claims too much is wrong
    other = make_problem(profile, 8, 250)
    assert known_bound(other, kept, cost, 0.0).ns < cost - 1
    note(problem, found.schedule, cost + 1, "a mistake")
    assert known_bound(problem, found.schedule, cost, 0.0) == quick
    assert known_bound(problem, found.schedule, cost, 30.0).ns > quick.ns
    # what the cache has of this very problem counts as well
    open_cache().put(problem, found.schedule, cost - 2, "a search", 1.0)
    assert known_bound(problem, found.schedule, cost, 0.0) == (cost - 2, "a search")


def test_the_host_may_be_too_small_for_any_schedule() -> None:
    profile = unit_profile(
        2, offload={"t_offload_ms": 1, "t_reload_ms": 1, "host_limit_bytes": 50}
    ).rechunk(2, "loop")
    with pytest.raises(Infeasible, match=r"\(proven\); adaoffload: offload.host_limit"):
        solve(profile, 3, 50, time_limit=20, chunks="own")


def test_the_least_limit_over_all_shapes_is_named() -> None:
    least = min(max(shape.least_limits) for shape in candidate_shapes(uniform(4)))
    with pytest.raises(OutOfMemory, match=f"least limit that works is {size_above(least)}, with"):
        solve(uniform(4), 8, 1, chunks="any")


def test_the_number_of_a_link_is_part_of_the_problem() -> None:
    def key(*groups: list[int]) -> str:
        offload = {"t_offload_ms": 1, "t_reload_ms": 1, "host_link_groups": list(groups)}
        return identity(make_problem(unit_profile(4, offload=offload), 4, 200)).key

    assert key([2, 3]) != key([0], [1], [2, 3])  # link 0 and link 2
    assert key([2, 3]) == key([2, 3])
