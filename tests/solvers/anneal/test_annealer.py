"""The compiled search: its evaluation against the replay, what it finds, and that it repeats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from search_cases import problems, uniform
from strategies import SEEDS

from optpipe_sim import Schedule, build
from optpipe_sim.checker.check import check, check_trace
from optpipe_sim.errors import Deadlock, OutOfMemory
from optpipe_sim.schedules.adaoffload.adaoffload import adaoffload
from optpipe_sim.solvers.anneal.annealer import Workspace, search
from optpipe_sim.solvers.anneal.offloading import offload_everything
from optpipe_sim.solvers.anneal.plans import pack, unpack
from optpipe_sim.solvers.anneal.times import NEVER
from optpipe_sim.solvers.problem import Problem, in_order_of_time, make_problem
from optpipe_sim.solvers.starts.adaoffload_runs import greedy_search
from optpipe_sim.solvers.starts.published import fixed_schedules


@given(problems())
def test_the_evaluation_is_the_replay_or_later(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    assume(problem.host_limit is None)
    programs = pack(problem, schedule)
    assert unpack(problem, programs) == schedule
    work = Workspace(problem)
    makespan, span, _ = work.evaluate(programs)
    try:
        trace = problem.replay(schedule)
    except (Deadlock, OutOfMemory):
        assert makespan >= NEVER
        return
    if makespan < NEVER:
        assert makespan >= trace.makespan_ns
    if problem.limits is None:
        # nothing waits for memory: no release is ever missed
        assert (makespan, span) == (trace.makespan_ns, max(trace.span_ns))


@given(problems(shared=False))
def test_in_the_order_of_time_a_schedule_that_fits_is_a_plan_no_later_than_its_replay(
    case: tuple[Problem, Schedule],
) -> None:
    problem, schedule = case
    trace = problem.keeps(schedule)
    assume(trace is not None)
    assert trace is not None
    again = in_order_of_time(trace)
    assert check(again, problem.profile, problem.limits) == []
    makespan, _, _ = Workspace(problem).evaluate(pack(problem, again))
    assert problem.replay(again).makespan_ns <= makespan <= trace.makespan_ns


@pytest.mark.parametrize(("devices", "offloaded", "limit"), [(2, 1, 300), (4, 1, 300), (4, 2, 350)])
def test_a_reload_that_waits_for_a_later_offload_is_a_start_all_the_same(
    devices: int, offloaded: int, limit: int
) -> None:
    """PipeOffload's reloads stand before the offloads that make room for them; the replay lets these go first."""
    profile = uniform(devices, 20, chunks=2, t_comm_ns=0)
    group = 4 if devices == 2 else 1
    problem = make_problem(profile, 8, limit)
    start = build(f"po:chunks=2,group={group},offloaded={offloaded}", profile, 8)
    cost = problem.replay(start).cost_ns
    assert Workspace(problem).evaluate(pack(problem, start))[0] == NEVER
    found = search(problem, [start], evaluations=3000)
    assert found is not None
    assert problem.replay(found).cost_ns <= cost


@given(problems(), SEEDS)
def test_solutions_fit_and_have_their_reported_cost(
    case: tuple[Problem, Schedule], seed: int
) -> None:
    problem, schedule = case
    assume(problem.host_limit is None)
    seen: list[int] = []
    found = search(
        problem,
        [schedule],
        evaluations=40,
        seed=seed,
        on_incumbent=lambda _, cost: seen.append(cost),
    )
    assume(found is not None)
    trace = problem.replay(found)
    assert check(found, problem.profile, problem.limits) == []
    assert check_trace(trace) == []
    if seen:
        assert seen == sorted(set(seen), reverse=True)
        assert trace.cost_ns <= seen[-1]


def test_it_is_deterministic_for_a_seed_and_a_number_of_evaluations() -> None:
    problem = make_problem(uniform(4, 16), 8, 200)
    starts = [offload_everything(problem, 2)]
    one, two = (search(problem, starts, evaluations=3000, seed=5) for _ in range(2))
    assert one == two
    assert one != search(problem, starts, evaluations=3000, seed=6)


@pytest.mark.parametrize(
    "offload",
    [
        {},
        {"copy_engines": "shared"},
        {"host_link_groups": [[0, 1], [2, 3]]},
        {"copy_engines": "shared", "host_link_groups": [[0, 1, 2, 3]]},
        {"host_link": "single"},
    ],
)
def test_it_improves_a_poor_start(offload: dict[str, Any]) -> None:
    profile = uniform(4, offload={"t_offload_ns": 6, "t_reload_ns": 6, **offload})
    problem = make_problem(profile, 8, 200)
    start = offload_everything(problem, 2)
    found = search(problem, [start], evaluations=40_000, seed=1)
    assert found is not None
    before, after = problem.replay(start).makespan_ns, problem.replay(found).makespan_ns
    assert after < before
    if not offload:
        assert after <= 303  # the best is 291


