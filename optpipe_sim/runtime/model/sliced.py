"""Attention over a sequence that passes slice by slice: keys and values that later slices read.

Each slice of a microbatch has an autograd graph of its own. The attention of slice k takes the keys and
values of the slices before it from `Keys`; its backward adds to their gradients, and the backward of such
an earlier slice, which comes later, takes the sum (Seq1F1B, Sun et al., 2024). One call of a fused kernel per
earlier slice, without a mask, and one causal call for the slice itself; their results are joined by the sums
of exponentials, as blocks are in FlashAttention. A user's own attention takes the keys and values of all
tokens so far in one tensor (`with_earlier`).

`Cut` says how a worker's sequences are cut, and keeps what the slices under way share.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...errors import RuntimeFault
from .boundary import Boundary
from .current import current
from .stash import Handle, Slot

SUM_DTYPE = torch.float32  # in which gradients of keys and values add up, at least


Tensors = tuple[Tensor, ...]  # keys and values, or their gradients
Place = tuple[int, int]  # the id of a module, and a slice
Room = dict[Place, Tensors]  # memory for gradients of keys and values


class Held(NamedTuple):
    """Keys and values of one module in one slice, and the slot in which they stay."""

    slot: Slot
    handles: tuple[Handle, ...]

    def tensors(self) -> Tensors:
        """Return them, from the host too."""
        return tuple(map(self.slot.read, self.handles))


class Keys:
    """Keys and values of the slices of one microbatch in one stage, from F to B of each.

    Attributes:
        forwards, backwards: how many slices have begun theirs.
        room: for the gradients that later slices give; from the first B on.
    """

    def __init__(self) -> None:
        self.forwards = self.backwards = 0
        self.held: dict[Place, Held] = {}
        self.summed: dict[Place, Tensors] = {}  # gradients that later slices have given
        self.room: Room = {}

    def before(self, part: nn.Module, at: int) -> Iterator[Tensors]:
        """Yield the keys and values of each earlier slice; those on the host are copied to the device while they are
        used."""
        for earlier in range(at):
            yield self.held[id(part), earlier].tensors()

    def add(self, part: nn.Module, at: int, gradients: Sequence[Tensor]) -> None:
        """Add to the gradients of an earlier slice."""
        place = id(part), at
        sums = self.room[place]
        for one, gradient in zip(sums, gradients, strict=True):
            if place in self.summed:
                one.add_(gradient)
            else:
                one.copy_(gradient)
        self.summed[place] = sums

    def summed_with(self, part: nn.Module, at: int, gradients: Tensors) -> Tensors:
        """Return the whole gradients of a slice: its own share and what later ones have given."""
        given = self.summed.pop((id(part), at), None)
        if given is None:
            return gradients
        pairs = zip(given, gradients, strict=True)
        return tuple((one + own).to(own.dtype) for one, own in pairs)

    def new_room(self, device: torch.device) -> Room:
        """Return room for the gradients of all that is held: before the first B that is of all slices but the
        last, which nothing reads later."""
        return {
            place: tuple(
                torch.empty(one.layout[1], dtype=_sum_dtype(one.layout[3]), device=device)
                for one in held.handles
            )
            for place, held in self.held.items()
        }

    def close(self, at: int) -> None:
        """Release the keys and values of a slice, after its B."""
        for place in [place for place in self.held if place[1] == at]:
            del self.held[place]

    def held_bytes(self, at: int) -> int:
        """Return the bytes of the keys and values of a slice that are held."""
        handles = [
            one for place, held in self.held.items() if place[1] == at for one in held.handles
        ]
        entries = {id(one.entry): one.entry.size for one in handles if one.entry is not None}
        return sum(entries.values())


@dataclass(frozen=True)
class Slice:
    """The slice that runs: its number, its first token, the keys and values of its microbatch, and the slot that
    holds its own, unless it is the `last` slice, whose keys and values no other reads. `again`: its F has ended, and
    parts of it run again."""

    number: int
    start: int
    keys: Keys
    slot: Slot
    last: bool = False
    again: bool = False

    def hold(self, part: nn.Module, tensors: Tensors) -> None:
        """Hold keys and values for later slices.

        Raises:
            RuntimeFault: where the module has given some in this F already.
        """
        place = id(part), self.number
        if self.last or self.again:
            return
        if place in self.keys.held:
            raise self.slot.fault(
                "F",
                f"{type(part).__name__} gave keys and values twice; each time in a forward needs a module"
                " of its own",
            )
        handles = tuple(self.slot.keep(one, stays=True) for one in tensors)
        self.keys.held[place] = Held(self.slot, handles)


# What `torch.compile` runs between its graphs, which would otherwise be those of the slice that it traced.
# Filled once dynamo is loaded, which takes a second.
_untraced: dict[str, Callable[..., Any]] = {}


def _leave_untraced() -> None:
    """Have `torch.compile` end its graphs where slices are asked for, once dynamo is loaded."""
    if not _untraced and "torch._dynamo" in sys.modules:
        _untraced.update(
            {each.__name__: torch.compiler.disable(each) for each in (_start, _joined)}
        )


def first_token() -> int:
    """Return where in its sequence the input of the stage that runs begins: the position of its first token,
    0 where sequences are whole."""
    call: Callable[[], int] = _untraced.get("_start", _start)
    return call()


def _start() -> int:
    one = current("slice")
    return 0 if one is None else one.start


def attend(part: nn.Module, query: Tensor, key: Tensor, value: Tensor, one: Slice) -> Tensor:
    """Return the causal attention of a slice to itself and to all tokens before it: (batch, heads,
    tokens, width)."""
    one.hold(part, (key, value))
    mixed: Tensor = _Attend.apply(query, key, value, part, one)
    return mixed


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, part: nn.Module, one: Slice
    ) -> Tensor:
        mixed, total = _kernel(query, key, value, causal=True)
        if one.number:
            earlier = one.keys.before(part, one.number)
            mixed, total = _summed(
                [(mixed, total), *(_kernel(query, *pair, causal=False) for pair in earlier)]
            )
        ctx.part, ctx.slice = part, one
        ctx.save_for_backward(query, key, value, mixed, total)
        return mixed

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, total = ctx.saved_tensors
        keys, at = ctx.slice.keys, ctx.slice.number
        dq, dk, dv = _kernel_backward(dy, query, (key, value), mixed, total, causal=True)
        own = keys.summed_with(ctx.part, at, (dk, dv))
        summed = dq.to(_sum_dtype(dq.dtype)) if at else dq
        for number, pair in enumerate(keys.before(ctx.part, at)):
            dq, dk, dv = _kernel_backward(dy, query, pair, mixed, total, causal=False)
            keys.add(ctx.part, number, (dk, dv))
            summed = summed + dq
        return summed.to(query.dtype), *own, None, None


def with_earlier(part: nn.Module, *tensors: Tensor, dim: int = -2) -> Tensors:
    """Return the keys and values of all tokens so far: those of the slices before this one, then these.

    For the attention of a user's own module, once in each forward of it; without slices they come back as
    they are. The backward adds to the gradients of the earlier slices.

    Args:
        part: the module that attends, ``self``.
        tensors: keys and values of the tokens that run now, or whatever else later tokens read; each in
            memory of its own, which stays on the device until the backward of this slice.
        dim: of the tokens.

    Raises:
        RuntimeFault: where a module does this twice in one forward.
    """
    call: Callable[..., Tensors] = _untraced.get("_joined", _joined)
    return call(part, tensors, dim)


def _joined(part: nn.Module, tensors: Tensors, dim: int) -> Tensors:
    one = current("slice")
    if one is None:
        return tensors
    one.hold(part, tensors)
    joined: Tensors = _Join.apply(part, one, dim, *tensors)
    return joined


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: nn.Module, one: Slice, dim: int, *own: Tensor) -> Tensors:
        ctx.part, ctx.slice, ctx.dim = part, one, dim
        if not one.number:
            return tuple(each.view_as(each) for each in own)
        parts = [*one.keys.before(part, one.number), own]
        ctx.lengths = [each[0].shape[dim] for each in parts]
        return tuple(torch.cat(each, dim) for each in zip(*parts, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        keys, at = ctx.slice.keys, ctx.slice.number
        own = gradients
        if at:
            *earlier, own = zip(
                *(each.split(ctx.lengths, ctx.dim) for each in gradients), strict=True
            )
            for number, each in enumerate(earlier):
                keys.add(ctx.part, number, each)
        return None, None, None, *keys.summed_with(ctx.part, at, own)


def _kernel(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return what the fused kernel makes, and the logarithms of its sums of exponentials."""
    mixed, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal
    )
    return mixed, total


