"""What slices of a sequence cost: equal lengths, of which each later one has more keys to attend to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import OptPipeError
from ..profile.parts import join
from ..stage_cost import RecomputeLevel, StageCost
from .layer import Work
from .models import Model
from .roofline import OpTime


def slice_length(seq: int, slices: int, work: Work) -> int:
    """The tokens of a slice.

    Raises:
        OptPipeError: if the sequence does not divide, or attention is not fused or shared by devices.
    """
    if slices == 1 and not isinstance(slices, bool):
        return seq
    lengths = slice_lengths(seq, slices)
    if not work.flash or work.cp > 1:
        raise OptPipeError("slices: costs are known of fused attention without context parallelism")
    return lengths[0]


def slice_lengths(seq: int, slices: int) -> tuple[int, ...]:
    """The tokens of each slice, where they are equally long.

    Raises:
        OptPipeError: if the sequence does not divide.
    """
    if isinstance(slices, bool) or not isinstance(slices, int) or slices < 1 or seq % slices:
        raise OptPipeError(f"slices: must divide the {seq} tokens of a sequence, got {slices!r}")
    return (seq // slices,) * slices


def in_slices(
    costs: Sequence[StageCost],
    kinds: Sequence[tuple[int, int]],
    times: Mapping[bool, Mapping[str, OpTime]],
    model: Model,
    work: Work,
    slices: int,
) -> list[StageCost]:
    """Stages of whole sequences, from what a first slice costs on each.

    Slice k (from 0) attends to k slices before it in full and to half of its own tokens: 2 k + 1 times
    what a first slice's causal attention takes; all else is the same for each. Keys and values stay
    at every level of recomputation. Gradients of earlier slices' keys and values are not counted.

    Args:
        costs: of a slice alone, per stage. `work`: a slice.
        kinds: plain and expert layers of each stage. `times`: of one layer, by whether it is plain.
    """
    if slices == 1:
        return list(costs)
    return [
        join(
            [_later(cost, kind, times, model, work, k) for k in range(slices)],
            cost.static_bytes,
            cost.layers,
        )
        for cost, kind in zip(costs, kinds, strict=True)
    ]


def _later(
    cost: StageCost,
    kind: tuple[int, int],
    times: Mapping[bool, Mapping[str, OpTime]],
    model: Model,
    work: Work,
    k: int,
) -> StageCost:
    """The k-th slice."""
    layers = [(dense, number) for dense, number in zip((True, False), kind, strict=True) if number]
    more = {
        op: round(
            2 * k * 1e9 * sum(number * times[dense][op].attention for dense, number in layers)
        )
        for op in ("F", "B")
    }
    kv = min(cost.act_bytes, sum(kind) * key_bytes(model, work))

    def level(one: RecomputeLevel) -> RecomputeLevel:
        whole = one.layers or 0  # others recompute no attention, but perhaps its inputs
        dropped = kv * whole // max(1, sum(kind)) if whole else kv * ("qkv" in one.name)
        keep = min(cost.act_bytes, one.keep_bytes + dropped)
        again = more["F"] * whole // max(1, sum(kind))
        work_bytes, b_work = (
            None if size is None else min(size, cost.act_bytes - keep)
            for size in (one.work_bytes, one.b_work_bytes)
        )
        return replace(
            one, t_ns=one.t_ns + again, keep_bytes=keep, work_bytes=work_bytes, b_work_bytes=b_work
        )

    return replace(
        cost,
        t_f_ns=cost.t_f_ns + more["F"],
        t_b_ns=cost.t_b_ns + more["B"],
        kv_bytes=kv,
        recompute=tuple(map(level, cost.recompute)),
        static_bytes=0,
        layers=None,
    )


def key_bytes(model: Model, work: Work) -> int:
    """The keys and values of one layer, per device."""
    if model.latent:
        width = model.heads // work.tp * (model.qk_dim + model.v_dim)
    else:
        width = 2 * max(1, model.kv_heads // work.tp) * model.head_dim
    return work.element * work.tokens * width
