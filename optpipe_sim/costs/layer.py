"""The work of one layer, per device and microbatch: GEMMs, attention, bytes moved, bytes kept.

Notation: s sequence, b microbatch, h hidden, a heads; a token is one of s*b positions. Activation
bytes follow Korthikanti et al. (arXiv 2205.05198): without flash attention and recompute a GPT
layer keeps s b (34 h + 5 a s) bytes, 32 s b h of them (the inputs and output gradients of its
linears) until W. Model FLOPs count every score, as that paper and MFU do; the FLOPs that a causal flash
kernel really executes are given in addition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .models import Model, expert_parameters, layer_parameters, projection_parameters
from .recompute.regions import dropped
from .work import Message, Work, collectives, shares_heads, token_exchange

LSE_BYTES = 4  # flash attention keeps one fp32 per head and token, the log-sum-exp of its scores
FP8_BYTES = 1
# What only linears keep, which in fp8 do so as their GEMM takes it: one byte, with one scale of each tensor (TransformerEngine,
# module/linear.py, layernorm_linear.py, grouped_linear.py, commit d0067d0). In bf16 stay what others keep as well: the attention's output,
# and behind a norm of its own the router's input; the activation function's input; and what the down-projections
# of latent attention take, each in a copy of its own.
INPUTS = frozenset(
    (
        "fused attention norm output",
        "latent norms",
        "fused mlp norm output",
        "activation output",
        "expert inputs",
        "expert activation output",
        "shared activation output",
        "projection input",
    )
)


class Gemm(NamedTuple):
    """`groups` GEMMs of (rows x inner) by (inner x columns); B and W follow from F's shape."""

    name: str
    rows: int
    inner: int
    columns: int
    groups: int = 1
    weights: bool = True  # has a W; the batched GEMMs of unfused attention have none

    @property
    def flops(self) -> int:
        """Of F; B takes the same, W too where there are weights."""
        return 2 * self.rows * self.inner * self.columns * self.groups


class Kept(NamedTuple):
    """Bytes kept from F to B unless they are recomputed; `recompute.regions` has the names."""

    name: str
    size: int
    cast: int = 0  # bytes fewer than F computes, where only linears need it and keep it in fp8

    @property
    def computed(self) -> int:
        """Bytes that F writes, and that the gradient takes."""
        return self.size + self.cast


@dataclass(frozen=True)
class Layer:
    """The costs of one layer on one device, for one microbatch."""

    gemms: tuple[Gemm, ...]
    score_gemms: tuple[Gemm, ...]  # unfused attention only
    attention_flops: int  # F, model count; B takes twice that
    executed_share: float  # of the model count that the kernel executes (causal flash: half)
    elementwise_f: int  # bytes read and written besides the GEMMs
    elementwise_b: int
    kept: tuple[Kept, ...]
    input_bytes: int  # the layer's own input, all that full recompute keeps
    held_for_w: int  # inputs and output gradients of the linears; in fp8 but for the router's input
    messages: tuple[Message, ...]
    recompute: str
    flash: bool
    routed: tuple[int, int] = (0, 0)  # of the elementwise bytes, F's and B's in the routed experts
    buffers: int = 0  # that its ops run in, beside what is kept

    def kept_bytes(self, recompute: str | None = None) -> int:
        """Bytes kept from F to B, under the layer's own recompute choice or another."""
        choice = self.recompute if recompute is None else recompute
        if choice == "full":
            return self.input_bytes
        gone = dropped(choice)
        return sum(kept.size for kept in self.kept if kept.name not in gone)

    def flops(self, op: str) -> int:
        """Model FLOPs of F, B or W, recomputation left out."""
        linear = sum(gemm.flops for gemm in self.gemms)
        return linear + {"F": 1, "B": 2, "W": 0}[op] * self.attention_flops


