"""Megatron-LM's fine-grained activation offloading, as a rule over 1F1B and interleaved 1F1B.

In Megatron-LM a *group* is the set of tensors that one module of one layer saves for its backward.
Here it is the activation of one stage and microbatch, of which O and R move the profile's `offload`
bytes: those that the selected modules save. So where Megatron-LM offloads a share of the groups of
every activation, this schedule offloads a share of the activations.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np

from ..errors import InvalidSchedule
from ..ops import BW, F, O, R
from ..profile import CostProfile
from ..schedule import Schedule, encode, rows_of
from .classic import one_f_one_b_of
from .copies import require_offload


def megatron_offload(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    fraction: Fraction | float = 1,
    delta: int = 0,
    group: int | None = None,
) -> Schedule:
    """Build 1F1B, or interleaved 1F1B on several chunks, with activations offloaded by
    Megatron-LM's rule.

    Every O is issued when its F ends, every R when the backward before its own begins: one group
    ahead. The following activations stay on the device, in this order: those whose backward is the
    next one after their F; the one whose backward comes first, as its reload would delay the
    device; on rank r, the first ones by their backwards up to r * `delta` bytes; of each stage's
    other activations, all but the share `fraction`, evenly spread. Memory limits are ignored. At p
    = 4, m = 6, copies as long as a cell::

        0 F0  F1  F2  F3  .   .   .   .   .   .   BW0     F4  BW1     F5  BW2     .   BW3     .   BW4     .   BW5
                  O1  O2  O3                      R1          R2          R3          R4          R5
        1 .   F0  F1  F2  .   .   .   .   BW0     F3  BW1     F4  BW2     F5  BW3     .   BW4     .   BW5     .   .
                      O1  O2              R1          R2          R3          R4          R5
        2 .   .   F0  F1  .   .   BW0     F2  BW1     F3  BW2     F4  BW3     F5  BW4     .   BW5     .   .   .   .
                          O1      R1          O2  R2      O3  R3      O4  R4      O5  R5
        3 .   .   .   F0  BW0     F1  BW1     F2  BW2     F3  BW3     F4  BW4     F5  BW5     .   .   .   .   .   .

    Args:
        profile: with an offload section; placed in a loop.
        microbatches: m; for several chunks as `interleaved_1f1b` requires.
        chunks: v; default: the profile's own.
        fraction: ``--activation-offload-fraction``.
        delta: ``--delta-offload-bytes-across-pp-ranks``.
        group: ``--microbatch-group-size-per-virtual-pipeline-stage``, with several chunks.

    Raises:
        InvalidSchedule: for a profile that does not offload, a `fraction` or `delta` out of range,
            and as 1F1B does.

    Source: Megatron-LM, docs/user-guide/features/fine_grained_activation_offloading.md and
    megatron/core/pipeline_parallel/fine_grained_activation_offload.py (commit d98e8a6).
    """
    require_offload(profile, "offloading")
    if delta < 0:
        raise InvalidSchedule(f"delta: must be at least 0 bytes, got {delta}")
    if not 0 <= fraction <= 1:
        raise InvalidSchedule(f"fraction: must be from 0 to 1, got {fraction}")
    base = one_f_one_b_of(profile, microbatches, chunks, group)
    moved = np.array([cost.offloadable for cost in profile.for_shape(base.shape).stages])
    tables = []
    for rank, (first, last) in enumerate(pairwise(base.offsets)):
        program = base.table[first:last]
        forward = base.rows[encode(base.shape, F, *program[:, 1:].T)] - first
        may = _eligible(program, moved, rank * delta)
        tables.append(_with_copies(program, forward, may, fraction))
    return Schedule.from_tables(base.shape, tables)


def _eligible(program: np.ndarray, moved: np.ndarray, keep_bytes: int) -> np.ndarray:
    """Return which of a program's backwards are of activations that may be offloaded.

    Args:
        moved: (stages,) the bytes that an activation of each stage offloads.
    """
    is_back = program[:, 0] == BW
    back = program[is_back, 1:]
    due = np.cumsum(is_back)[~is_back]  # the backward behind each forward
    at_once = np.zeros(len(back), bool)
    at_once[due[(program[~is_back, 1:] == back[due]).all(axis=1)]] = True
    sizes = moved[back[:, 0]]
    may = ~at_once & (sizes > 0)
    may[0] = False
    sizes = np.where(may, sizes, 0)
    chosen: np.ndarray = may & (np.cumsum(sizes) - sizes >= keep_bytes)
    return chosen


def _with_copies(
    program: np.ndarray, forward: np.ndarray, may: np.ndarray, fraction: Fraction | float
) -> np.ndarray:
    """Offload the share `fraction` of each stage's activations that may be, evenly spread and rounded up: insert each O
    after its F, and each R after the backward before its own.

    Args:
        forward: the place of each op's F. may: of each backward, as `_eligible` returns.
    """
    rows = np.flatnonzero(program[:, 0] == BW)
    part, whole = Fraction(fraction).as_integer_ratio()
    up = [-(-at * part // whole) for at in range(len(rows) + 1)]
    takes = np.array([after > before for before, after in pairwise(up)])
    chosen = may.copy()
    for stage in np.unique(program[rows, 1]):
        own = np.flatnonzero(may & (program[rows, 1] == stage))
        chosen[own] = takes[: len(own)]
    gone = program[rows[chosen], 1:]
    before = rows[np.flatnonzero(chosen) - 1]
    parts = (program, rows_of(O, *gone.T), rows_of(R, *gone.T))
    places = (2 * np.arange(len(program)), 2 * forward[rows[chosen]] + 1, 2 * before + 1)
    order = np.argsort(np.concatenate(places))
    return np.asarray(np.concatenate(parts)[order])
