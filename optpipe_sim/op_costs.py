"""What the ops of one schedule cost: the profile's table, looked up row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .errors import InvalidSchedule
from .op_table import KEEP, apart, inside
from .ops import C, F, O
from .profile import CostProfile
from .schedule import Schedule, encode


class OpCosts(NamedTuple):
    """One value per row of ``schedule.table``; see `op_table.OpTable`."""

    duration_ns: np.ndarray
    allocated_bytes: np.ndarray
    released_bytes: np.ndarray
    asks: np.ndarray


def op_costs(schedule: Schedule, profile: CostProfile) -> OpCosts:
    """Return the costs of every op of `schedule`; `profile` has its chunks and placement.

    Raises:
        InvalidSchedule: for a level of recomputation that the profile does not have.
    """
    stages, units = schedule.table[:, 1:].T
    return _looked_up(schedule, profile, treatments(schedule, profile)[stages, units])


def kept_costs(schedule: Schedule, profile: CostProfile) -> OpCosts:
    """Return the same with every activation kept whole; a C then takes no time."""
    return _looked_up(schedule, profile, np.full(len(schedule), KEEP))


def _looked_up(schedule: Schedule, profile: CostProfile, treatment: np.ndarray) -> OpCosts:
    """Return the costs of every op, whose activation has the `treatment` (ops,)."""
    kinds, stages, units = schedule.table.T
    slices = schedule.shape.slices
    if slices == 1 and profile.alike:
        flat = np.ravel_multi_index((kinds, stages, treatment), profile.op_table.asks.shape)
        found = OpCosts(*(array.ravel()[flat] for array in profile.op_table))
        return _as_one(schedule, profile, found)
    whole = np.zeros((schedule.shape.stages, schedule.shape.units), np.int64)
    rows, forwards = _last_forwards(schedule)
    whole[tuple(schedule.table[rows[forwards < rows], 1:].T)] = 1
    part = profile.parts_of(schedule.shape)[units]
    at = whole[stages, units], part, kinds, stages, treatment
    found = OpCosts(*(array[at] for array in profile.part_tables))
    return _as_one(schedule, profile, found)


def _as_one(schedule: Schedule, profile: CostProfile, costs: OpCosts) -> OpCosts:
    """Return the costs with each pair as one op: both rows last as long as it; the forward allocates for
    both, at its start, and the backward releases for both, at its end."""
    if not schedule.has_pairs:
        return costs
    forward = np.flatnonzero(schedule.paired)
    back = forward + 1
    duration, allocated, released, asks = costs
    hidden = profile.hidden_ns(schedule.table[forward, 1], schedule.table[back, 1])
    one, other = duration[forward], duration[back]
    duration[forward] = duration[back] = one + other - np.minimum(hidden, np.minimum(one, other))
    allocated[forward] += allocated[back]
    released[back] += released[forward]
    allocated[back] = released[forward] = 0
    asks[back] = False
    return costs


def _last_forwards(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of all O's, and of the F's of their microbatches' last slices: only an O that follows that F
    in the program may move keys and values."""
    shape = schedule.shape
    rows = np.flatnonzero(schedule.table[:, 0] == O)
    _, stages, units = schedule.table[rows].T.astype(np.int64)
    return rows, schedule.rows[encode(shape, F, stages, shape.last_slice(units))]


def edges(schedule: Schedule, profile: CostProfile) -> tuple[np.ndarray, np.ndarray]:
    """Return the data dependencies of `Schedule.edges`, and those of O's that move keys and values:
    they wait for the F of the microbatch's last slice. What the backward of a pair waits for, its F waits for."""
    waiting, needed = schedule.edges
    if schedule.has_pairs:
        waiting = waiting - schedule.second[waiting]
    if schedule.shape.slices == 1:
        return waiting, needed
    moving, forwards = moves_of_keys(schedule, profile)
    return np.concatenate([waiting, moving]), np.concatenate([needed, forwards])


def moves_of_keys(schedule: Schedule, profile: CostProfile) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the O's that move keys and values, and the rows of the F's that they wait for."""
    rows, forwards = may_move_keys(schedule, profile)
    behind = forwards < rows
    return rows[behind], forwards[behind]


def may_move_keys(schedule: Schedule, profile: CostProfile) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the O's that move more behind the F of their microbatch's last slice than before it, and the
    rows of those F's."""
    rows, forwards = _last_forwards(schedule)
    _, stages, units = schedule.table[rows].T
    treatment = treatments(schedule, profile)[stages, units]
    part = profile.parts_of(schedule.shape)[units]
    moved = profile.part_tables.released_bytes[:, part, O, stages, treatment]
    more = moved[0] < moved[1]
    return rows[more], forwards[more]


def treatments(schedule: Schedule, profile: CostProfile) -> np.ndarray:
    """(stages, units) the treatment of each activation (see `op_table`).

    Raises:
        InvalidSchedule: for a level of recomputation that the profile does not have.
    """
    shape = schedule.shape
    chosen = np.full((shape.stages, shape.units), KEEP)
    levels = schedule.levels
    if not levels.names:
        return chosen
    number = _numbers(schedule, profile)
    at = np.take_along_axis(number, levels.table, axis=1)
    stage, unit = np.indices(chosen.shape)
    is_apart = schedule.rows[encode(shape, C, stage, unit)] >= 0
    return np.where(at == 0, KEEP, np.where(is_apart, apart(at), inside(at)))


def _numbers(schedule: Schedule, profile: CostProfile) -> np.ndarray:
    """(stages, names + 1) which of a stage's levels, from 1, each name of the schedule stands for;
    0 in the first column, for no level."""
    levels = schedule.levels
    number = np.zeros((schedule.shape.stages, len(levels.names) + 1), np.int64)
    for column, name in enumerate(levels.names, 1):
        number[:, column] = profile.level_numbers.get(name, 0)
    unknown = (levels.table > 0) & (np.take_along_axis(number, levels.table, axis=1) == 0)
    if unknown.any():
        stage, unit = np.argwhere(unknown)[0].tolist()
        known = {level.name: at for at, level in enumerate(profile.stages[stage].recompute, 1)}
        name = levels.names[levels.table[stage, unit] - 1]
        raise InvalidSchedule(
            f"recompute: stage {stage} has no level {name!r} in the profile {profile.name};"
            f" it has {', '.join(known) or 'none'}"
        )
    return number


def moved_bytes(schedule: Schedule, profile: CostProfile) -> np.ndarray:
    """Per row, the bytes that a transfer moves; 0 for compute ops."""
    costs = op_costs(schedule, profile)
    return np.where(
        schedule.is_transfer, np.maximum(costs.allocated_bytes, costs.released_bytes), 0
    )