@lru_cache(maxsize=4096)
def layer(model: Model, dense: bool, work: Work) -> Layer:
    """Return the costs of one layer with a plain MLP (`dense`) or with experts."""
    t, n, e = work.tokens, work.norm_tokens, work.element
    h, a = model.hidden, model.heads // work.tp
    gemms, kept, held = _attention(model, work)
    scores_kept, score_gemms, scores_f, scores_b = _scores(model, work)
    mlp = _mlp if dense else _experts
    mlp_gemms, mlp_kept, mlp_held, mlp_f, mlp_b, messages = mlp(model, work)
    fused = "" if model.latent else "fused ", "fused " if dense else ""
    norms = (
        Kept("attention norm input", e * n * h),
        Kept(f"{fused[0]}attention norm output", e * n * h),
        Kept("mlp norm input", e * n * h),
        Kept(f"{fused[1]}mlp norm output", e * n * h),
    )
    masks: tuple[Kept, ...] = ()
    # Bytes per token of hidden width that pass through memory besides the GEMMs, in elements e.
    if model.gpt:
        masks = (
            Kept("attention dropout mask", n * h),
            Kept("mlp dropout mask", n * h),
        )
        # As Megatron-LM's own kernels do it. F: two norms (a read, a write); twice the bias (2 e),
        # the dropout (2 e and a mask) and the residual (3 e); the bias of qkv.
        # B: two norms (3 e) and the sums of the residual's gradients (3 e), two dropouts, the
        # sums for the biases' gradients.
        qkv = e * t * (model.heads + 2 * model.kv_heads) * model.head_dim // work.tp
        elementwise_f = n * h * (4 * e + 14 * e + 2) + 2 * qkv
        elementwise_b = n * h * (12 * e + 4 * e + 2 + 2 * e) + e * _bias_rows(model, work)
        if not work.flash:  # queries, keys, values and the output change their layout
            elementwise_f += 2 * qkv + 2 * e * t * h // work.tp
            elementwise_b += 2 * qkv + 2 * e * t * h // work.tp
    else:
        rotary = 2 * e * t * (model.heads + model.kv_heads) * model.qk_dim // work.tp
        elementwise_f = n * h * (4 * e + 6 * e) + rotary * (2 if model.normed else 1)
        elementwise_b = n * h * (10 * e) + rotary * (2 if model.normed else 1)
    return Layer(
        gemms=gemms + mlp_gemms,
        score_gemms=score_gemms,
        attention_flops=round(2 * t * a * (model.qk_dim + model.v_dim) * work.span),
        executed_share=0.5 if work.flash and not model.bidirectional else 1.0,
        elementwise_f=elementwise_f + mlp_f + scores_f,
        elementwise_b=elementwise_b + mlp_b + scores_b,
        routed=(0, 0) if dense else _routed_bytes(model, work),
        buffers=0 if dense else _expert_buffers(model, work),
        kept=stored(norms + masks + kept + scores_kept + mlp_kept, work)
        + _graphs(model, dense, work),
        input_bytes=e * n * h,
        held_for_w=operands(held + mlp_held, work, 0 if dense else e * n * h),
        messages=collectives(model, work, dense) + messages,
        recompute=work.recompute,
        flash=work.flash,
    )


def _graphs(model: Model, dense: bool, work: Work) -> tuple[Kept, ...]:
    """Return what CUDA graphs of a layer's parts hold beside its activations, for each microbatch in flight: each has
    graphs of its own, whose inputs and outputs are copies in fixed places. Assumed: a hidden state in and one out
    of the attention's, and one into the router's. That is a few GB without a pipeline and about 10 with one, the sizes that
    Megatron-Bridge's performance guide tells (docs/performance-guide.md, commit 067f987d)."""
    modules = work.cuda_graph_modules
    if dense or not modules:
        return ()
    states = 2 * ("attn" in modules) + ("moe_router" in modules)
    return (Kept("graph buffers", states * work.element * work.norm_tokens * model.hidden),)


