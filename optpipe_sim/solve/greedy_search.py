"""AdaOffload with its parameters searched: random settings, and changes of the best.

Some runs play with costs that are a little off. What the greedy does is as valid then, and often
better: it decides by what is free first, and a nanosecond decides differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

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
PLAIN = 400  # runs with the true costs; all further ones are a little off
POOL = 8  # settings that these play, of different costs: the best differ too little
OFF = 0.15  # how far each kind of duration may be off
OFF_BY_STAGE = (0.0, 0.03, 0.1)  # and one of these beyond it, stage by stage


class _Run(NamedTuple):
    """One of the best runs."""

    cost_ns: int
    number: int
    setting: Setting


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
    the best; from run PLAIN on they play the best settings again, with costs a little off (not
    where host memory is limited: only with the true costs does the greedy keep to that).
    Runs that would end later than the best few are cut short.

    Args:
        over: asked before every run whether to stop.
        found: called with each schedule better than all before.
    """
    random = Random(seed)
    try:
        true = Runs(problem.profile, problem.microbatches, problem.limits)
    except OptPipeError:  # the host memory does not allow what the greedy wants
        return []
    best: list[_Run] = []
    pool: list[tuple[int, Setting]] = []
    schedules: dict[int, Schedule] = {}
    seen: set[Setting] = set()
    for run in range(runs):
        if over():
            break
        game = true
        if run < PLAIN or not pool or true.host_limit is not None:
            setting = _next_setting(random, [entry.setting for entry in best], run)
            if setting in seen:
                continue
            seen.add(setting)
        else:
            setting, game = random.choice(pool)[1], _noisy(random, problem)
        most = pool[-1][0] if len(pool) == POOL else 2**62
        played = game.play(
            setting, most if game is true and problem.objective == "flush" else 2**62
        )
        if played is None:
            continue
        cost = played.cost_ns(problem.objective)
        schedule = None
        if game is true:
            pool = sorted({cost: setting, **dict(pool)}.items())[:POOL]
        else:
            schedule = played.schedule(problem.microbatches)
            try:
                cost = problem.replay(schedule).cost_ns
            except OptPipeError:
                continue
        worst = best[-1].cost_ns if len(best) == keep else 2**62
        if cost >= worst or any(cost == entry.cost_ns for entry in best):
            continue
        schedules[run] = schedule or played.schedule(problem.microbatches)
        if not best or cost < best[0].cost_ns:
            found(schedules[run])
        best = sorted([*best, _Run(cost, run, setting)])[:keep]
    return [schedules[entry.number] for entry in best]


def _noisy(random: Random, problem: Problem) -> Runs:
    """The problem with durations that are a little off."""
    profile = problem.profile
    kinds = [random.uniform(1 - OFF, 1 + OFF) for _ in range(5)]
    spread = random.choice(OFF_BY_STAGE)
    stages = []
    for cost in profile.stages:
        f, b, w, out, back = (kind * random.uniform(1 - spread, 1 + spread) for kind in kinds)
        times: dict[str, Any] = {
            "t_f_ns": max(1, round(cost.t_f_ns * f)),
            "t_b_ns": max(1, round(cost.t_b_ns * b)),
            "t_w_ns": round(cost.t_w_ns * w),
            "t_bw_ns": None,
        }
        if cost.t_offload_ns is not None and cost.t_reload_ns is not None:
            times["t_offload_ns"] = round(cost.t_offload_ns * out)
            times["t_reload_ns"] = round(cost.t_reload_ns * back)
        stages.append(replace(cost, **times))
    return Runs(replace(profile, stages=tuple(stages)), problem.microbatches, problem.limits)


def _next_setting(random: Random, best: list[Setting], run: int) -> Setting:
    if run < len(SETTINGS):
        return SETTINGS[run]
    if best and random.random() < 0.5:
        setting = random.choice(best)
        for key in random.sample(list(CHOICES), random.choice((1, 1, 2))):
            setting = setting._replace(**{key: random.choice(CHOICES[key])})
        return setting
    return Setting(**{key: random.choice(values) for key, values in CHOICES.items()})
