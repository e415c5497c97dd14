from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import highspy
import pyomo.environ as pyo
import pytest
import strategies
from beatable import cheaper
from recompute_cases import profile as with_levels

from optpipe_sim import CostProfile, build, load_profile
from optpipe_sim.checker.times import check_times
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.ops import BW, B, F, O, Op, R, W
from optpipe_sim.profile import Offload
from optpipe_sim.schedule import Schedule
from optpipe_sim.solvers.milp.constraints import CONSTRAINTS
from optpipe_sim.solvers.milp.milp import solve_milp, write_model
from optpipe_sim.solvers.milp.model import build_model, model_size
from optpipe_sim.solvers.milp.options import MilpOptions
from optpipe_sim.solvers.milp.sets import Sets
from optpipe_sim.solvers.milp.values import Starts, earliest, plan, scheduled, set_values
from optpipe_sim.solvers.milp.variables import Model
from optpipe_sim.solvers.milp.windows import serial_ns
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.treatments import require_alike
from optpipe_sim.stage_cost import StageCost
from optpipe_sim.trace import Trace

SCRATCH = MilpOptions(bounds=False, adaoffload=False)
PAGE = (Path(__file__).parents[3] / "docs" / "milp.md").read_text()


def problem(
    stages: list[tuple[int, ...]],
    *,
    m: int = 2,
    devices: int | None = None,
    limit: Any = None,
    copies: tuple[int, int] | None = None,
    hop: int = 1,
    objective: str = "flush",
    profile: dict[str, Any] | None = None,
    offload: dict[str, Any] | None = None,
) -> Problem:
    """Stages as (F, B, W, act, w, moved); `copies`: how long an offload and a reload take."""
    out, back = copies or (None, None)
    costs = tuple(
        StageCost(f, b, w, act, held, moved, t_offload_ns=out, t_reload_ns=back)
        for f, b, w, act, held, moved in stages
    )
    p = devices or len(stages)
    made = CostProfile(
        "tiny",
        p,
        costs,
        len(stages) // p,
        latency_ns=hop,
        offload=Offload(**(offload or {})) if copies else None,
        **(profile or {}),
    )
    return make_problem(made, m, limit, objective)


SAME = [(2, 3, 1, 2, 1, 2)] * 2
UNEVEN = [(1, 5, 2, 2, 0, 2), (4, 2, 0, 3, 1, 3)]
TINY: dict[str, Problem] = {
    "no limit": problem(SAME),
    "m = 3": problem(UNEVEN, m=3, limit=5),
    "one activation": problem(SAME, limit=2),
    "offload": problem([(1, 5, 2, 2, 1, 2)] * 2, limit=[2, 9], copies=(1, 1)),
    "offload on both": problem(UNEVEN, limit=[2, 3], copies=(1, 2), hop=0),
    "shared engine": problem(
        UNEVEN, limit=[2, 3], copies=(1, 1), offload={"copy_engines": "shared"}
    ),
    "shared link": problem(
        [(1, 6, 2, 2, 0, 2)] * 2, limit=2, copies=(1, 2), offload={"host_link_groups": ((0, 1),)}
    ),
    "single link": problem(
        [(1, 6, 0, 2, 0, 2)] * 2,
        limit=2,
        copies=(1, 1),
        offload={"host_link_groups": ((0, 1),), "host_link": "single"},
    ),
    "partial": problem([(1, 6, 1, 4, 1, 2), (2, 3, 1, 2, 1, 2)], limit=[6, 2], copies=(1, 1)),
    "host limit": problem(
        [(1, 6, 1, 2, 0, 2)] * 2, limit=2, copies=(1, 1), offload={"host_limit_bytes": 2}
    ),
    "span": problem(UNEVEN, limit=[2, 3], objective="span"),
    "chunks": problem([(1, 2, 1, 1, 0, 1)] * 4, devices=2, limit=3, hop=0),
    "vee": problem([(1, 2, 1, 1, 1, 1)] * 4, devices=2, limit=2, profile={"placement": "vee"}),
    "vee, span, one device": problem(
        [(2, 1, 0, 1, 0, 1)] * 2, devices=1, limit=2, objective="span"
    ),
}


