"""Attention over a sequence that passes slice by slice: keys and values that later slices read.

Each slice of a microbatch has an autograd graph of its own. The attention of slice k takes the keys and
values of the slices before it from `Keys`; its backward adds to their gradients, and the backward of such
an earlier slice, which comes later, takes the sum (Seq1F1B, Sun et al., 2024). One call of a fused kernel per
earlier slice, without a mask, and one causal call for the slice itself; their results are joined by the sums
of exponentials, as blocks are in FlashAttention.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .stash import storage_key

SUM_DTYPE = torch.float32  # in which gradients of keys and values add up, at least


class SlicedAttention(nn.Module):
    """A module whose attention can run slice by slice (see `attend`).

    Attributes:
        kv_heads, width: heads of its keys and values, and the width of each.
    """

    kv_heads: int
    width: int


class Pair(NamedTuple):
    """Keys and values, or their gradients: (batch, heads, tokens, width) each."""

    key: Tensor
    value: Tensor


class Gradients:
    """Room for the gradients of the keys and values of one microbatch in one stage: of all slices but the
    last, which nothing reads later. Allocated before the step, and used by one microbatch after the other."""

    def __init__(
        self, module: nn.Module, batch: int, lengths: Sequence[int], device: torch.device
    ) -> None:
        self.sums: dict[tuple[int, int], Pair] = {}
        for part in module.modules():
            if not isinstance(part, SlicedAttention):
                continue
            kind = next(part.parameters()).dtype
            for at, tokens in enumerate(lengths[:-1]):
                shape = batch, part.kv_heads, tokens, part.width
                pair = (torch.empty(shape, dtype=_sum_dtype(kind), device=device) for _ in range(2))
                self.sums[id(part), at] = Pair(*pair)


class Keys:
    """Keys and values of the slices of one microbatch in one stage, from F to B of each.

    Attributes:
        forwards, backwards: how many slices have begun theirs.
        gradients: room for those that later slices give; from the first B on.
    """

    def __init__(self) -> None:
        self.forwards = self.backwards = 0
        self.held: dict[tuple[int, int], Pair] = {}
        self.summed: dict[tuple[int, int], Pair] = {}  # gradients that later slices have given
        self.gradients: Gradients | None = None

    def before(self, part: SlicedAttention, at: int) -> list[Pair]:
        """Of the slices before that one."""
        return [self.held[id(part), earlier] for earlier in range(at)]

    def give(self, part: SlicedAttention, at: int, key: Tensor, value: Tensor) -> None:
        """Add to the gradients of an earlier slice."""
        assert self.gradients is not None
        place = id(part), at
        sums = self.gradients.sums[place]
        if place in self.summed:
            sums.key.add_(key)
            sums.value.add_(value)
        else:
            sums.key.copy_(key)
            sums.value.copy_(value)
            self.summed[place] = sums

    def take(self, part: SlicedAttention, at: int, key: Tensor, value: Tensor) -> Pair:
        """Return the whole gradients of a slice: its own share and what later ones have given."""
        given = self.summed.pop((id(part), at), None)
        if given is None:
            return Pair(key, value)
        return Pair((given.key + key).to(key.dtype), (given.value + value).to(value.dtype))

    def close(self, at: int) -> None:
        """Release the keys and values of a slice, after its B."""
        for place in [place for place in self.held if place[1] == at]:
            del self.held[place]

    def tensors(self) -> Iterator[Tensor]:
        """Yield all that is held."""
        for pair in self.held.values():
            yield from pair


@dataclass(frozen=True)
class Slice:
    """The slice that runs: which one, the first of its tokens, and the keys and values of its microbatch.

    `left_out`: storages that are never offloaded or dropped; its own keys and values join them, but those
    of the `last` slice, which no other reads.
    """

    number: int
    start: int
    keys: Keys
    left_out: set[int]
    last: bool = False


_active = threading.local()


@contextmanager
def running(one: Slice | None) -> Iterator[None]:
    """Inside the block, this slice runs in this thread; None: a whole sequence."""
    before = getattr(_active, "slice", None)
    _active.slice = one
    try:
        yield
    finally:
        _active.slice = before


def current() -> Slice | None:
    """Return the slice that runs in this thread; None: a whole sequence."""
    return getattr(_active, "slice", None)


def first_token() -> int:
    """Return where in its sequence the input of this thread begins."""
    one = current()
    return 0 if one is None else one.start


def attend(part: SlicedAttention, query: Tensor, key: Tensor, value: Tensor, one: Slice) -> Tensor:
    """Causal attention of a slice to itself and to all tokens before it: (batch, heads, tokens, width)."""
    place = id(part), one.number
    if not one.last and place not in one.keys.held:
        one.keys.held[place] = Pair(key.detach(), value.detach())
        one.left_out.update(map(storage_key, (key, value)))
    mixed: Tensor = _Attend.apply(query, key, value, part, one)
    return mixed


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, part: SlicedAttention, one: Slice
    ) -> Tensor:
        mixed, total = _kernel(query, Pair(key, value), causal=True)
        earlier = one.keys.before(part, one.number)
        if earlier:
            mixed, total = _joined(
                [(mixed, total), *(_kernel(query, pair, causal=False) for pair in earlier)]
            )
        ctx.part, ctx.slice = part, one
        ctx.save_for_backward(query, key, value, mixed, total)
        return mixed

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, total = ctx.saved_tensors
        keys, at = ctx.slice.keys, ctx.slice.number
        dq, dk, dv = _kernel_backward(dy, query, Pair(key, value), mixed, total, causal=True)
        own = keys.take(ctx.part, at, dk, dv)
        summed = dq.to(_sum_dtype(dq.dtype)) if at else dq
        for number, pair in enumerate(keys.before(ctx.part, at)):
            dq, dk, dv = _kernel_backward(dy, query, pair, mixed, total, causal=False)
            keys.give(ctx.part, number, dk, dv)
            summed = summed + dq
        return summed.to(query.dtype), own.key, own.value, None, None


def _kernel(query: Tensor, pair: Pair, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return what the fused kernel makes, and the logarithms of its sums of exponentials."""
    mixed, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, pair.key, pair.value, 0.0, causal
    )
    return mixed, total


def _kernel_backward(
    dy: Tensor, query: Tensor, pair: Pair, mixed: Tensor, total: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, of a block of the keys; `mixed` and `total` are of all blocks."""
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy, query, pair.key, pair.value, mixed, total, 0.0, causal
    )
    return dq, dk, dv


def _joined(blocks: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention to all keys, from what blocks of them give; tokens before heads in memory, as the
    kernel has it."""
    total = torch.logsumexp(torch.stack([each for _, each in blocks]), 0)
    summed: Tensor | None = None
    for mixed, each in blocks:
        share = (each - total).exp().unsqueeze(-1) * mixed
        summed = share if summed is None else summed + share
    assert summed is not None
    kind = blocks[0][0].dtype
    return summed.transpose(1, 2).to(kind).contiguous().transpose(1, 2), total


def _sum_dtype(kind: torch.dtype) -> torch.dtype:
    return torch.promote_types(kind, SUM_DTYPE)
