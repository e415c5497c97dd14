"""CP-SAT with treatments: optima of the small cases, proofs that nothing random undercuts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import prod

import pytest
from exhaustive import least_cost
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recompute_cases import profile
from strategies import profiles, schedules

from optpipe_sim import check, simulate
from optpipe_sim.errors import Deadlock, OutOfMemory
from optpipe_sim.solvers.cpsat.cpsat import solve_cpsat
from optpipe_sim.solvers.problem import make_problem


@pytest.mark.parametrize(
    ("devices", "microbatches", "limit", "optimum"),
    [
        (1, 3, 150, 90),  # one microbatch after the other: nothing but work
        (2, 3, 200, 101),
        (2, 4, 200, 131),
    ],
)
def test_small_optima(devices: int, microbatches: int, limit: int, optimum: int) -> None:
    costs = profile(devices, offload={"t_offload_ns": 5, "t_reload_ns": 5})
    found = solve_cpsat(make_problem(costs, microbatches, limit), 60.0)
    assert (found.status, found.objective_ns, found.lower_bound_ns) == ("optimal", optimum, optimum)
    assert found.schedule is not None
    assert check(found.schedule, costs, limit) == []


def test_recomputing_is_chosen_where_nothing_else_fits() -> None:
    """F twice before the first B needs 2 x 100; at 140 one of two activations drops to 6 + 30."""
    costs = replace(profile(2), offload=None)
    found = solve_cpsat(make_problem(costs, 3, 140), 60.0)
    assert found.status == "optimal"
    assert found.schedule is not None
    assert found.schedule.recompute
    kept = solve_cpsat(
        make_problem(costs.map_stages(lambda _, one: replace(one, recompute=())), 3, 140), 60.0
    )
    assert (found.objective_ns or 0) < (kept.objective_ns or 0)


@settings(max_examples=15)
@given(data=st.data())
def test_the_optimum_is_that_of_a_search_over_everything(data: st.DataObject) -> None:
    costs = data.draw(profiles(max_devices=2, max_chunks=1, levels=True))
    assume(costs.has_levels and costs.memory_limit is not None)
    costs = replace(costs, links="latency")
    microbatches = data.draw(st.integers(1, 2))
    choices = prod((1 + 2 * len(cost.recompute)) ** microbatches for cost in costs.stages)
    assume(choices <= 81)
    problem = make_problem(costs, microbatches, pairs=False)  # `test_cpsat_pairs` has those
    found = solve_cpsat(problem, 10.0)
    if found.schedule is not None:
        assert check(found.schedule, costs) == []
    try:
        least = least_cost(problem, 2000)
    except OverflowError:
        assume(False)
    assert found.status in ("optimal", "infeasible")
    assert found.objective_ns == least


@settings(max_examples=25)
@given(data=st.data())
def test_no_schedule_costs_less_than_what_is_proven(data: st.DataObject) -> None:
    costs = data.draw(profiles(max_devices=2, max_chunks=2, levels=True))
    assume(costs.has_levels and costs.memory_limit is not None)
    costs = replace(costs, links="latency")
    some = [data.draw(schedules(costs, max_microbatches=2, pairs=True)) for _ in range(4)]
    objective = data.draw(st.sampled_from(["flush", "span"]))
    microbatches = some[0].shape.microbatches
    traces = []
    for schedule in some:
        if schedule.shape.microbatches == microbatches:
            with suppress(Deadlock, OutOfMemory):
                traces.append(simulate(schedule, costs, objective=objective))
    assume(traces)
    found = solve_cpsat(make_problem(costs, microbatches, objective=objective), 5.0)
    assert found.status != "infeasible"
    assert found.lower_bound_ns <= min(trace.cost_ns for trace in traces)
    if found.schedule is not None:
        assert check(found.schedule, costs) == []
