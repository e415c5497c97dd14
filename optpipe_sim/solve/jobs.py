"""What an engine does when it is run: start from the best schedule so far, report what it finds.

Each job is called as ``job(problem, report, start=..., bound_ns=..., seconds=..., seed=..., ...)``;
see `portfolio.run_race` for what it reports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..schedule import Schedule
from .problem import Problem
from .search import search
from .starts import offload_everything

Report = Callable[[str, Any], None]


def search_job(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    bound_ns: int,
    seconds: float,
    seed: int,
    evaluations: int | None = None,
) -> None:
    """Annealing, from the best schedule and from simple offloading patterns."""
    starts = [start] if start is not None else []
    if problem.may_offload:
        starts += [offload_everything(problem, depth) for depth in (1, 2, problem.shape.stages)]
    best = search(
        problem,
        starts,
        goal_ns=bound_ns,
        time_limit=seconds,
        evaluations=evaluations,
        seed=seed,
        on_incumbent=lambda schedule, _: report("incumbent", schedule),
    )
    if best is not None:
        report("incumbent", best)


def cpsat_job(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    bound_ns: int,
    seconds: float,
    seed: int,
    cores: int = 1,
) -> None:
    """CP-SAT: the exact model, for proofs and for what the search does not cover."""
    from .cpsat import solve_cpsat

    found = solve_cpsat(
        problem,
        seconds,
        warm_start=start,
        seed=seed,
        workers=cores,
        lower_bound_ns=bound_ns,
        on_incumbent=lambda schedule, *_: report("incumbent", schedule),
    )
    _report_result(found, report)


def milp_job(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    bound_ns: int,
    seconds: float,
    seed: int,
    cores: int = 1,
    solver: str = "highs",
) -> None:
    """OptPipe's MILP."""
    from .milp import solve_milp

    found = solve_milp(
        problem,
        seconds,
        warm_start=start,
        solver=solver,
        seed=seed,
        threads=cores,
        on_incumbent=lambda schedule, *_: report("incumbent", schedule),
    )
    _report_result(found, report)


def _report_result(found: Any, report: Report) -> None:
    report("size", (found.variables, found.constraints))
    if found.status == "infeasible":
        report("infeasible", None)
    if found.schedule is not None:
        report("incumbent", found.schedule)
    report("bound", found.lower_bound_ns)
