"""One run of a solver: what it found when, what it proved, how large its model was."""

from __future__ import annotations

from typing import Literal

from ...errors import NoSolution, OutOfMemory
from ...solvers.shapes import solver_for
from . import CostProfile, Count, Limit, Row, Seconds
from .simulate import measures, refused

VERSION = 1


def run(
    profile: CostProfile,
    microbatches: Count,
    memory_limit: Limit = None,
    engine: Literal["auto", "adaoffload", "search", "cpsat", "milp"] = "auto",
    time_limit: Seconds = 10.0,
    seed: int = 0,
    warm_start: Literal["best", "none"] = "best",
    solver: str = "highs",
    objective: Literal["flush", "span"] = "flush",
    chunks: Count | Literal["own", "any"] = "own",
    placement: Literal["own", "loop", "vee"] = "own",
    cores: Count = 1,
) -> Row:
    """The result of `solve`, its schedule's measures, and its improvements over time.

    ``incumbents`` and ``bounds`` are lists of [seconds, ns]. ``warm_start`` ``none`` starts the
    engine from nothing, ``best`` from the best of AdaOffload and the published schedules; no cache
    is used. Without a schedule ``fits`` is False, with the reason.
    """
    door, profile = solver_for(profile, chunks, None if placement == "own" else placement)
    try:
        found = door(
            profile,
            microbatches,
            memory_limit,
            engine=engine,
            time_limit=time_limit,
            objective=objective,
            seed=seed,
            warm_start="none" if warm_start == "none" else None,
            solver=solver,
            workers=cores,
        )
    except (NoSolution, OutOfMemory) as error:
        return {**refused(error), "status": "none"}
    assert found.trace is not None
    return {
        **measures(found.trace),
        "status": found.status,
        "found_by": found.info.get("found_by", found.engine),
        "objective_ns": found.objective_ns,
        "lower_bound_ns": found.lower_bound_ns,
        "bound": found.bound_name,
        "gap": found.gap,
        "solve_seconds": round(found.seconds, 3),
        "variables": found.variables,
        "constraints": found.constraints,
        "incumbents": [[round(at, 3), ns] for at, ns in found.incumbents],
        "bounds": [[round(at, 3), ns] for at, ns in found.bounds],
        "reason": None,
    }