@pytest.mark.parametrize("case", TINY)
def test_optimum_by_trying_every_schedule(case: str) -> None:
    wanted = TINY[case]
    found = solve_milp(wanted, 20, options=SCRATCH, threads=1)
    assert found.status == "optimal"
    assert found.lower_bound_ns == found.objective_ns
    assert found.info["rejected"] == 0
    assert cheaper(wanted, found.objective_ns) is None
    assert cheaper(wanted, found.objective_ns + 1) is not None


def test_offloading_pays_in_the_tiny_cases() -> None:
    wanted = TINY["offload"]
    kept = replace(wanted, profile=replace(wanted.profile, offload=None))
    away = solve_milp(wanted, 20, threads=1)
    assert away.trace is not None
    assert away.trace.offloaded > 0
    assert away.objective_ns < solve_milp(kept, 20, threads=1).objective_ns


@pytest.mark.parametrize("case", ["offload", "vee"])
@pytest.mark.parametrize("name", [entry.name for entry in fields(MilpOptions)])
def test_each_switch_leaves_the_optimum(case: str, name: str) -> None:
    best = solve_milp(TINY[case], 20, threads=1)
    switched = replace(MilpOptions(), **{name: name == "fifo"})
    found = solve_milp(TINY[case], 20, options=switched, threads=1)
    assert found.objective_ns == best.objective_ns
    assert found.info["solver_status"] == "optimal"


def test_first_in_first_out_is_a_restriction_with_offloads() -> None:
    """Here the microbatch that came last is better sent back first; `fifo` must not call that
    impossible."""
    wanted = problem(
        [(1, 7, 0, 2, 0, 2), (5, 2, 0, 2, 0, 2)],
        m=3,
        limit=[4, 100],
        copies=(8, 9),
        hop=3,
        offload={"copy_engines": "shared"},
    )
    fifo = solve_milp(wanted, 20, options=replace(SCRATCH, fifo=True), threads=1)
    free = solve_milp(wanted, 30, options=replace(SCRATCH, adaoffload=True), threads=1)
    assert (free.status, free.objective_ns, free.lower_bound_ns) == ("optimal", 38, 38)
    assert (fifo.objective_ns, fifo.info["restricted_bound_ns"]) == (42, 42)
    assert fifo.lower_bound_ns <= 38
    assert fifo.status == "feasible"


# -- the model --------------------------------------------------------------------------------------


def any_problem(random: Random, **changes: Any) -> Problem:
    """A small problem of any kind."""
    p, v = random.randint(1, 3), random.randint(1, 2)
    placement = [d for d in range(p) for _ in range(v)]
    random.shuffle(placement)
    offload = strategies._engines(random, p)
    if random.random() < 0.3:
        offload = replace(offload, host_limit_bytes=random.randint(0, 30))
    profile = CostProfile(
        "random",
        p,
        tuple(strategies._stage(random, 9, True) for _ in range(p * v)),
        v,
        tuple(placement),
        random.randint(0, 3),
        random.randint(0, 3),
        offload=offload,
    )
    if random.random() < 0.8:
        profile = strategies.limited(profile, random)
    objective = random.choice(("flush", "span"))
    return make_problem(replace(profile, **changes), random.randint(1, 4), None, objective)


def any_options(random: Random) -> MilpOptions:
    names = [entry.name for entry in fields(MilpOptions)]
    return MilpOptions(**{name: random.random() < 0.7 for name in names})


@pytest.mark.parametrize("seed", range(24))
def test_the_size_is_that_of_the_model_as_built(seed: int) -> None:
    random = Random(seed)
    wanted, options = any_problem(random), any_options(random)
    wanted = replace(wanted, microbatches=random.randint(1, 7))
    sets = Sets(wanted, options)
    assert build_model(sets, serial_ns(sets)).size == model_size(wanted, options)