def _kernel_backward(
    dy: Tensor, query: Tensor, pair: Tensors, mixed: Tensor, total: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, of a block of the keys; `mixed` and `total` are of
    all blocks."""
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy, query, *pair, mixed, total, 0.0, causal
    )
    return dq, dk, dv


def _summed(blocks: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the attention to all keys, from that to blocks of them; tokens before heads in memory, as the
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


class Cut:
    """Each sequence in slices, or whole. A worker is driven by units: slice k of microbatch j is unit
    j * slices + k, and a whole microbatch is one unit.

    Args:
        lengths: tokens of each slice, in order; none: sequences stay whole.
        tokens: of the whole sequences of each microbatch; none: they are as long as the stages' boundary says.
    """

    def __init__(self, lengths: Sequence[int] = (), tokens: Sequence[int] = ()) -> None:
        self.lengths, self.tokens = tuple(lengths), tuple(tokens)
        self.slices = max(1, len(self.lengths))
        self._keys: dict[tuple[int, int], Keys] = {}
        # by stage, those that no microbatch uses: they stay, one as long as backward passes of microbatches
        # do not alternate
        self._rooms: dict[int, list[Room]] = defaultdict(list)

    def name(self, stage: int, unit: int) -> str:
        """Return the name of a unit: ``2.5``, stage and microbatch, with ``/1`` behind it for slice 1."""
        mb, number = divmod(unit, self.slices)
        return f"{stage}.{mb}" + (f"/{number}" if self.slices > 1 else "")

    def share(self, unit: int) -> float:
        """Return the share of a unit's loss in that of its microbatch: the mean over tokens."""
        if self.slices == 1:
            return 1.0
        return self.lengths[unit % self.slices] / sum(self.lengths)

    def of_batch(self, tree: Any, unit: int) -> Any:
        """Return a unit of a microbatch's tensors, (sequences, tokens, ...) each: a view."""
        if self.slices == 1:
            return tree
        start = self._start(unit)
        tokens = self.lengths[unit % self.slices]
        return pytree.tree_map_only(Tensor, lambda one: one.narrow(1, start, tokens), tree)

    def boundary(self, whole: Boundary, unit: int) -> Boundary:
        """Return the boundary of a unit, from that of a whole microbatch."""
        if self.tokens:
            return whole.of_slice(self.tokens[unit])
        return whole if self.slices == 1 else whole.of_slice(self.lengths[unit % self.slices])

    # -- what the slices of a microbatch share ---------------------------------------------------------

    def forward(self, stage: int, unit: int, slot: Slot, where: str) -> Slice | None:
        """Return the slice that the F of a unit runs; None: a whole sequence.

        Args:
            slot: what the F saves; its keys and values that later slices read stay there.

        Raises:
            RuntimeFault: where the slices before have not all had theirs.
        """
        _leave_untraced()
        if self.slices == 1:
            return None
        mb, number = divmod(unit, self.slices)
        keys = self._keys.setdefault((stage, mb), Keys())
        if keys.forwards != number:
            raise RuntimeFault(
                f"F{self.name(stage, unit)} on {where}: it reads the keys and values of"
                f" {number} slices; {keys.forwards} have run before"
            )
        keys.forwards += 1
        return Slice(number, self._start(unit), keys, slot, number == self.slices - 1)

    def backward(self, stage: int, unit: int, device: torch.device, where: str) -> None:
        """Note that the backward of a unit begins. The first one of a microbatch allocates room for the gradients of
        keys and values.

        Raises:
            RuntimeFault: where the slices behind have not all had theirs.
        """
        if self.slices == 1:
            return
        mb, number = divmod(unit, self.slices)
        keys = self._keys[stage, mb]
        if keys.backwards != self.slices - 1 - number:
            raise RuntimeFault(
                f"B{self.name(stage, unit)} on {where}: {self.slices - 1 - number} slices add to the"
                f" gradients of its keys and values; {keys.backwards} have run before"
            )
        if not keys.backwards:
            free = self._rooms[stage]
            keys.room = free.pop() if free else keys.new_room(device)
        keys.backwards += 1

    def over(self, stage: int, unit: int) -> None:
        """Release the keys and values of a unit, whose backward has ended."""
        if self.slices == 1:
            return
        mb, number = divmod(unit, self.slices)
        keys = self._keys[stage, mb]
        keys.close(number)
        if not number:
            del self._keys[stage, mb]
            self._rooms[stage].append(keys.room)

    def kv_bytes(self, stage: int, unit: int) -> int:
        """Return the bytes of the keys and values of a unit that are held."""
        mb, number = divmod(unit, self.slices)
        keys = self._keys.get((stage, mb), Keys())
        return keys.held_bytes(number)

    def room_bytes(self, stage: int) -> int:
        """Return the bytes that a stage holds between steps for gradients of keys and values."""
        every = (one for room in self._rooms[stage] for each in room.values() for one in each)
        return sum(one.untyped_storage().nbytes() for one in every)

    def _start(self, unit: int) -> int:
        return sum(self.lengths[: unit % self.slices])
