"""The models that `confirm_schedules` cuts into stages, their batch, and what plain autograd gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from optpipe_sim.costs.models import Model
from optpipe_sim.runtime import first_token, mark_layers, with_earlier
from optpipe_sim.runtime.model.boundary import call
from optpipe_sim.runtime.model.decoder import build_stage, layer_counts

DECODER = Model("decoder", 8, 64, 4, 96, kv_heads=2, ffn=96)
WIDTH, VOCAB, SEQ, BATCH, LAYERS = 64, 96, 32, 2, 8


class Layer(nn.Module):
    """A gated layer; takes and gives a dict: activations, their skip connection, a mask."""

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH) if first else None
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False) if last else None

    def forward(self, x: Tensor, skip: Tensor | None = None, mask: Tensor | None = None) -> Any:
        if self.embed is not None:
            mask, x = x > 3, self.embed(x)
            skip = torch.zeros_like(x)
        x = x + self.down(functional.silu(self.up(self.norm(x + skip)))) * mask[..., None]
        return {"x": x, "skip": 0.5 * x, "mask": mask} if self.head is None else self.head(x)


class Layers(nn.Module):
    """Some of them."""

    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, skip: Tensor | None = None, mask: Tensor | None = None) -> Any:
        found: Any = {"x": x, "skip": skip, "mask": mask}
        for layer in self.layers:
            found = layer(**found)
        return found


def own_modules(stages: int) -> list[nn.Module]:
    each = max(1, LAYERS // stages)
    layers = [Layer(at == 0, at == stages * each - 1) for at in range(stages * each)]
    return [Layers(layers[at * each : (at + 1) * each]) for at in range(stages)]


def decoder(stages: int) -> list[nn.Module]:
    model = replace(DECODER, layers=max(stages, DECODER.layers))
    layers = tuple(layer_counts(model, stages, seq=SEQ))
    return [build_stage(model, at, stages, seq=SEQ, layers=layers) for at in range(stages)]


class Earlier:
    """Stands where Hugging Face's attention expects its cache: keys and values of the slices so far."""

    def __init__(self, layers: Any) -> None:
        self.layers = {layer.self_attn.layer_idx: layer for layer in layers}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Tensor, ...]:
        return with_earlier(self.layers[layer], keys, values)


class LlamaStage(nn.Module):
    """Some layers of a LLaMA of Hugging Face, over slices too; the embedding before the first, norm and
    head after the last."""

    def __init__(self, model: Any, stage: int, stages: int) -> None:
        super().__init__()
        inside, each = model.model, len(model.model.layers) // stages
        self.embed = inside.embed_tokens if stage == 0 else None
        self.rotary = inside.rotary_emb
        self.layers = inside.layers[stage * each : (stage + 1) * each]
        self.norm, self.head = (inside.norm, model.lm_head) if stage == stages - 1 else (None, None)
        mark_layers(self.layers)
        self.earlier = Earlier(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embed is None else self.embed(x)
        now, start = x.shape[1], first_token()
        turns = self.rotary(x, torch.arange(start, start + now)[None])
        seen = torch.ones(now, start + now, dtype=torch.bool).tril(start) if start else None
        for layer in self.layers:
            x = layer(
                x, attention_mask=seen, past_key_values=self.earlier, position_embeddings=turns
            )
        return x if self.head is None else self.head(self.norm(x))


def llama(layers: int = LAYERS) -> nn.Module:
    """The whole model, made from a tiny config: nothing is downloaded."""
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=SEQ,
        attn_implementation="sdpa",
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def hugging_face(stages: int) -> list[nn.Module]:
    model = llama(max(LAYERS, stages))
    return [LlamaStage(model, at, stages) for at in range(stages)]


MODELS: dict[str, Callable[[int], list[nn.Module]]] = {
    "decoder": decoder,
    "own modules": own_modules,
    "Hugging Face": hugging_face,
}


def stages_of(model: str, count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return MODELS[model](count)


def batch(microbatches: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randint(0, VOCAB, (2, microbatches, BATCH, SEQ), generator=generator)
    return inputs, targets


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@cache
def unpipelined(model: str, stages: int, m: int, exact: bool = False) -> tuple[float, Any]:
    """Loss and gradients by plain autograd; `exact`: in fp64."""
    modules = [stage.double() if exact else stage for stage in stages_of(model, stages)]
    losses = []
    for tree, target in zip(*batch(m), strict=True):
        for stage in modules:
            tree = call(stage, tree)
        one = loss(tree, target)
        (one / m).backward()
        losses.append(one.detach())
    return float(torch.stack(losses).mean()), gradients(dict(enumerate(modules)))


def gradients(modules: dict[int, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{stage}.{name}": p.grad
        for stage, module in modules.items()
        for name, p in module.named_parameters()
        if p.grad is not None
    }