def test_size_of_the_uniform_problem() -> None:
    """p = 4, m = 8: 4 (3 m) times, 4 * 3 m (m - 1) / 2 orders, and the cost."""
    wanted = problem([(10, 11, 9, 100, 50, 100)] * 4, m=8, limit=400)
    assert model_size(wanted)[0] == 4 * 3 * 8 + 4 * 3 * 28 + 1


def test_each_constraint_of_the_page_is_a_function_that_states_rows() -> None:
    """docs/milp.md names the functions in order; the model has a family of rows of each name."""
    names = [rule.__name__ for rule in CONSTRAINTS]
    rows = PAGE.split("## Constraints")[1].split("\n## ")[0]
    assert re.findall(r"^- \*\*`(\w+)`\*\*", rows, re.MULTILINE) == names
    stated = dict.fromkeys(names, 0)
    for wanted in (*TINY.values(), replace(TINY["shared engine"], per_stage=True)):
        model = build_model(Sets(wanted, SCRATCH), 1000).pyomo
        families = list(model.component_objects(pyo.Constraint))
        assert [family.name for family in families] == names
        for family in families:
            stated[family.name] += len(family)
    assert all(stated.values()), stated


def test_sizes_in_the_documentation() -> None:
    for p, m in ((4, 8), (8, 16), (16, 32)):
        stage = (10, 11, 9, 100, 50, 100)
        kept = problem([stage] * p, m=m, limit=50 * p)
        away = problem([stage] * p, m=m, limit=50 * p, copies=(5, 5))
        sizes = (f"{variables} x {rows}" for variables, rows in map(model_size, (kept, away)))
        assert f"| {p}, {m} | {' | '.join(sizes)} |" in PAGE


def planned_starts(wanted: Problem, sets: Sets) -> Iterator[tuple[Problem, Sets, Trace, Starts]]:
    """The starts that the model can state: AdaOffload's and 1F1B's schedule, where they fit."""
    for name in ("adaoffload", "1f1b"):
        limit = {"limit": wanted.limits} if name == "adaoffload" else {}
        try:
            schedule = build(name, wanted.profile, wanted.microbatches, **limit)
        except OptPipeError:  # the host limit admits none
            continue
        if schedule.shape != wanted.shape:
            continue
        trace = wanted.keeps(schedule)
        starts = None if trace is None else plan(sets, trace)
        if trace is not None and starts is not None:
            yield wanted, sets, trace, starts


def excess(model: Model) -> float:
    """The largest violation of a row or a bound by the values of the variables."""
    rows = model.pyomo.component_data_objects(pyo.Constraint)
    held = [(row.lower, pyo.value(row.body), row.upper) for row in rows]
    held += [(v.lb, v.value, v.ub) for v in model.pyomo.component_data_objects(pyo.Var)]
    return max(
        max(low - value if low is not None else 0, value - most if most is not None else 0)
        for low, value, most in held
    )


@pytest.mark.parametrize("seed", range(20))
def test_schedules_are_solutions_of_the_model(seed: int) -> None:
    """A schedule's values break no row; its binaries alone give a schedule that is no worse."""
    random = Random(1000 + seed)
    planned: list[tuple[Problem, Sets, Trace, Starts]] = []
    while not planned:
        wanted = any_problem(random, links=random.choice(("latency", "serial")))
        planned = list(planned_starts(wanted, Sets(wanted, any_options(random))))
    for wanted, sets, trace, starts in planned:
        model = build_model(sets, trace.cost_ns)
        set_values(model, starts, trace.cost_ns)
        assert all(one.value is not None for one in model.pyomo.component_data_objects(pyo.Var))
        assert excess(model) < 1e-6
        times = earliest(model)
        assert times is not None
        again = scheduled(wanted, times)
        if again is not None and wanted.profile.links == "latency" and wanted.objective == "flush":
            assert again[1].cost_ns <= trace.cost_ns
            assert check_times(again[1]) == []


