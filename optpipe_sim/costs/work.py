"""What one device does for one microbatch, and what it sends the other devices of its stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import OptPipeError
from ..option_fields import option
from .layout import Layout
from .models import Model
from .recompute.regions import RECOMPUTE, choice_of

# How tokens reach their experts: every copy on its own, or once per node (as DeepEP sends them);
# waited for, or hidden behind the compute of another microbatch (as Megatron-LM can).
EXCHANGES = ("plain", "per-node", "overlapped", "per-node-overlapped")
CONTEXTS = ("ring", "heads")
# Whether a forward and a backward run as one op that hides their exchange: not; so; and with the gradients of
# weights apart from the rest of a layer's backward (Megatron-LM's --overlap-moe-expert-parallel-comm and
# --delay-wgrad-compute).
PAIRS = ("none", "combined", "delayed-w")
# Parts of a layer with experts that CUDA graphs of their own may hold (Megatron-LM's --cuda-graph-modules), and
# their share of what the host issues for it. Router and preprocessing: 31 of 227 kernels (published/launches.yaml);
# how these two divide, and that of the attention, are assumed.
GRAPHED = {"attn": 0.4, "moe_router": 0.1, "moe_preprocess": 0.037}
# Communication that may hide behind compute, by the Megatron-LM option that hides it.
OVERLAPS = {
    "grad-reduce": "overlap-grad-reduce",
    "param-gather": "overlap-param-gather",
    "tp-comm": "tp-comm-overlap",
}
GRADIENT_BYTES = 4  # of a weight's gradient, summed up in fp32 unless the work has it in 16 bits
# How the gradients of microbatches' weights are summed up: in the GEMM that makes them (Megatron-LM's default, where they are
# in fp32); in a kernel of its own (torch's autograd; Megatron-LM without gradient accumulation fusion); in such a one after
# another that casts them (DeepSpeed, runtime/bf16_optimizer.py, update_hp_grads: `hp_grad.add_(lp.grad.to(hp_grad.dtype))`).
GRADIENT_SUMS = ("fused", "apart", "cast")
# Weights of GEMMs in fp8: kept in fp8, and transposed; or in bf16, with both cached beside them from an iteration's first
# microbatch on (TransformerEngine, module/linear.py: `weight_fp8`, `weight_t_fp8`).
FP8_WEIGHTS = ("primary", "cached")
# Bytes of one logit that the loss keeps for its backward pass. In fp32, overwritten with the softmax: 4.
# Megatron-LM's native fusion (compiled functions, which copy what they change in place): one more of these.
# TransformerEngine's: the logits, overwritten with their gradients.
LOSS_FUSIONS = {"none": 4, "native": 8, "te": 2}
# Bytes of an activation; of those that only linears keep, `layer.INPUTS`, fewer in fp8.
DTYPES = {"bf16": 2, "fp16": 2, "fp8": 2, "fp32": 4, "tf32": 4}
# what people type for them
SPELLINGS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "float32": "fp32",
    "float": "fp32",
}


SLICE_BY = ("length", "time", "exchange")


def factor(text: str) -> float:
    """Return a number of at least 1, of how much of a mean there is room for.

    Raises:
        OptPipeError: for anything else.
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1 <= found < 1000:
        raise OptPipeError(f"expected a number of times the mean from 1, as 1.1; got {text!r}")
    return found


