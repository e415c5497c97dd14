"""The costs of activations at levels of recomputation, for AdaOffload.

An activation at a level counts as one of the kept size, whose backward is longer by the
recomputation; the largest working memory of an op is reserved on its device. If W needs more than
is kept, the backward is fused, as a split B would hold that memory until W (see
`recompute.fused_at_levels`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...op_table import KEEP
from ...ops import Op, OpKind
from ...profile import CostProfile
from ...schedule import Levels, Schedule, Shape
from ..recompute import fused_at_levels


class Costs(NamedTuple):
    """The costs of each activation; arrays are (S, m), in bytes, unless noted."""

    levels: np.ndarray  # its number among those of its stage, from 1; 0: kept whole
    durations_ns: np.ndarray  # (kinds, S, m)
    released: np.ndarray  # (kinds, S, m) at the end of each op
    act: np.ndarray
    moved: np.ndarray
    aside: np.ndarray  # (S,) bytes that a device reserves for the stage


def activation_costs(profile: CostProfile, levels: np.ndarray) -> Costs:
    """Compute the costs of each activation at its level."""
    count, microbatches = levels.shape
    act, moved = np.zeros((2, count, microbatches), np.int64)
    durations, released = np.zeros((2, len(OpKind), count, microbatches), np.int64)
    costs = Costs(levels, durations, released, act, moved, np.zeros(count, np.int64))
    classes = profile.parts_of(profile.shape(microbatches))
    for at, factors in enumerate(profile.classes):
        alike = profile.of_class(*factors)
        for number in np.unique(levels).tolist():
            _enter(costs, alike, number, (levels == number) & (classes == at))
    return costs


def _enter(costs: Costs, profile: CostProfile, number: int, chosen: np.ndarray) -> None:
    """Enter the costs of the `chosen` (S, m) activations, which are at the level of this number and alike."""
    at = _at(profile, number)
    for s, (cost, plain) in enumerate(zip(profile.stages, at.stages, strict=True)):
        mine = chosen[s]
        if not mine.any():
            continue
        costs.durations_ns[:, s, mine] = at.durations_ns[:, s, None]
        costs.released[:, s, mine] = at.op_table.released_bytes[:, s, KEEP, None]
        costs.act[s, mine], costs.moved[s, mine] = plain.act_bytes, plain.offloadable
        costs.aside[s] = max(costs.aside[s], plain.static_bytes - cost.static_bytes)


@lru_cache(maxsize=64)
def _at(profile: CostProfile, number: int) -> CostProfile:
    """Return the profile with each stage at its level of this number; without levels for 0."""
    names = [
        cost.recompute[number - 1].name if 0 < number <= len(cost.recompute) else None
        for cost in profile.stages
    ]
    return fused_at_levels(profile, names)


def recomputed(
    shape: Shape,
    table: np.ndarray,
    offsets: np.ndarray,
    link_order: Mapping[str, Iterable[Op]],
    profile: CostProfile,
    levels: np.ndarray,
) -> Schedule:
    """Make the schedule of a table of ops, each activation recomputed at its level inside its
    backward; a BW if the backward is fused."""
    numbers: dict[str, int] = {}
    whole, named = np.zeros(levels.shape, bool), np.zeros(levels.shape, np.int64)
    for s, cost in enumerate(profile.stages):
        for number, level in enumerate(cost.recompute, 1):
            mine = levels[s] == number
            if mine.any():
                named[s, mine] = numbers.setdefault(level.name, len(numbers) + 1)
                whole[s, mine] = cost.w_bytes > level.keep_bytes
    _, stages, microbatches = table.T
    schedule = Schedule.from_table(shape, table, offsets, link_order)
    return schedule.fused(whole[stages, microbatches], recompute=Levels(tuple(numbers), named))
