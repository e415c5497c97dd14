"""Megatron-LM's fine-grained activation offloading, as a rule over 1F1B and interleaved 1F1B.

In Megatron-LM a *group* is the set of tensors that one module of one layer saves for its backward.
Here it is the activation of one stage and microbatch, of which O and R move the profile's `offload`
bytes: those that the selected modules save. So where Megatron-LM offloads a share of the groups of
every activation, this schedule offloads a share of the activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

from ..errors import InvalidSchedule
from ..ops import BW, F, O, Op, R
from ..profile import CostProfile
from ..schedule import Schedule
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
    moved = [cost.offloadable for cost in profile.for_shape(base.shape).stages]
    programs = []
    for rank, program in enumerate(base.flat_programs):
        offloaded = set(_spread(_eligible(program, moved, rank * delta), Fraction(fraction)))
        programs.append(list(_with_copies(program, offloaded)))
    return Schedule(base.shape, programs)


def _eligible(program: Sequence[Op], moved: Sequence[int], keep_bytes: int) -> list[Op]:
    """Return the backwards, in their order, of the activations that may be offloaded."""
    backwards = [op for op in program if op.kind is BW]
    following = iter([*backwards, None])
    at_once, due = set(), next(following)
    for op in program:
        if op == due:
            due = next(following)
        elif due is not None and op[1:] == due[1:]:  # its F
            at_once.add(due)
    found = []
    for op in backwards[1:]:
        if op in at_once or not moved[op.stage]:
            continue
        if keep_bytes > 0:
            keep_bytes -= moved[op.stage]
        else:
            found.append(op)
    return found


def _spread(backwards: Sequence[Op], fraction: Fraction) -> Iterator[Op]:
    """Select the share `fraction` of each stage's activations, evenly spread and rounded up."""
    seen: dict[int, int] = {}
    part, whole = fraction.as_integer_ratio()
    for op in backwards:
        at = seen[op.stage] = seen.get(op.stage, 0) + 1
        if -(-at * part // whole) > -(-(at - 1) * part // whole):
            yield op


def _with_copies(program: Sequence[Op], offloaded: set[Op]) -> Iterator[Op]:
    """Insert each O after its F, and each R after the backward before its own."""
    backwards = [op for op in program if op.kind is BW]
    after = dict(pairwise(backwards))
    for op in program:
        yield op
        if op.kind is F and Op(BW, *op[1:]) in offloaded:
            yield Op(O, *op[1:])
        if op.kind is BW and (due := after.get(op)) in offloaded:
            assert due is not None
            yield Op(R, *due[1:])
