"""A model in Megatron-LM's options, and what of it these cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...costs.megatron_arguments import QUICK
from ...costs.models import Model, made_of
from ...profile import CostProfile
from ...profile.iteration import extent
from ..parts import said

YOURS = (
    "what costs do not depend on is yours to add: data and tokenizer, learning rate, checkpoints, norm epsilon, scaling of"
    " rotary positions"
)


def model_in(profile: CostProfile) -> Model | None:
    """Return the model of an estimated profile; None where the profile does not have its shape and its sequences.

    Raises:
        ModelError: for a shape that was changed in the file and cannot be.
    """
    shape = said(profile, "model").get("shape")
    known = isinstance(shape, dict) and sequence_in(profile) > 0
    return made_of(dict(shape or {})) if known else None


def sequence_in(profile: CostProfile) -> int:
    """Return the tokens of a sequence of an estimated profile, and where microbatches differ those of the longest; 0
    where it does not say them."""
    lengths = extent(profile)
    if lengths is not None:
        return lengths.most
    seq = said(profile, "work").get("seq")
    return seq if isinstance(seq, int) and not isinstance(seq, bool) else 0


def model_options(model: Model, seq: int) -> Iterator[tuple[str, Any]]:
    """Yield the options of a model, but for its number of layers, for sequences of `seq` tokens."""
    yield "hidden-size", model.hidden
    yield "ffn-hidden-size", model.ffn
    yield "num-attention-heads", model.heads
    if model.latent:
        yield from _latent(model)
    else:
        if model.kv_heads != model.heads:
            yield "group-query-attention", True
            yield "num-query-groups", model.kv_heads
        if model.head_dim * model.heads != model.hidden:
            yield "kv-channels", model.head_dim
    yield "vocab-size", model.vocab
    # fewer than the tokens of a sequence are refused
    yield "max-position-embeddings", max(model.positions or model.context, seq)
    if not model.positions:
        yield "position-embedding-type", "rope"
        if model.rotary_base:
            yield "rotary-base", model.rotary_base
    if model.gated:
        yield ("quick-geglu" if model.activation == QUICK else "swiglu"), True
        yield "normalization", "RMSNorm"
        yield "disable-bias-linear", True
        yield "hidden-dropout", 0.0
        yield "attention-dropout", 0.0
        if model.qkv_bias:
            yield "add-qkv-bias", True
    if model.qk_norm or model.qk_norm_whole:
        yield "qk-layernorm", True
    if not model.tied:
        yield "untie-embeddings-and-output-weights", True
    if model.experts:
        yield from _experts(model)


def _latent(model: Model) -> Iterator[tuple[str, Any]]:
    yield "multi-latent-attention", True
    if model.q_lora:
        yield "q-lora-rank", model.q_lora
    yield "kv-lora-rank", model.kv_lora
    yield "qk-head-dim", model.nope_dim
    yield "qk-pos-emb-head-dim", model.rope_dim
    yield "v-head-dim", model.value_dim
    yield "qk-layernorm", True  # norms of what queries, keys and values are made of


def _experts(model: Model) -> Iterator[tuple[str, Any]]:
    yield "num-experts", model.experts
    yield "moe-router-topk", model.experts_per_token
    yield "moe-ffn-hidden-size", model.expert_ffn
    if model.shared_ffn:
        yield "moe-shared-expert-intermediate-size", model.shared_ffn
    yield "moe-grouped-gemm", True
    kinds = [int(not dense) for dense in model.dense]
    if not all(kinds):
        yield "moe-layer-freq", _pattern(kinds)


def _pattern(kinds: list[int]) -> str:
    """Return a list as the sum of runs that Megatron-LM evaluates; a period is written once, where there
    is one."""
    for period in range(2, len(kinds) // 2 + 1):
        times, rest = divmod(len(kinds), period)
        if not rest and kinds == kinds[:period] * times:
            return f"({_runs(kinds[:period])})*{times}"
    return f"({_runs(kinds)})"


def _runs(kinds: list[int]) -> str:
    """Return a list as a sum of its runs, as in ``[0]*3+[1]*58``."""
    runs: list[list[int]] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind:
            runs[-1][1] += 1
        else:
            runs.append([kind, 1])
    return "+".join(f"[{kind}]*{count}" for kind, count in runs)


def unsaid(model: Model) -> Iterator[str]:
    """Yield what Megatron-LM cannot be told of a model, and what its options leave to the user."""
    if model.head != "vocab":
        yield (
            f"its pretrain_gpt.py trains a head of the vocabulary, not one per {model.head}: the last stage is another"
            if model.labels
            else "its pretrain_gpt.py trains a head of the vocabulary, which this model does not have"
        )
    if model.qk_norm_whole:
        yield "--qk-layernorm normalizes queries and keys head by head, this model all heads together"
    if model.bidirectional:
        yield "its pretrain_gpt.py attends to earlier tokens alone, this model to all"
    if model.gated and model.activation not in ("silu", "swish", QUICK):
        yield (
            f"its gated MLP has {model.activation}, and the options have SiLU and quick GeLU alone: --swiglu costs the same"
        )
    if model.gated and model.positions:
        yield "learned positions are taken with the rest of a LLaMA-style model; compare the result with yours"
    base = not (model.positions or model.rotary_base)
    yield (
        YOURS
        + (" and their base (--rotary-base, else 10000)" if base else "")
        + (", how the router scores and balances" if model.experts else "")
    )
