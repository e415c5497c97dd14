"""What one stage hands to the next: a tensor, or a tree of tensors packed into one message.

A tree is what `torch.utils._pytree` flattens: tuples, lists, dicts. Its tensors are copied into one
buffer of bytes; a tree with one tensor is sent as that tensor. Whatever else is in it (None,
numbers) has to be the same for every microbatch, and is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...errors import RuntimeFault

Layout = tuple[tuple[int, ...], torch.dtype]
ALIGNMENT = 256  # of each tensor in a message of several
NOTHING: Layout = ((1,), torch.uint8)  # the message where there is no tensor to send


class Leaf(NamedTuple):
    """A tensor of a tree. `differentiable`: its gradient goes back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool


@dataclass(frozen=True)
class Boundary:
    """The tree that a stage returns and the next one takes, without its contents.

    Attributes:
        spec: how the tree is put together.
        leaves: by position in the flattened tree, a `Leaf`, or what is no tensor.
    """

    spec: Any
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, tree: Any) -> Boundary:
        """Return the boundary across which this tree goes."""
        flat, spec = pytree.tree_flatten(tree)
        return cls(spec, tuple(_leaf(value) for value in flat))

    @classmethod
    def one(cls, shape: Sequence[int], dtype: torch.dtype) -> Boundary:
        """Return one tensor, with a gradient."""
        return cls(pytree.tree_structure(0), (Leaf(tuple(shape), dtype, True),))

    def of_slice(self, tokens: int) -> Boundary:
        """Return the same for a slice of the sequence: tensors are (batch, tokens, ...)."""
        leaves = [
            leaf._replace(shape=(leaf.shape[0], tokens, *leaf.shape[2:]))
            if isinstance(leaf, Leaf)
            else leaf
            for leaf in self.leaves
        ]
        return Boundary(self.spec, tuple(leaves))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the structure as a tree of numbers: torch's own specs warn when they are pickled."""
        return _rebuilt, (pytree.tree_unflatten(range(len(self.leaves)), self.spec), self.leaves)

    @property
    def tensors(self) -> list[Leaf]:
        """The tensors, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Leaf)]

    @property
    def differentiable(self) -> list[Leaf]:
        """Those whose gradient goes back."""
        return [leaf for leaf in self.tensors if leaf.differentiable]

    @property
    def message(self) -> Layout:
        """Shape and dtype of what is sent forward."""
        return _layout(self.tensors)

    @property
    def gradient(self) -> Layout:
        """Shape and dtype of what is sent back."""
        return _layout(self.differentiable)

    def check(self, tree: Any, where: str) -> list[Tensor]:
        """Return the tensors of a tree.

        Raises:
            RuntimeFault: where it differs from the boundary; `where` says whose it is.
        """
        found = Boundary.of(tree)
        if found == self:
            return tensors_of(tree)
        if found.spec != self.spec:
            raise RuntimeFault(f"{where} returns {found.spec}, but its boundary is {self.spec}")
        at = next(i for i, pair in enumerate(zip(found.leaves, self.leaves)) if pair[0] != pair[1])  # noqa: B905
        raise RuntimeFault(
            f"{where} returns {_described(found.leaves[at])}, but its boundary has"
            f" {_described(self.leaves[at])}; all microbatches have to be alike"
        )

    def pack(self, tensors: Sequence[Tensor], device: torch.device) -> Tensor:
        """Return the message, or the gradient, that these tensors make."""
        if len(tensors) == 1:
            return tensors[0]
        leaves = [Leaf(tuple(t.shape), t.dtype, True) for t in tensors]
        shape, dtype = _layout(leaves)
        message = torch.empty(shape, dtype=dtype, device=device)
        for tensor, view in zip(tensors, _views(message, leaves), strict=True):
            view.copy_(tensor)
        return message

    def unpack(self, message: Tensor) -> list[Tensor]:
        """Return the tensors of a message: views of it."""
        return _views(message, self.tensors)

    def unpack_gradient(self, message: Tensor) -> list[Tensor]:
        """Return the gradients of a message: views of it."""
        return _views(message, self.differentiable)

    def tree(self, tensors: Sequence[Tensor]) -> Any:
        """Return the tree with these tensors in it."""
        left = iter(tensors)
        flat = [next(left) if isinstance(leaf, Leaf) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(flat, self.spec)


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree, in order."""
    return [value for value in pytree.tree_leaves(tree) if isinstance(value, Tensor)]


def call(module: Callable[..., Any], tree: Any) -> Any:
    """Call a stage: a tuple is its positional arguments, a dict its keywords, else its one argument."""
    if type(tree) is tuple:
        return module(*tree)
    return module(**tree) if type(tree) is dict else module(tree)


def _rebuilt(tree: Any, leaves: tuple[Any, ...]) -> Boundary:
    return Boundary(pytree.tree_structure(tree), leaves)


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return Leaf(tuple(value.shape), value.dtype, value.requires_grad)


def _described(leaf: Any) -> str:
    if not isinstance(leaf, Leaf):
        return repr(leaf)
    kind = "a differentiable" if leaf.differentiable else "a constant"
    return f"{kind} tensor {leaf.shape} of {str(leaf.dtype).removeprefix('torch.')}"


def _size(leaf: Leaf) -> int:
    return prod(leaf.shape) * leaf.dtype.itemsize


def _layout(leaves: Sequence[Leaf]) -> Layout:
    if not leaves:
        return NOTHING
    if len(leaves) == 1:
        return leaves[0].shape, leaves[0].dtype
    return (sum(-(-_size(leaf) // ALIGNMENT) * ALIGNMENT for leaf in leaves),), torch.uint8


def _views(message: Tensor, leaves: Sequence[Leaf]) -> list[Tensor]:
    if len(leaves) == 1:
        return [message]
    found, at = [], 0
    for leaf in leaves:
        piece = message[at : at + _size(leaf)]
        found.append(piece.view(leaf.dtype).view(leaf.shape))
        at += -(-_size(leaf) // ALIGNMENT) * ALIGNMENT
    return found


class Enter(torch.autograd.Function):
    """The entry into a stage's graph: no leaf that would hold the input, no accumulated gradient."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, box: list[Tensor], boundary: Boundary
    ) -> tuple[Tensor, ...]:
        ctx.box, ctx.boundary = box, boundary
        found = tuple(boundary.unpack(box.pop()))
        leaves = boundary.tensors
        ctx.mark_non_differentiable(
            *(t for t, leaf in zip(found, leaves, strict=True) if not leaf.differentiable)
        )
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        leaves = ctx.boundary.tensors
        wanted = [g for g, leaf in zip(gradients, leaves, strict=True) if leaf.differentiable]
        ctx.box.append(ctx.boundary.pack(wanted, wanted[0].device))
        return None, None, None
