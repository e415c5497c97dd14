"""The jobs of a race: which engines run, from which schedule and with which options."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from os import cpu_count
from typing import Any

from ..anneal.host import writes_behind
from ..anneal.search import treats
from ..options import SolveOptions
from ..problem import Problem
from ..reports import Report
from .portfolio import Job, Race

# The module with the function ``run`` of each engine, relative to this package.
ROOMS = {
    "search": "..anneal.engine",
    "treated": "..treated.engine",
    "cpsat": "..cpsat.engine",
    "milp": "..milp.engine",
    "bounds": ".bounds",
}
HUNT_SHARE = 0.25  # largest share of the time for the expensive bounds
SMALL = 1500  # compute ops up to which CP-SAT is worth a process
SMALL_TREATED = 300  # the same if it also chooses treatments


def jobs_of(
    race: Race, options: SolveOptions, cold: bool, brief: bool = False
) -> list[tuple[str, Job, dict[str, Any]]]:
    """Make the jobs of a race: one engine alone, or with ``auto`` one for each core. On small
    problems CP-SAT proves (and wherever the search may end early, see `writes_behind`); the other
    processes search, and one more searches for bounds for a while.

    Args:
        options: its time limit is the time left. `cold`: engines start without a schedule.
            `brief`: no process searches for bounds, and the search over treatments anneals at once.
    """
    problem, cores = race.problem, options.workers or cpu_count() or 1
    options = replace(options, workers=cores)
    if options.engine != "auto":
        return [_job(options.engine, race, options, cold)]
    names = ["search"] * cores
    ops = 3 * problem.shape.stages * problem.shape.units
    small = SMALL_TREATED if treats(problem) else SMALL
    if ops <= small or writes_behind(problem):
        names = ["search"] * max(1, cores - 1) + ["cpsat"]
    each = replace(options, workers=cores if len(names) == 1 else 1)
    searches = names.count("search")
    jobs = [
        _job(name, race, replace(each, seed=options.seed + number), cold, (number, searches), brief)
        for number, name in enumerate(names)
    ]
    one_by_one = problem.shape.slices == 1 and not problem.may_pair
    if problem.limits is not None and one_by_one and not brief:
        hunt = replace(each, workers=1, time_limit=HUNT_SHARE * options.time_limit)
        _, job, arguments = _job("bounds", race, hunt, cold)
        jobs.append(("one device", job, arguments))
    return jobs


def run_engine(problem: Problem, report: Report, engine: str, **arguments: Any) -> None:
    """Run one engine. Its module is imported here, in the engine's process, as OR-tools and Pyomo
    are large."""
    import_module(ROOMS[engine], __package__).run(problem, report, **arguments)


def _job(
    name: str,
    race: Race,
    options: SolveOptions,
    cold: bool,
    part: tuple[int, int] = (0, 1),
    brief: bool = False,
) -> tuple[str, Job, dict[str, Any]]:
    """Make the job of an engine, started from the best schedule so far; `part`: its number and the
    total of parallel searches."""
    arguments: dict[str, Any] = {
        "engine": name,
        "start": None if cold else race.best,
        "options": options,
        "bound_ns": race.bound_ns,
    }
    if name == "search" and treats(race.problem):
        arguments |= {"engine": "treated", "chosen": () if cold else race.starts, "part": part}
        arguments["brief"] = brief
    return name, run_engine, arguments
