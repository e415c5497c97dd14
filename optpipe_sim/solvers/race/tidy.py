"""Remove useless copies and recomputations that a search has left behind, at the same cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...errors import OptPipeError
from ...op_costs import treatments
from ...op_table import level_of
from ...ops import C, O, R
from ...schedule import Schedule
from ...trace import Trace
from ..anneal.annealer import Workspace, shares_links, treats
from ..anneal.plans import pack
from ..problem import Problem
from ..treatments import named_levels, restrict

Activation = tuple[int, int]  # stage, unit


class Drop(NamedTuple):
    """Give some activations a lighter treatment: not offloaded, or another level (0: none)."""

    activations: tuple[Activation, ...]
    level: int | None  # None: no longer offloaded


def tidy(
    problem: Problem, schedule: Schedule, seconds: float = 1.0, tries: int | None = None
) -> Schedule:
    """Return the schedule without the offloads and recomputations that can be dropped, or be lighter, at
    the same cost; itself if there are none.

    Sets of them are tried together, offloads that free memory for the shortest time first; a set that cannot be
    dropped is halved. Whole stages change together if their activations must be treated alike. A replay at the end
    ensures that the result is never worse.

    Args:
        problem: the problem that the schedule solves. `seconds`: time limit. `tries`: the most sets to try.
    """
    until = time.monotonic() + seconds
    evaluated = _evaluated(problem, schedule)
    if evaluated is None:
        return schedule
    trace = problem.replay(schedule)
    work = Workspace(evaluated)
    left = float("inf") if tries is None else tries
    best = schedule
    for drop in _drops(problem, schedule, trace):
        todo: list[Sequence[tuple[Activation, ...]]] = [_grouped(problem, drop.activations)]
        while todo and left > 0 and time.monotonic() < until:
            some = todo.pop()
            left -= 1
            chosen = tuple(activation for group in some for activation in group)
            tried = _with(problem, best, Drop(chosen, drop.level))
            # the compiled evaluation never underestimates, so what it accepts is no worse
            if work.cost_ns(pack(evaluated, tried)) <= trace.cost_ns:
                best = tried
            elif len(some) > 1:
                half = len(some) // 2
                todo += [some[half:], some[:half]]  # the first half comes next
    if best is schedule:
        return schedule
    try:
        return best if problem.replay(best).cost_ns <= trace.cost_ns else schedule
    except (
        OptPipeError
    ):  # not on shared links: without their order they serve other transfers first
        return schedule


def _evaluated(problem: Problem, schedule: Schedule) -> Problem | None:
    """Return the problem whose compiled evaluation judges the schedule; None if there is none.

    Shared links are evaluated as they are where nothing but offloads is chosen (`Workspace`), so of a problem with
    treatments only schedules that recompute nothing, of whole sequences and without pairs, can be judged there.
    """
    if not shares_links(problem) or not treats(problem):
        return problem
    if schedule.levels.table.any() or problem.shape.slices > 1 or problem.may_pair:
        return None
    plain = replace(problem, profile=restrict(problem.profile, problem.treatments - {"recompute"}))
    return None if treats(plain) else plain


def _drops(problem: Problem, schedule: Schedule, trace: Trace) -> list[Drop]:
    """Return what to try in turn: no offload, then no recomputation, then every lighter level."""
    kinds, stages, units = schedule.table.T
    shape, out = schedule.shape, kinds == O

    def away_ns(activation: Activation) -> int:
        back, gone = (schedule.row(shape.op(kind, *activation)) for kind in (R, O))
        return int(trace.grant_ns[back] - trace.end_ns[gone])

    offloads = list(zip(stages[out].tolist(), units[out].tolist(), strict=True))
    offloads.sort(key=lambda activation: (away_ns(activation), activation))
    levels = _levels(problem, schedule)
    drops = [Drop(tuple(offloads), None)]
    for level in range(int(levels.max(initial=0))):
        heavier = np.argwhere(levels > level)
        drops.append(Drop(tuple((stage, unit) for stage, unit in heavier.tolist()), level))
    return [drop for drop in drops if drop.activations]


def _grouped(problem: Problem, activations: Sequence[Activation]) -> list[tuple[Activation, ...]]:
    """Group the activations that must change together."""
    if not problem.per_stage:
        return [(activation,) for activation in activations]
    stages = sorted({stage for stage, _ in activations})
    return [tuple(a for a in activations if a[0] == stage) for stage in stages]


def _levels(problem: Problem, schedule: Schedule) -> np.ndarray:
    """Return (stages, units) the level of each activation by its number in its stage, from 1."""
    return level_of(treatments(schedule, problem.profile))


def _with(problem: Problem, schedule: Schedule, drop: Drop) -> Schedule:
    shape = problem.shape
    chosen = np.zeros((shape.stages, shape.units), bool)
    if drop.activations:
        chosen[tuple(np.array(drop.activations).T)] = True
    levels = _levels(problem, schedule)
    if drop.level is None:
        return schedule.without_offloads(chosen, recompute=named_levels(problem.profile, levels))
    kinds, stages, units = schedule.table.T
    gone = chosen[stages, units] & (kinds == C) & (drop.level == 0)
    levels = np.where(chosen, np.minimum(levels, drop.level), levels)
    return schedule.only(~gone, recompute=named_levels(problem.profile, levels))
