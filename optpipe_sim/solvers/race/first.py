"""The first steps of a race: AdaOffload and the published schedules."""

from __future__ import annotations

from ...errors import NoSolution
from ...schedules.adaoffload.adaoffload import LEAST_RUNS, adaoffload
from ..treated.engine import first_starts, treats
from .portfolio import Race
from .rules import rules_of, run_rules

ADAOFFLOAD = "adaoffload"
SEARCHES = ("auto", "search")  # engines


def run_adaoffload(race: Race, until: float) -> None:
    """Run AdaOffload once for an early incumbent, then with all its settings if these take less
    than `until` seconds."""
    problem, began = race.problem, race.seconds
    if treats(problem):
        race.starts = first_starts(
            problem,
            race.offer,
            lambda: race.proven or race.seconds - began > until,
            lambda: race.cost_ns,
        )
        return
    costs, m, limits = problem.profile, problem.microbatches, problem.limits
    try:
        race.offer(adaoffload(costs, m, limits, None, problem.objective, prefer=0), ADAOFFLOAD)
        if not race.proven and (race.seconds - began) * LEAST_RUNS <= until:
            race.offer(adaoffload(costs, m, limits, None, problem.objective), ADAOFFLOAD)
    except NoSolution as error:  # pinned host memory may be too scarce for the greedy
        race.failures[ADAOFFLOAD] = str(error)


def run_published(race: Race, until: float, processes: int, engine: str) -> None:
    """Try the published schedules of the problem's shape with every value of their options, until
    the race has run for `until` seconds; `Race.untried` counts the rules that were left. The engines
    that search try stretched ones too."""
    rules = rules_of([race.problem], [race.bound_ns], engine in SEARCHES)
    race.untried = run_rules([race], rules, lambda: race.optimal or race.seconds > until, processes)