def test_the_span_can_be_the_objective() -> None:
    problem = make_problem(uniform(4), 8, 400, "span")
    start = build("zb-h1", uniform(4), 8)
    found = search(problem, [start], evaluations=4000)
    assert found is not None
    spans = [max(problem.replay(schedule).span_ns) for schedule in (start, found)]
    assert spans[1] < spans[0]


def test_it_stops_at_the_goal_and_on_request() -> None:
    problem = make_problem(uniform(4), 8, 400)
    start = build("zb-h1", uniform(4), 8)
    cost = problem.replay(start).makespan_ns
    assert search(problem, [start], goal_ns=cost, evaluations=10**9) == start
    assert search(problem, [start], stop=lambda: True) == start
    assert search(problem, [build("gpipe", uniform(4), 8)], evaluations=10) is None  # does not fit


@pytest.mark.parametrize("bytes_per_node", [200, 300, 600])
def test_host_memory_is_kept_to(bytes_per_node: int) -> None:
    """Most of what the search finds does not fit into so little; what it returns does."""
    copies = {"t_offload_ns": 5, "t_reload_ns": 5}
    ample = make_problem(uniform(4, offload={**copies, "host_limit_bytes": 3200}), 8, 200)
    scarce = make_problem(
        uniform(4, offload={**copies, "host_limit_bytes": bytes_per_node}), 8, 200
    )
    assert (ample.host_limit, scarce.host_limit) == (None, bytes_per_node)
    starts = [adaoffload(scarce.profile, 8, limit=scarce.limits), offload_everything(scarce, 4)]
    found = search(scarce, starts, evaluations=3000)
    assert found is not None
    assert scarce.replay(found).host_peak_bytes <= bytes_per_node
    assert scarce.replay(found).cost_ns <= scarce.replay(starts[0]).cost_ns
    plain = make_problem(uniform(4, offload=copies), 8, 200)
    assert search(ample, starts, evaluations=300) == search(plain, starts, evaluations=300)


def test_schedules_over_the_host_limit_do_not_count() -> None:
    copies = {"t_offload_ns": 5, "t_reload_ns": 5, "host_limit_bytes": 100}
    problem = make_problem(uniform(4, offload=copies), 8, 200)
    with pytest.raises(OutOfMemory, match=r"offload\.host_limit: .* but only 100 B are allowed"):
        problem.replay(offload_everything(problem, 4))
    assert search(problem, [offload_everything(problem, 4)], evaluations=10) is None


def test_costs_a_little_off_lead_the_greedy_to_an_optimum() -> None:
    problem = make_problem(uniform(8), 32, 266)
    found = greedy_search(problem, lambda: False, runs=1000)
    costs = [problem.replay(schedule).cost_ns for schedule in found]
    assert min(costs) == 1094  # meets the bound; annealing the best plain run, 1097, seldom does
    assert found == greedy_search(problem, lambda: False, runs=1000)


def test_greedy_search_never_ends_worse_than_adaoffload() -> None:
    profile = uniform(8, 16)
    problem = make_problem(profile, 16, 266)
    costs = []
    best = greedy_search(
        problem,
        lambda: False,
        runs=120,
        found=lambda schedule: costs.append(problem.replay(schedule).makespan_ns),
    )
    plain = problem.replay(build("adaoffload", profile, 16, limit=266)).makespan_ns
    assert problem.replay(best[0]).makespan_ns <= plain
    assert costs == sorted(costs, reverse=True)
    assert 1 <= len(best) <= 4


def test_fixed_schedules_have_the_shape_of_the_problem() -> None:
    ample = 10**6
    one = dict(fixed_schedules(make_problem(uniform(4), 8, ample)))
    assert {"gpipe", "1f1b", "zb-h1", "zb-2p"} <= set(one)
    vee = dict(fixed_schedules(make_problem(uniform(4).rechunk(2, "vee"), 8, ample)))
    assert {name.partition(":")[0] for name in vee} == {"zb-v", "v-half", "v-min", "dualpipe-v"}
    loop = dict(fixed_schedules(make_problem(uniform(4).rechunk(2), 8, ample)))
    assert {"1f1b-i", "gis", "po-f"} <= set(loop)
