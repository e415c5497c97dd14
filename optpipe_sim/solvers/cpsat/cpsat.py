"""Solve with CP-SAT: good schedules and proofs for small and medium sizes.

The search runs in phases, which state one model (`model`, `constraints`) under different assumptions on
the order of microbatches (`order`). The first phase assumes first in, first out, where good schedules
are. Where that is a restriction, further phases look for a lower cost only: any order, with each op in
the window in which every better schedule has it; a relaxation to ranks; any order. The bound holds for
every schedule.
"""

from __future__ import annotations

import threading

from ...schedule import Schedule
from ..problem import Problem
from ..reports import Job, Others, Report, no_report
from ..result import SolveResult, report_result
from .phases import CpsatOptions
from .proving import OnBound, OnIncumbent, OnModel, Search

__all__ = ["CpsatOptions", "OnBound", "OnIncumbent", "OnModel", "solve_cpsat"]


def solve_cpsat(
    problem: Problem,
    time_limit: float,
    *,
    warm_start: Schedule | None = None,
    seed: int = 0,
    workers: int = 2,
    lower_bound_ns: int = 0,
    on_incumbent: OnIncumbent | None = None,
    on_bound: OnBound | None = None,
    on_model: OnModel | None = None,
    stop: threading.Event | None = None,
    others: Others = no_report,
    options: CpsatOptions | None = None,
) -> SolveResult:
    """Find the best schedule and lower bound with CP-SAT in `time_limit` seconds. Ctrl-C, or
    setting `stop`, ends the search and keeps the incumbent.

    Args:
        warm_start: a schedule to start from; ignored if it does not fit the limit.
        seed: runs with the same seed and one worker (or ``deterministic``) give the same result if
            they end before the time limit.
        lower_bound_ns: a proven bound on the cost; the search stops when the incumbent reaches it.
        on_incumbent: called with seconds, cost and schedule at each better one. `on_bound`: with
            seconds and ns at each better bound. `on_model`: called with the numbers of variables
            and constraints of each model.
        others: returns schedules of other engines; from then on only better ones count.

    Raises:
        OptPipeError: for a time limit of 0 or less, or invalid options.
    """
    search = Search(
        problem,
        time_limit,
        options,
        seed=seed,
        workers=workers,
        lower_bound_ns=lower_bound_ns,
        stop=stop,
        on_incumbent=on_incumbent,
        on_bound=on_bound,
        on_model=on_model,
        others=others,
    )
    if warm_start is not None:
        search.offer(warm_start)
    return search.run()


def run(job: Job, report: Report, others: Others = no_report) -> None:
    """Run CP-SAT as an engine of the race: for proofs, and for schedules that the search does not cover."""
    found = solve_cpsat(
        job.problem,
        job.options.time_limit,
        warm_start=job.start,
        seed=job.options.seed,
        workers=job.options.workers or 1,
        lower_bound_ns=job.bound_ns,
        others=others,
        on_incumbent=lambda seconds, cost, schedule: report("incumbent", (schedule, "cpsat")),
        on_bound=lambda seconds, bound: report("bound", bound),
        on_model=lambda *size: report("size", size),
    )
    report_result(report, found, "cpsat")
