"""The host's memory in both annealing searches: what they count against the replay, and what they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numba import njit
from recompute_cases import profile as with_levels
from search_cases import uniform
from strategies import profiles, schedules

from optpipe_sim import Schedule
from optpipe_sim.ops import O, Op, R
from optpipe_sim.profile import Offload
from optpipe_sim.schedules.adaoffload.adaoffload import adaoffload
from optpipe_sim.sim.lower import lower
from optpipe_sim.solvers.anneal import core as anneal_core
from optpipe_sim.solvers.anneal import search as anneal_search
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.treated import core as treated_core
from optpipe_sim.solvers.treated import search as treated_search
from optpipe_sim.solvers.treated.programs import pack as pack_plan
from optpipe_sim.solvers.treated.times import NEVER

COPIES = {"t_offload_ns": 5, "t_reload_ns": 5}


# what follows is compiled without a door to Python


@njit
def exceeds(prog, length, costs, host, end):  # type: ignore[no-untyped-def]
    return anneal_core._exceeds_host(prog, length, costs, host, end)


@njit
def plan_exceeds(prog, length, mode, costs, host, t):  # type: ignore[no-untyped-def]
    return treated_core._exceeds_host(prog, length, mode, costs, host, t)


@st.composite
def offloading(draw: st.DrawFn, **kinds: bool) -> tuple[Problem, Schedule]:
    """A random problem whose devices have links of their own, with memory for everything, and a schedule of
    its shape, lowered; `kinds`: see `profiles`."""
    profile = draw(profiles(offload=True, **kinds))
    assert profile.offload is not None
    node = draw(st.sampled_from((None, 1)))
    engines = Offload(profile.offload.copy_engines, host_limit_bytes=10**9, devices_per_node=node)
    profile = replace(profile, offload=engines, memory_limit=(10**9,) * profile.devices)
    schedule = lower(draw(schedules(profile, linked=False)), profile).schedule
    return Problem(profile, schedule.shape.microbatches, profile.memory_limit), schedule


def peak_of(problem: Problem, schedule: Schedule, end_of: Callable[[Op], int]) -> int:
    """The most that any node pins if these are the ends of all ops, added up event by event."""
    profile, most = problem.profile, 0
    for node in range(profile.nodes):
        events = []
        for program in schedule.programs:
            for op in program:
                if (
                    op.kind in (O, R)
                    and profile.placement[op.stage] // profile.devices_per_node == node
                ):
                    cost = profile.stages[op.stage]
                    if op.kind is O:
                        assert cost.t_offload_ns is not None
                        events.append((end_of(op) - cost.t_offload_ns, 1, cost.offloadable))
                    else:
                        events.append((end_of(op), 0, -cost.offloadable))
        held = accumulate(size for *_, size in sorted(events))
        most = max([most, *held])
    return most


@given(offloading())
def test_programs_pin_what_is_on_the_host(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    programs = anneal_search.pack(problem, schedule)
    schedule = anneal_search.unpack(problem, programs)  # with B and W split
    work = anneal_search.Workspace(problem)
    assert work.evaluate(programs)[0] < NEVER
    low, high = work.costs.low, work.costs.high

    def end_of(op: Op) -> int:
        return int(work.times.end[op.kind << high | op.stage << low | op.microbatch])

    peak = peak_of(problem, schedule, end_of)
    assert peak == problem.replay(schedule).host_peak_bytes
    for limit in {peak, peak - 1, peak // 2} - {-1}:
        host = work.host._replace(limit=limit)
        assert exceeds(*programs, work.costs, host, work.times.end) == (peak > limit)


@given(offloading(levels=True, slices=True))
def test_plans_pin_what_their_replay_pins(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    work = treated_search.Workspace(problem)
    plan = pack_plan(problem, schedule)
    trace = problem.replay(schedule)
    assume(work.evaluate(plan)[0] == trace.makespan_ns)  # some lowered orders need not be kept
    peak = trace.host_peak_bytes
    for limit in {peak, peak - 1, peak // 2} - {-1}:
        host = work.host._replace(limit=limit)
        assert plan_exceeds(*plan, work.costs, host, work.room) == (peak > limit)


@pytest.mark.parametrize(("host_limit", "most"), [(200, 390), (300, 352)])
def test_the_search_goes_on_where_the_limit_binds(host_limit: int, most: int) -> None:
    """CP-SAT finds 364 and 348 in 20 s; AdaOffload ends at 417 and 357."""
    problem = make_problem(uniform(4, offload={**COPIES, "host_limit_bytes": host_limit}), 8, 200)
    start = adaoffload(problem.profile, 8, limit=problem.limits)
    found = anneal_search.search(problem, [start], evaluations=30_000)
    assert found is not None
    trace = problem.replay(found)
    assert trace.cost_ns <= most < problem.replay(start).cost_ns
    assert trace.host_peak_bytes == host_limit


@pytest.mark.parametrize(("host_limit", "most"), [(100, 330), (300, 310)])
def test_treatments_are_chosen_under_the_limit(host_limit: int, most: int) -> None:
    """AdaOffload, which keeps or offloads, ends at 440 and 357."""
    profile = with_levels(4, offload={**COPIES, "host_limit_bytes": host_limit})
    problem = make_problem(profile, 8, 200)
    start = adaoffload(problem.profile, 8, limit=problem.limits)
    found = treated_search.search(problem, [start], evaluations=30_000)
    assert found is not None
    trace = problem.replay(found)
    assert trace.cost_ns <= most < problem.replay(start).cost_ns
    assert trace.host_peak_bytes <= host_limit
