"""One engine alone, from AdaOffload's schedule or from nothing: its incumbents and bounds over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Literal

from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.errors import OptPipeError
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedules import ADAOFFLOAD
from optpipe_sim.schedules.adaoffload.adaoffload import adaoffload
from optpipe_sim.solvers.anneal.annealer import search
from optpipe_sim.solvers.anneal.offloading import offload_everything
from optpipe_sim.solvers.cpsat.cpsat import solve_cpsat
from optpipe_sim.solvers.milp.milp import MOST_ROWS, solve_milp
from optpipe_sim.solvers.milp.model import model_size
from optpipe_sim.solvers.milp.options import MilpOptions
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.result import SolveResult, make_result
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.tasks import CostProfile, Count, Limit, Row, Seconds, SolveOptions

VERSION = 1
Curve = Sequence[tuple[float, int]]  # (seconds, ns) of each improvement


def run(
    profile: CostProfile,
    microbatches: Count,
    engine: Literal["adaoffload", "search", "cpsat", "milp", "auto"],
    times: list[float],
    memory_limit: Limit = None,
    start: Literal["adaoffload", "none"] = ADAOFFLOAD,
    time_limit: Seconds | None = None,
    seed: int = 0,
    solver: str = "highs",
    cores: Count = 1,
) -> list[Row]:
    """Return what an engine has ``after_s`` each of some `times`, from one run up to `time_limit` (or the
    last of them, if sooner).

    ``milp`` and ``cpsat`` know the closed-form bounds whatever the start; ``search`` (annealing
    alone) has simple patterns that offload everything in the place of nothing; ``auto`` is `solve`,
    all engines at once, a process each, whatever the `cores`.

    Columns: ``objective_ns`` (None: nothing yet), ``lower_bound_ns`` and ``gap`` by then; ``incumbents``
    and ``bounds``: [seconds, ns] of the improvements since the time before; ``first_s`` and
    ``first_ns``: the first schedule; ``seconds``: what the run took; ``formula_*``: the MILP's size
    before time windows fix some; ``variables`` and ``constraints``: the model as the solver gets it,
    once time windows have fixed what they can, for CP-SAT its last one. ``status`` is ``refused`` where
    a MILP is too large to be stated.
    """
    times = sorted(times)
    limit = min(time_limit or times[-1], times[-1])
    problem = make_problem(profile, microbatches, memory_limit)
    effort = SolveOptions(engine="milp", time_limit=limit, seed=seed, workers=cores, solver=solver)
    closed = lower_bound(profile, microbatches, memory_limit=problem.limits)
    _run(
        problem, ADAOFFLOAD, "none", 0, replace(effort, workers=1, solver="highs")
    )  # loads the compiled code
    variables, constraints = model_size(problem)
    common: Row = {
        "formula_variables": variables,
        "formula_constraints": constraints,
        "closed_form_ns": closed.ns,
        "compute_ops": 3 * problem.shape.stages * microbatches,
    }
    try:
        found = _run(problem, engine, start, closed.ns, effort)
    except OptPipeError as error:
        if engine != "milp" or constraints <= MOST_ROWS:
            raise
        return [
            {"after_s": at, **common, "status": "refused", "reason": str(error)} for at in times
        ]
    size = found.info.get("reduced", (found.variables or None, found.constraints or None))
    bounds = [(0.0, closed.ns), *found.bounds, (min(found.seconds, limit), found.lower_bound_ns)]
    common |= {
        "status": found.status,
        "seconds": round(found.seconds, 3),
        "variables": size[0],
        "constraints": size[1],
        "first_s": _seconds(found.incumbents[0][0]) if found.incumbents else None,
        "first_ns": found.incumbents[0][1] if found.incumbents else None,
    }
    return [
        {"after_s": at, **by_then(found.incumbents, bounds, before, at), **common}
        for before, at in zip((-1.0, *times), times, strict=False)
    ]


def by_then(incumbents: Curve, bounds: Curve, before: float, at: float) -> Row:
    """Return the best incumbent and bound up to second `at`, and the improvements since second `before`."""
    best = min((ns for when, ns in incumbents if when <= at), default=None)
    bound = max(ns for when, ns in bounds if when <= at)
    return {
        "objective_ns": best,
        "lower_bound_ns": bound,
        "gap": None if best is None else best / bound - 1,
        "incumbents": _between(improving(incumbents, down=True), before, at),
        "bounds": _between(improving(bounds, down=False), before, at),
    }


def improving(curve: Iterable[tuple[float, int]], down: bool) -> list[tuple[float, int]]:
    """Return the points of a curve, by time, that are better than all before them."""
    kept: list[tuple[float, int]] = []
    for when, ns in sorted(curve):
        if not kept or (ns < kept[-1][1] if down else ns > kept[-1][1]):
            kept.append((when, ns))
    return kept


def _between(curve: Curve, before: float, at: float) -> list[list[float]]:
    return [[_seconds(when), ns] for when, ns in curve if before < when <= at]


def _seconds(when: float) -> float:
    """Round up to the millisecond, so that nothing counts before it was found."""
    return math.ceil(max(0.0, when) * 1000) / 1000


def _run(
    problem: Problem, engine: str, start: str, bound_ns: int, effort: SolveOptions
) -> SolveResult:
    seconds, seed, cores = effort.time_limit, effort.seed, effort.workers or 1
    if engine in (ADAOFFLOAD, "auto"):
        return solve(
            problem.profile,
            problem.microbatches,
            problem.limits,
            engine,
            seconds,
            seed=seed,
            workers=cores,
            warm_start="none" if start == "none" else None,
            chunks="own",
        )
    given: Schedule | None = None
    if start == ADAOFFLOAD:
        given = adaoffload(problem.profile, problem.microbatches, problem.limits)
    if engine == "milp":
        return solve_milp(
            problem,
            seconds,
            warm_start=given,
            solver=effort.solver,
            seed=seed,
            threads=cores,
            options=MilpOptions(adaoffload=False),
        )
    if engine == "cpsat":
        return solve_cpsat(
            problem, seconds, warm_start=given, seed=seed, workers=cores, lower_bound_ns=bound_ns
        )
    return _annealed(problem, given, bound_ns, effort)


def _annealed(
    problem: Problem, given: Schedule | None, bound_ns: int, effort: SolveOptions
) -> SolveResult:
    began = perf_counter()
    seen: list[tuple[float, int]] = []
    starts = [given] if given is not None else []
    if not starts:
        starts = [offload_everything(problem, depth) for depth in (1, 2, problem.shape.stages)]
    best = search(
        problem,
        starts,
        goal_ns=bound_ns,
        time_limit=effort.time_limit,
        seed=effort.seed,
        on_incumbent=lambda _, cost: seen.append((perf_counter() - began, cost)),
    )
    took = perf_counter() - began
    if given is not None:
        seen.insert(0, (0.0, problem.replay(given).cost_ns))
    if best is not None:
        seen.append((took, problem.replay(best).cost_ns))
    return make_result(
        problem, "search", best, bound_ns, "closed form", took, incumbents=tuple(seen)
    )
