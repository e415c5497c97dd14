"""Decoders cut into stages: the same weights, layer by layer, however many stages there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...costs import load_model
from ...costs.estimating import Source
from ...costs.layer import layer
from ...costs.models import Model
from ...costs.parallelism import check_work, split_layers
from ...costs.roofline import head_gemm
from ...costs.work import Work
from ...errors import OptPipeError
from .blocks import Block, norm, rotary_table
from .recompute import LAYER, part
from .sliced import first_token

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SPREAD = 0.02  # of the random matrices


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
    """Return the layers per stage: `layers`, checked, or balanced by `costs.parallelism.split_layers`.

    That is the rule of ``estimate`` too; there a layer counts by its time on a machine, here by its FLOPs, as
    no machine is known. For the very same cut give the ``layers_per_stage`` in the
    profile's meta.

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
        float(sum(layer(model, model.is_dense(at), work).flops(op) for op in "FBW"))
        for at in range(model.layers)
    ]
    return split_layers(each, 0.0, 3.0 * head_gemm(model, work).flops, stages, model.name)


class Decoder(nn.Module):
    """One stage of a decoder: some layers, the embedding before the first, the head after the last.

    A tied head uses the embedding's own weight where both are in this stage; else each stage has a
    copy, `tied_weight`, with the same numbers, and the executor adds up the gradients.
    """

    def __init__(self, model: Model, at: range, first: bool, last: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocab, model.hidden) if first else None
        rows = model.positions if first and model.gpt else 0
        self.positions = nn.Embedding(rows, model.hidden) if rows else None
        self.layers = nn.ModuleDict({str(n): Block(model, model.is_dense(n)) for n in at})
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
        fill: draw the weights; without it they are what torch makes them (for shapes alone).

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
    if model.qk_norm_whole or model.head != "vocab":
        key = "qk_norm_whole" if model.qk_norm_whole else "head"
        raise OptPipeError(
            f"model {model.name}: {key}: the runtime has norms of each head and a language model's head alone;"
            " estimate its costs"
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
