"""`solve` over slices of the sequence: it reaches proven optima, is no slower than published schedules, and
chooses their number."""

from __future__ import annotations

from typing import Any

import pytest
from unit_profiles import UNIT, unit_profile

from optpipe_sim import CostProfile, build, check, load_profile, simulate, solve
from optpipe_sim.errors import OptPipeError
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.solvers.cpsat.cpsat import solve_cpsat
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.starts.sliced import in_slices, one_at_a_time

STAGE = {
    "t_f_ns": [10, 12], "t_b_ns": [12, 15], "t_w_ns": 8, "act_bytes": 10, "w_bytes": 4, "kv_bytes": 3,
    "recompute": [{"name": "full", "t_ns": 9, "keep_bytes": 4}],
}  # fmt: skip


def profile(**more: Any) -> CostProfile:
    copies = {"t_offload_ns": 7, "t_reload_ns": 7}
    data = {"devices": 2, "slices": 2, "stages": STAGE, "t_comm_ns": 2, "offload": copies}
    return load_profile(data | more)


@pytest.mark.parametrize(("limit", "treatments"), [(30, ("keep",)), (22, ("keep", "recompute"))])
def test_the_search_reaches_proven_optima(limit: int, treatments: Any) -> None:
    costs = profile()
    found = solve(
        costs, 2, limit, engine="search", evaluations=20_000, workers=1, treatments=treatments
    )
    problem = make_problem(costs, 2, limit, treatments=treatments)
    best = solve_cpsat(problem, 120, warm_start=found.schedule, workers=1)
    assert best.status == "optimal"
    assert found.objective_ns == best.objective_ns
    assert check(found.schedule, problem.profile, limit) == []


def test_auto_proves_what_it_finds() -> None:
    found = solve(profile(), 2, 40, time_limit=120, workers=1, treatments=("keep",), chunks="own")
    assert found.status == "optimal"
    assert found.schedule is not None
    assert found.schedule.shape.slices == 2
    assert "in 2 slices" in found.info["covers"]


def test_no_published_schedule_over_slices_is_faster() -> None:
    costs = unit_profile(
        4, slices=4, t_comm_ms=0.1, offload={"t_offload_ms": 0.5, "t_reload_ms": 0.5},
        stages=UNIT | {"kv_bytes": 10, "t_f_ms": [1, 2, 3, 4]},
    )  # fmt: skip
    found = solve(costs, 4, engine="search", evaluations=1, workers=1)
    names = [name for name, entry in REGISTRY.items() if entry.sliced and name != "seq1f1b-i"]
    fastest = min(simulate(build(name, costs, 4), costs).makespan_ns for name in names)
    assert found.objective_ns <= fastest < simulate(build("zb-h2", costs, 4), costs).makespan_ns


def test_offloads_of_slices_over_a_shared_link() -> None:
    copies = {"t_offload_ns": 2, "t_reload_ns": 3, "host_link_groups": [[0, 1]]}
    stage = {"t_f_ns": 4, "t_b_ns": 3, "t_w_ns": 2, "act_bytes": 10, "kv_bytes": 3}
    costs = load_profile({"devices": 2, "slices": 3, "stages": stage, "offload": copies})
    for engine, effort in (("search", {"evaluations": 300}), ("cpsat", {"time_limit": 5})):
        found = solve(costs, 1, 24, engine=engine, workers=1, **effort, chunks="own")  # type: ignore[arg-type]
        assert found.schedule is not None
        assert check(found.schedule, costs, 24) == []
        assert found.trace.offloaded


def test_what_needs_least_memory_fits_the_least_limit() -> None:
    costs = profile()
    problem = make_problem(costs, 3, max(costs.least_limits))
    assert any(problem.keeps(schedule) for _, schedule in one_at_a_time(problem))


def test_the_number_of_slices_may_be_chosen() -> None:
    costs = unit_profile(2, stages=UNIT)
    whole, cut, best = (
        solve(costs, 2, slices=slices, time_limit=60, workers=1, engine=engine, chunks="own")
        for slices, engine in ((1, "cpsat"), (2, "cpsat"), ("any", "auto"))
    )
    assert best.objective_ns <= cut.objective_ns < whole.objective_ns
    assert best.schedule is not None
    assert best.schedule.shape.slices > 1
    assert best.info["covers"].endswith("in 1 to 2 and 4 and 8 slices")
    sliced = profile()
    assert solve(sliced, 1, slices=1, engine="cpsat", workers=1).schedule.shape.slices == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("engine", ["milp", "adaoffload"])
def test_engines_of_whole_sequences_are_refused(engine: str) -> None:
    with pytest.raises(OptPipeError, match=f"{engine} orders whole sequences: give slices=1"):
        solve(profile(), 2, engine=engine, chunks="own")
    with pytest.raises(OptPipeError, match="slices: expected own, any or a number"):
        solve(profile(), 2, slices=0, chunks="own")


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "po:offloaded=1,chunks=1"])
def test_whole_sequences_slice_by_slice_are_no_slower(name: str) -> None:
    costs = profile()
    plain = build(name, costs, 4)
    sliced = in_slices(plain, 2)
    assert check(sliced, costs) == []
    whole = simulate(plain, costs)
    trace = simulate(sliced, costs)
    assert trace.makespan_ns <= whole.makespan_ns
    assert all(a <= b for a, b in zip(trace.peak_bytes, whole.peak_bytes, strict=True))
