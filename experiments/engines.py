"""One engine alone, from AdaOffload's schedule or from nothing: its incumbents and bounds over time."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Literal

from experiments.cases import OTHER, Case
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
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.result import SolveResult, make_result
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.starts.published import fixed_schedules
from optpipe_sim.study.tasks import CostProfile, Count, Limit, Row

VERSION = 2
Curve = Sequence[tuple[float, int]]  # (seconds, ns) of each improvement


def run(
    engine: Literal["published", "adaoffload", "search", "cpsat", "milp", "auto"],
    times: list[float],
    profile: CostProfile | None = None,
    microbatches: Count = 1,
    memory_limit: Limit = None,
    case: str = "",
    start: Literal["adaoffload", "everything", "none"] = ADAOFFLOAD,
    seed: int = 0,
    solver: str = "highs",
    switched: Sequence[str] = (),
    cores: Count = 1,
    part: str = "",
) -> list[Row]:
    """Return what an engine has ``after_s`` each of some `times`, from one run up to the last of them, of the
    problem that is given or that `experiments.cases` calls `case`.

    ``published`` is the best of the published schedules of the same chunks that fits. ``milp`` and
    ``cpsat`` know the closed-form bounds whatever the start; ``search`` (annealing alone) has simple patterns
    that offload everything in the place of nothing; ``auto`` is `solve`, all engines at once, a process each,
    whatever the `cores`. Of the MILP, `solver` and the accelerations that are `switched` from their
    default may be chosen. `part` is the part of the table that the point is for.

    Columns: ``p``, ``m`` and ``limit``: devices, microbatches, bytes; ``objective_ns`` (None: nothing yet),
    ``best_s`` (when it was found), ``lower_bound_ns`` and ``gap`` by then; ``incumbents`` and ``bounds``: [seconds,
    ns] of the improvements since the time before; ``first_s`` and ``first_ns``: the first schedule;
    ``bound``: the name of the last bound; ``seconds``: what the run took; ``mib``: peak memory of any process so far, this one
    and two of its engines; ``formula_*``: the MILP's size before time windows fix some; ``variables`` and ``constraints``: the model as the
    solver gets it, once time windows have fixed what they can, for CP-SAT its last one. ``status`` is ``refused`` where a
    MILP is too large to be stated.
    """
    times = sorted(times)
    given = OTHER[case] if profile is None else Case(profile, microbatches, memory_limit)
    problem = make_problem(given.profile, given.microbatches, given.limit, given.objective)
    options = MilpOptions(
        adaoffload=False, **{name: not getattr(MilpOptions(), name) for name in switched}
    )
    effort = SolveOptions(
        engine="milp", time_limit=times[-1], seed=seed, workers=cores, solver=solver
    )
    closed_ns = problem.lower_bound.ns
    _run(problem, ADAOFFLOAD, "none", effort, options)  # loads the compiled code
    variables, constraints = model_size(problem, options)
    common: Row = {
        "p": problem.profile.devices,
        "m": problem.microbatches,
        "limit": max(problem.limits) if problem.limits else None,
        "formula_variables": variables,
        "formula_constraints": constraints,
        "closed_form_ns": closed_ns,
        "compute_ops": 3 * problem.shape.stages * problem.microbatches,
    }
    try:
        found = _run(problem, engine, start, effort, options)
    except OptPipeError as error:
        if engine != "milp" or constraints <= MOST_ROWS:
            raise
        return [
            {"after_s": at, **common, "status": "refused", "reason": str(error)} for at in times
        ]
    size = found.info.get("reduced", (found.variables or None, found.constraints or None))
    bounds = [
        (0.0, closed_ns if options.bounds else 0),
        *found.bounds,
        (min(found.seconds, times[-1]), found.lower_bound_ns),
    ]
    common |= {
        "status": found.status,
        "bound": found.bound_name,
        "found_by": found.info.get("found_by", found.engine),
        "seconds": round(found.seconds, 3),
        "nodes": found.info.get("nodes"),
        "variables": size[0],
        "constraints": size[1],
        "first_s": _seconds(found.incumbents[0][0]) if found.incumbents else None,
        "first_ns": found.incumbents[0][1] if found.incumbents else None,
        "mib": (_peak_kib(resource.RUSAGE_SELF) + 2 * _peak_kib(resource.RUSAGE_CHILDREN)) // 1024,
    }
    return [
        {"after_s": at, **by_then(found.incumbents, bounds, before, at), **common}
        for before, at in zip((-1.0, *times), times, strict=False)
    ]


def by_then(incumbents: Curve, bounds: Curve, before: float, at: float) -> Row:
    """Return the best incumbent and bound up to second `at`, and the improvements since second `before`."""
    found = improving([entry for entry in incumbents if entry[0] <= at], down=True)
    when, best = found[-1] if found else (None, None)
    bound = max(ns for when, ns in bounds if when <= at)
    return {
        "objective_ns": best,
        "best_s": None if when is None else _seconds(when),
        "lower_bound_ns": bound,
        "gap": best / bound - 1 if best and bound else None,
        "incumbents": _between(found, before, at),
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


def _peak_kib(who: int) -> int:
    return resource.getrusage(who).ru_maxrss


def _run(
    problem: Problem, engine: str, start: str, effort: SolveOptions, options: MilpOptions
) -> SolveResult:
    seconds, seed, cores = effort.time_limit, effort.seed, effort.workers or 1
    if engine == "published":
        return _published(problem)
    if engine in (ADAOFFLOAD, "auto"):
        return solve(
            problem.profile,
            problem.microbatches,
            problem.limits,
            engine,
            seconds,
            problem.objective,
            seed=seed,
            workers=cores,
            warm_start="none" if start == "none" else None,
            chunks="own",
        )
    given: Schedule | None = None
    if start == ADAOFFLOAD:
        given = adaoffload(
            problem.profile, problem.microbatches, problem.limits, objective=problem.objective
        )
    elif start == "everything":
        assert problem.limits is not None
        slots = min(problem.limits) // problem.profile.stages[0].act_bytes
        given = offload_everything(problem, slots)
    if engine == "milp":
        return solve_milp(
            problem,
            seconds,
            warm_start=given,
            solver=effort.solver,
            seed=seed,
            threads=cores,
            options=options,
        )
    if engine == "cpsat":
        return solve_cpsat(
            problem,
            seconds,
            warm_start=given,
            seed=seed,
            workers=cores,
            lower_bound_ns=problem.lower_bound.ns,
        )
    return _annealed(problem, given, effort)


def _published(problem: Problem) -> SolveResult:
    began = perf_counter()
    fits = [
        (trace.cost_ns, name, schedule)
        for name, schedule in fixed_schedules(problem)
        if (trace := problem.keeps(schedule)) is not None
    ]
    cost, name, best = min(fits, default=(0, "none", None), key=lambda one: one[:2])
    took = perf_counter() - began
    return make_result(
        problem,
        "published",
        best,
        *problem.lower_bound,
        took,
        incumbents=((took, cost),) if fits else (),
        info={"found_by": name},
    )


def _annealed(problem: Problem, given: Schedule | None, effort: SolveOptions) -> SolveResult:
    began = perf_counter()
    seen: list[tuple[float, int]] = []
    starts = [given] if given is not None else []
    if not starts:
        starts = [offload_everything(problem, depth) for depth in (1, 2, problem.shape.stages)]
    best = search(
        problem,
        starts,
        goal_ns=problem.lower_bound.ns,
        time_limit=effort.time_limit,
        seed=effort.seed,
        on_incumbent=lambda _, cost: seen.append((perf_counter() - began, cost)),
    )
    took = perf_counter() - began
    if given is not None:
        seen.insert(0, (0.0, problem.replay(given).cost_ns))
    if best is not None:
        seen.append((took, problem.replay(best).cost_ns))
    return make_result(problem, "search", best, *problem.lower_bound, took, incumbents=tuple(seen))
