"""A causal transformer that a user would write, ready for slices of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from own_modules import gradients
from torch import Tensor, nn
from torch.nn import functional

from optpipe_sim.runtime import first_token, mark_layers, with_earlier

WIDTH, HEADS, VOCAB, SEQ, BATCH = 16, 2, 24, 32, 2
SLICES = (12, 10, 6, 4)
Earlier = Callable[..., tuple[Tensor, ...]]


class Attention(nn.Module):
    def __init__(self, earlier: Earlier) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.earlier = earlier

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        key, value = self.earlier(self, key, value)
        now, so_far = query.shape[-2], key.shape[-2]
        seen = torch.ones(now, so_far, dtype=torch.bool, device=x.device).tril(so_far - now)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    def __init__(self, earlier: Earlier) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(earlier)
        self.after, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(3 * WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Stage(nn.Module):
    """Two layers; the embedding before the first stage, the head after the last."""

    def __init__(
        self,
        first: bool,
        last: bool,
        earlier: Earlier = with_earlier,
        start: Callable[[], int] = first_token,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH) if first else None
        self.places = nn.Embedding(SEQ, WIDTH) if first else None
        self.layers = nn.ModuleList(Layer(earlier) for _ in range(2))
        mark_layers(self.layers)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False) if last else None
        self.start, self.dropout = start, dropout

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is not None and self.places is not None:
            at = torch.arange(x.shape[1], device=x.device) + self.start()
            x = self.tokens(x) + self.places(at)
        for layer in self.layers:
            x = layer(x)
        x = functional.dropout(x, self.dropout)
        return x if self.head is None else self.head(x)


def stages_of(count: int, **options: Any) -> list[Stage]:
    torch.manual_seed(0)
    return [Stage(at == 0, at == count - 1, **options) for at in range(count)]


def batch(microbatches: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1 + seed)
    shape = (2, microbatches, BATCH, SEQ)
    inputs, targets = torch.randint(0, VOCAB, shape, generator=generator)
    return inputs, targets


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def whole(count: int, microbatches: int, exact: bool = False) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of whole sequences by plain autograd."""
    stages, (inputs, targets) = stages_of(count), batch(microbatches)
    losses = []
    for x, target in zip(inputs, targets, strict=True):
        for stage in stages:
            x = (stage.double() if exact else stage)(x)
        one = loss(x, target)
        (one / microbatches).backward()
        losses.append(one.detach())
    return float(torch.stack(losses).mean()), gradients(stages)
