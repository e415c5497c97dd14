"""Schedules for stages of which only the whole backward is known (`StageCost.splits` is False)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import InvalidSchedule
from ..ops import B, W
from ..profile import CostProfile
from . import Schedule


def as_split(profile: CostProfile) -> CostProfile:
    """Return the profile that patterns plan with: a whole backward is a B followed by a W of no time."""
    if all(cost.splits for cost in profile.stages):
        return profile
    return profile.map_stages(lambda _, cost: replace(cost, splits=True, overhead_ns=0))


def fuse(schedule: Schedule, profile: CostProfile) -> Schedule:
    """Return the schedule with a BW in place of each B, and without the Ws, of stages that do not split.

    Such a B costs the whole backward and its W nothing, so fusing makes nothing slower
    under a memory limit. Returns the schedule itself where there is nothing to fuse.
    """
    whole, kinds = _at_whole_stages(schedule, profile), schedule.table[:, 0]
    if not (whole & ((kinds == B) | (kinds == W))).any():
        return schedule
    return schedule.fused(whole)


def fused_where_whole(schedule: Schedule, profile: CostProfile) -> Schedule:
    """Fuse the schedule where stages do not split, if each W directly follows its B, transfers
    aside.

    Raises:
        InvalidSchedule: where a W waits; names what the profile lacks.
    """
    whole = _at_whole_stages(schedule, profile)
    if not whole.any():
        return schedule
    compute = ~schedule.is_transfer
    kinds, stages, microbatches = schedule.table[compute].T
    is_w = (kinds == W) & whole[compute]
    follows = np.concatenate(
        (
            [False],
            (kinds[:-1] == B)
            & (stages[:-1] == stages[1:])
            & (microbatches[:-1] == microbatches[1:]),
        )
    )
    if (is_w & ~follows).any():
        raise InvalidSchedule(_missing(profile))
    return fuse(schedule, profile)


def require_known(schedule: Schedule, profile: CostProfile) -> None:
    """Refuse a B or W of a stage of which only the whole backward is known.

    Raises:
        InvalidSchedule: names what the profile lacks.
    """
    whole, kinds = _at_whole_stages(schedule, profile), schedule.table[:, 0]
    if (whole & ((kinds == B) | (kinds == W))).any():
        raise InvalidSchedule(_missing(profile))


def _at_whole_stages(schedule: Schedule, profile: CostProfile) -> np.ndarray:
    """(ops,) whether an op is of a stage that does not split."""
    if all(cost.splits for cost in profile.stages):
        return np.zeros(len(schedule), bool)
    stages = profile.for_shape(schedule.shape).stages
    whole: np.ndarray = np.array([not cost.splits for cost in stages])
    return np.take(whole, schedule.table[:, 1])


def _missing(profile: CostProfile) -> str:
    whole = [not cost.splits for cost in profile.stages]
    key = "stages" if all(whole) else f"stages[{whole.index(True)}]"
    return (
        f"runs B and W apart, and the profile {profile.name} has them only as one (t_bw): it needs"
        f" {key}.t_b_ms and {key}.t_w_ms"
    )
