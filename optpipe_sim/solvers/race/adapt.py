"""Adapt a schedule of one problem to another one with another m, limit or costs.

For another m a block of microbatches in the steady state is removed or repeated, and everything
after it moves earlier or later by the duration of the block. If memory then does not suffice, ops
are delayed and activations offloaded until it does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from ...errors import OptPipeError
from ...ops import BW, B, C, F, O, Op, OpKind, R, dependencies
from ...profile import CostProfile
from ...schedule import Levels, Schedule
from ..problem import Problem, schedule_from_times

BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)  # microbatches repeated together
AHEAD = 64  # ops of a program that an op may overtake
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
    candidates: list[Schedule] = []

    def cut() -> Iterator[Schedule]:
        for candidate in _of_size(problem, schedule):
            candidates.append(candidate)
            yield candidate
            if time.monotonic() > began + seconds / 2:
                break

    found = _best(problem, cut())
    if found is None and len(schedule) <= MANY_OPS // 10:
        found = _best(problem, _put_off(problem, candidates, began + seconds))
    return found


def _best(problem: Problem, candidates: Iterable[Schedule]) -> Schedule | None:
    """Return the candidate that costs least under the limit; None if none fits."""
    best: Schedule | None = None
    least = 2**62
    for candidate in candidates:
        try:
            cost = problem.replay(candidate).cost_ns
        except OptPipeError:
            continue
        if cost < least:
            best, least = candidate, cost
    return best


def _put_off(problem: Problem, candidates: Iterable[Schedule], until: float) -> Iterator[Schedule]:
    """Yield `put_off` of each candidate for which it works; always of the first, of the others
    until the time is up."""
    for candidate in candidates:
        with suppress(OptPipeError):
            yield put_off(problem, candidate)
        if time.monotonic() > until:
            break


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


# -- less memory ----------------------------------------------------------------------------------


def put_off(problem: Problem, schedule: Schedule) -> Schedule:
    """Delay ops of a schedule, and offload further activations, until the limit holds.

    Ops are placed one at a time, in the order of their starts, each as soon as its inputs are
    available and its memory fits; so the result, run in that order, never deadlocks.

    Raises:
        OptPipeError: if no further op can be placed, or if anything is recomputed.
    """
    return _PutOff(problem, schedule).run()


class _PutOff:
    """The state of `put_off`: the ops left, the ops placed, the memory held."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.costs = problem, problem.profile
        if problem.limits is None:
            raise OptPipeError("without a limit there is nothing to delay")
        if schedule.levels.table.any():
            raise OptPipeError("the memory of recomputed activations is not followed here")
        self.limits = problem.limits
        free = replace(problem, limits=None).replay(schedule)
        schedule = free.schedule  # backwards may have been fused
        self.when = dict(
            zip(chain.from_iterable(schedule.flat_programs), free.start_ns.tolist(), strict=True)
        )
        self.left = [deque(program) for program in schedule.flat_programs]
        self.all = {op for program in schedule.flat_programs for op in program}
        self.done: set[Op] = set()
        self.needs = {op: self.all.intersection(dependencies(op)) for op in self.all}
        self.held = list(self.costs.static_bytes)
        self.programs: list[list[Op]] = [[] for _ in self.left]

    def run(self) -> Schedule:
        while any(self.left):
            heads = [program[0] for program in self.left if program and self.ready(program[0])]
            op = min(heads, key=self.when.__getitem__, default=None)
            op = op or self.later() or self.evicted()
            if op is None:
                raise OptPipeError("the schedule cannot be delayed to fit the limit")
            self.do(op)
        return Schedule(self.problem.shape, self.programs)

    def ready(self, op: Op) -> bool:
        """Whether an op can be placed: its inputs are available and its memory fits."""
        return self.fed(op) and self.fits(op)

    def fed(self, op: Op) -> bool:
        return self.done.issuperset(self.needs[op])

    def fits(self, op: Op) -> bool:
        device = self.costs.placement[op.stage]
        taken = int(self.costs.allocated_bytes[op.kind, op.stage])
        return self.held[device] + taken <= self.limits[device]

    def later(self) -> Op | None:
        """Return the earliest later op that can be placed, preferably one that frees memory."""
        able = [op for program in self.left for op in islice(program, AHEAD) if self.ready(op)]
        freeing = [op for op in able if op.kind not in (F, R)]
        return min(freeing or able, key=self.when.__getitem__, default=None)

    def evicted(self) -> Op | None:
        """Insert an offload of the newest activation that stays long, if memory blocks an op."""
        if not self.problem.may_offload:
            return None
        for device, program in enumerate(self.left):
            if program and self.fed(program[0]) and not self.fits(program[0]):
                found = self.newest(device, program[0])
                if found is not None:
                    return self.put_in(found)
        return None

    def newest(self, device: int, blocked: Op) -> Op | None:
        """Return the F of the newest activation whose offload would let the blocked op run."""
        resident = [
            op
            for op in self.programs[device]
            if op.kind is F
            and Op(O, op.stage, op.microbatch) not in self.all
            and not {Op(B, *op[1:]), Op(BW, *op[1:])} & self.done
            and self.costs.stages[op.stage].offloadable
            and (blocked.kind is F or op.microbatch > blocked.microbatch)
        ]
        return max(resident, key=lambda op: op.microbatch, default=None)

    def put_in(self, forward: Op) -> Op:
        """Insert the offload of an activation now, and its reload before its backward."""
        _, stage, j = forward
        offload, reload = Op(O, stage, j), Op(R, stage, j)
        program = self.left[self.costs.placement[stage]]
        at = next(n for n, op in enumerate(program) if op[1:] == (stage, j) and op.kind in (B, BW))
        self.when[offload] = self.when[forward]
        self.when[reload] = self.when[program[at]]
        self.all |= {offload, reload}
        self.needs[offload], self.needs[reload] = {forward}, {offload}
        self.needs[program[at]].add(reload)
        program.insert(at, reload)
        program.insert(0, offload)
        return offload

    def do(self, op: Op) -> None:
        device = self.costs.placement[op.stage]
        self.left[device].remove(op)
        self.done.add(op)
        self.programs[device].append(op)
        kind: OpKind = op.kind
        self.held[device] += int(self.costs.allocated_bytes[kind, op.stage])
        self.held[device] -= int(self.costs.released_bytes[kind, op.stage])
