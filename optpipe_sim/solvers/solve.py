"""`solve`: one door to every engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ..bounds.bounds import lower_bound
from ..errors import Infeasible, NoSolution, OptPipeError
from ..profile import CostProfile
from ..schedule import Schedule
from .anneal.engine import shares_links
from .problem import make_problem
from .race.bounds import bounds_job
from .race.cache import open_cache, recall, remember
from .race.compiling import compile_engines
from .race.first import ADAOFFLOAD, run_adaoffload, run_published
from .race.jobs import exact_job, search_job
from .race.portfolio import Job, Race, run_race
from .reports import no_report
from .result import SolveResult
from .tidy import tidy
from .treated.job import treated_job, treats
from .treated.tidy import tidy_treatments

ENGINES = ("auto", "adaoffload", "search", "cpsat", "milp")
HUNT_SHARE = 0.25  # of the time, at most, for the bounds by one device
TIDY_SHARE = 0.1  # of the time limit, on top of it, to drop what is offloaded in vain
TIDY_TRIES = 1000  # for that, where evaluations count and not the clock
GRACE_S = 1.0  # for an engine alone to hand in its bound after its time
LEAST_S = 1.0  # for the published schedules, however short the time
FIXED_SHARE = 0.3  # of the time, at most, to build the published schedules
SMALL = 1500  # compute ops up to which CP-SAT is worth a process


def solve(
    profile: CostProfile,
    microbatches: int,
    memory_limit: int | Sequence[int] | None = None,
    engine: str = "auto",
    time_limit: float = 60.0,
    objective: str = "flush",
    seed: int = 0,
    *,
    warm_start: Schedule | str | None = None,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    watch: Callable[[Race], None] | None = None,
    on_wait: Callable[[], None] = no_report,
    workers: int | None = None,
    evaluations: int | None = None,
    gap: float = 0.0,
    solver: str = "highs",
    force: bool = False,
    save: str | os.PathLike[str] | None = None,
    cache: bool = False,
    published: bool = True,
    treatments: Iterable[str] | None = None,
    per_stage: bool = False,
) -> SolveResult:
    """The best schedule for a profile, m microbatches and a memory limit, and a proven bound.

    Args:
        memory_limit: bytes per device (a number, or one per device); None: the profile's own.
        engine: ``auto`` (all that help, at once), ``adaoffload``, ``search``, ``cpsat``, ``milp``.
        time_limit: seconds in all. `workers`: processes (default: the cores there are).
        objective: ``flush`` (makespan) or ``span`` (longest device span).
        seed: for whatever draws at random. `evaluations`: for ``search`` alone: stop after so many
            instead of by the clock, which makes it deterministic.
        warm_start: a schedule to start from, if it fits; ``none``: engines start from nothing.
        on_incumbent: called with each better schedule and its cost in ns. The result may be the last
            of them without offloads that gain nothing.
        on_wait: called where engines have to be compiled first, once on a machine; the clock starts
            after that.
        watch: called with the race (its seconds, cost_ns, bound_ns, engine ...) at all news.
        gap: end where the best is proven to be this close to the best possible (0.01: 1 %).
        solver: which MILP solver ``milp`` uses. `force`: state that model however large it is.
        save: a file that always holds the best schedule so far, whatever becomes of this process.
            Where it can no longer be written, ``info["failures"]["save"]`` of the result says so.
        cache: start from what is kept on disk of this problem or of those like it, and keep what
            is found (`race.cache`). Without it a run depends on nothing but its arguments.
        published: begin with AdaOffload and the published schedules, with every value of their
            options, so that none that fits is faster, as long as 30 % of the time (one second at
            least) is enough for those that could be. False: `warm_start` is the best of them already.
        treatments: what may become of an activation, of ``keep, offload, recompute``; None: all
            that the profile has. `per_stage`: all activations of a stage are treated alike.

    Raises:
        OutOfMemory: where the limit is below what one microbatch needs.
        Infeasible: where no schedule fits, proven. NoSolution: where none is found.
        OptPipeError: for settings that make no sense, a MILP solver that is not there, a MILP too
            large to be stated, or an engine, run alone, that fails.
    """
    check_settings(engine, time_limit, gap, evaluations, solver, force)
    if isinstance(warm_start, str) and warm_start != "none":
        raise OptPipeError(f"warm start: expected a schedule or 'none', got {warm_start!r}")
    problem = make_problem(
        profile, microbatches, memory_limit, objective, treatments=treatments, per_stage=per_stage
    )
    if engine == "milp":
        from .milp.engine import require_milp

        require_milp(problem, solver, force=force)
    compile_engines(problem, on_wait)
    race = Race(problem, gap, save=save, on_incumbent=on_incumbent, watch=watch)
    bound = lower_bound(problem.profile, microbatches, objective, problem.limits)
    race.prove(bound.ns, bound.name)
    cores = workers or os.cpu_count() or 1
    cold = warm_start == "none"
    kept = open_cache() if cache else None
    until = time_limit if evaluations is None else float("inf")
    try:
        if isinstance(warm_start, Schedule):
            race.offer(warm_start, "warm start")
        if kept is not None and not cold:
            recall(race, kept)
        wanted = published or race.best is None or engine == ADAOFFLOAD
        if wanted and not race.proven:
            run_adaoffload(race, FIXED_SHARE * until)
        if published and engine != ADAOFFLOAD and not race.proven:
            run_published(race, race.seconds + max(FIXED_SHARE * until, LEAST_S))
        left = until - race.seconds
        if engine == "auto":
            run_race(race, _jobs(race, left, seed, cores, cold), until)
        elif engine != ADAOFFLOAD and not race.proven and left > 0:
            job, arguments = _job(engine, race, left, seed, cores, cold)
            if evaluations is not None:
                arguments["evaluations"] = evaluations
            elif engine == "milp":
                arguments |= {"solver": solver, "gap": gap, "force": force}
            run_race(race, [(engine, job, arguments)], until + GRACE_S)
            if race.refusal is not None:
                raise race.refusal
        elif engine != ADAOFFLOAD and not race.proven:
            race.failures[engine] = "no time was left for it"
        if race.best is not None and engine != ADAOFFLOAD:
            _tidy(race, time_limit, evaluations is not None)
    except KeyboardInterrupt:
        race.interrupted = True
        if race.best is None:
            raise
    with suppress(KeyboardInterrupt):  # a second one
        race.keep()
        if kept is not None:
            remember(race, kept)
    return _result(race, engine)


def check_settings(
    engine: str,
    time_limit: float,
    gap: float,
    evaluations: int | None,
    solver: str,
    force: bool,
) -> None:
    """Refuse settings of `solve` that make no sense, or that its engine would ignore.

    Raises:
        OptPipeError: names the setting and what would be right.
    """
    if engine not in ENGINES:
        raise OptPipeError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    if not time_limit > 0:
        raise OptPipeError(f"time limit: must be above 0 seconds, got {time_limit}")
    if not 0 <= gap < 1:
        raise OptPipeError(f"gap: must be a share from 0 to below 1, as in 0.01, got {gap}")
    if evaluations is not None and engine != "search":
        raise OptPipeError(f"evaluations: only the engine 'search' counts them, not {engine!r}")
    if engine != "milp" and (solver != "highs" or force):
        raise OptPipeError(f"solver, force: are for the engine 'milp', not {engine!r}")


def _tidy(race: Race, time_limit: float, counted: bool) -> None:
    """Drop offloads and recomputations that gain nothing: they only cost memory and PCIe traffic of
    the host, and power."""
    assert race.best is not None
    seconds = min(1.0, TIDY_SHARE * time_limit)
    limits = (float("inf"), TIDY_TRIES) if counted else (seconds, None)
    treated = treats(race.problem) and not shares_links(race.problem)
    tidied = (tidy_treatments if treated else tidy)(race.problem, race.best, *limits)
    if tidied is not race.best and not race.offer(tidied, race.engine):
        race.best = tidied


def _job(
    engine: str, race: Race, seconds: float, seed: int, cores: int, cold: bool = False
) -> tuple[Job, dict[str, Any]]:
    """The job of an engine, started from the best schedule so far."""
    arguments = {
        "start": None if cold else race.best,
        "bound_ns": race.bound_ns,
        "seconds": seconds,
        "seed": seed,
    }
    if engine == "search" and treats(race.problem):
        return treated_job, {**arguments, "chosen": [] if cold else race.starts}
    if engine == "search":
        return search_job, arguments
    if engine == "bounds":
        return bounds_job, arguments
    return exact_job, {**arguments, "engine": engine, "cores": cores}


def _jobs(
    race: Race, seconds: float, seed: int, cores: int, cold: bool = False
) -> list[tuple[str, Job, dict[str, Any]]]:
    """What each core does: CP-SAT proves where the problem is small, the others search; and beside
    them, for a while, the hunt for bounds."""
    problem = race.problem
    ops = 3 * problem.shape.stages * problem.microbatches
    if race.proven or seconds <= 0:
        return []
    names = ["search"] * cores
    if ops <= SMALL or problem.host_limit is not None:
        names = ["search"] * max(1, cores - 1) + ["cpsat"]
    jobs = [
        (
            name,
            *_job(name, race, seconds, seed + number, cores if len(names) == 1 else 1, cold),
        )
        for number, name in enumerate(names)
    ]
    if problem.limits is not None:
        jobs.append(("one device", *_job("bounds", race, HUNT_SHARE * seconds, seed, 1, cold)))
    return jobs


def _result(race: Race, engine: str) -> SolveResult:
    if race.best is None:
        reasons = "".join(f"; {name}: {reason}" for name, reason in race.failures.items())
        if race.infeasible:
            raise Infeasible(f"no schedule fits the limit (proven){reasons}")
        raise NoSolution(f"no schedule found in {race.seconds:.1f} s{reasons}")
    race.failures.pop(ADAOFFLOAD, None)  # others have found one
    return race.result(engine)