# -- running it -------------------------------------------------------------------------------------


def uniform(to: int | None = None, m: int = 4, limit: int = 200) -> Problem:
    data: dict[str, Any] = {
        "devices": 3,
        "stages": {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50},
        "t_comm_ns": 1,
    }
    if to is not None:
        data["offload"] = {"t_offload_ns": to, "t_reload_ns": to}
    return make_problem(load_profile(data), m, limit)


def test_never_worse_than_its_start() -> None:
    wanted = uniform(16)
    begun = build("adaoffload", wanted.profile, 4, limit=200)
    reported: list[tuple[Schedule, int]] = []
    found = solve_milp(
        wanted, 1, warm_start=begun, threads=1, on_incumbent=lambda *pair: reported.append(pair)
    )
    cost = wanted.replay(begun).cost_ns
    assert found.info["started"]
    assert found.lower_bound_ns <= found.objective_ns <= cost
    assert found.info["from_warm_start"] == (found.objective_ns == cost)
    assert [cost for _, cost in reported] == [cost for _, cost in found.incumbents]
    assert wanted.replay(reported[-1][0]).cost_ns == found.objective_ns


def test_improves_on_a_poor_start() -> None:
    wanted = uniform(limit=300)
    poor = build("gpipe", wanted.profile, 4)
    poor_cost = wanted.replay(build("1f1b", wanted.profile, 4)).cost_ns
    assert wanted.keeps(poor) is None  # does not fit, and is passed over
    found = solve_milp(wanted, 20, warm_start=poor, options=SCRATCH, threads=1)
    assert found.status == "optimal"
    assert not found.info["from_warm_start"]
    assert found.objective_ns < poor_cost
    costs = [cost for _, cost in found.incumbents]
    assert costs == sorted(set(costs), reverse=True)


def test_fused_backwards_and_serial_links_keep_the_bound_true() -> None:
    wanted = uniform(limit=300)
    cheap = wanted.profile.map_stages(lambda _, cost: replace(cost, t_bw_ns=15))
    fused = make_problem(replace(cheap, links="serial", occupancy_ns=1, latency_ns=0), 4, 300)
    begun = build("1f1b", fused.profile, 4)
    found = solve_milp(fused, 10, warm_start=begun, options=SCRATCH, threads=1)
    assert found.lower_bound_ns <= found.objective_ns <= fused.replay(begun).cost_ns
    assert found.schedule is not None
    assert (found.schedule.table[:, 0] == BW).any()
    assert found.lower_bound_ns > 4 * (10 + 15)


@pytest.fixture(params=["highs", "gurobi"])
def solver(request: pytest.FixtureRequest) -> str:
    """A solver; Gurobi where it is installed: its own licence admits what is asked of it here."""
    if request.param == "gurobi":
        pytest.importorskip("gurobipy")
    return str(request.param)


def test_per_stage_passes_over_starts_that_treat_activations_differently() -> None:
    wanted = make_problem(with_levels(1), 2, 100, treatments=("keep", "offload"), per_stage=True)
    first, second = ([Op(kind, 0, j) for kind in (F, O, R, B, W)] for j in range(2))
    begun = Schedule(wanted.shape, [[*first[:2], second[0], *second[3:], *first[2:]]])
    with pytest.raises(InvalidSchedule):
        require_alike(begun)
    found = solve_milp(wanted, 30, warm_start=begun, options=SCRATCH, threads=1)
    assert not found.info["started"]
    assert found.schedule is None or not found.info["from_warm_start"]


def test_infeasible_is_proven(solver: str) -> None:
    wanted = problem(
        [(1, 1, 1, 2, 0, 2)] * 2,
        devices=1,
        limit=2,
        copies=(1, 1),
        offload={"host_limit_bytes": 1},
    )
    found = solve_milp(wanted, 10, solver=solver, threads=1)
    assert (found.status, found.schedule) == ("infeasible", None)


