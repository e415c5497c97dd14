"""The order of microbatches that differ: a local search over which of them takes which place in a schedule.

Annealing moves single ops; that two microbatches change places everywhere is a step of thousands of
these, through plans that are worse. Here it is one step, and a replay says what it is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import numpy as np

from ..errors import Deadlock, OutOfMemory
from ..schedule import Levels, Schedule
from .problem import Problem

PATIENCE = 8  # rounds of as many changes as microbatches without any gain, then it stops


def relabelled(schedule: Schedule, place: Sequence[int]) -> Schedule:
    """Return the schedule with microbatch `j` in the place of microbatch ``place[j]``, in all programs,
    levels and link orders."""
    shape = schedule.shape
    taken = np.empty(shape.microbatches, np.int64)
    taken[np.asarray(place)] = np.arange(shape.microbatches)  # who has each place
    units = np.arange(shape.units)
    unit = taken[units // shape.slices] * shape.slices + units % shape.slices
    table = schedule.table.copy()
    table[:, 2] = unit[table[:, 2]]
    levels = np.empty_like(schedule.levels.table)
    levels[:, unit] = schedule.levels.table
    links = {
        key: [op._replace(microbatch=int(taken[op.microbatch])) for op in ops]
        for key, ops in schedule.link_order.items()
    }
    return schedule.replace(
        table=table,
        offsets=schedule.offsets,
        link_order=links,
        recompute=Levels(schedule.levels.names, levels),
    )


def best_order(
    problem: Problem,
    schedule: Schedule,
    over: Callable[[], bool] = lambda: False,
    seed: int = 0,
) -> Schedule:
    """Return the schedule with its microbatches in the best order that was found; the schedule itself
    where none is better or fits.

    Args:
        over: called before each replay; tells whether to stop.
    """
    m = problem.microbatches
    best, least = list(range(m)), _cost(problem, schedule)
    for order in _simple(problem):
        if over():
            break
        cost = _cost(problem, relabelled(schedule, order))
        if cost < least:
            best, least = order, cost
    random, idle = Random(seed), 0
    while idle < PATIENCE * m and m > 1 and not over():
        changed = _changed(best, random)
        cost = _cost(problem, relabelled(schedule, changed))
        idle = 0 if cost < least else idle + 1
        if cost <= least:
            best, least = changed, cost
    return relabelled(schedule, best)


def _simple(problem: Problem) -> Iterator[list[int]]:
    """Yield orders by time: the longest first, the shortest first, long and short in turn."""
    time = [factors[0] for factors in problem.profile.factors]
    longest = sorted(range(len(time)), key=lambda j: -time[j])
    turns = [longest[at // 2] if at % 2 == 0 else longest[-1 - at // 2] for at in range(len(time))]
    for order in (longest, longest[::-1], turns):
        place = [0] * len(order)
        for at, j in enumerate(order):
            place[j] = at
        yield place


def _changed(place: list[int], random: Random) -> list[int]:
    """Return places in which two microbatches are exchanged, or one is moved and those between make room."""
    one, other = random.sample(range(len(place)), 2)
    order = sorted(range(len(place)), key=place.__getitem__)
    if random.random() < 0.5:
        order[one], order[other] = order[other], order[one]
    else:
        order.insert(other, order.pop(one))
    changed = [0] * len(place)
    for at, j in enumerate(order):
        changed[j] = at
    return changed


def _cost(problem: Problem, schedule: Schedule) -> float:
    try:
        return problem.replay(schedule).cost_ns
    except (Deadlock, OutOfMemory):
        return float("inf")
