"""What slices of a sequence cost, each of which has the keys of all earlier ones to attend to: slices of
equal length, or of equal time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import sqrt
from typing import NamedTuple

from ..errors import OptPipeError
from ..op_table import in_proportion
from ..profile.parts import join
from ..stage_cost import RecomputeLevel, StageCost
from .models import Model
from .recompute.regions import modules_of
from .roofline import OpTime, message_seconds
from .stages import LayerCost, Stages
from .work import SLICE_BY, Work

TILE = 128  # tokens: slices of equal time are whole numbers of these, where they are long enough


class Piece(NamedTuple):
    """A slice: what a first slice as long as it costs, in all and per stage, and its first token in its sequence."""

    of: Stages
    costs: Sequence[StageCost]
    start: int

    @property
    def ahead(self) -> float:
        """The tokens before it, in slices as long as it."""
        return self.start / self.of.work.seq


def slice_length(work: Work) -> int:
    """Return the tokens of a slice; on average, where they are not equally long.

    Raises:
        OptPipeError: if the sequence does not divide, or attention is not fused.
    """
    if work.slices == 1 and not isinstance(work.slices, bool):
        return work.seq
    lengths = slice_lengths(work.seq, work.slices)
    if not work.flash:
        raise OptPipeError("slices: costs are known of fused attention")
    if "mla_up_proj" in modules_of(work.recompute):
        raise OptPipeError("recompute: mla_up_proj drops the keys that later slices read")
    return lengths[0]


def require_slice_by(by: str) -> None:
    """Raise unless it says what slices have equal.

    Raises:
        OptPipeError: for another word.
    """
    if by not in SLICE_BY:
        raise OptPipeError(f"slice_by: expected {', '.join(SLICE_BY)}, got {by!r}")


def slice_lengths(seq: int, slices: int) -> tuple[int, ...]:
    """Return the tokens of each slice, where they are equally long.

    Raises:
        OptPipeError: if the sequence does not divide.
    """
    if isinstance(slices, bool) or not isinstance(slices, int) or slices < 1 or seq % slices:
        raise OptPipeError(f"slices: must divide the {seq} tokens of a sequence, got {slices!r}")
    return (seq // slices,) * slices


def lengths_of_equal_time(
    lengths: Sequence[int], times: Mapping[str, OpTime], shared: int = 1
) -> tuple[int, ...]:
    """Return the tokens of slices that a layer takes equally long for, in the place of equally long ones.

    Attention to all tokens before is linear in the position, all else constant per token, so the time up to
    a token is a parabola, which is cut into equal parts; the efficiency of kernels is that of the mean length.

    Args:
        times: F, B and W of a first slice of a layer.
        shared: devices that share a slice, which divide its tokens.
    """
    seq, slices, first = sum(lengths), len(lengths), lengths[0]
    attention = sum(time.attention for time in times.values())
    each = sum(time.total for time in times.values()) / first - attention / first
    growth = 2 * attention / first**2  # seconds per token and token before it
    whole = each * seq + growth * seq * seq / 2
    step = shared
    while step < TILE * shared and seq % (2 * step) == 0 and seq >= 8 * step * slices:
        step *= 2
    ends = [0]
    for at in range(1, slices):
        part = whole * at / slices
        end = 2 * part / (each + sqrt(each * each + 2 * growth * part))
        most = seq - (slices - at) * step
        ends.append(min(max(round(end / step) * step, ends[-1] + step), most))
    return tuple(after - before for before, after in pairwise([*ends, seq]))


def lengths_of(stages: Stages) -> tuple[int, ...]:
    """Return the tokens of each slice, of equal length or of equal time.

    Raises:
        OptPipeError: where it is neither.
    """
    work, model = stages.work, stages.model
    require_slice_by(work.slice_by)
    equal = (work.seq,) * work.slices
    if work.slice_by != "time" or work.slices == 1:
        return equal
    last = stages.costs.layers[model.dense[-1]]
    return lengths_of_equal_time(equal, last.times, work.cp * work.tp)


def sliced_stages(stages: Stages, lengths: Sequence[int]) -> list[StageCost]:
    """Stages of whole sequences, from what their slices cost.

    A slice attends to all tokens before it in full and to half of its own, so with k slices as long as
    itself before it 2 k + 1 times what a first slice's causal attention takes; all else is the same for
    each. Where devices share sequences in a ring, the keys and values of k + 1 slices go round, behind
    that attention; those that exchange heads have the earlier ones of their heads already. Keys and
    values stay at every level of recomputation; levels that do not pay for every length are left out.
    Backward passes add up the gradients of the keys and values of all slices but the last: they are
    static bytes of each stage, in the format of the keys, as for one microbatch after the other there.
    No copy moves keys and values, which the backward passes of later slices read, too.

    Args:
        stages: on a slice. lengths: the tokens of each slice, in order.
    """
    known = {}
    for length in set(lengths):
        own = stages.with_work(seq=length)
        known[length] = own, own.stage_costs()
    starts = accumulate(lengths, initial=0)
    pieces = [Piece(*known[length], start) for length, start in zip(lengths, starts, strict=False)]
    found = []
    for stage, (kinds, *_) in enumerate(stages.keys):
        parts = [_placed(piece, stage, kinds[:2]) for piece in pieces]
        names = set.intersection(*({level.name for level in part.recompute} for part in parts))
        parts = [
            replace(part, recompute=tuple(one for one in part.recompute if one.name in names))
            for part in parts
        ]
        static = max(piece.costs[stage].static_bytes for piece in pieces)
        gradients = sum(part.kv_bytes for part in parts[:-1])
        found.append(join(parts, static + gradients, pieces[0].costs[stage].layers))
    return found


def _placed(piece: Piece, stage: int, kind: tuple[int, int]) -> StageCost:
    """Return a slice of a stage, of so many plain and expert layers, where it is in its sequence."""
    cost, kinds = piece.costs[stage], piece.of.costs.layers
    layers = [
        (kinds[dense], number) for dense, number in zip((True, False), kind, strict=True) if number
    ]
    more = {}
    for op in ("F", "B"):
        attention = sum(number * one.times[op].attention for one, number in layers)
        exposed = sum(number * _exposed(piece, one, op) for one, number in layers)
        more[op] = round(2 * piece.ahead * 1e9 * attention) + round(1e9 * exposed)
    kv = min(cost.act_bytes, sum(kind) * key_bytes(piece.of.model, piece.of.work))

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

    # later slices' backward passes read the keys and values as well, so they are never offloaded
    moved = min(cost.offloadable, cost.act_bytes - kv)
    out, back = (
        None if time is None else in_proportion(time, moved, cost.offloadable)
        for time in (cost.t_offload_ns, cost.t_reload_ns)
    )
    return replace(
        cost,
        offload_bytes=moved,
        t_offload_ns=out,
        t_reload_ns=back,
        t_f_ns=cost.t_f_ns + more["F"],
        t_b_ns=cost.t_b_ns + more["B"],
        kv_bytes=kv,
        recompute=tuple(map(level, cost.recompute)),
        static_bytes=0,
        layers=None,
    )


def _exposed(piece: Piece, layer: LayerCost, op: str) -> float:
    """Seconds that the exchange of earlier slices' keys and values adds to a layer, beyond what attention
    hides."""
    attention, of = layer.times[op].attention, piece.of
    added = 0.0
    for message in layer.work.messages:
        if (message.group, message.op, message.behind) == ("cp", op, "attention"):
            once = message_seconds(message, of.machine, of.model, of.work)
            shown = (piece.ahead + 1) * once - (2 * piece.ahead + 1) * attention
            added += max(0.0, shown) - max(0.0, once - attention)
    return added


def key_bytes(model: Model, work: Work) -> int:
    """Return the keys and values of one layer, per device."""
    if model.latent:
        width = model.heads // work.tp * (model.qk_dim + model.v_dim)
    else:
        width = 2 * max(1, model.kv_heads // work.tp) * model.head_dim
    return work.element * work.tokens * width
