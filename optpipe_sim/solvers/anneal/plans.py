"""Programs and treatments in the encoding of the compiled code.

An op is a code, ``kind << high | stage << low | microbatch`` (slices of microbatches count as
microbatches here); its activation, the *unit*, is the same without the kind. A unit has a *mode*, ``2 *
treatment + fused``: its treatment (see `op_table`), and whether its backward is one op. A fused backward
stands in the program as a B without a W. Costs are looked up by *column*: the mode, behind those of the
slices before (`times.column`).

A unit may *join*: its F is one op with whatever backward of another unit stands right behind it on its
device, and runs alone where none does. So a move never tears a pair in two by mistake, and makes one by
putting two ops together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...compiled import packed
from ...op_costs import treatments
from ...op_table import KEEP, OpTable, level_of
from ...ops import BW, B, C, F, O, W
from ...profile import CostProfile
from ...schedule import Schedule
from ...schedule.fused import fuse
from ..problem import Problem
from ..treatments import named_levels


@packed
class Plan(NamedTuple):
    """Programs (codes (devices, room) and their number per device), the mode of each unit, and whether it joins.

    Both are in one array: with one more the loops took a quarter longer where nothing pairs.
    """

    prog: np.ndarray
    length: np.ndarray
    mode: np.ndarray  # (2 << high,) of a unit, and at ``unit | 1 << high`` whether it joins, 0 or 1

    def copy(self) -> Plan:
        return Plan(*(array.copy() for array in self))


@packed
class Costs(NamedTuple):
    """The costs of a problem for the compiled code; times ns, memory bytes, int64."""

    durations: np.ndarray  # (kinds, stages, columns)
    takes: np.ndarray  # at the start of an op; for an R, at its grant
    gives: np.ndarray  # at its end
    asks: np.ndarray  # whether it is granted memory in program order
    work: np.ndarray  # (stages, columns) total compute time of a unit
    many: np.ndarray  # (stages,) how many modes a plan may choose from; 1: there is no choice
    place: np.ndarray  # (stages,) the device of each stage
    limit: np.ndarray  # (devices,)
    static: np.ndarray  # (devices,)
    lag: int  # from the end of an op until its message arrives
    occupancy: int  # of serial links
    serial: bool
    shared: bool  # one copy engine for both directions
    sending: int  # how long a message keeps its sender busy
    first: np.ndarray  # (microbatches,) the first column of a slice
    last: np.ndarray  # (microbatches,) the last slice of the same sequence
    late: int  # distance of the columns of copies that leave keys and values behind and of those that do not; 0: the same
    offloads: bool  # whether activations may be offloaded
    per_stage: bool  # whether all activations of a stage are treated alike
    copyable: bool  # one stage per device, all with the same treatments: a neighbour's program may be copied
    pairs: (
        bool | None
    )  # True if units may join, else None: another type, so that what pairs need is not even compiled
    hidden: (
        np.ndarray
    )  # (stages of F, stages of the backward) what a pair takes less than its two ops, at most
    differ: bool  # whether microbatches do, so that their order is part of a plan
    microbatches: int
    low: int  # bit at which the stage begins in a code
    high: int  # bit at which the kind begins


def bits(problem: Problem) -> tuple[int, int]:
    """Return the bits at which the stage and the kind begin in a code."""
    low = max(1, (problem.shape.units - 1).bit_length())
    return low, low + max(1, (problem.shape.stages - 1).bit_length())


def make_costs(problem: Problem) -> Costs:
    """Make the costs of a problem by mode and slice."""
    profile, shape = problem.profile, problem.shape
    tables = profile.part_tables
    if shape.slices == 1:  # keys and values are all behind
        tables = OpTable(*(array[1:] for array in tables))
    table = _side_by_side(tables)
    stages, width = len(profile.stages), 2 * profile.op_table.treatments

    def by_mode(array: np.ndarray) -> np.ndarray:
        doubled = np.repeat(array, 2, axis=2).astype(np.int64)
        doubled[B, :, 1::2] = array[BW]
        doubled[[W, BW], :, 1::2] = 0
        return np.ascontiguousarray(doubled)

    durations = by_mode(table.duration_ns)
    modes = [_modes_of(profile, stage) for stage in range(stages)]
    limits = problem.limits or (2**55,) * profile.devices
    levels = [[level.name for level in cost.recompute] for cost in profile.stages]
    copyable = list(profile.placement) == list(range(profile.devices)) and all(
        names == levels[0] and some == modes[0] for names, some in zip(levels, modes, strict=True)
    )
    low, high = bits(problem)
    return Costs(
        durations=durations,
        takes=by_mode(table.allocated_bytes),
        gives=by_mode(table.released_bytes),
        asks=by_mode(table.asks),
        work=durations[[F, B, W, C]].sum(axis=0),
        many=np.array([len(some) for some in modes], np.int64),
        place=np.array(profile.placement, np.int64),
        limit=np.array(limits, np.int64),
        static=np.array(profile.static_bytes, np.int64),
        lag=profile.t_comm_ns,
        occupancy=profile.occupancy_ns,
        serial=profile.serial_links,
        shared=profile.shares_copy_engine,
        sending=profile.sending_ns,
        first=profile.parts_of(shape) * width,
        last=shape.last_slice(np.arange(shape.units)),
        late=width * tables.asks.shape[1] if shape.slices > 1 else 0,
        offloads=problem.may_offload,
        per_stage=problem.per_stage,
        copyable=copyable,
        pairs=True if problem.may_pair else None,
        hidden=profile.hidden_ns(*np.indices((stages, stages))),
        differ=not profile.alike,
        microbatches=shape.units,
        low=low,
        high=high,
    )


def _modes_of(profile: CostProfile, stage: int) -> range:
    """Return the modes worth having for an activation: a backward in one op only where that is faster, activations
    may be recomputed, pairs may hide more of it, or the stage does not split it."""
    cost, duration_ns = profile.stages[stage], profile.op_table.duration_ns[:, stage, KEEP]
    if cost.recompute:
        return range(2 * (1 + 2 * len(cost.recompute)))
    if not cost.splits:
        return range(1, 2)
    faster = duration_ns[BW] < duration_ns[B] + duration_ns[W]
    return range(2 if faster or profile.pair_hidden else 1)


def _side_by_side(tables: OpTable) -> OpTable:
    """Return the tables of parts side by side, (kinds, stages, way of copying x part x treatment)."""
    return OpTable(
        *(np.moveaxis(array, (0, 1), (2, 3)).reshape(*array.shape[2:4], -1) for array in tables)
    )


def pack(problem: Problem, schedule: Schedule) -> Plan:
    """Encode a schedule as a plan. A BW becomes a B and a W where it is not worth having; without a memory limit
    transfers are left out, as they could only delay ops."""
    shape, schedule = problem.shape, fuse(schedule, problem.profile)
    low, high = bits(problem)
    most = max(len(shape.stages_of(device)) for device in range(shape.devices))
    prog = np.full((shape.devices, 6 * shape.units * most + 2), -1, np.int64)
    kinds, stages, units = schedule.table.T.astype(np.int64)
    fused = kinds == BW
    split = [_modes_of(problem.profile, stage) == range(1) for stage in range(shape.stages)]
    apart = fused & np.array(split)[stages]
    # 1. the codes; a W follows the B of its BW
    codes = np.repeat(np.where(fused, B, kinds) << high | stages << low | units, 1 + apart)
    codes[np.flatnonzero(np.repeat(apart, 1 + apart))[1::2]] += (W - B) << high
    kept = np.repeat(np.full(len(kinds), problem.may_offload) | (kinds < O), 1 + apart)
    devices = np.repeat(schedule.devices, 1 + apart)[kept]
    # 2. device by device
    length = np.bincount(devices, minlength=shape.devices)
    for device, mine in enumerate(np.split(codes[kept], np.cumsum(length)[:-1])):
        prog[device, : len(mine)] = mine
    # 3. the modes
    mode = np.zeros(2 << high, np.int64)
    where = np.arange(shape.stages)[:, None] << low | np.arange(shape.units)
    mode[where] = 2 * treatments(schedule, problem.profile)
    whole = fused & ~apart
    mode[stages[whole] << low | units[whole]] += 1
    if problem.may_pair:
        mode[1 << high | stages[schedule.paired] << low | units[schedule.paired]] = 1
    return Plan(prog, length.astype(np.int64), mode)


def unpack(problem: Problem, plan: Plan, name: str = "search") -> Schedule:
    """Decode a plan to a schedule."""
    low, high = bits(problem)
    flat = np.concatenate([row[:size] for row, size in zip(plan.prog, plan.length, strict=True)])
    unit = flat & (1 << high) - 1
    kinds = flat >> high
    kinds = np.where((kinds == B) & (plan.mode[unit] % 2 == 1), BW, kinds)
    table = np.stack((kinds, unit >> low, unit & (1 << low) - 1), 1)
    offsets = np.cumsum([0, *plan.length])
    levels = named_levels(problem.profile, _level_numbers(problem, plan))
    paired = _paired(kinds, unit, offsets, plan.mode[1 << high :])
    return Schedule.from_table(
        problem.shape, table, offsets, meta={"name": name}, recompute=levels, paired=paired
    )


def _paired(
    kinds: np.ndarray, unit: np.ndarray, offsets: np.ndarray, joins: np.ndarray
) -> np.ndarray:
    """Return which ops are an F that is one op with the next; see `times.partner`."""
    paired = np.zeros(len(kinds), bool)
    back = np.isin(kinds[1:], (B, BW)) & (unit[1:] != unit[:-1])
    paired[:-1] = (kinds[:-1] == F) & (joins[unit[:-1]] == 1) & back
    paired[offsets[1:] - 1] = False
    return paired


def _level_numbers(problem: Problem, plan: Plan) -> np.ndarray:
    """Return (stages, units) the level of each activation by its number in its stage, from 1; 0:
    kept whole."""
    low, _ = bits(problem)
    units = np.arange(problem.shape.stages)[:, None] << low | np.arange(problem.shape.units)
    return level_of(plan.mode[units] // 2)
