"""Search over the parameters of AdaOffload: random settings, and changes of the best ones.

Some runs plan with slightly perturbed costs. Their schedules are equally valid, and often better:
the greedy decides by which engine is free first, so a nanosecond can change its decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np

from ...errors import OptPipeError
from ...profile import CostProfile
from ...schedule import Schedule
from ...schedules.adaoffload.adaoffload import SETTINGS
from ...schedules.adaoffload.progress import KIND, MICROBATCH, STAGE
from ...schedules.adaoffload.runs import UNBOUNDED, Greedy, Setting
from ...schedules.adaoffload.runs import Problem as Runs
from ..anneal.annealer import Workspace, shares_links
from ..anneal.plans import Plan
from ..problem import Problem

CHOICES: dict[str, tuple[int, ...]] = {
    "prefer": (0, 0, 1, 2),
    "tolerance": (0, 100, 300, 500, 700, 1000, 1500),
    "pending": (UNBOUNDED, UNBOUNDED, 1, 2, 3, 4, 6),
    "group": (-1, 0, 1, 1, 2, 4),
    "ahead": (500, 800, 1000, 1200, 1500, 2000, 2500, 3000, 4000, 5000),
    "headroom": (0, 1, 2, 3, 4),
    "oldest": (0, 0, 1),
    "keep": (0, 1),
    "reload_first": (0, 1),
    "depth": (0, 0, 700, 1000, 1200, 1500, 2000, 3000),
}
PLAIN = 400  # runs with the true costs; all further runs use perturbed costs
POOL = 8  # settings for these, of different costs: the best ones differ too little
OFF = 0.15  # largest perturbation of each kind of duration
OFF_BY_STAGE = (0.0, 0.03, 0.1)  # and one of these in addition, stage by stage
CLIMB = 0.5  # share of these runs that modify the costs of one of the best
STEPS = (0.01, 0.03, 0.1)  # by at most one of these
FORWARDS_PER_EVALUATION = 4  # that counted greedy runs may place


class _Run(NamedTuple):
    """One of the best runs; `off`: the perturbed durations relative to the true ones."""

    cost_ns: int
    number: int
    setting: Setting
    off: np.ndarray | None


def counted_runs(problem: Problem, evaluations: int, most: int) -> int:
    """Return the number of greedy runs beside so many evaluations, `most` at most: fewer of large schedules, as a
    run places every op and an evaluation times only those that a move affects."""
    forwards = problem.shape.activations
    return min(most, 1 + evaluations * FORWARDS_PER_EVALUATION // forwards)


def greedy_search(
    problem: Problem,
    over: Callable[[], bool],
    *,
    runs: int,
    seed: int = 0,
    keep: int = 4,
    found: Callable[[Schedule], None] = lambda schedule: None,
) -> list[Schedule]:
    """Find the best few schedules of up to `runs` runs of AdaOffload with different settings.

    Each run draws a setting at random or, half the time, changes one or two parameters of one of
    the best; from run PLAIN on the best settings run again with perturbed costs, or with the costs
    of one of the best runs, perturbed further. (Not if host memory may bind: the greedy respects it
    only with the true costs.) Runs that would end later than the best few are stopped early.

    Args:
        over: called before every run; tells whether to stop.
        found: called with each new best schedule.
    """
    random = Random(seed)
    draw = np.random.default_rng(seed)
    try:
        true = Runs(problem.profile, problem.microbatches, problem.limits)
    except OptPipeError:  # the host memory is too small for the greedy's offloads
        return []
    quick = None if shares_links(problem) else Workspace(problem)
    best: list[_Run] = []
    pool: list[tuple[int, Setting]] = []
    schedules: dict[int, Schedule] = {}
    seen: set[Setting] = set()
    for run in range(runs):
        if over():
            break
        off = None
        if run < PLAIN or not pool or problem.host_limit is not None:
            setting = _next_setting(random, [entry.setting for entry in best], run)
            if setting in seen:
                continue
            seen.add(setting)
        elif random.random() < CLIMB:
            parent = random.choice(best)
            setting, off = parent.setting, _changed(draw, problem, parent.off)
            if random.random() < 0.2:
                key = random.choice(list(CHOICES))
                setting = setting._replace(**{key: random.choice(CHOICES[key])})
        else:
            setting, off = random.choice(pool)[1], _off(draw, problem)
        if off is None:
            most = pool[-1][0] if len(pool) == POOL else 2**62
            played = true.play(setting, most if problem.objective == "flush" else 2**62)
        else:
            runs_of = Runs(_with_costs(problem, off), problem.microbatches, problem.limits)
            played = runs_of.play(setting)
        if played is None:
            continue
        worst = best[-1].cost_ns if len(best) == keep else 2**62
        schedule = None
        if off is None:
            cost = played.cost_ns(problem.objective)
            pool = sorted({cost: setting, **dict(pool)}.items())[:POOL]
        else:
            if quick is not None and _cost_ns(quick, played) >= worst:
                continue
            schedule = played.schedule(problem.microbatches)
            try:
                cost = problem.replay(schedule).cost_ns
            except OptPipeError:
                continue
        if cost >= worst or any(cost == entry.cost_ns for entry in best):
            continue
        schedules[run] = schedule or played.schedule(problem.microbatches)
        if not best or cost < best[0].cost_ns:
            found(schedules[run])
        best = sorted([*best, _Run(cost, run, setting, off)], key=lambda entry: entry[:2])[:keep]
    return [schedules[entry.number] for entry in best]


def _cost_ns(work: Workspace, played: Greedy) -> int:
    """Evaluate a run's programs with the true costs of the problem, in ns; hardly ever above the
    cost of a replay, and much faster."""
    low, high = work.costs.low, work.costs.high
    prog = np.full((len(played.log), max(map(len, played.log))), -1, np.int64)
    for device, rows in enumerate(played.log):
        code = rows[:, KIND] << high | rows[:, STAGE] << low | rows[:, MICROBATCH]
        prog[device, : len(rows)] = code
    length = np.array([len(rows) for rows in played.log])
    return work.cost_ns(Plan(prog, length, np.zeros(2 << high, np.int64)))


def _off(draw: np.random.Generator, problem: Problem) -> np.ndarray:
    """Draw (5, stages) perturbed durations, relative to the true ones."""
    stages = len(problem.profile.stages)
    kinds = draw.uniform(1 - OFF, 1 + OFF, (5, 1))
    spread = draw.choice(OFF_BY_STAGE)
    return np.asarray(kinds * draw.uniform(1 - spread, 1 + spread, (5, stages)))


def _changed(draw: np.random.Generator, problem: Problem, off: np.ndarray | None) -> np.ndarray:
    """Perturb durations further: all stages of each kind alike, or some stages of one kind."""
    stages = len(problem.profile.stages)
    parts = np.ones((5, stages)) if off is None else off.copy()
    change = draw.choice(STEPS)
    if draw.random() < 0.5:
        return np.asarray(parts * draw.uniform(1 - change, 1 + change, (5, 1)))
    some = draw.random(stages) < draw.choice((0.125, 0.25, 0.5))
    kind = draw.integers(5)
    parts[kind, some] *= draw.uniform(1 - change, 1 + change, int(some.sum()))
    return parts


def _with_costs(problem: Problem, off: np.ndarray) -> CostProfile:
    """Return the profile with perturbed durations."""
    stages = []
    for cost, (f, b, w, out, back) in zip(problem.profile.stages, off.T.tolist(), strict=True):
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
    return replace(problem.profile, stages=tuple(stages))


def _next_setting(random: Random, best: list[Setting], run: int) -> Setting:
    if run < len(SETTINGS):
        return SETTINGS[run]
    if best and random.random() < 0.5:
        setting = random.choice(best)
        for key in random.sample(list(CHOICES), random.choice((1, 1, 2))):
            setting = setting._replace(**{key: random.choice(CHOICES[key])})
        return setting
    return Setting(**{key: random.choice(values) for key, values in CHOICES.items()})