def test_a_start_over_the_host_limit_is_passed_over() -> None:
    free = uniform(16)
    begun = build("adaoffload", free.profile, 4, limit=200)
    peak = free.replay(begun).host_peak_bytes
    assert free.profile.offload is not None
    offload = replace(free.profile.offload, host_limit_bytes=peak - 1)
    tight = make_problem(replace(free.profile, offload=offload), 4, 200)
    assert tight.keeps(begun) is None
    found = solve_milp(tight, 1, warm_start=begun, threads=1)
    assert found.trace is None or found.trace.host_peak_bytes < peak


def test_solvers_agree_and_take_a_start(solver: str) -> None:
    wanted = uniform(limit=300)
    begun = build("1f1b", wanted.profile, 4)
    found = solve_milp(wanted, 20, solver=solver, warm_start=begun, options=SCRATCH, threads=1)
    assert (found.status, found.objective_ns, found.bound_name) == ("optimal", 152, solver)
    assert found.info["started"]


def test_ctrl_c_keeps_the_incumbent() -> None:
    reported = []

    def stop(_: Schedule, cost: int) -> None:
        reported.append(cost)
        if len(reported) == 2:
            raise KeyboardInterrupt

    found = solve_milp(uniform(limit=300), 20, options=SCRATCH, threads=1, on_incumbent=stop)
    assert found.info["interrupted"]
    assert found.objective_ns <= reported[1] < reported[0]
    assert len(found.incumbents) == len(reported)


def test_bounds_are_reported_as_they_rise(solver: str) -> None:
    reported: list[int] = []
    found = solve_milp(
        uniform(), 20, solver=solver, threads=1, options=SCRATCH, on_bound=reported.append
    )
    assert len(reported) > 1
    assert reported == sorted(set(reported))
    assert reported == [bound for _, bound in found.bounds]
    assert reported[-1] <= found.lower_bound_ns == found.objective_ns
    assert [at for at, _ in found.bounds] == sorted(at for at, _ in found.bounds)


@pytest.mark.parametrize("kind", ["lp", "mps"])
def test_the_model_is_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{kind}"
    found = solve_milp(TINY["offload"], 20, threads=1, options=SCRATCH)
    unit_ns = write_model(TINY["offload"], path, options=SCRATCH)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(path))
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.run()
    assert solver.getObjectiveValue() * unit_ns == pytest.approx(found.objective_ns)


def test_any_solver_that_pyomo_knows() -> None:
    found = solve_milp(TINY["partial"], 20, solver="appsi_highs", options=SCRATCH)
    wanted = solve_milp(TINY["partial"], 20, options=SCRATCH, threads=1)
    assert (found.status, found.objective_ns) == ("optimal", wanted.objective_ns)
    assert found.bound_name == "appsi_highs"


def _other_shape() -> Schedule:
    return build("gpipe", uniform(m=3).profile, 3)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: solve_milp(uniform(), 0), "time limit: must be above 0 seconds, got 0"),
        (lambda: write_model(uniform(), "model.txt"), ".lp or .mps"),
        (lambda: write_model(uniform(m=400), "model.lp"), "MILP would have .* constraints"),
        (
            lambda: solve_milp(make_problem(with_levels(1), 2, 130), 1),
            "milp is the paper's program, which keeps or offloads .*: give treatments=keep,offload, or",
        ),
        (lambda: solve_milp(uniform(), 1, solver="nosuch"), "'nosuch' is not available"),
        (
            lambda: solve_milp(uniform(), 1, solver="gurobi"),
            "gurobipy is not installed: pip install",
        ),
        (lambda: solve_milp(uniform(m=400), 1), "MILP would have .* constraints, more than"),
        (
            lambda: solve_milp(uniform(), 1, warm_start=_other_shape()),
            "warm start: .* another shape",
        ),
    ],
)
def test_errors(run: Callable[[], object], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(OptPipeError, match=says) as caught:
        run()
    assert "\n" not in str(caught.value)
