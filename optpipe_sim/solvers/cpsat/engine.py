"""Solve with CP-SAT: good schedules and proofs at small and middle sizes.

The search runs in phases, each a model of its own (`model`). First in, first out is where good
schedules are. Where something can be offloaded that is a restriction, so more follow that allow
nothing but a lower cost: any order, each op in the window in which every better schedule has it;
a relaxation to ranks; and the orders in which microbatches pass one another (`order` has
the proofs). The bound holds for every schedule.
"""

from __future__ import annotations

import threading

from ...schedule import Schedule
from ..options import SolveOptions
from ..problem import Problem
from ..reports import Others, Report, no_report
from ..result import SolveResult, report_result
from .phases import CpsatOptions
from .search import OnBound, OnIncumbent, OnModel, Search

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
    """The best schedule that CP-SAT finds in `time_limit` seconds, and how far it proves it.

    Ctrl-C, and `stop` once it is set, end the search and keep what was found.

    Args:
        warm_start: a schedule to start from; left aside where it does not fit the limit.
        seed: two runs with the same one and one worker (or ``deterministic``) that end before the
            time limit give the same.
        lower_bound_ns: a proven bound on the cost; the search stops where it is reached.
        on_incumbent: called with seconds, cost and schedule at each better one. `on_bound`: with
            seconds and ns at each better bound. `on_model`: with the variables and constraints of
            each model that is built.
        others: gives schedules that were found elsewhere meanwhile; only better ones count then.

    Raises:
        OptPipeError: for a time limit of 0 or less, or options that make no sense.
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


def run(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    options: SolveOptions,
    bound_ns: int = 0,
    others: Others = no_report,
) -> None:
    """CP-SAT as an engine of the race: for proofs, and for what the search does not cover."""
    found = solve_cpsat(
        problem,
        options.time_limit,
        warm_start=start,
        seed=options.seed,
        workers=options.workers or 1,
        lower_bound_ns=bound_ns,
        others=others,
        on_incumbent=lambda seconds, cost, schedule: report("incumbent", schedule),
        on_bound=lambda seconds, bound: report("bound", bound),
        on_model=lambda *size: report("size", size),
    )
    report_result(report, found)
