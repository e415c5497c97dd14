"""Adapt a schedule of one problem to another one with another m, limit or costs.

For another m a block of microbatches in the steady state is removed or repeated, and everything
after it moves earlier or later by the duration of the block. Where memory does not suffice then, AdaOffload's
schedules of the problem itself are better than what could be saved of this one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from ...ops import C, O, Op
from ...profile import CostProfile
from ...schedule import Levels, Schedule
from ..problem import Problem, schedule_from_times

BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)  # microbatches repeated together
MANY_OPS = 30_000  # for larger schedules only the simplest cut is tried


def adapt(problem: Problem, schedule: Schedule, seconds: float = 0.5) -> Schedule | None:
    """Adapt a schedule, which may have another m, to this problem; None if it has another placement
    or other slices, or none of its adaptations fits the limit. Treatments that the problem does not
    have are dropped: those activations are kept.

    After `seconds` no further adaptation is tried.
    """
    shape, wanted = schedule.shape, problem.shape
    if (shape.devices, shape.placement, shape.slices) != (
        wanted.devices,
        wanted.placement,
        wanted.slices,
    ):
        return None
    if problem.profile.offload is None:
        schedule = without_transfers(schedule)
    schedule = _without_other_levels(schedule, problem.profile)
    began = time.monotonic()
    best: Schedule | None = None
    least = 2**62
    for candidate in _of_size(problem, schedule):
        trace = problem.keeps(candidate)
        if trace is not None and trace.cost_ns < least:
            best, least = candidate, trace.cost_ns
        if time.monotonic() > began + seconds:
            break
    return best


def without_transfers(schedule: Schedule) -> Schedule:
    """Return the schedule with the same compute ops and no offloads."""
    return schedule.only(~schedule.is_transfer, link_order={})


def _without_other_levels(schedule: Schedule, profile: CostProfile) -> Schedule:
    """Return the schedule without recomputation at levels that its stages do not have in a profile."""
    names, table = schedule.levels
    known = np.array(
        [[True, *(cost.level(name) is not None for name in names)] for cost in profile.stages]
    )
    there = np.take_along_axis(known, table, axis=1)
    if there.all():
        return schedule
    kinds, stages, units = schedule.table.T
    kept = (kinds != C) | there[stages, units]
    return schedule.only(kept, recompute=Levels(names, np.where(there, table, 0)))


# -- another number of microbatches ---------------------------------------------------------------


def _of_size(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules with the problem's m: blocks of several sizes, removed or repeated at several
    places."""
    m, old = problem.microbatches, schedule.shape.microbatches
    if m == old:
        yield schedule
        return
    starts, levels = _free_starts(problem, schedule), schedule.levels
    if m < old:
        for first in sorted({0, m // 4, m // 2, 3 * m // 4, m}):
            yield _respaced(problem, starts, levels, [*range(first), *range(first + old - m, old)])
        return
    blocks = sorted({size for size in (*BLOCKS, old // 2) if 1 <= size <= old}, reverse=True)
    places: tuple[float, ...] = (0.5, 0.25, 0.75)
    if len(schedule) > MANY_OPS:
        blocks, places = blocks[:1], places[:1]
    for place in places:
        for size in blocks:
            cut = size + int(place * (old - size))  # the block ends here
            repeated = [cut - size + n % size for n in range(m - old)]
            yield _respaced(problem, starts, levels, [*range(cut), *repeated, *range(cut, old)])


def _free_starts(problem: Problem, schedule: Schedule) -> dict[Op, int]:
    """Return when each op starts with the problem's costs and no memory limit."""
    free = replace(problem, microbatches=schedule.shape.microbatches, limits=None)
    trace = free.replay(schedule)
    ops = chain.from_iterable(trace.schedule.flat_programs)  # backwards may have been fused
    return dict(zip(ops, trace.start_ns.tolist(), strict=True))


def _respaced(
    problem: Problem, starts: dict[Op, int], levels: Levels, sources: list[int]
) -> Schedule:
    """Make the schedule whose microbatch j is timed and treated as `sources[j]` was, later by the
    duration of the microbatches inserted before it (or earlier by that of those removed)."""
    old = 1 + max(op.microbatch for op in starts)
    when = np.zeros(old + 1, np.int64)  # typical time of a microbatch: its ops' mean start
    count = np.zeros(old, np.int64)
    by_microbatch: list[list[tuple[Op, int]]] = [[] for _ in range(old)]
    for op, start in starts.items():
        by_microbatch[op.microbatch].append((op, start))
        if op.kind < O:
            when[op.microbatch] += start
            count[op.microbatch] += 1
    when[:old] //= np.maximum(count, 1)
    when[old] = 2 * when[old - 1] - when[max(old - 2, 0)]
    timed: dict[Op, int] = {}
    shift, expected = 0, 0
    for j, source in enumerate(sources):
        if source != expected:  # a step back or forward in time
            shift += int(when[expected] - when[source])
        expected = source + 1
        for op, start in by_microbatch[source]:
            timed[Op(op.kind, op.stage, j)] = start + shift
    least = min(timed.values())
    treated = Levels(levels.names, levels.table[:, sources])
    return schedule_from_times(problem, {op: start - least for op, start in timed.items()}, treated)
