"""The treatments of an activation (keep, offload, recompute), and profiles restricted to some of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..errors import InvalidSchedule, OptPipeError
from ..ops import C, O
from ..profile import CostProfile
from ..schedule import Levels, Schedule
from .options import TREATMENTS


def treatments_of(profile: CostProfile) -> frozenset[str]:
    """Return the treatments that a profile has costs for."""
    offload = {"offload"} if profile.offload is not None else set()
    return frozenset({"keep"} | offload | ({"recompute"} if profile.has_levels else set()))


def restrict(profile: CostProfile, treatments: Iterable[str] | None) -> CostProfile:
    """Remove offloading or the levels of recomputation from a profile unless they are among the
    treatments.

    Args:
        treatments: out of ``keep, offload, recompute``; None: all that the profile has. Keeping is
            always possible; treatments that the profile has no costs for change nothing.

    Raises:
        OptPipeError: for an unknown treatment.
    """
    if treatments is None:
        return profile
    wanted = set(treatments)
    for name in sorted(wanted - set(TREATMENTS)):
        raise OptPipeError(f"treatments: expected some of {', '.join(TREATMENTS)}, got {name!r}")
    if "offload" not in wanted and profile.offload is not None:
        profile = replace(profile, offload=None)
    if "recompute" not in wanted and profile.has_levels:
        items = (replace(one, cost=replace(one.cost, recompute=())) for one in profile.items)
        whole = profile.map_stages(lambda _, cost: replace(cost, recompute=()))
        profile = replace(whole, items=tuple(items))
    return profile


def named_levels(profile: CostProfile, numbers: np.ndarray) -> Levels:
    """Convert levels of recomputation to names, as schedules store them.

    Args:
        numbers: (stages, units) the number of the level in its stage, from 1; 0: none.
    """
    names = profile.level_names
    table = np.zeros_like(numbers)
    for stage, cost in enumerate(profile.stages):
        own = np.array([0, *(1 + names.index(level.name) for level in cost.recompute)])
        table[stage] = own[numbers[stage]]
    return Levels(tuple(names), table)


def require_alike(schedule: Schedule) -> None:
    """Raise unless all activations of each stage (or of each slice at it) are treated alike.

    Raises:
        InvalidSchedule: names the first stage whose activations differ in level, offloading, or
            whether they are recomputed by a separate op.
    """
    shape = schedule.shape
    kinds, stages, units = schedule.table.T
    levels = schedule.levels.table.reshape(shape.stages, shape.microbatches, shape.slices)
    differ = (levels != levels[:, :1]).any(axis=1).ravel()
    for kind in (C, O):
        at = (stages * shape.slices + units % shape.slices)[kinds == kind]
        count = np.bincount(at, minlength=len(differ))
        differ |= (count > 0) & (count < shape.microbatches)
    if differ.any():
        raise InvalidSchedule(
            f"stage {int(differ.argmax()) // shape.slices}: its activations are not all treated alike,"
            " which per_stage requires"
        )
