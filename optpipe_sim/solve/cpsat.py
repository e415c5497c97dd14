"""Solve with CP-SAT: good schedules and proofs at small and middle sizes.

The search runs in phases, each a model of its own (`cpsat_model`). First in, first out is where good
schedules are. Where something can be offloaded that is a restriction, so more follow that allow
nothing but a lower cost: any order, each op in the window in which every better schedule has it;
a relaxation to ranks; and the orders in which microbatches pass one another (`cpsat_order` has
the proofs). The bound holds for every schedule.
"""

from __future__ import annotations

import threading

from ..schedule import Schedule
from .cpsat_phases import CpsatOptions
from .cpsat_search import OnBound, OnIncumbent, OnModel, Search
from .portfolio import Others, nobody
from .problem import Problem
from .result import SolveResult

__all__ = ["CpsatOptions", "OnBound", "OnIncumbent", "OnModel", "feasible", "prove", "solve_cpsat"]


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
    others: Others = nobody,
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


def prove(
    problem: Problem,
    schedule: Schedule,
    time_limit: float,
    *,
    seed: int = 0,
    workers: int = 2,
    lower_bound_ns: int = 0,
    stop: threading.Event | None = None,
    options: CpsatOptions | None = None,
) -> SolveResult:
    """Try to prove that nothing costs less than `schedule`, by asking only for what does.

    The result is ``optimal`` with the schedule given where that is proven; with a better one where
    there is one and none better than that.

    Raises:
        Deadlock, OutOfMemory: where the schedule does not run under the limit.
        OptPipeError: for a time limit of 0 or less.
    """
    problem.replay(schedule)
    search = Search(
        problem,
        time_limit,
        options,
        seed=seed,
        workers=workers,
        lower_bound_ns=lower_bound_ns,
        stop=stop,
    )
    search.offer(schedule)
    return search.run(strict=True)


def feasible(
    problem: Problem, time_limit: float, *, seed: int = 0, workers: int = 2
) -> SolveResult:
    """Any schedule under the limits, pinned host memory included, or the proof that there is none.

    The status is ``feasible`` (or ``optimal``, by chance), ``infeasible`` or ``unknown``.
    """
    return Search(problem, time_limit, seed=seed, workers=workers, first_will_do=True).run()
