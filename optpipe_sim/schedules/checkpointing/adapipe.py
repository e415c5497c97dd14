"""AdaPipe: for each stage of 1F1B, the least recomputation with which its device fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import OutOfMemory
from ...op_table import KEEP, OpTable, inside
from ...ops import BW, F, Op, OpKind
from ...profile import CostProfile
from ...schedule import Schedule
from ...units import Size, format_size
from ..classic import one_f_one_b_of


class _Moment(NamedTuple):
    """The start of an op, and how many activations of each of the device's chunks are held then."""

    kind: OpKind
    chunk: int
    held: tuple[int, ...]


class _Choices(NamedTuple):
    """Treatments of a device's first chunks, one row per choice: the backward time of one
    microbatch (ns) and the bytes held at every moment; sorted by time."""

    time_ns: np.ndarray
    held: np.ndarray
    treatments: np.ndarray


def adapipe(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    limit: Size | Sequence[Size] | None = None,
) -> Schedule:
    """Build 1F1B, or interleaved 1F1B on several chunks, with each stage at the fastest level of
    recomputation with which its device keeps the limit.

    A shorter backward never makes 1F1B slower, and each device's memory depends only on its own
    levels. So the levels of each device are chosen independently, by a dynamic program over its
    chunks that minimizes the time per microbatch subject to the bytes held whenever an op starts.
    Recomputation happens inside backwards. AdaPipe also moves layers between stages; here the
    stages are those of the profile.

    At p = 4, m = 6, cells of 1 and a level that recomputes all in 1, room for two activations::

        0 F0  F1  F2  F3  .   .   .   .   .   .   .   BW0         F4  BW1         F5  BW2         .   BW3         BW4         BW5
        1 .   F0  F1  F2  .   .   .   .   BW0         F3  BW1         F4  BW2         F5  BW3         BW4         BW5         .   .   .
        2 .   .   F0  F1  .   .   BW0     F2  BW1     .   F3  BW2     .   F4  BW3     .   F5  BW4     .   BW5     .   .   .   .   .   .
        3 .   .   .   F0  BW0     F1  BW1     F2  BW2     .   F3  BW3     .   F4  BW4     .   F5  BW5     .   .   .   .   .   .   .   .

    Args:
        profile: placed in a loop. Without levels everything is kept.
        microbatches: m, for several chunks a multiple of p.
        chunks: v; default: the profile's own.
        limit: bytes per device, static included; None: the profile's own. Without a limit nothing
            is recomputed.

    Raises:
        OutOfMemory: if no choice fits; names the device and the least limit.
        InvalidSchedule: as 1F1B does.

    Source: Sun et al., AdaPipe (ASPLOS 2024), adaptive recomputation; stages and levels are given.
    """
    base = one_f_one_b_of(profile, microbatches, chunks)
    costs = profile.for_shape(base.shape)
    limits = costs.limits(limit, "limit")
    if limits is None:
        return base
    recompute = {}
    for rank, program in enumerate(base.flat_programs):
        stages = base.shape.stages_of(rank)
        room = limits[rank] - costs.static_bytes[rank]
        treatments = _least_time(program, stages, costs, room, rank)
        for stage, treatment in zip(stages, treatments, strict=True):
            if treatment != KEEP:
                level = costs.stages[stage].recompute[treatment // 2]
                recompute[str(stage)] = level.name
    return base.replace(recompute=recompute)


def _least_time(
    program: Sequence[Op], stages: Sequence[int], costs: CostProfile, room: int, rank: int
) -> tuple[int, ...]:
    """Return the treatments of a device's chunks with the least time that fit in `room` bytes."""
    moments = _moments(program, stages)
    choices = _choices(moments, stages, costs, room)
    if len(choices.time_ns):
        return tuple(choices.treatments[0].tolist())
    least = int(_choices(moments, stages, costs, None).held.max(axis=1).min())
    raise OutOfMemory(
        f"device {rank}: no levels of recomputation make 1F1B fit; the least limit that works is"
        f" {least + costs.static_bytes[rank]}B ({format_size(least + costs.static_bytes[rank])})"
    )


def _moments(program: Sequence[Op], stages: Sequence[int]) -> list[_Moment]:
    """Return the starts of ops at which a device may hold the most: for each kind and stage, those
    whose numbers of held activations are not covered by another start."""
    held = [0] * len(stages)
    most: dict[tuple[OpKind, int], list[tuple[int, ...]]] = {}
    for op in program:
        chunk = stages.index(op.stage)
        known = most.setdefault((op.kind, chunk), [])
        if not any(_covers(one, held) for one in known):
            known[:] = [one for one in known if not _covers(held, one)] + [tuple(held)]
        held[chunk] += 1 if op.kind is F else -1
    return [_Moment(*key, one) for key, all_held in most.items() for one in all_held]


def _covers(more: Sequence[int], less: Sequence[int]) -> bool:
    return all(a >= b for a, b in zip(more, less, strict=True))


def _choices(
    moments: Sequence[_Moment], stages: Sequence[int], costs: CostProfile, room: int | None
) -> _Choices:
    """Build, chunk by chunk, all choices that no other choice beats in time and in the bytes held
    at every moment; with `room` only those that may become the fastest that hold no more at any moment, and of
    the last chunk's no more than one."""
    found = _Choices(
        np.zeros(1, np.int64), np.zeros((1, len(moments)), np.int64), np.zeros((1, 0), np.int64)
    )
    every = [_ways(moments, chunk, stage, costs) for chunk, stage in enumerate(stages)]
    for chunk, ways in enumerate(every):
        old, new = np.divmod(np.arange(len(found.time_ns) * len(ways.time_ns)), len(ways.time_ns))
        grown = _Choices(
            found.time_ns[old] + ways.time_ns[new],
            found.held[old] + ways.held[new],
            np.column_stack((found.treatments[old], ways.treatments[new])),
        )
        if room is not None:
            grown = _may_win(grown, every[chunk + 1 :], room)
        found = _best(grown, 1 if room is not None and chunk == len(every) - 1 else None)
    return found


def _ways(moments: Sequence[_Moment], chunk: int, stage: int, costs: CostProfile) -> _Choices:
    """Return the choices of one chunk."""
    table, levels = costs.op_table, len(costs.stages[stage].recompute)
    ways = np.array([KEEP, *map(inside, range(1, levels + 1))])
    held = np.array([_held(table, moments, chunk, stage, way) for way in ways.tolist()])
    return _Choices(table.duration_ns[BW, stage, ways], held, ways[:, None])


def _may_win(choices: _Choices, later: Sequence[_Choices], room: int) -> _Choices:
    """Drop the choices that no ways of the later chunks make fit, and those that take longer with their fastest
    ways than another one that fits with those that hold the least."""
    none = np.zeros(choices.held.shape[1], np.int64)
    least = sum((ways.held.min(axis=0) for ways in later), none)
    left = _rows(choices, np.flatnonzero((choices.held + least <= room).all(axis=1)))
    thrifty = [_rows(ways, ways.held.sum(axis=1).argsort()[:1]) for ways in later]
    held = left.held + sum((way.held[0] for way in thrifty), none)
    fits = (held <= room).all(axis=1)
    if not fits.any():
        return left
    most = left.time_ns[fits].min() + sum(way.time_ns[0] for way in thrifty)
    soonest = left.time_ns + sum(ways.time_ns.min() for ways in later)
    return _rows(left, np.flatnonzero(soonest <= most))


def _held(
    table: OpTable, moments: Sequence[_Moment], chunk: int, stage: int, treatment: int
) -> list[int]:
    """Return the bytes that a chunk's activations hold at each moment, including the op itself if
    it is of this chunk."""
    allocated: np.ndarray = table.allocated_bytes[:, stage, treatment]
    keep = int(allocated[F] - table.released_bytes[F, stage, treatment])
    return [
        one.held[chunk] * keep + (int(allocated[one.kind]) if one.chunk == chunk else 0)
        for one in moments
    ]


def _rows(choices: _Choices, which: np.ndarray) -> _Choices:
    return _Choices(*(array[which] for array in choices))


def _best(choices: _Choices, most: int | None = None) -> _Choices:
    """Return the choices that no other one covers, the fastest first and at most so many; of equal ones the first
    by its treatments."""
    keys = np.column_stack((choices.time_ns, choices.held, choices.treatments))
    left = _rows(choices, np.lexsort(keys.T[::-1]))
    kept: list[_Choices] = []
    while len(left.time_ns) and (most is None or len(kept) < most):
        kept.append(_rows(left, np.arange(len(left.time_ns)) == 0))
        left = _rows(left, (left.held < left.held[0]).any(axis=1))
    return _Choices(*map(np.concatenate, zip(*kept, strict=True))) if kept else left
