"""Megatron-LM's partial checkpoints: of the microbatches in flight on a rank, some keep their activations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ...errors import InvalidSchedule
from ...ops import F
from ...profile import CostProfile
from ...schedule import Schedule, levels_by_stage
from ...sim import simulate
from ...trace import Trace
from ...units import Size
from ..classic import one_f_one_b_of
from ..recompute import Levels, everywhere, last_levels


def partial_checkpoints(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    group: int | None = None,
    keep: int | None = None,
    level: str | None = None,
    limit: Size | Sequence[Size] | None = None,
) -> Schedule:
    """Build 1F1B, or interleaved 1F1B on several chunks, in which `keep` of each window of forwards keep their activations, and the
    others recompute them inside their backwards.

    The window of a rank is its warm-up and one more: as many forwards as it has without their backward. The i-th forward of a rank (of all of
    its chunks) keeps its activation if i modulo the window is below `keep`: so at any time at most so many are kept, and ranks with
    a short warm-up recompute nothing. At p = 4, m = 6, keep = 2, a level that recomputes all in 1::

        0 F0  F1  F2  F3  .   .   .   .   .   .   BW0     F4  BW1     F5  .   BW2         BW3         BW4     .   .   BW5
        1 .   F0  F1  F2  .   .   .   .   BW0     F3  BW1     F4  BW2         F5  BW3     .   BW4     .   BW5         .   .
        2 .   .   F0  F1  .   .   BW0     F2  BW1     F3  BW2     F4  BW3     .   F5  BW4     .   BW5     .   .   .   .   .
        3 .   .   .   F0  BW0     F1  BW1     F2  BW2     F3  BW3     F4  BW4     .   F5  BW5     .   .   .   .   .   .   .

    Args:
        profile: placed in a loop. Without levels everything is kept.
        microbatches: m, for several chunks as `interleaved_1f1b` requires.
        chunks: v; default: the profile's own. group: of microbatches, with several chunks.
        keep: ``num_microbatches_with_partial_activation_checkpoints``; default: as many as fit `limit`, without one all.
        level: the level of recomputation; default: the one with which the makespan under the limit is least; if none fits, or
            with `keep`, the last level of each stage.
        limit: bytes per device, static included; None: the profile's own.

    Raises:
        InvalidSchedule: for a `keep` below 0, a level that no stage has, and as 1F1B raises it.

    Source: Megatron-LM, megatron/core/pipeline_parallel/schedules.py (commit d98e8a6), max_outstanding_backprops; Korthikanti et al.
    (arXiv 2205.05198), appendix C. There a kept microbatch may still checkpoint some of its layers; here it keeps all.
    """
    if keep is not None and keep < 0:
        raise InvalidSchedule(f"keep: must be at least 0 microbatches, got {keep}")
    base = one_f_one_b_of(profile, microbatches, chunks, group)
    costs = profile.for_shape(base.shape)
    own = last_levels(costs) if level is None else everywhere(costs, level)
    limits = costs.limits(limit, "limit")
    if keep is not None:
        return _kept(base, own, keep)
    if limits is None:
        return base
    names = costs.level_names
    ways = [own] if level is not None else [everywhere(costs, name) for name in names]
    traces = [found for way in ways if (found := _most(base, way, costs, limits)) is not None]
    if not traces:
        return _kept(base, own, 0)
    return min(traces, key=lambda trace: trace.makespan_ns).schedule


def _windows(base: Schedule) -> list[int]:
    """Return, per rank, how many forwards are without their backward at most: those before the first backward."""
    return [
        int((base.table[first:last, 0] != F).argmax()) for first, last in pairwise(base.offsets)
    ]


def _kept(base: Schedule, levels: Levels, keep: int) -> Schedule:
    """Keep `keep` of each window of forwards; the others are recomputed at the level of their stage."""
    every = levels_by_stage(base.shape, levels)
    table = np.zeros_like(every.table)
    for (first, last), window in zip(pairwise(base.offsets), _windows(base), strict=True):
        program = base.table[first:last]
        forwards = program[program[:, 0] == F, 1:]
        again = tuple(forwards[np.arange(len(forwards)) % window >= keep].T)
        table[again] = every.table[again]
    return base.replace(recompute=every._replace(table=table))


def _most(
    base: Schedule, levels: Levels, costs: CostProfile, limits: Sequence[int]
) -> Trace | None:
    """Return the replay with as many kept as fit the limits; None if it does not fit with none.

    More that are kept hold more, so the number is found by bisection.
    """
    best, low, high = None, 0, max(_windows(base))
    while low <= high:
        keep = (low + high) // 2
        trace = simulate(_kept(base, levels, keep), costs, enforce=False)
        if all(peak <= limit for peak, limit in zip(trace.peak_bytes, limits, strict=True)):
            best, low = trace, keep + 1
        else:
            high = keep - 1
    return best
