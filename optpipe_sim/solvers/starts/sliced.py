"""Schedules over slices of the sequence to start from: the published ones, those of whole sequences slice by
slice, and patterns that need little memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...errors import OptPipeError
from ...ops import BW, B, F, O, Op, OpKind, R, W
from ...schedule import Levels, Schedule
from ...schedules.classic import one_by_one
from ...schedules.copies import with_copies
from ...schedules.sliced.orders import interleaved
from ...schedules.trials import SLICED
from ..problem import Problem
from .published import build_those, tried
from .variants import recomputed_in, ways_of

Built = Iterator[tuple[str, Schedule]]


def sliced_schedules(problem: Problem, level: str | None = None) -> Built:
    """Build the published schedules over slices with the problem's chunks, and every value of their options.

    Args:
        level: of recomputation, for every activation: inside backwards, and apart.
    """
    yield from build_those(problem, tried(problem, SLICED), level)


def one_at_a_time(problem: Problem) -> Built:
    """Yield schedules that run one microbatch after the other, one for each treatment of all activations; among
    them is the schedule that needs the least memory."""
    shape, last = problem.shape, problem.shape.slices - 1
    forwards = [(F, c, k) for c in range(shape.chunks) for k in range(shape.slices)]
    kinds = (B, W) if all(cost.splits for cost in problem.profile.stages) else (BW,)
    copies = [None, 0, last] if problem.may_offload else [None]
    for (
        offload_at
    ) in copies:  # no offload; each slice's right behind its own F; all behind the last F

        def program(device: int, offload_at: int | None = offload_at) -> list[Op]:
            ops: list[tuple[OpKind, int, int]] = []
            for kind, c, k in forwards:
                ops.append((kind, c, k))
                if offload_at == 0:
                    ops.append((O, c, k))
                elif offload_at == last and k == last:
                    ops += [(O, c, at) for at in range(shape.slices)]
            for _, c, k in reversed(forwards):
                ops += [(R, c, k)] if offload_at is not None else []
                ops += [(kind, c, k) for kind in kinds]
            stages = shape.stages_of(device)
            return [
                shape.op(kind, stages[c], j * shape.slices + k)
                for j in range(shape.microbatches)
                for kind, c, k in ops
            ]

        plain = Schedule(shape, [program(device) for device in range(shape.devices)])
        for way in ways_of(problem):
            yield "one microbatch at a time", recomputed_in(problem, plain, way)


def few_in_flight(problem: Problem) -> Built:
    """Yield Seq1F1B with fewer warm-up forwards than usual, with or without its first slices offloaded, for each
    way to recompute; for one chunk per device only."""
    shape, costs = problem.shape, problem.profile
    if shape.chunks > 1 or shape.placement_name != "loop":
        return
    for more in (0, 1, shape.devices // 2):
        programs = []
        for rank in range(shape.devices):
            forwards, backwards, usual = interleaved(shape, rank, "search", BW)
            ahead = min(usual, shape.slices - 1 + more)
            programs.append(list(one_by_one(forwards, backwards, ahead)))
        plain = Schedule(shape, programs)
        for count in (0, shape.slices // 2, shape.slices) if problem.may_offload else (0,):
            try:
                base = with_copies(plain, costs, 1, slices=count) if count else plain
            except OptPipeError:
                continue
            for way in ways_of(problem):
                yield "few in flight", recomputed_in(problem, base, way)


def whole(problem: Problem) -> Problem:
    """Return the problem with whole sequences."""
    return replace(problem, profile=problem.profile.with_slices(1))


def in_slices(schedule: Schedule, slices: int) -> Schedule:
    """Convert a schedule of whole sequences to one of slices that follow one another, backwards in reverse.

    Apart from links nothing ends later: each op begins with its first slice, and other devices get its
    results slice by slice.
    """
    shape = replace(schedule.shape, slices=slices)
    ahead = np.isin(schedule.table[:, 0], (F, O))
    parts = np.where(ahead[:, None], np.arange(slices), np.arange(slices)[::-1])
    table = np.repeat(schedule.table, slices, axis=0)
    table[:, 2] = table[:, 2] * slices + parts.ravel()

    def cut(op: Op) -> list[Op]:
        order = range(slices) if op.kind is O else reversed(range(slices))
        return [shape.op(op.kind, op.stage, op.microbatch * slices + k) for k in order]

    links = {
        key: [part for op in ops for part in cut(op)] for key, ops in schedule.link_order.items()
    }
    levels = Levels(schedule.levels.names, np.repeat(schedule.levels.table, slices, axis=1))
    return Schedule.from_table(
        shape, table, schedule.offsets * slices, links, schedule.meta, levels
    )