@dataclass(frozen=True)
class Work:
    """One microbatch, and how its layers run; the fields that are options say what each means.

    Attributes:
        tp, cp, ep, expert_tp: of the devices of one stage, see `Layout`; `on` sets them.
        attended: where sequences are packed into one of `seq` tokens, the tokens that the sequence of a token
            has in the mean; 0: all of them.
    """

    microbatch: int = option(1, "sequences per microbatch", metavar="N")
    seq: int = option(4096, "tokens per sequence", metavar="N")
    tp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int = 1
    attended: float = 0.0
    flash: bool = option(
        True,
        "fused attention, whose scores are never written to memory",
        off="attention scores go through memory",
        seldom=True,
    )
    recompute: str = option(
        "none",
        "what the backward recomputes: none, norms, full or modules by Megatron-LM's names, as in core_attn,mlp. Norms include"
        " activation functions and dropout; full is the whole layer",
        metavar="none|norms|full|MODULE,...",
        read=choice_of,
    )
    dtype: str = option(
        "bf16",
        "number format of the GEMMs. One of bf16, fp16, fp8, tf32, fp32",
        metavar="TYPE",
        read=lambda text: SPELLINGS.get(text.lower(), text),
    )
    sequence_parallel: bool = option(
        True,
        "with tp, norms and dropout are shared by its devices, too",
        off="with tp, norms and dropout are not shared: every device has them for all tokens",
        seldom=True,
    )
    exchange: str = option(
        "plain",
        "how tokens get to their experts: plain, per-node, overlapped or per-node-overlapped. Per-node: once per node, as"
        " DeepEP does; overlapped: behind another microbatch's compute",
        metavar="HOW",
    )
    context: str = option(
        "ring",
        "between devices that share a sequence: ring (keys and values); heads (all-to-all: parts of the sequence for"
        " heads of all of it)",
        metavar="HOW",
        seldom=True,
    )
    cuda_graphs: bool = option(
        False,
        "iterations run as CUDA graphs: layers with experts wait for no launches",
        seldom=True,
    )
    overlap: tuple[str, ...] = option(
        (),
        "communication that runs behind compute: some of grad-reduce,param-gather,tp-comm; default: none. As Megatron-LM can: the"
        " replicas' gradients, behind the last backward passes; the updated weights, behind the next iteration's"
        " first forward passes; tensor parallelism's collectives, behind the GEMMs that they feed or follow",
        metavar="A,B,...",
    )
    grad_reduce_in_bf16: bool = option(
        False, "gradients of weights are summed up, kept and reduced in bf16, not fp32", seldom=True
    )
    pairs: str = option(
        "none",
        "run a forward and a backward as one op, which hides the exchange of tokens between experts: combined or delayed-w."
        " As --overlap-moe-expert-parallel-comm of Megatron-LM (without a word, too), and with"
        " --delay-wgrad-compute; replayed layer by layer, and the profile says how much is hidden; other ops pay all"
        " of it",
        choices=PAIRS,
        bare="combined",
    )
    accumulate_grads_in_fp32: bool = option(
        False,
        "with --dtype fp16: gradients of weights are summed up, kept and reduced in fp32, not fp16",
        seldom=True,
    )
    gradient_sums: str = option(
        "fused",
        "how gradients of weights are summed up: fused, in the GEMM that makes them; apart, in a kernel of its own, as"
        " with Megatron-LM's --no-gradient-accumulation-fusion and in 16 bits; cast, and first copied to fp32, as"
        " DeepSpeed's optimizer for bf16 does. The last two cost each microbatch the same, however small it is",
        choices=GRADIENT_SUMS,
        seldom=True,
    )
    fp8_weights: str = option(
        "primary",
        "with --dtype fp8: primary, kept in fp8 and transposed, as with Megatron-LM's --fp8-param-gather; cached, kept in"
        " bf16 with both copies beside them, as without: 2 bytes more per weight of GEMMs in fp8",
        choices=FP8_WEIGHTS,
        seldom=True,
    )
    userbuffers: bool = option(
        False,
        "memory has the buffers of --overlap tp-comm, ten of a microbatch's hidden states, as TransformerEngine"
        " allocates them",
        seldom=True,
    )
    step_copy: bool = option(
        False,
        "the optimizer's step first copies the gradients of the weights that it updates to fp32, 4 bytes each, as"
        " Megatron-LM's does where they are in 16 bits; evaluate counts it in the peak",
        seldom=True,
    )
    launch_blocking: bool = option(
        False,
        "every kernel is waited for before the next one is launched, as with CUDA_LAUNCH_BLOCKING=1: small microbatches"
        " pay; nothing overlaps",
        seldom=True,
    )
    weights_in_fp32: bool = option(
        False,
        "weights are kept in fp32 and cast for the GEMMs, as torchtitan does: 16 bytes per weight, not 18",
        seldom=True,
    )
    loss_fusion: str = option(
        "",
        "how the loss is computed: none (fp32); native, te (Megatron-LM's --cross-entropy-fusion-impl); default:"
        " as the machine file's logit_bytes says",
        choices=tuple(LOSS_FUSIONS),
        seldom=True,
    )
    imbalance: Any = option(  # noqa: RUF009
        1.0,
        "the most tokens that the experts of one GPU get, over the mean: a number, a range, unknown or a file. All others of"
        " its stage wait for it. 1: balance, as by force; of a range costs are taken at the middle; unknown: as in"
        " runs without balance by force; a file has the tokens of each expert, a line per layer",
        metavar="X|A..B|FILE",
    )
    expert_rank_capacity: float = option(
        0.0,
        "buffers of experts are made for X times the mean of a GPU's tokens, as CUDA graphs of whole iterations need:"
        " Megatron-LM's --moe-expert-rank-capacity-factor; an iteration that needs more runs twice; default: as large"
        " as the tokens that come",
        metavar="X",
        read=factor,
        seldom=True,
    )
    paged_stash: float = option(
        0.0,
        "with --expert-rank-capacity: what experts keep for their backward lies in pages, of X times the mean in all"
        " (--moe-paged-stash; without a number 1.1, as there)",
        metavar="X",
        read=factor,
        bare=1.1,
        seldom=True,
    )
    cuda_graph_modules: tuple[str, ...] = option(
        (),
        "or these parts of layers with experts run as CUDA graphs: attn, moe_router, moe_preprocess; the host"
        " issues the rest (default: all of it)",
        metavar="A,B,...",
        seldom=True,
    )
    slices: int = option(
        1, "slices of each sequence, of which later ones attend to more tokens", metavar="N"
    )
    slice_by: str = option(
        "length",
        "slices of equal length, of equal time: later ones are shorter; or of equal length whose devices exchange"
        " parts of the attention, as SlimPipe's do",
        choices=SLICE_BY,
        seldom=True,
    )

    def __post_init__(self) -> None:
        if self.recompute not in RECOMPUTE:
            object.__setattr__(self, "recompute", choice_of(self.recompute))
        for key in ("overlap", "cuda_graph_modules"):
            object.__setattr__(self, key, tuple(getattr(self, key)))

    def on(self, layout: Layout, **changes: Any) -> Work:
        """Return it on the devices of one stage of a layout, with other changes."""
        return replace(
            self,
            tp=layout.tp,
            cp=layout.cp,
            ep=layout.ep,
            expert_tp=layout.expert_tp,
            sequence_parallel=self.sequence_parallel and layout.tp > 1,
            **changes,
        )

    @property
    def tokens(self) -> int:
        """Tokens of the device's part of the sequence."""
        return self.microbatch * self.seq // self.cp

    @property
    def span(self) -> float:
        """The tokens of the sequence of a token, in the mean: attention grows with these."""
        return self.attended or self.seq

    @property
    def norm_tokens(self) -> int:
        """Tokens of the norms, dropout and residuals of one device."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def held_share(self) -> float:
        """What experts hold for their backward on the most loaded device, over what it would be if all were loaded
        evenly."""
        return self.paged_stash or self.expert_rank_capacity or self.imbalance

    @property
    def element(self) -> int:
        """Bytes of an activation."""
        return DTYPES[self.dtype]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a weight's gradient."""
        narrow = self.dtype == "fp16" and not self.accumulate_grads_in_fp32
        return 2 if narrow or self.grad_reduce_in_bf16 else GRADIENT_BYTES

    @property
    def held_gradient_bytes(self) -> int:
        """Bytes of a weight's gradients between backward passes: of the sum, and of the last microbatch's own where
        it is cast for that."""
        own = self.element if self.gradient_sums == "cast" else 0
        return self.gradient_bytes + own

    @property
    def sum_bytes(self) -> int:
        """Bytes that pass through memory, beside those of its GEMM, to add the gradient of a microbatch to a weight's
        sum: the gradient is read, the sum read and written; a cast reads it and writes a copy, which is read then."""
        if self.gradient_sums == "fused":
            return 0
        cast = 2 * self.gradient_bytes if self.gradient_sums == "cast" else 0
        return self.element + cast + 2 * self.gradient_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight."""
        return 4 if self.weights_in_fp32 else self.element


def hides(work: Work) -> bool:
    """Whether anything is to run beside something else."""
    overlapped = work.exchange.endswith("overlapped") or work.pairs != "none"
    return bool(
        work.overlap or work.cuda_graphs or work.cuda_graph_modules or (work.ep > 1 and overlapped)
    )


class Message(NamedTuple):
    """Bytes that each device sends within its stage during an op, and the work that may hide them."""

    group: str  # tp, cp, ep
    op: str  # F, B, W
    size: int
    # "" exposed; "attention"; "gemm", all of them, or the name of one; "experts", "rest": what the layer
    # computes in its routed experts, and all else
    behind: str = ""
    number: int = 1  # collectives that these bytes are sent in
    during: str = ""  # the ops whose work that is; "": the same op


def token_exchange(work: Work, size: int) -> tuple[Message, ...]:
    """Return what carries tokens to their experts and back, in F and in B.

    Overlapped, as in Megatron-LM's `TransformerLayerSchedulePlan`: one microbatch's F runs with another's B, and
    on the way to the experts hides behind these at work on the other one, on the way back behind the rest of
    its layer.
    """
    if not size:
        return ()
    if not work.exchange.endswith("overlapped"):
        return tuple(Message("ep", op, 2 * size, "", 2) for op in "FB")
    others = {"F": "BW", "B": "F"}
    return tuple(
        Message("ep", op, size, behind, 1, others[op])
        for op in "FB"
        for behind in ("experts", "rest")
    )


def collectives(model: Model, work: Work, dense: bool) -> tuple[Message, ...]:
    """Collectives of tensor and context parallelism.

    Tensor: an all-gather and a reduce-scatter (or one all-reduce, the same bytes) around each
    block, in F and in B; with sequence parallelism the inputs are gathered once more for W, behind
    the GEMMs of B. With overlap of ``tp-comm`` (TransformerEngine's userbuffers) each of them hides
    behind the GEMM it feeds or follows; the reduce-scatter at the end of a block's B behind its W.

    Context: keys and values go round the ring, behind the attention, in B with their gradients; or
    queries, keys, values and the output are exchanged for heads of the whole sequence
    (DeepSpeed-Ulysses, arXiv 2309.14509), before and after the attention.
    """
    t, e, h = work.tokens, work.element, model.hidden
    found: list[Message] = []
    if work.tp > 1:
        step = e * t * h * (work.tp - 1) // work.tp
        # experts that take the place of tensor parallelism exchange tokens instead
        blocks = 2 if dense or work.expert_tp > 1 or model.shared_ffn else 1
        pairs = _hiding_pairs(model, work, dense)
        bare = blocks - len(pairs)
        found += [Message("tp", op, 2 * bare * step, "", 2 * bare) for op in "FB" if bare]
        if work.sequence_parallel and bare:
            found.append(Message("tp", "B", bare * step, "gemm", bare))
        for fed, after in pairs:
            found += [Message("tp", "F", step, name) for name in (fed, after)]
            found += [Message("tp", "B", step, name) for name in (fed, after)]
            found.append(Message("tp", "B", step, fed, 1, "W"))
    if work.cp > 1:
        keys = (
            model.heads * (model.qk_dim + model.v_dim)
            if model.latent
            else 2 * max(work.tp, model.kv_heads) * model.head_dim
        )
        if shares_heads(work):
            width = keys + model.heads * (model.v_dim + (0 if model.latent else model.qk_dim))
            if model.latent:
                width += model.heads * model.qk_dim
            step = e * t * width // work.tp * (work.cp - 1) // work.cp
            found += [Message("cp", op, step, "", 4) for op in "FB"]
        else:
            step = e * t * keys // work.tp * (work.cp - 1)
            found += [
                Message("cp", "F", step, "attention"),
                Message("cp", "B", 2 * step, "attention"),
            ]
    return tuple(found)


def _hiding_pairs(model: Model, work: Work, dense: bool) -> tuple[tuple[str, str], ...]:
    """Return the linears, of each block the first and the last, that hide the block's collectives; layers
    of experts do so around their attention only."""
    if "tp-comm" not in work.overlap or not work.sequence_parallel:
        return ()
    attention = () if model.latent else (("qkv", "out"),)
    return (*attention, ("mlp in", "mlp out")) if dense else attention


def shares_heads(work: Work) -> bool:
    """Whether the devices of one sequence exchange their parts of it for heads."""
    return work.cp > 1 and work.context == "heads"
