"""The MILP with treatments: its solutions are schedules, its optima those of CP-SAT and of a search
over everything."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest
import strategies
from exhaustive import least_cost
from recompute_cases import profile

from optpipe_sim import CostProfile, check
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.ops import BW, B, C, F, O, Op, R, W
from optpipe_sim.schedule import Schedule
from optpipe_sim.solvers.cpsat.engine import solve_cpsat
from optpipe_sim.solvers.milp.engine import solve_milp
from optpipe_sim.solvers.milp.model import build_model
from optpipe_sim.solvers.milp.options import MilpOptions
from optpipe_sim.solvers.milp.sets import Sets
from optpipe_sim.solvers.milp.size import size_formula
from optpipe_sim.solvers.milp.solvers import matrix
from optpipe_sim.solvers.milp.times import earliest, plan, scheduled, set_values
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.treatments import require_alike
from optpipe_sim.stage_cost import RecomputeLevel
from optpipe_sim.trace import Trace

SCRATCH = MilpOptions(bounds=False, adaoffload=False)


def any_problem(random: Random, longest: int = 9) -> Problem:
    """A small problem of any kind with levels; at most six activations."""
    p, v = random.choice(((1, 1), (1, 2), (2, 1), (3, 1)))
    offload = strategies._engines(random, p)
    if random.random() < 0.3:
        offload = replace(offload, host_limit_bytes=random.randint(0, 30))
    stages = []
    for _ in range(p * v):
        cost = strategies._stage(random, longest, True)
        stages.append(
            replace(
                cost,
                recompute=strategies._levels(
                    random, cost, longest, random.choice(strategies.LEVELS)
                ),
            )
        )
    made = CostProfile(
        "random",
        p,
        tuple(stages),
        v,
        latency_ns=random.randint(0, 3),
        offload=random.choice((offload, offload, None)),
    )
    return make_problem(
        strategies.limited(made, random),
        random.randint(1, 6 // (p * v)),
        objective=random.choice(("flush", "flush", "span")),
        per_stage=random.random() < 0.3,
    )


def any_schedule(random: Random, problem: Problem) -> Schedule:
    """A schedule with some of each treatment."""
    made = problem.profile
    moved = random.choice((0.0, 0.5, 1.0)) if made.offload is not None else 0.0
    fused = random.choice((0.0, 0.5, 1.0))
    needs = strategies.all_ops(problem.shape, fused=fused, offloaded=moved, random=random)
    levels = strategies.recomputed(made, problem.shape, needs, random)
    weights = random.choice(({}, {F: 8}, {B: 20, BW: 20}))
    order = strategies.random_order(needs, random, weights)
    programs = [
        [op for op in order if made.placement[op.stage] == device] for device in range(made.devices)
    ]
    return Schedule(problem.shape, programs, recompute=levels)


def any_solution(random: Random) -> tuple[Problem, Trace]:
    """A problem, and the replay of a schedule of it that takes all the memory there is."""
    wanted = any_problem(random)
    schedule = any_schedule(random, wanted)
    _, trace = strategies.that_fits(replace(wanted.profile, memory_limit=None), schedule)
    limits = tuple(map(max, wanted.profile.least_limits, map(int, trace.peak_bytes)))
    return replace(wanted, limits=limits, objective="flush", per_stage=False), trace


@pytest.mark.parametrize("seed", range(36))
def test_schedules_are_solutions_of_the_model(seed: int) -> None:
    """The model has the size of the formula; a schedule's values break no row; and its binaries
    alone give a schedule that is no worse."""
    random = Random(seed)
    wanted, trace = any_solution(random)
    names = [entry.name for entry in fields(MilpOptions)]
    options = MilpOptions(**{name: random.random() < 0.7 for name in names})
    sets = Sets(wanted, options)
    planned = plan(sets, trace)
    model = build_model(sets, trace.cost_ns)
    assert model.size == size_formula(wanted, options)
    if planned is None:
        assert options.fifo
        return
    if wanted.host_limit is not None and trace.host_peak_bytes > wanted.host_limit:
        return
    set_values(model, planned, trace.cost_ns)
    form = matrix(model)
    values = form.start()
    assert values is not None
    assert form.excess(values) < 1e-6
    times = earliest(model)
    assert times is not None
    again = scheduled(wanted, times)
    assert again is None or again[1].cost_ns <= trace.cost_ns


def test_the_solutions_above_have_every_treatment() -> None:
    counts = Counter[str]()
    for seed in range(36):
        wanted, trace = any_solution(Random(seed))
        planned = plan(Sets(wanted, MilpOptions()), trace)
        assert planned is not None
        for one in planned.chosen.values():
            way = "kept" if not one.level else "apart" if one.apart else "inside"
            counts.update([way, *["fused"] * one.fused, *["moved"] * one.moved])
    assert len(counts) == 5
    assert min(counts.values()) >= 3, counts


@pytest.mark.parametrize("seed", range(12))
def test_it_agrees_with_cpsat(seed: int) -> None:
    """And each solution keeps the rules of the checker, which knows neither."""
    wanted = any_problem(Random(500 + seed), longest=4)
    found = solve_milp(wanted, 2, options=SCRATCH, threads=1)
    other = solve_cpsat(wanted, 10, workers=1)
    assert found.info["rejected"] == 0
    for one in (found, other):
        if one.schedule is not None:
            assert check(one.schedule, wanted.profile, wanted.limits) == []
            if wanted.per_stage:
                require_alike(one.schedule)
    if {found.status, other.status} <= {"optimal", "infeasible"}:
        assert (found.status, found.objective_ns) == (other.status, other.objective_ns)
    if other.schedule is not None:
        assert found.lower_bound_ns <= other.objective_ns
    if found.schedule is not None:
        assert other.lower_bound_ns <= found.objective_ns


@pytest.mark.parametrize("limit", [130, 160])
def test_optimum_of_a_search_over_everything(limit: int) -> None:
    wanted = make_problem(replace(profile(1), offload=None), 2, limit)
    found = solve_milp(wanted, 200, options=SCRATCH, threads=1)
    assert found.status == "optimal"
    assert found.objective_ns == least_cost(wanted, 5000)


def test_a_warm_start_with_levels_is_used() -> None:
    wanted = make_problem(profile(2), 2, 130)
    begun = solve_cpsat(wanted, 100, workers=1)
    assert begun.schedule is not None
    assert begun.schedule.recompute
    found = solve_milp(wanted, 30, warm_start=begun.schedule, options=SCRATCH, threads=1)
    assert found.info["started"]
    assert found.info["from_warm_start"]
    assert found.objective_ns == begun.objective_ns


def test_per_stage_is_a_restriction() -> None:
    costs = replace(profile(2), offload=None)
    costs = costs.map_stages(lambda _, cost: replace(cost, recompute=cost.recompute[1:]))
    free = solve_milp(make_problem(costs, 2, 140), 200, options=SCRATCH, threads=1)
    alike = solve_milp(make_problem(costs, 2, 140, per_stage=True), 200, options=SCRATCH, threads=1)
    assert alike.schedule is not None
    require_alike(alike.schedule)
    assert alike.objective_ns >= free.objective_ns
    assert free.schedule is not None
    assert free.schedule.recompute


def test_per_stage_passes_over_starts_that_treat_activations_differently() -> None:
    wanted = make_problem(profile(1), 2, 100, treatments=("offload",), per_stage=True)
    first, second = ([Op(kind, 0, j) for kind in (F, O, R, B, W)] for j in range(2))
    begun = Schedule(wanted.shape, [[*first[:2], second[0], *second[3:], *first[2:]]])
    with pytest.raises(InvalidSchedule):
        require_alike(begun)
    found = solve_milp(wanted, 30, warm_start=begun, options=SCRATCH, threads=1)
    assert not found.info["started"]
    assert found.schedule is None or not found.info["from_warm_start"]


@pytest.mark.parametrize("name", [entry.name for entry in fields(MilpOptions)])
def test_each_switch_leaves_the_optimum(name: str) -> None:
    wanted = make_problem(profile(1, 5), 2, 130)
    best = solve_milp(wanted, 200, threads=1)
    switched = replace(MilpOptions(), **{name: name == "fifo"})
    found = solve_milp(wanted, 200, options=switched, threads=1)
    assert found.objective_ns == best.objective_ns
    assert found.info["solver_status"] == "optimal"


def test_sizes_by_hand() -> None:
    """One device, two microbatches, two levels, no copies: 2 x (F, B, W, C) starts; a cost; 2 x 6
    choices (kept, each level inside and apart, full with a BW, which holds less than a split B);
    orders of the 28 pairs but F0 F1, five of each microbatch by itself (F before C, B, W; C before B, W;
    B before W makes six) and those that F0 before F1 decides (F0 before C1, B1, W1); and what one
    activation holds when the other's F, C or B starts."""
    wanted = make_problem(replace(profile(1), offload=None), 2, 130)
    sets = Sets(wanted, MilpOptions())
    assert [one.name for one in sets.choices[0]] == [
        "keep", "l1inside", "l1apart", "l2inside", "l2inside_BW", "l2apart"
    ]  # fmt: skip
    orders = 28 - 1 - 2 * 6 - 3
    assert size_formula(wanted)[0] == 8 + 1 + 12 + orders + 6
    assert C in sets.kinds_of(0)
    assert all(op.kind is not O for op in sets.ops)


def test_sizes_in_the_documentation() -> None:
    third = RecomputeLevel("third", 5, 30, 30)
    text = (Path(__file__).parents[3] / "docs" / "milp.md").read_text()
    for p, m in ((4, 8), (8, 16), (16, 32)):
        found = []
        for offload, numbers in (
            (False, (0,)),
            (True, (0,)),
            (False, (1, 2, 3)),
            (True, (1, 2, 3)),
        ):
            costs = profile(p, 5) if offload else replace(profile(p), offload=None)
            for number in numbers:
                levels = (*costs.stages[0].recompute, third)[:number]
                some = costs.map_stages(lambda _, cost, own=levels: replace(cost, recompute=own))
                found.append(size_formula(make_problem(some, m, 50 * p)))
        row = " | ".join(f"{variables} x {rows}" for variables, rows in found)
        assert f"| {p}, {m} | {row} |" in text
