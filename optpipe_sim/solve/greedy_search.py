"""AdaOffload with its parameters searched: random settings, and changes of the best."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ..errors import OptPipeError
from ..schedule import Schedule
from ..schedules.adaoffload import SETTINGS
from ..schedules.adaoffload_runs import UNBOUNDED, Setting
from ..schedules.adaoffload_runs import Problem as Runs
from .problem import Problem

CHOICES: dict[str, tuple[int, ...]] = {
    "prefer": (0, 0, 1, 2),
    "patience": (0, 100, 300, 500, 700, 1000, 1500),
    "pending": (UNBOUNDED, UNBOUNDED, 1, 2, 3, 4, 6),
    "group": (-1, 0, 1, 1, 2, 4),
    "ahead": (500, 800, 1000, 1200, 1500, 2000, 2500, 3000, 4000, 5000),
    "headroom": (0, 1, 2, 3, 4),
    "oldest": (0, 0, 1),
    "keep": (0, 1),
    "reload_first": (0, 1),
    "depth": (0, 0, 700, 1000, 1200, 1500, 2000, 3000),
}


def greedy_search(
    problem: Problem,
    over: Callable[[], bool],
    *,
    runs: int,
    seed: int = 0,
    keep: int = 4,
    found: Callable[[Schedule], None] = lambda schedule: None,
) -> list[Schedule]:
    """The best few schedules of up to `runs` runs of AdaOffload with different settings.

    Each run draws a setting at random or, half the time, changes one or two parameters of one of
    the best. Runs that would end later than the best few are cut short.

    Args:
        over: asked before every run whether to stop.
        found: called with each schedule better than all before.
    """
    random = Random(seed)
    try:
        game = Runs(problem.profile, problem.microbatches, problem.limits)
    except OptPipeError:  # the host memory does not allow what the greedy wants
        return []
    best: list[tuple[int, int, Setting]] = []
    schedules: dict[int, Schedule] = {}
    seen: set[Setting] = set()
    for run in range(runs):
        if over():
            break
        setting = _next_setting(random, [entry[2] for entry in best], run)
        if setting in seen:
            continue
        seen.add(setting)
        worst = best[-1][0] if len(best) == keep else None
        cut = worst if worst is not None and problem.objective == "flush" else 2**62
        played = game.play(setting, cut)
        if played is None:
            continue
        cost = played.cost_ns(problem.objective)
        if (worst is not None and cost >= worst) or any(cost == entry[0] for entry in best):
            continue
        schedule = schedules[run] = played.schedule(problem.microbatches)
        if not best or cost < best[0][0]:
            found(schedule)
        best = sorted([*best, (cost, run, setting)])[:keep]
    return [schedules[run] for _, run, _ in best]


def _next_setting(random: Random, best: list[Setting], run: int) -> Setting:
    if run < len(SETTINGS):
        return SETTINGS[run]
    if best and random.random() < 0.5:
        setting = random.choice(best)
        for key in random.sample(list(CHOICES), random.choice((1, 1, 2))):
            setting = setting._replace(**{key: random.choice(CHOICES[key])})
        return setting
    return Setting(**{key: random.choice(values) for key, values in CHOICES.items()})
