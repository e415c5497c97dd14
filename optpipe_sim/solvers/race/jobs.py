"""The jobs of a race: which engines run, from which schedule and with which options."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from os import cpu_count
from typing import Any

from ...errors import OptPipeError
from ...schedules import ADAOFFLOAD
from ..anneal.annealer import treats
from ..anneal.host import writes_behind
from ..options import SolveOptions
from ..problem import Problem
from ..reports import Job, Others, Report
from .race import Race, run_race

# The module with the function ``run`` of each engine, relative to this package.
ROOMS = {
    "search": "..search",
    "cpsat": "..cpsat.cpsat",
    "milp": "..milp.milp",
    "one device": ".bounds",
}
HUNT_SHARE = 0.25  # largest share of the time for the expensive bounds
GRACE_S = 1.0  # grace period for a single engine to report its bound
SMALL = 1500  # compute ops up to which CP-SAT is worth a process
SMALL_TREATED = 300  # the same if it also chooses treatments


def require_engine(problem: Problem, options: SolveOptions) -> None:
    """Require that the engine that is to run alone can solve a problem.

    Raises:
        OptPipeError: if not; names the engines that can.
    """
    if options.engine == ADAOFFLOAD and problem.shape.slices > 1:
        raise OptPipeError(
            f"engine: {ADAOFFLOAD} orders whole sequences: give slices=1, or the engine auto, search or cpsat"
        )
    if options.engine == "milp":
        from ..milp.milp import require_milp

        require_milp(problem, options.solver, force=options.force)


def compete(race: Race, options: SolveOptions, until: float, cold: bool, brief: bool) -> None:
    """Run the engines from the incumbent until the race has run for `until` seconds, or a proof.

    Args:
        cold, brief: see `jobs_of`.

    Raises:
        OptPipeError: that of an engine that runs alone.
    """
    race.refusal = None
    jobs = jobs_of(race, replace(options, time_limit=until - race.seconds), cold, brief)
    alone = options.engine != "auto"
    calls = [(engine, partial(run_engine, engine, job)) for engine, job in jobs]
    run_race(race, calls, until + GRACE_S if alone else until)
    if alone and race.refusal is not None:
        raise race.refusal


def jobs_of(
    race: Race, options: SolveOptions, cold: bool, brief: bool = False
) -> list[tuple[str, Job]]:
    """Make the jobs of a race, each with its engine: one alone, or with ``auto`` one for each core. On small
    problems CP-SAT proves (and wherever the search may end early, see `writes_behind`); the other
    processes search, and one more searches for bounds for a while.

    Args:
        options: its time limit is the time left. `cold`: engines start without a schedule.
            `brief`: no process searches for bounds, and the search over treatments anneals at once.
    """
    problem, cores = race.problem, options.workers or cpu_count() or 1
    options = replace(options, workers=cores)

    def job(engine: str, own: SolveOptions, **more: Any) -> tuple[str, Job]:
        start, chosen = (None, ()) if cold else (race.best, race.starts)
        return engine, Job(problem, start, own, race.bound_ns, chosen, **more)

    if options.engine != "auto":
        return [job(options.engine, options)]
    names = ["search"] * cores
    ops = 3 * problem.shape.activations
    small = SMALL_TREATED if treats(problem) else SMALL
    if ops <= small or writes_behind(problem):
        names = ["search"] * max(1, cores - 1) + ["cpsat"]
    each = replace(options, workers=cores if len(names) == 1 else 1)
    searches = names.count("search")
    first_seed = options.seed + len(names) * race.turns
    jobs = [
        job(name, replace(each, seed=first_seed + number), part=(number, searches), brief=brief)
        for number, name in enumerate(names)
    ]
    one_by_one = problem.shape.slices == 1 and not problem.may_pair
    if problem.limits is not None and one_by_one and not brief:
        hunt = replace(each, workers=1, time_limit=HUNT_SHARE * options.time_limit)
        jobs.append(job("one device", hunt))
    return jobs


def run_engine(engine: str, job: Job, report: Report, others: Others) -> None:
    """Run one engine. Its module is imported here, in the engine's process, as OR-tools and Pyomo
    are large."""
    import_module(ROOMS[engine], __package__).run(job, report, others)
