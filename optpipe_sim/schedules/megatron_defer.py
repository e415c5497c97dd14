"""Megatron-LM's deferred gradients of the head's weights, as a rule over 1F1B and interleaved 1F1B."""

from __future__ import annotations

from ..errors import InvalidSchedule
from ..execution import family_of
from ..ops import BW, B, Op, Pair, W
from ..profile import CostProfile
from ..schedule import Schedule
from .classic import one_f_one_b_of


def megatron_defer(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    group: int | None = None,
    deferred: int = 0,
) -> Schedule:
    """Build 1F1B, or interleaved 1F1B on several chunks, in which the last stage, the head, runs the gradients of its weights at the end.

    Its backward is then that of its input alone, which is all that the stages before wait for, and the last rank has time in the cool-down.
    With `deferred` so many microbatches, the first ones, do so; the others run both at once. At p = 4, m = 6::

        0 F0  F1  F2  F3  .   .   .   .   .   BW0     F4  BW1     F5  BW2     .   BW3     .   BW4     BW5
        1 .   F0  F1  F2  .   .   .   BW0     F3  BW1     F4  BW2     F5  BW3     .   BW4     BW5     .   .
        2 .   .   F0  F1  .   BW0     F2  BW1     F3  BW2     F4  BW3     F5  BW4     BW5     .   .   .   .
        3 .   .   .   F0  B0  F1  B1  .   F2  B2  .   F3  B3  .   F4  B4  .   F5  B5  W0  W1  W2  W3  W4  W5

    Args:
        profile: placed in a loop, its last stage the head and the loss alone, with B and W apart.
        microbatches: m; for several chunks as `interleaved_1f1b` requires.
        chunks: v; default: the profile's own. group: of microbatches, with several chunks.
        deferred: ``--wgrad-deferral-limit``; 0: all.

    Raises:
        InvalidSchedule: for a last stage with layers, whose gradients Megatron-LM does not defer, a `deferred` below 0, and as 1F1B
            raises it.

    Source: Megatron-LM, ``--defer-embedding-wgrad-compute``, megatron/core/pipeline_parallel/schedules.py and tensor_parallel/layers.py
    (commit d98e8a6).
    """
    if deferred < 0:
        raise InvalidSchedule(f"deferred: must be at least 0 microbatches, got {deferred}")
    base = one_f_one_b_of(profile, microbatches, chunks, group)
    costs = profile.for_shape(base.shape)
    last = base.shape.stages - 1
    if costs.items and not head_alone(costs):
        raise InvalidSchedule(
            "megatron-defer: the last stage has layers beside the head, whose gradients of weights Megatron-LM does not"
            " defer; give the head a stage of its own, as with --layers 12,12,12,0"
        )
    apart = deferred or microbatches
    programs: list[tuple[Op | Pair, ...]] = list(base.programs)
    late: list[Op] = []
    own: list[Op | Pair] = []
    for op in base.flat_programs[-1]:
        if op.kind is BW and op.stage == last and len(late) < apart:
            own.append(op._replace(kind=B))
            late.append(op._replace(kind=W))
        else:
            own.append(op)
    programs[-1] = (*own, *late)
    return Schedule(base.shape, programs, meta={"issued": family_of(base.shape.chunks, False)})


def head_alone(costs: CostProfile) -> bool:
    """Whether the last stage is known to be the head and the loss alone, its B and W apart."""
    held = costs.stages[-1].layers
    if not costs.items or not held or not costs.stages[-1].splits:
        return False
    return not any(one.decoder for one in costs.items[-held:])
