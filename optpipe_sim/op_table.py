"""How long every op takes, what it allocates and releases: the one table that all engines read.

An activation of a stage has a *treatment*: 0, kept whole; ``2 l - 1``, recomputed at the stage's
l-th level (counted from 1) inside the backward; ``2 l``, recomputed at that level apart, by an op C.
It may be offloaded in addition: O and R then move what the treatment keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from .ops import BW, B, C, F, O, OpKind, R, W
from .stage_cost import RecomputeLevel, StageCost

KEEP = 0
KINDS = len(OpKind)
# by kind, whether it is always granted its memory in the order of the program
IN_ORDER = [kind in (F, R) for kind in OpKind]
Level = TypeVar("Level", int, np.ndarray)


def inside(level: Level) -> Level:
    """Return the treatment that recomputes at the `level`-th level (from 1) inside the backward."""
    return 2 * level - 1


def apart(level: Level) -> Level:
    """Return the treatment that recomputes at the `level`-th level (from 1) by an op C."""
    return 2 * level


def level_of(treatment: Level) -> Level:
    """Return the level (from 1) at which a treatment recomputes; 0 for `KEEP`."""
    return (treatment + 1) // 2


class OpTable(NamedTuple):
    """Arrays (kinds, stages, treatments), int64 but for `asks`.

    Entries of kinds that a treatment does not have (C where nothing is recomputed apart), and of
    treatments that a stage does not have, are 0.
    """

    duration_ns: np.ndarray
    allocated_bytes: np.ndarray  # at the start of the op; of an R, when it is granted
    released_bytes: np.ndarray  # at its end
    asks: np.ndarray  # whether the op is granted memory in program order, even if 0 bytes

    @property
    def treatments(self) -> int:
        return int(self.duration_ns.shape[2])


class _Column(NamedTuple):
    """One treatment of one stage: a value per kind of op, as in `OpTable`."""

    duration_ns: list[int]
    allocated_bytes: list[int]
    released_bytes: list[int]
    asks: list[bool]


def make_table(stages: Sequence[StageCost], early: bool = False) -> OpTable:
    """Return the table of these stages (see docs/semantics.md, "Memory" and "Recomputation").

    With `early`, copies leave keys and values on the device: later slices still read them.
    """
    most = max(len(cost.recompute) for cost in stages)
    shared = {id(cost): cost for cost in stages}  # most stages of a model are alike
    columns = np.array([_columns(cost, most, early) for cost in shared.values()], np.int64)
    number = {one: at for at, one in enumerate(shared)}
    of_stages = columns[[number[id(cost)] for cost in stages]]
    duration, allocated, released, asks = np.ascontiguousarray(of_stages.transpose(2, 3, 0, 1))
    return OpTable(duration, allocated, released, asks.astype(bool))


def _columns(cost: StageCost, most: int, early: bool) -> list[_Column]:
    """Return the columns of a stage, by treatment, in a table whose stages have at `most` so many levels."""
    found = [_common(cost, None, early)]
    for level in cost.recompute:
        found += [_recomputed_inside(cost, level, early), _recomputed_apart(cost, level, early)]
    return found + [_empty()] * (1 + 2 * most - len(found))


def _empty() -> _Column:
    """Return the column of a treatment that a stage does not have."""
    return _Column([0] * KINDS, [0] * KINDS, [0] * KINDS, IN_ORDER[:])


def make_part_tables(stages: Sequence[Sequence[StageCost]]) -> OpTable:
    """Return the tables of the parts that units of work are made of, each with its `stages`: arrays (2,
    parts, kinds, stages, treatments); the first index is 0 for copies that leave keys and values on the
    device, 1 for copies that include them."""
    tables = [[make_table(part, early) for part in stages] for early in (True, False)]
    return OpTable(*(np.array([[part[at] for part in row] for row in tables]) for at in range(4)))


def _common(cost: StageCost, level: RecomputeLevel | None, early: bool) -> _Column:
    """Return what is the same inside and apart: the forward, the weight gradient, the copies."""
    column = _empty()
    duration, allocated, released, _ = column
    keep = cost.act_bytes if level is None else level.keep_bytes
    work = 0 if level is None else level.working_bytes(cost.act_bytes)
    duration[F], duration[B], duration[W] = cost.t_f_ns, cost.t_b_ns, cost.t_w_ns
    duration[BW] = cost.fused_ns
    allocated[F], released[F] = keep + work, work
    released[B], released[W] = cost.act_bytes - cost.w_bytes, cost.w_bytes
    released[BW] = cost.act_bytes
    moved = min(cost.offloadable, keep - cost.kv_bytes if early else keep)
    released[O] = allocated[R] = moved
    for kind, time in ((O, cost.t_offload_ns or 0), (R, cost.t_reload_ns or 0)):
        duration[kind] = in_proportion(time, moved, cost.offloadable)
    return column


def _recomputed_inside(cost: StageCost, level: RecomputeLevel, early: bool) -> _Column:
    column = _common(cost, level, early)
    duration, allocated, released, asks = column
    keep, work = level.keep_bytes, level.working_bytes(cost.act_bytes)
    b_work = level.b_working_bytes(cost.act_bytes, cost.w_bytes)
    for kind in (B, BW):
        duration[kind] += level.t_ns
        asks[kind] = True
    allocated[B], released[B] = b_work, keep + b_work - cost.w_bytes
    allocated[BW], released[BW] = work, keep + work
    return column


def _recomputed_apart(cost: StageCost, level: RecomputeLevel, early: bool) -> _Column:
    column = _common(cost, level, early)
    column.duration_ns[C] = level.t_ns + cost.overhead_ns
    column.allocated_bytes[C] = cost.act_bytes - level.keep_bytes
    column.asks[C] = True
    return column


def in_proportion(time_ns: int, moved: int, whole: int) -> int:
    """Return the time of a copy of `moved` of `whole` bytes, rounded half up."""
    return time_ns if moved == whole else (2 * time_ns * moved + whole) // (2 * whole)
