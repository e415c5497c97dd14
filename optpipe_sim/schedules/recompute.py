"""Recomputation for any schedule: one level per stage, inside backwards or by separate ops.

Published patterns have no recomputation. A pattern is built with the costs that its stages have at
their levels (`at_levels`), and the levels are then added to its programs (`with_levels`), as
frameworks do (Megatron-LM's ``--recompute-granularity``, torchtitan's activation checkpointing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..errors import InvalidSchedule
from ..op_table import make_table
from ..ops import BW, B, C, O, R
from ..profile import CostProfile
from ..schedule import Schedule, levels_by_stage, require_no_pairs
from ..stage_cost import RecomputeLevel, StageCost
from ..units import counted

YES_NO = {"yes": True, "no": False, "true": True, "false": False}


def parse_yes_no(text: str) -> bool:
    """Return True for ``yes``, False for ``no``.

    Raises:
        InvalidSchedule: for anything else.
    """
    if text.lower() not in YES_NO:
        raise InvalidSchedule(f"expected yes or no, got {text!r}")
    return YES_NO[text.lower()]


Levels = Sequence[str | None]  # the level of each stage; None: kept whole


def everywhere(profile: CostProfile, level: str) -> Levels:
    """Return `level` for every stage that has it.

    Raises:
        InvalidSchedule: if no stage has this level.
    """
    if level not in profile.level_names:
        raise InvalidSchedule(
            f"recompute={level}: the profile {profile.name} has no such level; it has"
            f" {', '.join(profile.level_names) or 'none (give its stages a list recompute)'}"
        )
    return [level if cost.level(level) else None for cost in profile.stages]


def last_levels(profile: CostProfile) -> Levels:
    """Return the last level of every stage that has any: the one that keeps the least."""
    return [cost.recompute[-1].name if cost.recompute else None for cost in profile.stages]


def first_layers(profile: CostProfile, level: str, layers: int) -> Levels:
    """Return, for every stage, the level that recomputes its first `layers` layers as `level`
    recomputes all of them: Megatron-LM's ``--recompute-method block --recompute-num-layers``. A
    stage with no more layers than that is recomputed at `level`.

    Raises:
        InvalidSchedule: if no stage has `level`, or one has no level for that many layers.
    """
    if layers < 1:
        raise InvalidSchedule(f"layers: must be at least 1, got {layers}")
    found = list(everywhere(profile, level))
    for stage, cost in enumerate(profile.stages):
        whole = cost.level(level)
        if whole is None or (whole.layers is not None and whole.layers <= layers):
            continue
        fitting = [one.name for one in cost.recompute if one.layers == layers]
        if not fitting:
            known = ", ".join(
                f"{one.name} ({counted(one.layers, 'layer')})"
                for one in cost.recompute
                if one.layers is not None
            )
            raise InvalidSchedule(
                f"layers={layers}: stage {stage} of {profile.chunks * profile.devices} has no level"
                f" that recomputes this many layers; it has {known or 'none that says its layers'}"
            )
        found[stage] = fitting[0]
    return found


def at_levels(profile: CostProfile, levels: Levels, apart: bool = False) -> CostProfile:
    """Return the profile that a pattern plans with if each stage is recomputed at its level.
    Backwards are longer by the recomputation, activations have the kept size, and the largest
    working memory of a stage is reserved (with `apart`, everything that C restores)."""
    return profile.map_stages(
        lambda stage, cost: _plain(cost, cost.level(levels[stage] or ""), apart)
    )


def fused_at_levels(profile: CostProfile, levels: Levels, apart: bool = False) -> CostProfile:
    """As `at_levels`, for schedules that plan by memory and can fuse any backward: if W needs more
    than is kept, a split B would hold that until its W, so such a stage fuses its backwards."""
    needing = {
        stage
        for stage, cost in enumerate(profile.stages)
        if (level := cost.level(levels[stage] or "")) and cost.w_bytes > level.keep_bytes
    }

    def whole(stage: int, cost: StageCost) -> StageCost:
        if stage not in needing:
            return cost
        fused = [replace(level, b_work_bytes=None) for level in cost.recompute]
        return replace(
            cost,
            t_b_ns=cost.fused_ns,
            t_w_ns=0,
            t_bw_ns=None,
            w_bytes=0,
            recompute=tuple(fused),
            splits=False,
        )

    return at_levels(profile.map_stages(whole), levels, apart)


@lru_cache(
    maxsize=1024
)  # most stages are alike, and all bounds and patterns ask for the same levels
def _plain(cost: StageCost, found: RecomputeLevel | None, apart: bool) -> StageCost:
    """Return a stage without levels that has the costs of a level; its working memory is held all
    the time."""
    if found is None:
        return replace(cost, recompute=())
    times = make_table([replace(cost, recompute=(found,))]).duration_ns[:, 0, 1]
    work = max(
        found.working_bytes(cost.act_bytes), found.b_working_bytes(cost.act_bytes, cost.w_bytes)
    )
    if apart:
        work = max(work, cost.act_bytes - found.keep_bytes)
    return replace(
        cost,
        t_b_ns=int(times[B]),
        t_bw_ns=None if cost.t_bw_ns is None else int(times[BW]),
        act_bytes=found.keep_bytes,
        w_bytes=min(cost.w_bytes, found.keep_bytes),
        offload_bytes=min(cost.offloadable, found.keep_bytes),
        static_bytes=cost.static_bytes + work,
        t_offload_ns=None if cost.t_offload_ns is None else int(times[O]),
        t_reload_ns=None if cost.t_reload_ns is None else int(times[R]),
        recompute=(),
    )


def with_levels(schedule: Schedule, levels: Levels, apart: bool) -> Schedule:
    """Recompute every activation at the level of its stage: inside its backward, or with `apart` by
    an op C right before it, which runs while the backward waits for its gradient."""
    found = schedule.replace(recompute=levels_by_stage(schedule.shape, levels))
    return taken_apart(found) if apart else found


def taken_apart(schedule: Schedule) -> Schedule:
    """Turn the recomputation inside backwards into separate ops."""
    require_no_pairs(schedule, "recomputation apart")
    kinds, stages, units = schedule.table.T
    back = ((kinds == B) | (kinds == BW)) & (schedule.levels.table[stages, units] > 0)
    rows = np.flatnonzero(back)
    own = schedule.table[rows]
    own[:, 0] = C
    table = np.insert(schedule.table, rows, own, axis=0)
    offsets = schedule.offsets + np.concatenate(([0], np.cumsum(back)))[schedule.offsets]
    return Schedule.from_table(
        schedule.shape, table, offsets, schedule.link_order, schedule.meta, schedule.levels
    )


def at_level(profile: CostProfile, level: str) -> CostProfile:
    """Return `at_levels` with `level` on every stage that has it."""
    return at_levels(profile, everywhere(profile, level))


def with_level(schedule: Schedule, profile: CostProfile, level: str, apart: bool) -> Schedule:
    """Return `with_levels` with `level` on every stage that has it."""
    return with_levels(schedule, everywhere(profile.for_shape(schedule.shape), level), apart)