def stored(kept: Iterable[Kept], work: Work) -> tuple[Kept, ...]:
    """Return what is kept of tensors that F computes: in fp8 one byte per element of `INPUTS`."""
    spared = work.element - FP8_BYTES if work.dtype == "fp8" else 0
    return tuple(
        Kept(one.name, one.size - cast, cast)
        for one in kept
        for cast in [one.size // work.element * spared if one.name in INPUTS else 0]
    )


def operands(held: int, work: Work, wide: int = 0) -> int:
    """Return the bytes of operands of W; all but `wide` of them are as their GEMM takes them."""
    if work.dtype != "fp8":
        return held
    return (held - wide) // work.element * FP8_BYTES + wide


def _attention(model: Model, work: Work) -> tuple[tuple[Gemm, ...], tuple[Kept, ...], int]:
    """Linears of the attention, what it keeps beside the scores, and what W needs."""
    t, n, e, h = work.tokens, work.norm_tokens, work.element, model.hidden
    a = model.heads // work.tp
    out = a * model.v_dim
    if model.latent:
        latent = model.kv_lora + model.rope_dim
        first = model.q_lora + latent
        widths = (a * model.qk_dim, a * (model.nope_dim + model.v_dim))
        gemms = (
            Gemm("down", n, h, first),
            *((Gemm("q up", t, model.q_lora, widths[0]),) if model.q_lora else ()),
            Gemm("kv up", t, model.kv_lora, widths[1]),
            Gemm("out", t, out, h),
        )
        if not model.q_lora:
            gemms = (Gemm("q", t, h, widths[0]), *gemms)
        kept: tuple[Kept, ...] = (
            Kept("latents", e * n * first),
            Kept("latent norms", e * n * (first - model.rope_dim)),
            Kept("queries", e * t * widths[0]),
            Kept("keys and values", e * t * a * (model.qk_dim + model.v_dim)),
            Kept("attention output", e * t * out),
        )
        held = e * (n * (h + 2 * first) + t * (sum(widths) + out) + n * h)
        return gemms, kept, held
    kv = max(1, model.kv_heads // work.tp)  # fewer key heads than devices: each keeps a copy
    columns = (a + 2 * kv) * model.head_dim
    gemms = (Gemm("qkv", t, h, columns), Gemm("out", t, out, h))
    kept = (
        Kept("queries, keys, values", e * t * columns),
        Kept("attention output", e * t * out),
    )
    if model.normed:
        inputs = e * t * (a + kv) * model.head_dim
        kept += (Kept("query and key norm inputs", inputs),)
    return gemms, kept, e * (n * h + t * columns + t * out + n * h)


def _scores(model: Model, work: Work) -> tuple[tuple[Kept, ...], tuple[Gemm, ...], int, int]:
    """Scores of the attention: kept bytes, GEMMs, and bytes moved in F and B."""
    t, e, a = work.tokens, work.element, model.heads // work.tp
    if work.flash:
        sums = Kept("log-sum-exp", LSE_BYTES * a * t)
        if shares_heads(work):  # kept as the kernel left it, and as the linear takes it
            return (sums, Kept("attention output by heads", e * t * a * model.v_dim)), (), 0, 0
        return (sums,), (), 0, 0
    cells = round(a * t * work.span)
    kept = [Kept("softmax output", e * cells)]
    if model.gpt:
        kept += [
            Kept("score dropout mask", cells),
            Kept("dropped scores", e * cells),
        ]
    span = max(work.cp, round(work.span))
    rows, groups = span // work.cp, max(1, round(a * work.microbatch * work.seq / span))
    products = (
        Gemm("scores", rows, model.qk_dim, span, groups, weights=False),
        Gemm("values", rows, span, model.v_dim, groups, weights=False),
    )
    # softmax: a read and a write, twice read in B; dropout: the same and a mask
    dropout = (2 * e + 1) if model.gpt else 0
    return tuple(kept), products, cells * (2 * e + dropout), cells * (3 * e + dropout)


def _mlp(
    model: Model, work: Work, width: int = 0, name: str = ""
) -> tuple[tuple[Gemm, ...], tuple[Kept, ...], int, int, int, tuple[Message, ...]]:
    """Return a plain or gated MLP: linears, kept, held for W, bytes of F and B; `name` before theirs."""
    t, n, e, h = work.tokens, work.norm_tokens, work.element, model.hidden
    f = (width or model.ffn) // work.tp
    inner = 2 * f if model.gated else f
    gemms = (Gemm(f"{name or 'mlp '}in", t, h, inner), Gemm(f"{name or 'mlp '}out", t, f, h))
    kept = (
        Kept(f"{name}activation input", e * t * inner),
        Kept(f"{name}activation output", e * t * f),
    )
    held = e * (n * h + t * inner + t * f + n * h)
    moved_f, moved_b = e * t * (inner + f), e * t * (2 * inner + f)
    return gemms, kept, held, moved_f, moved_b, ()


def _experts(
    model: Model, work: Work
) -> tuple[tuple[Gemm, ...], tuple[Kept, ...], int, int, int, tuple[Message, ...]]:
    """Router, the routed experts of the most loaded device, shared experts, and their exchange."""
    n, e, h = work.norm_tokens, work.element, model.hidden
    local = model.experts // work.ep
    routed, f = _routed(model, work)
    held_tokens = round(routed / work.imbalance * work.held_share)
    rows = max(1, routed // local)
    gemms: tuple[Gemm, ...] = (
        Gemm("router", n, h, model.experts),
        Gemm("experts in", rows, h, 2 * f, local),
        Gemm("experts out", rows, f, h, local),
    )
    kept: tuple[Kept, ...] = (
        Kept("router probabilities", 4 * n * model.experts),
        Kept("expert inputs", e * held_tokens * h),
        Kept("expert activation input", e * held_tokens * 2 * f),
        Kept("expert activation output", e * held_tokens * f),
    )
    held = e * routed * (h + 2 * f + f + h) + e * n * h
    moved_f, moved_b = _routed_bytes(model, work)
    messages = token_exchange(work, e * routed * h * (work.ep - 1) // work.ep)
    if model.shared_ffn:
        more = _mlp(model, work, model.shared_ffn, "shared ")
        gemms, kept = gemms + more[0], kept + more[1]
        held, moved_f, moved_b = held + more[2], moved_f + more[3], moved_b + more[4]
    return gemms, kept, held, moved_f, moved_b, messages


def _routed(model: Model, work: Work) -> tuple[int, int]:
    """Return the copies of tokens that the experts of the most loaded device get, and the width of its
    part of an expert."""
    tokens = work.norm_tokens if work.expert_tp == 1 else work.tokens
    return round(
        tokens * model.experts_per_token * work.imbalance
    ), model.expert_ffn // work.expert_tp


def _expert_buffers(model: Model, work: Work) -> int:
    """Return the buffers of one layer's experts, of the capacity, where what they keep moves out of these to pages."""
    if not work.paged_stash:
        return 0
    routed, f = _routed(model, work)
    tokens = routed / work.imbalance * work.expert_rank_capacity
    return int(work.element * tokens * (model.hidden + 3 * f))


def _routed_bytes(model: Model, work: Work) -> tuple[int, int]:
    """Return the bytes that F and B move in the routed experts besides their GEMMs."""
    routed, f = _routed(model, work)
    # tokens are gathered for their experts and scattered back, each a read and a write; where they
    # go to other devices, they are sorted on both sides
    sorts = (8 if work.ep > 1 else 4) * routed * model.hidden
    return work.element * (3 * routed * f + sorts), work.element * (5 * routed * f + sorts)


def _bias_rows(model: Model, work: Work) -> int:
    """Elements read to sum the biases' gradients of the sharded linears."""
    columns = (model.heads + 2 * model.kv_heads) * model.head_dim + model.ffn
    return work.tokens * columns // work.tp


def device_parameters(model: Model, dense: bool | None, work: Work) -> tuple[int, int]:
    """Weights of one layer on one device: those every replica holds, and its share of the experts. None: the
    projection of a layer that predicts further tokens."""
    if dense is None:
        return -(-projection_parameters(model) // work.tp), 0
    if dense:
        return -(-layer_parameters(model, True) // work.tp), 0
    routed = model.experts * expert_parameters(model)
    rest = layer_parameters(model, False) - routed
    return -(-rest // work.tp), routed // (work.ep * work.expert_tp)
