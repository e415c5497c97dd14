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


def make_table(stages: Sequence[StageCost], early: bool = False) -> OpTable:
    """Return the table of these stages (see docs/semantics.md, "Memory" and "Recomputation").

    With `early`, copies leave keys and values on the device: later slices still read them.
    """
    most = max(len(cost.recompute) for cost in stages)
    shape = (len(OpKind), len(stages), 1 + 2 * most)
    table = OpTable(
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape, bool),
    )
    table.asks[[F, R]] = True
    for stage, cost in enumerate(stages):
        _enter(table, stage, KEEP, cost, None, early)
        for at, level in enumerate(cost.recompute, 1):
            _enter(table, stage, inside(at), cost, level, early)
            _enter(table, stage, apart(at), cost, level, early)
            _recompute_inside(table, stage, inside(at), cost, level)
            _recompute_apart(table, stage, apart(at), cost, level)
    return table


def make_part_tables(stages: Sequence[Sequence[StageCost]]) -> OpTable:
    """Return the tables of the parts that units of work are made of, each with its `stages`: arrays (2,
    parts, kinds, stages, treatments); the first index is 0 for copies that leave keys and values on the
    device, 1 for copies that include them."""
    tables = [[make_table(part, early) for part in stages] for early in (True, False)]
    return OpTable(*(np.array([[part[at] for part in row] for row in tables]) for at in range(4)))


def _enter(
    table: OpTable,
    stage: int,
    treatment: int,
    cost: StageCost,
    level: RecomputeLevel | None,
    early: bool,
) -> None:
    """Enter what is the same inside and apart: the forward, the weight gradient, the copies."""
    duration, allocated, released, _ = (array[:, stage, treatment] for array in table)
    keep = cost.act_bytes if level is None else level.keep_bytes
    work = 0 if level is None else level.working_bytes(cost.act_bytes)
    duration[[F, B, W, BW]] = cost.t_f_ns, cost.t_b_ns, cost.t_w_ns, cost.fused_ns
    allocated[F], released[F] = keep + work, work
    released[B], released[W] = cost.act_bytes - cost.w_bytes, cost.w_bytes
    released[BW] = cost.act_bytes
    moved = min(cost.offloadable, keep - cost.kv_bytes if early else keep)
    released[O] = allocated[R] = moved
    for kind, time in ((O, cost.t_offload_ns or 0), (R, cost.t_reload_ns or 0)):
        duration[kind] = in_proportion(time, moved, cost.offloadable)


def _recompute_inside(
    table: OpTable, stage: int, treatment: int, cost: StageCost, level: RecomputeLevel
) -> None:
    duration, allocated, released, asks = (array[:, stage, treatment] for array in table)
    keep, work = level.keep_bytes, level.working_bytes(cost.act_bytes)
    b_work = level.b_working_bytes(cost.act_bytes, cost.w_bytes)
    duration[[B, BW]] += level.t_ns
    asks[[B, BW]] = True
    allocated[B], released[B] = b_work, keep + b_work - cost.w_bytes
    allocated[BW], released[BW] = work, keep + work


def _recompute_apart(
    table: OpTable, stage: int, treatment: int, cost: StageCost, level: RecomputeLevel
) -> None:
    table.duration_ns[C, stage, treatment] = level.t_ns + cost.overhead_ns
    table.allocated_bytes[C, stage, treatment] = cost.act_bytes - level.keep_bytes
    table.asks[C, stage, treatment] = True


def in_proportion(time_ns: int, moved: int, whole: int) -> int:
    """Return the time of a copy of `moved` of `whole` bytes, rounded half up."""
    return time_ns if moved == whole else (2 * time_ns * moved + whole) // (2 * whole)
