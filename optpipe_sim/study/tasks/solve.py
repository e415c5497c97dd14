"""One run of a solver: its incumbents over time, its bound and the size of its model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...errors import NoSolution, OutOfMemory
from ...solvers.solve import solve
from . import CostProfile, Count, Limit, Row, SolveOptions
from .simulate import measures, refused

VERSION = 1


def run(
    profile: CostProfile,
    microbatches: Count,
    memory_limit: Limit = None,
    warm_start: Literal["best", "none"] = "best",
    cores: Count = 1,
    options: SolveOptions = SolveOptions(time_limit=10.0),  # noqa: B008  (frozen)
) -> Row:
    """Return the result of `solve`, its schedule's measures, and its improvements over time.

    ``incumbents`` and ``bounds`` are lists of [seconds, ns]. ``warm_start`` ``none`` starts the engine
    from nothing, ``best`` from the best of AdaOffload and the published schedules. ``workers`` are as
    many as ``cores`` unless they are given. With a ``margin``, ``planned_ns`` is the time within it.
    Without a schedule ``fits`` is False, with the reason.
    """
    options = replace(options, workers=options.workers or cores)
    try:
        found = solve(
            profile,
            microbatches,
            memory_limit,
            **vars(options),
            warm_start="none" if warm_start == "none" else None,
        )
    except (NoSolution, OutOfMemory) as error:
        return {**refused(error), "status": "none"}
    assert found.trace is not None
    margin = found.info.get("margin", {})
    return {
        **measures(found.trace),
        **{key: ns for key, ns in margin.items() if key.endswith("_ns")},
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
