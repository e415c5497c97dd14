"""Decoders for trials: their layers, in the two styles of `costs.models.Model` with nothing random inside, and their
cut into stages, whose weights are the same, layer by layer, however many stages there are.

Layers keep for B what the costs count: norms and the gated activation save their input alone (and the norm its
inverse root mean squares).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...costs import load_model
from ...costs.estimating import Source
from ...costs.layer import layer
from ...costs.models import Model
from ...costs.parallelism import check_work
from ...costs.roofline import head_gemm
from ...costs.work import Work
from ...errors import OptPipeError
from ...profile.dealing import deal_layers
from .current import current
from .recompute import LAYER, part
from .sliced import attend, first_token
from .split import batched

EPSILON = 1e-5
ROTARY_BASE = 10000.0
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SPREAD = 0.02  # of the random matrices


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        y, inverse = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, EPSILON)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, inverse = ctx.saved_tensors
        if x.is_cuda:
            return torch.ops.aten._fused_rms_norm_backward(
                dy, x, [x.shape[-1]], inverse, weight, [True, True]
            )
        wide = torch.promote_types(x.dtype, torch.float32)
        normed = x.to(wide) * inverse
        dw = (dy * normed).flatten(0, -2).sum(0)
        grown = dy * weight.to(wide)
        dx = inverse * (grown - normed * (grown * normed).mean(-1, keepdim=True))
        return dx.to(x.dtype), dw.to(weight.dtype)


class RmsNorm(nn.Module):
    """x / rms(x) * weight; keeps x and one fp32 number per row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normed over the last dimension."""
        return _RmsNorm.apply(x, self.weight)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate, up = x.chunk(2, -1)
        return torch.cat(
            (torch.ops.aten.silu_backward(dy * up, gate), dy * functional.silu(gate)), -1
        )


def gated(x: Tensor) -> Tensor:
    """Return silu(first half) * second half; autograd keeps x and nothing else."""
    return _Gate.apply(x)


def norm(model: Model) -> nn.Module:
    """Return the norm over the hidden width."""
    return nn.LayerNorm(model.hidden, EPSILON) if model.gpt else RmsNorm(model.hidden)


def rotary_table(width: int, seq: int) -> Tensor:
    """Return cosines and sines (2, seq, 1, width / 2) of rotary positions."""
    rates = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(seq, dtype=torch.float32), rates)[:, None, :]
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Return x (batch, seq, heads, width) with rotary positions."""
    start = first_token()
    cos, sin = table[:, start : start + x.shape[1]]
    one, two = x.chunk(2, -1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)


class Attention(nn.Module):
    """Causal attention with grouped keys and values, of whole sequences or slice by slice."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = model.heads, model.kv_heads, model.head_dim
        bias = model.gpt or model.qkv_bias
        self.query = nn.Linear(model.hidden, model.heads * model.head_dim, bias=bias)
        self.key = nn.Linear(model.hidden, model.kv_heads * model.head_dim, bias=bias)
        self.value = nn.Linear(model.hidden, model.kv_heads * model.head_dim, bias=bias)
        self.out = nn.Linear(model.heads * model.head_dim, model.hidden, bias=model.gpt)
        if model.qk_norm:
            self.query_norm, self.key_norm = RmsNorm(model.head_dim), RmsNorm(model.head_dim)
        self.normed = model.qk_norm

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        """Map (batch, seq, hidden) to the same; `table`: of rotary positions, if any."""
        return self.out(part("attention", self.mix, *part("qkv", self.project, x, table)))

    def project(self, x: Tensor, table: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (batch, seq, heads, width) each."""
        query = self.query(x).unflatten(-1, (self.heads, self.width))
        key = self.key(x).unflatten(-1, (self.kv_heads, self.width))
        value = self.value(x).unflatten(-1, (self.kv_heads, self.width))
        if self.normed:
            query, key = self.query_norm(query), self.key_norm(key)
        if table is not None:
            query, key = rotate(query, table), rotate(key, table)
        return query, key, value

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the core: (batch, seq, heads * width)."""
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        one = current("slice")
        if one is not None:
            mixed = attend(self, query, key, value, one)
        else:
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=self.heads != self.kv_heads
            )
        return mixed.transpose(1, 2).flatten(-2)


class Mlp(nn.Module):
    """Two matrices and GeLU, or a gated MLP."""

    def __init__(self, model: Model, width: int) -> None:
        super().__init__()
        self.gated = model.gated
        inner = 2 * width if model.gated else width
        self.into = nn.Linear(model.hidden, inner, bias=model.gpt)
        self.out = nn.Linear(width, model.hidden, bias=model.gpt)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., hidden) to the same."""
        return self.out(part("mlp", self.inner, x))

    def inner(self, x: Tensor) -> Tensor:
        """Map (..., hidden) to (..., width)."""
        return part("norms", gated if self.gated else functional.gelu, self.into(x))


