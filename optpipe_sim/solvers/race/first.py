"""What a race begins with: AdaOffload, and the published schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import NoSolution
from ...schedules.adaoffload.adaoffload import LEAST_RUNS, adaoffload
from ..starts import plain_schedules, recomputing_schedules
from ..treated.engine import first_starts, treats
from ..variants import grouped_variants, levels_of, limited_variants
from .portfolio import Race

ADAOFFLOAD = "adaoffload"


def run_adaoffload(race: Race, until: float) -> None:
    """AdaOffload: one run at once, so that there is something to show; then the best of its
    settings, where those take less than `until` seconds."""
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
    except NoSolution as error:  # pinned host memory may be too scarce for a greedy
        race.failures[ADAOFFLOAD] = str(error)


def run_published(race: Race, until: float) -> None:
    """The published schedules of the problem's shape with every value of their options, until the
    race has run for so many seconds."""

    def over() -> bool:
        return race.proven or race.seconds > until

    run_plain([race], over)
    run_grouped([race], over)
    run_limited(race, over)


def run_plain(races: Sequence[Race], over: Callable[[], bool]) -> None:
    """The published schedules that are not built in groups, on every shape: all without
    recomputation, then all at each level that could beat the best of all of them, then those that choose
    by themselves what to recompute; until it is over, but at least one of them."""
    levels = dict.fromkeys(level for race in races for level in levels_of(race.problem))
    for level in (None, *levels):
        for race in races:
            if level is not None and level not in levels_of(race.problem, _best_ns(races)):
                continue
            for name, schedule in plain_schedules(race.problem, level):
                race.offer(schedule, name)
                if over():
                    return
    for race in races:
        for name, schedule in recomputing_schedules(race.problem):
            race.offer(schedule, name)
            if over():
                return


def _best_ns(races: Sequence[Race]) -> int:
    return min(race.cost_ns for race in races)


def run_grouped(races: Sequence[Race], over: Callable[[], bool]) -> None:
    """GIS and PipeOffload on every shape that could beat the best of all of them, until it is over;
    see `variants.grouped_variants`."""
    problems = [race.problem for race in races]
    for at, name, schedule in grouped_variants(problems, lambda: _best_ns(races), over):
        races[at].offer(schedule, name)


def run_limited(
    race: Race, over: Callable[[], bool], best_ns: Callable[[], float] | None = None
) -> None:
    """The automatic zero-bubble schedules, planned for other limits.

    Args:
        best_ns: what they have to beat to count; by default the best of this race.
    """
    for name, schedule in limited_variants(race.problem, over, best_ns or (lambda: race.cost_ns)):
        race.offer(schedule, name)
        if race.proven:
            break
