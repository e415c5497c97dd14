"""The host's memory in the annealing: what it counts against the replay, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from recompute_cases import profile as with_levels
from search_cases import uniform
from strategies import profiles, schedules

from optpipe_sim import Schedule
from optpipe_sim.profile import Offload
from optpipe_sim.schedules.adaoffload.adaoffload import adaoffload
from optpipe_sim.sim.lower import lower
from optpipe_sim.solvers.anneal import host as host_memory
from optpipe_sim.solvers.anneal.annealer import Workspace, search
from optpipe_sim.solvers.anneal.plans import pack
from optpipe_sim.solvers.problem import Problem, make_problem

COPIES = {"t_offload_ns": 5, "t_reload_ns": 5}


def in_python(function: Any) -> Callable[..., Any]:
    """Return a compiled function, and all that it calls, as Python runs them: the same lines. They have no door to
    Python, and one takes four seconds to compile."""
    plain = getattr(function, "py_func", function)
    names = {
        name: in_python(value) if hasattr(value, "py_func") else value
        for name, value in plain.__globals__.items()
        if name in plain.__code__.co_names
    }
    return FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__)


exceeds = in_python(host_memory.exceeds)


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


@given(st.one_of(offloading(), offloading(levels=True, slices=True)))
def test_plans_pin_what_their_replay_pins(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    work = Workspace(problem)
    plan = pack(problem, schedule)
    trace = problem.replay(schedule)
    assume(work.evaluate(plan)[0] == trace.makespan_ns)  # some lowered orders need not be kept
    peak = trace.host_peak_bytes
    for limit in {peak, peak - 1, peak // 2} - {-1}:
        host = work.host._replace(limit=limit)
        assert exceeds(plan, work.costs, host, work.times) == (peak > limit)


@pytest.mark.parametrize(
    ("copied", "ends", "begins"),
    [(("0.0", "1.0"), "R0.0", "O1.0"), (("1.0", "0.2"), "R1.0", "O0.2")],
)
def test_what_comes_back_makes_room_for_what_leaves_at_that_instant(
    copied: tuple[str, str], ends: str, begins: str
) -> None:
    """On either device: by hand, the one R ends when the other O begins, so that one activation is pinned at most."""
    programs = []
    for stage in range(2):
        forwards = []
        for mb in range(3):
            one = f"{stage}.{mb}"
            forwards.append(f"F{one} O{one} R{one}" if one in copied else f"F{one}")
        programs.append(
            " ".join([*forwards, *(f"B{stage}.{mb} W{stage}.{mb}" for mb in range(3))]).split()
        )
    offload = {**COPIES, "host_limit_bytes": 10**6}
    problem = make_problem(uniform(2, t_comm_ns=0, offload=offload), 3, 10**6)
    schedule = Schedule(problem.shape, programs)
    trace = problem.replay(schedule)
    spans = {str(one.op): one for one in trace.spans}
    assert spans[ends].end_ns == spans[begins].start_ns
    work = Workspace(problem)
    plan = pack(problem, schedule)
    assert work.evaluate(plan)[0] == trace.makespan_ns
    assert trace.host_peak_bytes == 100
    for limit, over in ((100, False), (99, True)):
        assert exceeds(plan, work.costs, work.host._replace(limit=limit), work.times) == over


@pytest.mark.parametrize(("host_limit", "most"), [(200, 390), (300, 352)])
def test_the_search_goes_on_where_the_limit_binds(host_limit: int, most: int) -> None:
    """CP-SAT finds 364 and 348 in 20 s; AdaOffload ends at 417 and 357."""
    problem = make_problem(uniform(4, offload={**COPIES, "host_limit_bytes": host_limit}), 8, 200)
    start = adaoffload(problem.profile, 8, limit=problem.limits)
    found = search(problem, [start], evaluations=30_000)
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
    found = search(problem, [start], evaluations=30_000)
    assert found is not None
    trace = problem.replay(found)
    assert trace.cost_ns <= most < problem.replay(start).cost_ns
    assert trace.host_peak_bytes <= host_limit