class Experts(nn.Module):
    """Routed experts, each with room for an even share of the tokens, and shared ones.

    Tokens that find their expert full pass by it on the residual: so shapes, memory and time do not
    depend on the data.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.count, self.chosen = model.experts, model.experts_per_token
        self.router = nn.Linear(model.hidden, model.experts, bias=False)
        inner = 2 * model.expert_ffn if model.gated else model.expert_ffn
        self.gated = model.gated
        self.into = nn.Parameter(torch.empty(model.experts, model.hidden, inner))
        self.out = nn.Parameter(torch.empty(model.experts, model.expert_ffn, model.hidden))
        self.shared = Mlp(model, model.shared_ffn) if model.shared_ffn else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same."""
        tokens = x.flatten(0, -2)
        weights = self.router(tokens).float().softmax(-1)
        share, expert = weights.topk(self.chosen, -1)
        share = share / share.sum(-1, keepdim=True)
        rows = tokens.shape[0] * self.chosen
        room = -(-rows // self.count)
        # pairs of token and expert, sorted by expert; each expert takes its first `room`
        sorted_expert, order = expert.flatten().sort(stable=True)
        first = torch.searchsorted(sorted_expert, torch.arange(self.count, device=x.device))
        rank = torch.arange(rows, device=x.device) - first[sorted_expert]
        full = self.count * room
        place = torch.where(rank < room, sorted_expert * room + rank, full)
        pair = torch.full((full + 1,), rows, device=x.device).scatter(0, place, order)[:full]
        padded = torch.cat((tokens, tokens.new_zeros(1, tokens.shape[1])))
        source = torch.where(pair < rows, pair // self.chosen, tokens.shape[0])
        inner = part("experts", self.inner, padded[source].unflatten(0, (self.count, room)))
        shares = torch.cat((share.flatten(), share.new_zeros(1)))[pair].to(x.dtype)
        done = batched(inner, self.out).flatten(0, 1) * shares[:, None]
        mixed = torch.zeros_like(padded).index_add(0, source, done)[:-1].view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)

    def inner(self, rows: Tensor) -> Tensor:
        """Map (experts, room, hidden) to (experts, room, width)."""
        return part("norms", gated if self.gated else functional.gelu, batched(rows, self.into))


class Block(nn.Module):
    """One layer: attention and an MLP (or experts), each after a norm and beside a residual."""

    def __init__(self, model: Model, dense: bool) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(model), Attention(model)
        self.mlp_norm = norm(model)
        self.mlp = Mlp(model, model.ffn) if dense else Experts(model)

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        """Map (batch, seq, hidden) to the same."""
        x = x + self.attention(part("norms", self.attention_norm, x), table)
        return x + self.mlp(part("norms", self.mlp_norm, x))


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of that name.

    Raises:
        OptPipeError: where the runtime cannot train in it.
    """
    if name not in DTYPES:
        raise OptPipeError(f"dtype: the runtime has {', '.join(DTYPES)}; got {name!r}")
    return DTYPES[name]


def layer_counts(
    model: Model, stages: int, *, seq: int, layers: Sequence[int] | None = None
) -> list[int]:
    """Return the layers per stage: `layers`, checked, or balanced by `deal_layers`.

    That is the rule of ``estimate`` too; there a layer counts by its time on a machine, here by its FLOPs, as
    no machine is known. For the very same cut give the ``layers_per_stage`` in the
    profile's meta; with several stages per device it needs these.

    Raises:
        OptPipeError: where they do not add up, or there are too many stages.
    """
    if isinstance(stages, bool) or not isinstance(stages, int) or stages < 1:
        raise OptPipeError(f"stages: must be a whole number of at least 1, got {stages!r}")
    if layers is not None:
        counts = list(layers)
        if len(counts) != stages or min(counts) < 0 or sum(counts) != model.layers:
            raise OptPipeError(
                f"layers: expected {stages} numbers that add up to {model.layers}, the layers of"
                f" {model.name}; got {', '.join(map(str, counts))}"
            )
        return counts
    work = Work(1, seq)
    each = [
        float(sum(layer(model, model.dense[at], work).flops(op) for op in "FBW"))
        for at in range(model.layers)
    ]
    head = 3.0 * head_gemm(model, work).flops
    return list(deal_layers(tuple(each), 0.0, head, tuple(range(stages)), model.name))


def _embedding(rows: int, width: int) -> nn.Embedding:
    """Return a table that is still to be filled: torch's own draws normal numbers, on no device by loading its compiler,
    which takes two seconds of each process."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class Decoder(nn.Module):
    """One stage of a decoder: some layers, the embedding before the first, the head after the last.

    A tied head uses the embedding's own weight where both are in this stage; else each stage has a
    copy, `tied_weight`, with the same numbers, and the executor adds up the gradients.
    """

    def __init__(self, model: Model, at: range, first: bool, last: bool) -> None:
        super().__init__()
        self.tokens = _embedding(model.vocab, model.hidden) if first else None
        rows = model.positions if first and model.gpt else 0
        self.positions = _embedding(rows, model.hidden) if rows else None
        self.layers = nn.ModuleDict({str(n): Block(model, model.dense[n]) for n in at})
        self.norm = norm(model) if last else None
        self.head = nn.Linear(model.hidden, model.vocab, bias=False) if last else None
        self.model = model
        self.tie()
        self.register_buffer("table", None, persistent=False)

    def tie(self) -> None:
        """Have embedding and head share one weight, where both are here and the model ties them."""
        if self.model.tied and self.tokens is not None and self.head is not None:
            self.head.weight = self.tokens.weight

    @property
    def tied_weight(self) -> nn.Parameter | None:
        """This stage's copy of the weight that embedding and head share; None without one."""
        end = self.head if self.tokens is None else self.tokens
        return end.weight if self.model.tied and end is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (batch, seq) or hidden states (batch, seq, hidden) to hidden states or logits."""
        if self.tokens is not None:
            tokens, x = x, self.tokens(x)
            if self.positions is not None:
                start = first_token()
                x = x + self.positions.weight[start : start + tokens.shape[1]]
        for at, block in enumerate(self.layers.values()):
            x = part(LAYER, block, x, self.table, place=(at, len(self.layers)))
        if self.head is None or self.norm is None:
            return x
        return self.head(part("norms", self.norm, x))


def build_stage(
    model: Model | Source,
    stage: int,
    stages: int,
    *,
    seq: int,
    dtype: str = "fp32",
    device: str | torch.device = "cpu",
    seed: int = 0,
    layers: Sequence[int] | None = None,
    fill: bool = True,
) -> Decoder:
    """Return stage `stage` of `stages` of a decoder; ``build_stage(model, 0, 1, ...)`` is all of it.

    Weights are drawn layer by layer, each with a seed of its own: the stages of any cut have
    bitwise the weights of the whole (on the same kind of device). There is no dropout.

    Args:
        model: a name, a file, a mapping or a `Model`.
        seq: the longest sequence.
        dtype: ``fp32``, ``bf16`` or ``fp16``, of weights, activations and gradients.
        layers: layers per stage; default: balanced (`layer_counts`).
        fill: draw the weights; without it they are whatever is there (for shapes alone).

    Raises:
        OptPipeError: one line with what does not fit.
    """
    model = check_model(model if isinstance(model, Model) else load_model(model), seq)
    counts = layer_counts(model, stages, seq=seq, layers=layers)
    if not 0 <= stage < stages:
        raise OptPipeError(f"stage: expected 0 to {stages - 1}, got {stage}")
    kind = torch_dtype(dtype)
    start = sum(counts[:stage])
    at = range(start, start + counts[stage])
    usual = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        # on no device first: torch would draw numbers that are drawn again below
        with torch.device("meta" if fill else device):
            made = Decoder(model, at, stage == 0, stage == stages - 1)
    finally:
        torch.set_default_dtype(usual)
    if fill:
        made.to_empty(device=device)
        made.tie()
        _fill(made, seed)
    if not model.gpt:
        made.table = rotary_table(model.head_dim, seq).to(device, kind)
    return made


def check_model(model: Model, seq: int) -> Model:
    """Refuse what the runtime has no layers for.

    Raises:
        OptPipeError: names the model and the key.
    """
    check_work(model, Work(1, seq))
    if model.latent:
        raise OptPipeError(
            f"model {model.name}: kv_lora: the runtime has no latent attention; estimate its costs"
        )
    others = {
        "qk_norm_whole": model.qk_norm_whole,
        "bidirectional": model.bidirectional,
        "head": model.head != "vocab",
    }
    if key := next((key for key, other in others.items() if other), None):
        raise OptPipeError(
            f"model {model.name}: {key}: the runtime has norms of each head, attention to earlier tokens and a language"
            " model's head alone; estimate its costs"
        )
    if not model.gpt and model.head_dim % 2:
        raise OptPipeError(
            f"model {model.name}: head_dim: must be even for rotary positions, got {model.head_dim}"
        )
    if model.gpt and model.positions and seq > model.positions:
        raise OptPipeError(
            f"seq: {seq} tokens, but {model.name} has positions for {model.positions}"
        )
    return model


@torch.no_grad()
def _fill(made: Decoder, seed: int) -> None:
    """Draw the weights; a tied head draws what the embedding does."""
    embedding, head = 0, 0 if made.model.tied else 1
    parts: list[tuple[int, nn.Module | None]] = [
        (embedding, made.tokens),
        (2, made.positions),
        (3, made.norm),
        (head, made.head),
        *((4 + int(name), block) for name, block in made.layers.items()),
    ]
    for number, module in parts:
        if module is None:
            continue
        where = next(module.parameters()).device
        generator = torch.Generator(device=where).manual_seed(1_000_003 * seed + number)
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, SPREAD, generator=generator)
