"""What a race begins with: AdaOffload, and the published schedules."""

from __future__ import annotations

from ..errors import NoSolution
from ..schedules.adaoffload import LEAST_RUNS, adaoffload
from .portfolio import Race
from .starts import fixed_schedules

ADAOFFLOAD = "adaoffload"


def run_adaoffload(race: Race, until: float) -> None:
    """AdaOffload: one run at once, so that there is something to show; then the best of its
    settings, where those take less than `until` seconds."""
    problem, began = race.problem, race.seconds
    costs, m, limits = problem.profile, problem.microbatches, problem.limits
    try:
        race.offer(adaoffload(costs, m, limits, None, problem.objective, prefer=0), ADAOFFLOAD)
        if not race.proven and (race.seconds - began) * LEAST_RUNS <= until:
            race.offer(adaoffload(costs, m, limits, None, problem.objective), ADAOFFLOAD)
    except NoSolution as error:  # pinned host memory may be too scarce for a greedy
        race.failures[ADAOFFLOAD] = str(error)


def run_published(race: Race, until: float) -> None:
    """The published schedules of the problem's shape, until the race has run for so many seconds."""
    for name, schedule in fixed_schedules(race.problem):
        race.offer(schedule, name)
        if race.proven or race.seconds > until:
            break
