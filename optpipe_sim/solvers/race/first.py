"""The first steps of a race: AdaOffload and the published schedules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ...errors import NoSolution, OptPipeError
from ...processes.workers import Newest, Report, Workers, next_places, shared_numbers
from ...schedule import Schedule
from ...schedules import ADAOFFLOAD, RECOMPUTING
from ...schedules.adaoffload.adaoffload import LEAST_RUNS, adaoffload
from ...schedules.adaoffload.mixed import mixed
from ..anneal.annealer import treats
from ..starts.fixed_levels import first_starts
from .race import Race

SEARCHES = ("auto", "search")  # engines
Step = Callable[[Race, float], None]  # `run_adaoffload` or `run_recomputing`
GRACE = 1.5  # steps are ended by force after so many times the time that they were given


def _clock(race: Race, until: float) -> Callable[[], bool]:
    """Return what tells whether so many seconds have passed from now, or nothing is left to do."""
    began = race.seconds
    return lambda: race.proven or race.seconds - began > until


def run_adaoffload(race: Race, until: float) -> None:
    """Run AdaOffload once for an early incumbent, then with all its settings if these take less
    than `until` seconds."""
    problem, began, over = race.problem, race.seconds, _clock(race, until)
    if treats(problem):
        race.starts = first_starts(problem, race.offer, over, lambda: race.cost_ns)
        return
    costs, m, limits = problem.profile, problem.microbatches, problem.limits
    try:
        race.offer(adaoffload(costs, m, limits, None, problem.objective, prefer=0), ADAOFFLOAD)
        if not race.proven and (race.seconds - began) * LEAST_RUNS <= until:
            race.offer(adaoffload(costs, m, limits, None, problem.objective, over=over), ADAOFFLOAD)
    except NoSolution as error:  # pinned host memory may be too scarce for the greedy
        race.failures[ADAOFFLOAD] = str(error)


def may_choose_levels(race: Race) -> bool:
    """Whether AdaOffload-R may find anything that AdaOffload does not: it chooses by activation, not by stage."""
    problem = race.problem
    return problem.may_recompute and not problem.per_stage and problem.shape.slices == 1


def run_recomputing(race: Race, until: float) -> None:
    """Run AdaOffload-R, for at most about `until` seconds: a level for each activation, and what is offloaded beside."""
    problem, over = race.problem, _clock(race, until)
    if may_choose_levels(race) and not over():
        costs, m, limits = problem.profile, problem.microbatches, problem.limits
        with suppress(OptPipeError):  # pinned host memory may be too scarce, or the time
            race.offer(mixed(costs, m, limits, None, problem.objective, over=over), RECOMPUTING)


def run_each(step: Step, races: Sequence[Race], until: float, most: float, processes: int) -> None:
    """Run a step on several races at the same time, each for at most `most` seconds, together for about `until`. With
    one process: in this one."""
    began = time.monotonic()
    if processes == 1 or len(races) < 2:
        for race in races:
            step(race, min(most, until - (time.monotonic() - began)))
        return
    shared = shared_numbers([0])  # the place of the next race
    workers = Workers()
    try:
        work = partial(_work, step, races, began + until, most, shared)
        workers.start([work] * min(processes, len(races)))
        late = began + GRACE * until
        for _, (place, kind, *found) in workers.messages(
            lambda: time.monotonic() > late, races[0].notify
        ):
            if kind == "starts":
                races[place].starts, races[place].failures = found
            else:
                races[place].take(*found)
    finally:
        for how in workers.end().values():
            races[0].failures[ADAOFFLOAD] = how


def _work(
    step: Step,
    races: Sequence[Race],
    ends: float,
    most: float,
    shared: Any,
    report: Report,
    _: Newest,
) -> None:
    """Take the next race until none is left."""
    for place in next_places(shared, len(races)):
        race = races[place]
        race.watch = None  # the process that has asked tells what is found
        race.on_incumbent = partial(_found, partial(report, place), race)
        step(race, min(most, ends - time.monotonic()))
        report(place, "starts", race.starts, race.failures)


def _found(report: Report, race: Race, schedule: Schedule, cost_ns: int) -> None:
    report("found", schedule.replace(), cost_ns, race.engine)
