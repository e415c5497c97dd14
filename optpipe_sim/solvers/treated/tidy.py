"""Remove useless copies and recomputations that a search has left behind, at the same cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import OptPipeError
from ...op_costs import treatments
from ...op_table import KEEP
from ...ops import C, O
from ...schedule import Schedule
from ..anneal.plans import level_names, pack
from ..anneal.search import Workspace
from ..problem import Problem

Activation = tuple[int, int]  # stage, unit


class Drop(NamedTuple):
    """Give some activations a lighter treatment: not offloaded, or another level (0: none)."""

    activations: tuple[Activation, ...]
    level: int | None  # None: no longer offloaded


def tidy_treatments(
    problem: Problem, schedule: Schedule, seconds: float, tries: int | None = None
) -> Schedule:
    """Return the schedule without the offloads and recomputations that can be dropped, or be
    lighter, at the same cost; itself if there are none. Sets of them are tried together, and
    halved if they cannot be dropped; whole stages if activations of a stage must be treated
    alike. A replay at the end ensures that the result is never worse.

    Args:
        seconds: time limit. `tries`: the most sets to try.
    """
    until = time.monotonic() + seconds
    cost = problem.replay(schedule).cost_ns
    work = Workspace(problem)
    left = float("inf") if tries is None else tries
    best = schedule
    for drop in _drops(problem, schedule):
        todo = [_grouped(problem, drop.activations)]
        while todo and left > 0 and time.monotonic() < until:
            some = todo.pop()
            left -= 1
            tried = _with(
                problem, best, Drop(tuple(a for group in some for a in group), drop.level)
            )
            # the compiled evaluation never underestimates, so what it accepts is no worse
            if work.cost_ns(pack(problem, tried)) <= cost:
                best = tried
            elif len(some) > 1:
                half = len(some) // 2
                todo += [some[half:], some[:half]]
    if best is schedule:
        return schedule
    try:
        return best if problem.replay(best).cost_ns <= cost else schedule
    except OptPipeError:
        return schedule


def _drops(problem: Problem, schedule: Schedule) -> list[Drop]:
    """Return what to try in turn: no offload, then no recomputation, then every lighter level."""
    kinds, stages, microbatches = schedule.table.T
    out = kinds == O
    offloads = tuple(zip(stages[out].tolist(), microbatches[out].tolist(), strict=True))
    levels = _levels(problem, schedule)
    drops = [Drop(offloads, None)]
    for level in range(int(levels.max(initial=0))):
        heavier = np.argwhere(levels > level)
        drops.append(Drop(tuple((stage, j) for stage, j in heavier.tolist()), level))
    return [drop for drop in drops if drop.activations]


def _grouped(problem: Problem, activations: Sequence[Activation]) -> list[tuple[Activation, ...]]:
    """Group the activations that must change together."""
    if not problem.per_stage:
        return [(activation,) for activation in activations]
    stages = sorted({stage for stage, _ in activations})
    return [tuple(a for a in activations if a[0] == stage) for stage in stages]


def _levels(problem: Problem, schedule: Schedule) -> np.ndarray:
    """Return (stages, units) the level of each activation by its number in its stage, from 1."""
    treatment = treatments(schedule, problem.profile)
    return np.where(treatment == KEEP, 0, (treatment + 1) // 2)


def _with(problem: Problem, schedule: Schedule, drop: Drop) -> Schedule:
    shape = problem.shape
    chosen = np.zeros((shape.stages, shape.units), bool)
    if drop.activations:
        chosen[tuple(np.array(drop.activations).T)] = True
    levels = _levels(problem, schedule)
    if drop.level is None:
        return schedule.without_offloads(chosen, recompute=level_names(problem, levels))
    kinds, stages, microbatches = schedule.table.T
    gone = chosen[stages, microbatches] & (kinds == C) & (drop.level == 0)
    levels = np.where(chosen, np.minimum(levels, drop.level), levels)
    return schedule.only(~gone, recompute=level_names(problem, levels))
