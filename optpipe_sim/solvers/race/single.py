"""Solve one problem: AdaOffload and the published schedules first, then a race of the engines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from os import cpu_count

from ...errors import Infeasible, NoSolution, OptPipeError
from ...schedule import Schedule
from ...schedules import ADAOFFLOAD
from ..anneal.search import shares_links, treats
from ..options import SolveOptions
from ..problem import Problem
from ..reports import Hooks
from ..result import SolveResult
from ..treated.engine import Start
from ..treated.tidy import tidy_treatments
from .cache import open_cache, recall, remember
from .compiling import compile_engines
from .first import run_adaoffload, run_published
from .jobs import jobs_of
from .portfolio import Race, run_race
from .tidy import tidy

TIDY_SHARE = 0.1  # share of the time limit, in addition to it, to drop useless offloads
TIDY_REPLAYS = 4  # it begins and ends with one: with time for fewer it is left out
TIDY_TRIES = 1000  # the same if evaluations are limited instead of time
GRACE_S = 1.0  # grace period for a single engine to report its bound
LEAST_S = 1.0  # at least for the published schedules
FIXED_SHARE = 0.3  # largest share of the time for AdaOffload
FLOOR_SHARE = 0.5  # the same for the published schedules; few problems need a tenth


def solve_problem(
    problem: Problem,
    options: SolveOptions,
    start: Schedule | str | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008  (frozen)
    chosen: Sequence[Start] = (),
    brief: bool = False,
) -> SolveResult:
    """Run `solve` for one problem, whose chunks, placement and treatments are fixed.

    Args:
        start: a schedule, or ``none``: the engines start without one.
        chosen: the result of `run_adaoffload` on this problem, if known (`Race.starts`).
        brief: all of the time is for better schedules: none for bounds, or to tidy up.

    Raises: as `solve`.
    """
    engine, cold = options.engine, start == "none"
    if engine == ADAOFFLOAD and problem.shape.slices > 1:
        raise OptPipeError(
            f"engine: {engine} orders whole sequences: give slices=1, or the engine auto, search or cpsat"
        )
    if engine == "milp":
        from ..milp.engine import require_milp

        require_milp(problem, options.solver, force=options.force)
    compiling_s = compile_engines(problem, hooks.on_wait)
    race = Race(
        problem, options.gap, save=hooks.save, on_incumbent=hooks.on_incumbent, watch=hooks.watch,
        starts=list(chosen), compiling_s=compiling_s,
    )  # fmt: skip
    bound = problem.lower_bound
    race.prove(bound.ns, bound.name)
    kept = open_cache() if options.cache else None
    try:
        given = isinstance(start, Schedule) and race.offer(start, "warm start")
        if kept is not None and not cold:
            recall(race, kept)
        _run(race, options, cold, brief, given)
        if race.best is not None and engine != ADAOFFLOAD and not brief:
            _tidy(race, options)
    except KeyboardInterrupt:
        race.interrupted = True
        if race.best is None:
            raise
    with suppress(KeyboardInterrupt):  # a second interrupt
        race.keep()
        if kept is not None:
            remember(race, kept)
    return _result(race, engine)


def _run(race: Race, options: SolveOptions, cold: bool, brief: bool, given: bool) -> None:
    """Try the published schedules, then run the engines, until the time limit or a proof.

    Args:
        given: whether the caller gave a schedule that fits; one from the cache replaces no step.
    """
    engine = options.engine
    until = float("inf")
    if options.evaluations is None:  # the result is replayed in the end
        until = max(options.time_limit / 2, options.time_limit - race.problem.replay_s)
    # 1. AdaOffload and the published schedules, for a share of the time
    wanted = options.published or not given or engine == ADAOFFLOAD
    if wanted and not race.proven:
        run_adaoffload(race, FIXED_SHARE * until)
    if engine == ADAOFFLOAD:
        return
    if options.published and not race.optimal:
        processes = 1 if options.evaluations is not None else options.workers or cpu_count() or 1
        run_published(race, race.seconds + max(FLOOR_SHARE * until, LEAST_S), processes, engine)
    if race.proven:
        return
    # 2. the engines, for the rest of the time
    left = until - race.seconds
    if left > 0:
        jobs = jobs_of(race, replace(options, time_limit=left), cold, brief)
        run_race(race, jobs, until if engine == "auto" else until + GRACE_S)
        if engine != "auto" and race.refusal is not None:
            raise race.refusal
    elif engine != "auto":
        race.failures[engine] = "no time was left for it"


def _tidy(race: Race, options: SolveOptions) -> None:
    """Drop offloads and recomputations that gain nothing; they only cost power, host memory and
    PCIe traffic."""
    assert race.best is not None
    seconds = min(1.0, TIDY_SHARE * options.time_limit)
    counted = options.evaluations is not None
    if not counted and seconds < TIDY_REPLAYS * race.problem.replay_s:
        return
    limits = (float("inf"), TIDY_TRIES) if counted else (seconds, None)
    treated = treats(race.problem) and not shares_links(race.problem)
    if not treated and (race.problem.shape.slices > 1 or race.problem.may_pair):
        return  # neither way of tidying knows slices or pairs on shared links
    tidied = (tidy_treatments if treated else tidy)(race.problem, race.best, *limits)
    if tidied is not race.best and not race.offer(tidied, race.engine):
        race.best = tidied


def _result(race: Race, engine: str) -> SolveResult:
    if race.best is None:
        reasons = "".join(f"; {name}: {reason}" for name, reason in race.failures.items())
        if race.infeasible:
            raise Infeasible(f"no schedule fits the limit (proven){reasons}")
        raise NoSolution(f"no schedule found in {race.seconds:.1f} s{reasons}")
    race.failures.pop(ADAOFFLOAD, None)  # other engines have found one
    return race.result(engine)
