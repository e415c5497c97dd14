"""How a worker's sequences are cut into slices, and what its slices under way share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...errors import RuntimeFault
from .boundary import Boundary
from .sliced import Gradients, Keys, Layouts, Slice, layouts_of
from .stash import Slot


class Cut:
    """Each sequence in slices, or whole. A worker is driven by units: slice k of microbatch j is unit
    j * slices + k, and a whole microbatch is one unit.

    Args:
        lengths: tokens of each slice, in order; none: sequences stay whole.
        microbatch: sequences in each microbatch.
        layouts: by stage, the keys and values of modules that are no `SlicedAttention`.
    """

    def __init__(
        self,
        lengths: Sequence[int] = (),
        microbatch: int = 1,
        layouts: Mapping[int, Layouts] | None = None,
    ) -> None:
        self.lengths, self.microbatch, self.layouts = tuple(lengths), microbatch, layouts or {}
        self.slices = max(1, len(self.lengths))
        self._keys: dict[tuple[int, int], Keys] = {}
        self._rooms: dict[int, list[Gradients]] = {}  # those that no microbatch uses

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
        return whole if self.slices == 1 else whole.of_slice(self.lengths[unit % self.slices])

    # -- what the slices of a microbatch share ---------------------------------------------------------

    def start_step(self, modules: Mapping[int, nn.Module], device: torch.device) -> None:
        """Allocate room for the gradients of keys and values: of one microbatch per stage, which stays.
        Where backward passes of several microbatches alternate, more is allocated then."""
        if self.slices == 1:
            return
        self._keys.clear()
        for stage, module in modules.items():
            if stage not in self._rooms:
                self._rooms[stage] = [self._room(stage, module, device)]

    def forward(self, stage: int, unit: int, slot: Slot, where: str) -> Slice | None:
        """Return the slice as which the F of a unit runs; None: a whole sequence.

        Args:
            slot: what the F saves; its keys and values that later slices read stay there.

        Raises:
            RuntimeFault: where the slices before have not all had theirs.
        """
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

    def again(self, one: Slice | None) -> Slice | None:
        """Return the slice as which parts of an F that has ended run again."""
        return None if one is None else replace(one, again=True)

    def backward(
        self, stage: int, unit: int, slot: Slot, module: nn.Module, where: str
    ) -> Slice | None:
        """Return the slice as which the backward of a unit runs; None: a whole sequence.

        Raises:
            RuntimeFault: where the slices behind have not all had theirs.
        """
        if self.slices == 1:
            return None
        mb, number = divmod(unit, self.slices)
        keys = self._keys[stage, mb]
        if keys.backwards != self.slices - 1 - number:
            raise RuntimeFault(
                f"B{self.name(stage, unit)} on {where}: {self.slices - 1 - number} slices add to the"
                f" gradients of its keys and values; {keys.backwards} have run before"
            )
        keys.backwards += 1
        if keys.gradients is None:
            free = self._rooms[stage]
            device = next(module.parameters()).device
            keys.gradients = free.pop() if free else self._room(stage, module, device)
        return Slice(number, self._start(unit), keys, slot, number == self.slices - 1, again=True)

    def over(self, stage: int, unit: int) -> None:
        """Release the keys and values of a unit, whose backward has ended."""
        if self.slices == 1:
            return
        mb, number = divmod(unit, self.slices)
        keys = self._keys[stage, mb]
        keys.close(number)
        if not number:
            del self._keys[stage, mb]
            if keys.gradients is not None:
                self._rooms[stage].append(keys.gradients)

    def kv_bytes(self, stage: int, unit: int) -> int:
        """Return the bytes of the keys and values of a unit that are held."""
        mb, number = divmod(unit, self.slices)
        keys = self._keys.get((stage, mb), Keys())
        return keys.held_bytes(number)

    def room_bytes(self, stage: int) -> int:
        """Return the bytes that a stage holds all the time for gradients of keys and values."""
        rooms = [each for room in self._rooms.get(stage, ()) for each in room.sums.values()]
        return sum(tensor.untyped_storage().nbytes() for each in rooms for tensor in each)

    def _start(self, unit: int) -> int:
        return sum(self.lengths[: unit % self.slices])

    def _room(self, stage: int, module: nn.Module, device: torch.device) -> Gradients:
        own = layouts_of(module, self.microbatch, self.lengths)
        return Gradients({**own, **self.layouts.get(stage, {})}, device)
