"""Whether stages give two slices the results of the whole: tried on the first tokens of a microbatch.

Slices are right where attention takes the keys and values of earlier ones (`with_earlier`), positions
count from the first token of the sequence (`first_token`), and the loss is a mean over tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...errors import OptPipeError
from ..model.boundary import Layout
from ..model.cut import Cut
from ..model.sliced import Keys, Layouts, Slice, running
from ..model.stage import Loss
from ..model.stash import HostSlab, Slot

TOKENS = 128  # so few that they fit where whole sequences do not
Run = Callable[[nn.Module, Any], Any]


class Halves:
    """The first tokens of a microbatch, whole and in two slices.

    Args:
        lengths: tokens of each slice of the sequences. loss, target: of the last stage.

    Raises:
        OptPipeError: where a slice has no tokens.
    """

    def __init__(self, lengths: Sequence[int], loss: Loss, target: Any) -> None:
        if min(lengths) < 1:
            raise OptPipeError(f"slices: expected tokens of each, got {_listed(lengths)}")
        self.lengths, self.loss, self.target = tuple(lengths), loss, target
        self.tokens = min(sum(lengths), TOKENS)
        self.cut = Cut((self.tokens - self.tokens // 2, self.tokens // 2))

    def first(self, tree: Any, what: str) -> Any:
        """Return the first tokens of a microbatch of inputs or targets.

        Raises:
            OptPipeError: where a tensor is not (sequences, tokens, ...) with the tokens of all slices.
        """
        _check(tree, sum(self.lengths), f"{what}: slices={_listed(self.lengths)}")
        return pytree.tree_map_only(Tensor, lambda one: one.narrow(1, 0, self.tokens), tree)

    def ending(self, made: Any) -> Tensor:
        """Return the loss of what the last stage makes of the first tokens."""
        return self.loss(made, self.first(self.target, "targets"))

    def layouts(
        self, stage: int, module: nn.Module, run: Run, tree: Any, made: Any, loss: Tensor | None
    ) -> Layouts:
        """Run a stage on both halves; return the keys and values that later slices read, of each slice.

        Args:
            tree: what it takes. made: what it makes of that. loss: of the last stage.

        Raises:
            OptPipeError: where the results of the halves are not those of the whole.
        """
        where = f"stage {stage}"
        keys = Keys()
        slot = Slot(str(stage), where, (), HostSlab(pinned=False))
        halves, losses = [], []
        with torch.no_grad():
            for unit, start in enumerate((0, self.cut.lengths[0])):
                with running(Slice(unit, start, keys, slot, last=unit == 1)):
                    half = run(module, self.cut.of_batch(tree, unit))
                    if loss is not None:
                        target = self.cut.of_batch(self.first(self.target, "targets"), unit)
                        losses.append(self.loss(half, target) * self.cut.share(unit))
                halves.append(half)
            if loss is not None:
                found, wanted, what = [sum(losses)], [loss], "loss"
            else:
                _check(made, self.tokens, f"{where} hands on")
                found, wanted, what = [*_joined(halves)], [*_tensors(made)], where
            off = _off(module, found, wanted)
            if off is not None and not _draws(run, module, tree):
                raise OptPipeError(
                    f"{what}: two slices of {self.tokens} tokens give other results than the whole"
                    f" ({off}): {_WHY[what == 'loss']}"
                )
        torch.clear_autocast_cache()  # of copies of weights without a graph
        return {
            (part, at): [_layout(handle.layout, held.dim, tokens) for handle in held.handles]
            for (part, _), held in keys.held.items()
            for at, tokens in enumerate(self.lengths[:-1])
        }


_WHY = (
    "attention takes the keys and values of earlier slices by with_earlier, and positions count from"
    " first_token()",
    "it has to be a mean over all tokens of the targets, each token's by itself",
)


def _layout(layout: tuple[Any, ...], dim: int, tokens: int) -> Layout:
    shape = list(layout[1])
    shape[dim] = tokens
    return tuple(shape), layout[3]


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (one for one in pytree.tree_leaves(tree) if isinstance(one, Tensor))


def _joined(halves: Sequence[Any]) -> Iterator[Tensor]:
    return (torch.cat(pair, 1) for pair in zip(*map(_tensors, halves), strict=True))


def _check(tree: Any, tokens: int, what: str) -> None:
    for one in _tensors(tree):
        if one.dim() < 2 or one.shape[1] != tokens:
            raise OptPipeError(
                f"{what}: a tensor of shape {tuple(one.shape)}; where sequences are cut into slices, every"
                f" tensor is (sequences, tokens, ...), here with {tokens} tokens"
            )


def _off(module: nn.Module, found: Sequence[Any], wanted: Sequence[Tensor]) -> str | None:
    """Return how far results are off, where that is more than rounding."""
    kinds = [one.dtype for one in (*wanted, *module.parameters()) if one.is_floating_point()]
    if torch.is_autocast_enabled("cpu"):
        kinds.append(torch.get_autocast_dtype("cpu"))
    if torch.is_autocast_enabled("cuda"):
        kinds.append(torch.get_autocast_dtype("cuda"))
    rounding = sqrt(max((torch.finfo(kind).eps for kind in kinds), default=0.0))
    for one, other in zip(found, wanted, strict=True):
        most = float(other.abs().max())
        off = float((one.double() - other.double()).abs().max())
        if not off <= rounding * most:
            return f"off by {off:.2g} of {most:.2g}"
    return None


def _draws(run: Run, module: nn.Module, tree: Any) -> bool:
    """Whether a stage draws random numbers: its results cannot be compared."""
    before = torch.get_rng_state()
    run(module, tree)
    return not torch.equal(before, torch.get_rng_state())


def _listed(lengths: Sequence[int]) -> str:
    return f"[{', '.join(map(str, lengths))}]"
