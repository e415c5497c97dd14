"""The order of microbatches that differ: a local search over which of them takes which place in a schedule.

Annealing moves single ops; that two microbatches change places everywhere is a step of thousands of
these, through plans that are worse. Here it is one step, and a replay says what it is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import le
from random import Random
from typing import Any, NamedTuple

import numpy as np

from ..errors import Deadlock, OutOfMemory
from ..ops import F
from ..profile import CostProfile
from ..profile.iteration import LENGTHS, lengths_of
from ..schedule import Levels, Schedule
from ..sim import simulate
from ..trace import Trace
from ..units import format_time

MOST_TOLD = 24  # microbatches whose order is told to people
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


def order_in(schedule: Schedule) -> list[int]:
    """Return the microbatches in the order in which the first stage takes them up."""
    first = schedule.flat_programs[schedule.shape.placement[0]]
    return list(dict.fromkeys(op.microbatch for op in first if op.kind is F and op.stage == 0))


def in_given_order(schedule: Schedule) -> Schedule:
    """Return the schedule with its microbatches taken up as they are numbered."""
    return relabelled(schedule, order_in(schedule))


def reordered(profile: CostProfile, order: Sequence[int]) -> CostProfile:
    """Return the profile with its microbatches that differ, and their lengths, numbered in another order."""
    meta, lengths = profile.meta, lengths_of(profile)
    if lengths is not None:
        meta = {**meta, "work": {**meta["work"], LENGTHS: [lengths[at] for at in order]}}
    time, size = (
        given and tuple(given[at] for at in order)
        for given in (profile.microbatch_time, profile.microbatch_bytes)
    )
    return replace(profile, microbatch_time=time, microbatch_bytes=size, meta=meta)


class Ordered(NamedTuple):
    """The order of microbatches that differ in a plan, and the time of an iteration of the same plan in the order
    that they were given in; None where it does not fit then."""

    order: list[int]
    iteration_ns: int
    given_iteration_ns: int | None

    @property
    def gain(self) -> float | None:
        """How much longer the order given takes, as a share."""
        given = self.given_iteration_ns
        return None if given is None else given / self.iteration_ns - 1

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data: ``microbatch_order`` of ``solve --json``."""
        return {
            "order": self.order,
            "given_iteration_ns": self.given_iteration_ns,
            "gain": self.gain,
        }

    @property
    def text(self) -> str:
        """For people; of many microbatches the first ones."""
        if self.order == sorted(self.order):
            return "in the order given"
        some = " ".join(map(str, self.order[:MOST_TOLD]))
        some += " ..." if len(self.order) > MOST_TOLD else ""
        if self.given_iteration_ns is None:
            return f"in the order {some}; in the order given this plan does not fit"
        given = format_time(self.given_iteration_ns)
        return f"in the order {some}; in the order given {given} ({self.gain:+.1%})"


def ordered(trace: Trace, waits: bool = True) -> Ordered | None:
    """Return the order of the microbatches of a plan, and what it is worth; None where they are alike.

    Args:
        waits: whether ops wait for memory, which frameworks do not.
    """
    profile = trace.unissued
    if profile.alike:
        return None
    order, limits = order_in(trace.schedule), trace.memory_limit
    given_ns: int | None = None
    try:
        given = simulate(
            in_given_order(trace.schedule),
            profile,
            limits,
            enforce=waits and limits is not None,
            objective=trace.objective,
        )
        if limits is None or all(map(le, given.peak_bytes, limits)):
            given_ns = given.iteration_ns
    except (Deadlock, OutOfMemory):
        pass
    return Ordered(order, trace.iteration_ns, given_ns)


def best_order(
    profile: CostProfile,
    schedule: Schedule,
    cost_of: Callable[[Schedule], float],
    over: Callable[[], bool] = lambda: False,
    seed: int = 0,
) -> Schedule:
    """Return the schedule with its microbatches in the best order that was found; the schedule itself
    where none is better or fits.

    Args:
        cost_of: the cost of a schedule, infinite where it does not fit.
        over: called before each replay; tells whether to stop.
    """
    m = schedule.shape.microbatches
    best, least = list(range(m)), cost_of(schedule)
    for order in _simple(profile):
        if over():
            break
        cost = cost_of(relabelled(schedule, order))
        if cost < least:
            best, least = order, cost
    random, idle = Random(seed), 0
    while idle < PATIENCE * m and m > 1 and not over():
        changed = _changed(best, random)
        cost = cost_of(relabelled(schedule, changed))
        idle = 0 if cost < least else idle + 1
        if cost <= least:
            best, least = changed, cost
    return relabelled(schedule, best)


def _simple(profile: CostProfile) -> Iterator[list[int]]:
    """Yield orders by time: the longest first, the shortest first, long and short in turn."""
    time = [factors[0] for factors in profile.factors]
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
