"""Offloads that gain nothing go; the cost stays."""

from __future__ import annotations

from hypothesis import given, reject
from search_cases import uniform
from strategies import cases

from optpipe_sim import CostProfile, build, check, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.ops import B, F, O, Op, R
from optpipe_sim.schedule import Schedule
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race.tidy import tidy


def profile(slots: int, copy_ns: int = 5) -> CostProfile:
    return uniform(4, copy_ns, memory_limit_bytes=100 * slots)


@given(cases(offload=True))
def test_it_is_never_worse_and_copies_no_more(case) -> None:
    costs, schedule = case
    problem = make_problem(costs, schedule.shape.microbatches)
    try:
        before = problem.replay(schedule)
    except OptPipeError:
        reject()
    after = problem.replay(tidy(problem, schedule))
    assert after.cost_ns <= before.cost_ns
    assert after.offloaded <= before.offloaded


def test_needless_offloads_go() -> None:
    costs = profile(4)
    plain = build("zb-h1", costs, 8)
    programs = []
    for program in plain.programs:
        copied = []
        for op in program:
            if op.kind is B and op.microbatch % 2:
                copied.append(Op(R, op.stage, op.microbatch))
            copied.append(op)
            if op.kind is F and op.microbatch % 2:
                copied.append(Op(O, op.stage, op.microbatch))
        programs.append(copied)
    schedule = Schedule(plain.shape, programs)
    problem = make_problem(costs, 8)
    assert problem.replay(schedule).offloaded == 16
    assert problem.replay(tidy(problem, schedule)).offloaded == 0


def test_needed_offloads_stay() -> None:
    costs = profile(2)
    problem = make_problem(costs, 8)
    schedule = build("adaoffload", costs, 8)
    tidied = tidy(problem, schedule)
    trace = simulate(tidied, costs)
    assert trace.makespan_ns <= simulate(schedule, costs).makespan_ns
    assert 0 < trace.offloaded <= simulate(schedule, costs).offloaded
    assert check(tidied, costs) == []
