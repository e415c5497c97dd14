"""Stages that a user would write: tuples and dicts between them, frozen and tied weights, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from optpipe_sim.runtime.model import recompute
from optpipe_sim.runtime.model.boundary import call

WIDTH, VOCAB, SEQ, BATCH = 16, 24, 8, 2
Run = Callable[..., Any]


class Layer(nn.Module):
    """A residual MLP; `through` is how it is run: plainly, or by some checkpoint function."""

    def __init__(self, through: str = "plain") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        run: Run = {
            "plain": lambda inside, x: inside(x),
            "torch": partial(checkpoint, use_reentrant=False),
            "reentrant": partial(checkpoint, use_reentrant=True),
            "level": recompute.checkpoint,
        }[self.through]
        return x + run(self.inside, x)

    def inside(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(self.norm(x))))


class Edits(Layer):
    """With edits in place of what linears return, as ``ReLU(inplace=True)`` makes them."""

    def inside(self, x: Tensor) -> Tensor:
        x = functional.relu(self.up(self.norm(x)), inplace=True)
        return self.down(x).add_(1.0).mul_(0.5)


class First(nn.Module):
    """Tokens to a dict: activations, a mask that has no gradient, a number that is not sent."""

    def __init__(self, through: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layer = Layer(through)

    def forward(self, tokens: Tensor) -> dict[str, Any]:
        return {"x": self.layer(self.embed(tokens)), "mask": tokens > 3, "scale": 0.5}


class Middle(nn.Module):
    """To a tuple: activations, others with a gradient, the mask."""

    def __init__(self, through: str) -> None:
        super().__init__()
        self.layer = Layer(through)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        skip = x * self.gain * mask[..., None]
        return self.layer(x) * scale, skip, mask


class Join(nn.Module):
    """Back to the dict."""

    def __init__(self, through: str) -> None:
        super().__init__()
        self.layer = Layer(through)

    def forward(self, x: Tensor, skip: Tensor, mask: Tensor) -> dict[str, Any]:
        return {"x": self.layer(x + skip), "mask": mask, "scale": 0.5}


class Last(nn.Module):
    """Logits, of a tuple or a dict."""

    def __init__(self, through: str) -> None:
        super().__init__()
        self.layer = Layer(through)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, x: Tensor, skip: Any = None, mask: Any = None, scale: float = 1.0) -> Tensor:
        x = x if skip is None else x + skip
        return self.head(self.layer(x) * scale)


def stages_of(count: int, through: str = "plain", seed: int = 0) -> list[nn.Module]:
    """So many stages; the trees between them differ in turn."""
    torch.manual_seed(seed)
    middle = [Middle, Join] * count
    kinds = [First, *middle[: count - 2], Last]
    return [kind(through) for kind in kinds]


def batch(microbatches: int, seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, microbatches, BATCH, SEQ)
    inputs, targets = torch.randint(0, VOCAB, shape, generator=generator)
    return list(inputs), list(targets)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def unpipelined(
    stages: Sequence[nn.Module],
    inputs: Sequence[Any],
    targets: Sequence[Any],
    autocast: bool = False,
) -> float:
    """The mean loss by plain autograd; gradients are in `.grad`."""
    losses = []
    for tree, target in zip(inputs, targets, strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for stage in stages:
                tree = call(stage, tree)
            one = loss(tree, target)
        (one / len(inputs)).backward()
        losses.append(one.detach())
    return float(torch.stack(losses).mean())


def gradients(stages: Sequence[nn.Module]) -> dict[str, Tensor | None]:
    return {
        f"{at}.{name}": parameter.grad
        for at, stage in enumerate(stages)
        for name, parameter in stage.named_parameters()
    }


def differing(found: Sequence[nn.Module], wanted: Sequence[nn.Module]) -> list[str]:
    """The names of parameters whose gradients are not bitwise equal."""
    there = gradients(found)
    return [
        name
        for name, gradient in gradients(wanted).items()
        if not (
            gradient is there[name]
            or (
                there[name] is not None
                and torch.equal(
                    torch.zeros_like(there[name]) if gradient is None else gradient, there[name]
                )
            )
        )
    ]
