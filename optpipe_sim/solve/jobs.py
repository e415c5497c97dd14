"""What an engine does when it is run: start from the best schedule so far, report what it finds.

Each job is called as ``job(problem, report, start=..., bound_ns=..., seconds=..., seed=..., ...)``;
see `portfolio.run_race` for what it reports.
"""

from __future__ import annotations

import time

from ..schedule import Schedule
from .greedy_search import greedy_search
from .patterns import STEPS, pattern_start
from .portfolio import Others, Report, nobody
from .problem import Problem
from .search import can_search, search, shares_links
from .starts import offload_everything
from .waves import wave_search

GREEDY_SHARE, GREEDY_RUNS = 0.2, 1000  # of a search job: the part of its time, or so many runs
# With several chunks waves come first, which find better orders; so many of each are kept.
WAVE_SHARE, WAVE_RUNS, AFTER_WAVES, KEPT = 0.3, 1000, 0.1, 2
PATTERN_SHARE = (
    0.6  # of its time, at most, until a pattern is found as well, where links are shared
)


def search_job(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    bound_ns: int,
    seconds: float,
    seed: int,
    evaluations: int | None = None,
    others: Others = nobody,
) -> None:
    """AdaOffload in the order of waves and with its parameters searched, then annealing from the
    best of it, from the best schedule so far and from simple offloading patterns."""
    began = time.monotonic()

    def over(share: float = 1.0) -> bool:
        return evaluations is None and time.monotonic() - began > share * seconds

    anneals = can_search(problem)
    waves: list[Schedule] = []
    if anneals and problem.shape.chunks > 1:
        waves = wave_search(
            problem,
            lambda: over(WAVE_SHARE),
            runs=WAVE_RUNS,
            seed=seed,
            keep=KEPT,
            found=lambda schedule: report("incumbent", schedule),
        )
    share = WAVE_SHARE + AFTER_WAVES if waves else GREEDY_SHARE
    greedy = greedy_search(
        problem,
        lambda: over(share if anneals else 1.0),
        runs=GREEDY_RUNS if anneals else 10**6,
        seed=seed,
        found=lambda schedule: report("incumbent", schedule),
    )
    if not anneals:
        return
    starts = [start] if start is not None else []
    starts += [*waves, *(greedy[:KEPT] if waves else greedy)]
    if problem.may_offload:
        starts += [offload_everything(problem, depth) for depth in (1, 2, problem.shape.stages)]
    if shares_links(problem):
        steps = STEPS if evaluations is None else min(STEPS, evaluations // 2)
        pattern = pattern_start(
            problem, starts[0], lambda: over(PATTERN_SHARE), steps=steps, seed=seed
        )
        if pattern is not None:
            report("incumbent", pattern)
            starts.append(pattern)
    best = search(
        problem,
        starts,
        goal_ns=bound_ns,
        time_limit=seconds - (time.monotonic() - began),
        evaluations=evaluations,
        seed=seed,
        on_incumbent=lambda schedule, _: report("incumbent", schedule),
    )
    if best is not None:
        report("incumbent", best)


def exact_job(
    problem: Problem,
    report: Report,
    engine: str,
    start: Schedule | None,
    bound_ns: int,
    seconds: float,
    seed: int,
    cores: int = 1,
    solver: str = "highs",
    others: Others = nobody,
) -> None:
    """An exact model, for proofs and for what the search does not cover: ``cpsat``, or ``milp``,
    OptPipe's own, on a MILP solver."""
    if engine == "cpsat":
        from .cpsat import solve_cpsat

        found = solve_cpsat(
            problem,
            seconds,
            warm_start=start,
            seed=seed,
            workers=cores,
            lower_bound_ns=bound_ns,
            others=others,
            on_incumbent=lambda seconds, cost, schedule: report("incumbent", schedule),
        )
    else:
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
    report("size", (found.variables, found.constraints))
    if found.status == "infeasible":
        report("infeasible", None)
    if found.schedule is not None:
        report("incumbent", found.schedule)
    report("bound", found.lower_bound_ns)
