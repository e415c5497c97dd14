"""What the ops of one schedule cost: the profile's table, looked up row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .errors import InvalidSchedule
from .op_table import KEEP, apart, inside
from .ops import C
from .profile import CostProfile
from .schedule import Schedule, encode


class OpCosts(NamedTuple):
    """One value per row of ``schedule.table``; see `op_table.OpTable`."""

    duration_ns: np.ndarray
    allocated_bytes: np.ndarray
    released_bytes: np.ndarray
    asks: np.ndarray


def op_costs(schedule: Schedule, profile: CostProfile) -> OpCosts:
    """The costs of every op of `schedule`; `profile` has its chunks and placement.

    Raises:
        InvalidSchedule: for a level of recomputation that the profile does not have.
    """
    kinds, stages, microbatches = schedule.table.T
    treatment = treatments(schedule, profile)[stages, microbatches]
    return OpCosts(*(array[kinds, stages, treatment] for array in profile.op_table))


def treatments(schedule: Schedule, profile: CostProfile) -> np.ndarray:
    """(stages, microbatches) the treatment of each activation (see `op_table`).

    Raises:
        InvalidSchedule: for a level of recomputation that the profile does not have.
    """
    shape = schedule.shape
    chosen = np.full((shape.stages, shape.microbatches), KEEP)
    levels = schedule.levels
    if not levels.names:
        return chosen
    number = _numbers(schedule, profile)
    at = np.take_along_axis(number, levels.table, axis=1)
    stage, microbatch = np.indices(chosen.shape)
    is_apart = schedule.rows[encode(shape, C, stage, microbatch)] >= 0
    return np.where(at == 0, KEEP, np.where(is_apart, apart(at), inside(at)))


def _numbers(schedule: Schedule, profile: CostProfile) -> np.ndarray:
    """(stages, names + 1) which of a stage's levels, from 1, each name of the schedule stands for;
    0 in the first column, which stands for no level."""
    levels = schedule.levels
    number = np.zeros((schedule.shape.stages, len(levels.names) + 1), np.int64)
    for stage, cost in enumerate(profile.stages):
        known = [level.name for level in cost.recompute]
        for at in np.unique(levels.table[stage]).tolist():
            if at == 0:
                continue
            name = levels.names[at - 1]
            if name not in known:
                raise InvalidSchedule(
                    f"recompute: stage {stage} has no level {name!r} in the profile {profile.name};"
                    f" it has {', '.join(known) or 'none'}"
                )
            number[stage, at] = known.index(name) + 1
    return number


def moved_bytes(schedule: Schedule, profile: CostProfile) -> np.ndarray:
    """Per row, the bytes that a transfer moves; 0 for compute ops."""
    costs = op_costs(schedule, profile)
    return np.where(
        schedule.is_transfer, np.maximum(costs.allocated_bytes, costs.released_bytes), 0
    )
