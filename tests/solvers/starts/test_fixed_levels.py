"""The search for order and treatments: its evaluation against the replay, what it finds, that it
repeats, and what `solve` makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from recompute_cases import profile as uniform
from strategies import SEEDS, cases, that_fits

from optpipe_sim import Schedule, check, simulate, solve
from optpipe_sim.checker.check import check_trace
from optpipe_sim.cli import main
from optpipe_sim.errors import Deadlock, InvalidSchedule, OptPipeError
from optpipe_sim.ops import BW, B, C, F, O, R, W
from optpipe_sim.profile_io import save_profile
from optpipe_sim.schedules.adaoffload.adaoffload import adaoffload
from optpipe_sim.sim.lower import lower
from optpipe_sim.solvers.anneal.annealer import Workspace, search, shares_links
from optpipe_sim.solvers.anneal.plans import pack, unpack
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.race.tidy import tidy
from optpipe_sim.solvers.search import first_starts
from optpipe_sim.solvers.starts.fixed_levels import choices, realise
from optpipe_sim.solvers.treatments import require_alike


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, Schedule]:
    """A random problem, no links shared and host memory ample, and a lowered schedule that fits its
    limits."""
    profile, schedule = draw(cases(levels=True, slices=True, differ=True, pairs=True))
    objective = draw(st.sampled_from(("flush", "span")))
    profile, _ = that_fits(profile, schedule, objective)
    profile = profile.for_shape(schedule.shape)
    try:
        schedule = lower(schedule, profile).schedule
    except Deadlock:  # its own peaks are not always enough: another order of grants may need more
        reject()
    m = schedule.shape.microbatches
    problem = Problem(profile, m, profile.memory_limit, objective)
    assume(not shares_links(problem) and problem.host_limit is None)
    # without transfers where nothing limits memory, and with BW only where that is worth having
    return problem, unpack(problem, pack(problem, schedule))


@given(problems())
def test_the_evaluation_of_a_lowered_schedule_is_its_replay(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    plan = pack(problem, schedule)
    back = unpack(problem, plan)
    assert (back.programs, back.recompute) == (schedule.programs, schedule.recompute)
    trace = problem.replay(schedule)
    makespan, span, _ = Workspace(problem).evaluate(plan)
    if in_order(schedule):
        assert (makespan, span) == (trace.makespan_ns, max(trace.span_ns))
    else:
        assert makespan >= trace.makespan_ns


def in_order(schedule: Schedule) -> bool:
    """Whether every op stands behind what it needs of the same activation."""
    places = {op: at for program in schedule.flat_programs for at, op in enumerate(program)}
    ranks = (F, O, R, C, B, BW, W)
    for op, at in places.items():
        later = [op._replace(kind=kind) for kind in ranks[ranks.index(op.kind) + 1 :]]
        if any(places.get(other, at) < at for other in later):
            return False
    return True


@given(problems(), SEEDS)
def test_solutions_fit_and_have_their_reported_cost(
    case: tuple[Problem, Schedule], seed: int
) -> None:
    problem, schedule = case
    seen: list[tuple[Schedule, int]] = []
    found = search(
        problem,
        [schedule],
        evaluations=200,
        seed=seed,
        on_incumbent=lambda schedule, cost: seen.append((schedule, cost)),
    )
    assert found is not None
    trace = problem.replay(found)
    assert check(found, problem.profile, problem.limits) == []
    assert check_trace(trace) == []
    assert trace.cost_ns <= problem.replay(schedule).cost_ns
    for better, cost in seen:  # evaluated change by change, and all at once
        assert Workspace(problem).cost_ns(pack(problem, better)) == cost


@given(problems(), SEEDS)
def test_per_stage_treatments_are_uniform(case: tuple[Problem, Schedule], seed: int) -> None:
    problem, schedule = case
    problem = replace(problem, per_stage=True)
    try:
        require_alike(schedule)
    except InvalidSchedule:
        with pytest.raises(InvalidSchedule, match="not all treated alike"):
            problem.replay(schedule)
        return
    found = search(problem, [schedule], evaluations=200, seed=seed)
    assert found is not None
    require_alike(found)
    require_alike(tidy(problem, found, 1.0))


@given(problems())
def test_what_gains_nothing_is_dropped_and_nothing_gets_worse(
    case: tuple[Problem, Schedule],
) -> None:
    problem, schedule = case
    before = problem.replay(schedule)
    after = problem.replay(tidy(problem, schedule, 5.0, tries=50))
    assert after.cost_ns <= before.cost_ns
    if after.cost_ns == before.cost_ns:  # what is faster may recompute more
        assert sum(after.recompute_ns) <= sum(before.recompute_ns)


def test_every_choice_of_levels_keeps_the_limit_of_the_problem() -> None:
    for profile in (uniform(4), uniform(2, chunks=2, placement="vee")):
        problem = make_problem(profile, 6, 220)
        known = list(choices(problem))
        assert len(known) > 4
        for game in known:
            plain = game.problem
            found = adaoffload(plain.profile, 6, plain.limits)
            whole = realise(problem, game.choice, found)
            assert problem.replay(whole).cost_ns <= plain.replay(found).cost_ns


def test_it_is_deterministic_for_a_seed_and_a_number_of_evaluations() -> None:
    problem = make_problem(uniform(4), 8, 200)
    starts = [start.schedule for start in first_starts(problem)]
    one, two = (search(problem, starts, evaluations=3000, seed=3) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    ("limit", "copy", "best"), [(200, 16, 291), (200, 24, 291), (266, 16, 282)]
)
def test_treatments_together_reach_what_none_reaches_alone(
    limit: int, copy: int, best: int
) -> None:
    profile = uniform(4, copy)
    options: dict[str, Any] = {"engine": "search", "evaluations": 60_000}
    both = solve(profile, 8, limit, **options)
    assert check(both.schedule, profile, limit) == []
    assert simulate(both.schedule, profile, limit).cost_ns == both.objective_ns
    assert both.objective_ns <= best
    for alone in ("offload", "recompute"):
        one = solve(profile, 8, limit, treatments=["keep", alone], **options)
        assert one.objective_ns > both.objective_ns
        assert bool(one.schedule.recompute) == (alone == "recompute")


def test_blocking_links_are_searched_with_what_they_cost() -> None:
    profile = replace(uniform(4), links="blocking", latency_ns=0, occupancy_ns=4)
    found = solve(profile, 8, 260, engine="search", evaluations=5000)
    assert simulate(found.schedule, profile, 260).cost_ns == found.objective_ns


def test_the_command_line_restricts_treatments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, saved = tmp_path / "p.yaml", tmp_path / "s.json"
    save_profile(uniform(2), path)
    command = ["solve", str(path), "-m", "4", "--memory-limit", "150B", "--engine", "search"]
    command += ["--evaluations", "2000", "--no-cache", "--json", "--save", str(saved)]
    assert main([*command, "--treatments", "keep,recompute", "--per-stage"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["offloaded"] == 0
    found = Schedule.load(saved)
    assert found.recompute
    require_alike(found)
    assert main(["check", str(saved), str(path), "--memory-limit", "150B"]) == 0


def test_unknown_treatments_are_refused() -> None:
    with pytest.raises(OptPipeError, match=r"treatments: .* got 'drop'"):
        solve(uniform(2), 4, 200, treatments=["drop"])
