"""What one device does for one microbatch, and what it sends the other devices of its stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .models import Model

# How tokens reach their experts: every copy on its own, or once per node (as DeepEP sends them);
# waited for, or hidden behind the compute of another microbatch (as Megatron-LM can).
EXCHANGES = ("plain", "per-node", "overlapped", "per-node-overlapped")
CONTEXTS = ("ring", "heads")
# Whether a forward and a backward run as one op that hides their exchange: not; so; and with the gradients of weights apart from
# the rest of a layer's backward (Megatron-LM's --overlap-moe-expert-parallel-comm and --delay-wgrad-compute).
PAIRS = ("none", "combined", "delayed-w")
# Parts of a layer with experts that CUDA graphs of their own may hold (Megatron-LM's --cuda-graph-modules), and their share of what the host issues
# for it. Router and preprocessing: 31 of 227 kernels (published/launches.yaml); how these two divide, and that of the attention, are assumed.
GRAPHED = {"attn": 0.4, "moe_router": 0.1, "moe_preprocess": 0.037}
# what of `Work` says how a layer runs, whatever the split; `estimate` has arguments of these names
HOW = (
    "flash", "dtype", "exchange", "context", "sequence_parallel", "cuda_graphs", "overlap",
    "grad_reduce_in_bf16", "pairs", "imbalance", "cuda_graph_modules", "accumulate_grads_in_fp32", "weights_in_fp32", "loss_fusion",
)  # fmt: skip
# Communication that may hide behind compute, by the Megatron-LM option that hides it.
OVERLAPS = {
    "grad-reduce": "overlap-grad-reduce",
    "param-gather": "overlap-param-gather",
    "tp-comm": "tp-comm-overlap",
}
GRADIENT_BYTES = 4  # of a weight's gradient, summed up in fp32 unless the work has it in 16 bits
# Bytes of one logit that the loss keeps for its backward pass. In fp32, overwritten with the softmax: 4. Megatron-LM's native fusion (compiled
# functions, which copy what they change in place): one more of these. TransformerEngine's: the logits, overwritten with their gradients.
LOSS_FUSIONS = {"none": 4, "native": 8, "te": 2}
# Bytes of an activation; of those that only linears keep, `layer.INPUTS`, fewer in fp8.
DTYPES = {"bf16": 2, "fp16": 2, "fp8": 2, "fp32": 4, "tf32": 4}


@dataclass(frozen=True)
class Work:
    """One microbatch on one device of a stage.

    Attributes:
        microbatch, seq: sequences, and tokens of each.
        tp, cp, ep: devices that share a layer's matrices, the sequence, the experts.
        expert_tp: devices that share one expert's matrices (tp, or 1 where experts take its place).
        flash: attention scores are never written to memory.
        recompute: what the backward pass runs again, a choice of `recompute.regions`.
        dtype: of the GEMMs.
        sequence_parallel: norms and dropout are shared by the tp devices as well.
        exchange: how tokens reach experts on other devices, one of `EXCHANGES`.
        context: what devices that share a sequence exchange, one of `CONTEXTS`: ``ring``, keys and
            values; ``heads``, parts of the sequence for heads of all of it.
        cuda_graphs: an iteration runs as CUDA graphs, so that layers with experts wait for no launches.
        overlap: what hides behind compute, some of `OVERLAPS`: ``grad-reduce``, the replicas' gradients
            behind the last backward passes; ``param-gather``, the updated weights behind the next
            iteration's first forward passes; ``tp-comm``, collectives of tensor parallelism behind the GEMMs
            that they feed or follow.
        grad_reduce_in_bf16: weights' gradients are summed up, kept and reduced in bf16 (Megatron-LM's option).
        pairs: how a forward and a backward run as one op, one of `PAIRS`.
        accumulate_grads_in_fp32: with fp16, weights' gradients are summed up, kept and reduced in fp32 all the same.
        weights_in_fp32: weights are kept in fp32 and cast for the GEMMs, as torchtitan does.
        loss_fusion: what the loss keeps of its logits, one of `LOSS_FUSIONS`, or as the machine's rates say.
        cuda_graph_modules: what of a layer with experts runs as CUDA graphs, some of `GRAPHED`: the host issues the rest.
        imbalance: tokens of the GPU whose experts get most over the mean, which all others of its stage wait for: 1 where routing is
            balanced, as by force.
    """

    microbatch: int
    seq: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int = 1
    flash: bool = True
    recompute: str = "none"
    dtype: str = "bf16"
    sequence_parallel: bool = True
    exchange: str = "plain"
    context: str = "ring"
    cuda_graphs: bool = False
    overlap: tuple[str, ...] = ()
    grad_reduce_in_bf16: bool = False
    pairs: str = "none"
    accumulate_grads_in_fp32: bool = False
    weights_in_fp32: bool = False
    loss_fusion: str = ""
    imbalance: float = 1.0
    cuda_graph_modules: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of the device's part of the sequence."""
        return self.microbatch * self.seq // self.cp

    @property
    def norm_tokens(self) -> int:
        """Tokens of the norms, dropout and residuals of one device."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

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
    def weight_bytes(self) -> int:
        """Bytes of a weight."""
        return 4 if self.weights_in_fp32 else self.element


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
