"""The arguments of a run of Megatron-LM as options of `evaluate`, and as what an estimated profile says of its run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from ...costs.doubt import kind_of
from ...costs.megatron_arguments import describes_model, model_of
from ...costs.models import ModelError
from ...costs.work import GRAPHED
from ...schedules import INTERLEAVED, PLAIN
from .megatron_lines import Log

_SHARDS = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
# of `Work`, by the option that says it, and how its word is read
_WORK: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--accumulate-grads-in-fp32": ("accumulate_grads_in_fp32", lambda _: True),
    "--grad-reduce-in-bf16": ("grad_reduce_in_bf16", lambda _: True),
    "--cuda-graphs": ("cuda_graphs", lambda _: True),
    "--step-copy": ("step_copy", lambda _: True),
    "--userbuffers": ("userbuffers", lambda _: True),
    "--overlap": ("overlap", lambda text: text.split(",")),
    "--cuda-graph-modules": ("cuda_graph_modules", lambda text: text.split(",")),
    "--expert-rank-capacity": ("expert_rank_capacity", float),
    "--paged-stash": ("paged_stash", float),
    "--loss-fusion": ("loss_fusion", str),
    "--context": ("context", str),
    "--pairs": ("pairs", str),
    "--gradient-sums": ("gradient_sums", str),
    "--fp8-weights": ("fp8_weights", str),
}


def sizes(log: Log, batch: int) -> Iterator[tuple[str, str]]:
    """Yield the sizes of the run."""
    yield "--gpus", str(log.number("world_size", 1))
    for option, name in (
        ("--pp", "pipeline_model_parallel_size"),
        ("--tp", "tensor_model_parallel_size"),
        ("--cp", "context_parallel_size"),
        ("--ep", "expert_model_parallel_size"),
        ("--chunks", "virtual_pipeline_model_parallel_size"),
    ):
        if log.number(name, 1) > 1:
            yield option, str(log.number(name, 1))
    shared, tp = (
        log.number("expert_tensor_parallel_size", 0),
        log.number("tensor_model_parallel_size", 1),
    )
    if log.number("num_experts", 0) and shared in (1, tp) and tp > 1:
        yield "--etp", str(shared)
    zero = 1 if _is(log, "use_distributed_optimizer") else 0
    if _is(log, "use_torch_fsdp2"):
        zero = 3
    elif _is(log, "use_megatron_fsdp"):
        zero = _SHARDS.get(log.arguments.get("data_parallel_sharding_strategy", ""), 3)
    yield "--zero", str(zero)
    yield "--microbatch", str(log.number("micro_batch_size", 1))
    yield "--global-batch", str(batch)
    yield "--seq", str(log.number("seq_length", 1))


def recomputation(log: Log, notes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what is recomputed, and the schedule where that says more than the sizes."""
    kind = log.arguments.get("recompute_granularity", "None")
    p, v = (log.number(f"{name}pipeline_model_parallel_size", 1) for name in ("", "virtual_"))
    group, schedule = log.number("microbatch_group_size_per_vp_stage", p), {}
    if v > 1 and group != p:
        schedule["group"] = str(group)
    number = log.number("recompute_num_layers", 1)
    most = -(-log.number("num_layers", 0) // (p * v))
    if kind == "full" and log.arguments.get("recompute_method") == "block" and number < most:
        schedule |= {"recompute": "full", "layers": str(number)}
    elif kind == "full":
        yield "--recompute", "full"
        if log.arguments.get("recompute_method") == "uniform" and number > 1:
            notes.append(
                f"recomputation in groups of {number} layers is taken as that of single layers"
            )
    elif kind == "selective":
        modules = log.arguments.get("recompute_modules", "None")
        words = [word.strip(" '\"") for word in modules.strip("[]").split(",")]
        yield "--recompute", "core_attn" if modules == "None" else ",".join(words)
    if schedule:
        base = f"{INTERLEAVED}:chunks={v}," if v > 1 else f"{PLAIN}:"
        yield "--schedule", base + ",".join(f"{key}={value}" for key, value in schedule.items())


def kernels(log: Log, notes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield number formats, kernels and what overlaps."""
    said = log.arguments
    formats = ("fp8", "fp16", "bf16")
    dtype = next((one for one in formats if said.get(one, "None") not in ("None", "False")), "fp32")
    yield "--dtype", dtype
    if dtype == "fp16" and _is(log, "accumulate_allreduce_grads_in_fp32"):
        yield "--accumulate-grads-in-fp32", ""
    if dtype != "fp16" and _is(log, "grad_reduce_in_bf16"):
        yield "--grad-reduce-in-bf16", ""
    if dtype == "fp8" and said.get("fp8_param_gather") == "False":
        yield "--fp8-weights", "cached"
    narrow = _is(log, "grad_reduce_in_bf16") or (
        dtype == "fp16" and not _is(log, "accumulate_allreduce_grads_in_fp32")
    )
    if narrow and not _is(log, "use_precision_aware_optimizer"):
        yield "--step-copy", ""
    if said.get("gradient_accumulation_fusion") == "False":
        yield "--gradient-sums", "apart"
    if not _fused_attention(log):
        yield "--no-flash", ""
    if log.number("tensor_model_parallel_size", 1) > 1 and not _is(log, "sequence_parallel"):
        yield "--no-sequence-parallel", ""
    if log.number("context_parallel_size", 1) > 1 and "a2a" in said.get("cp_comm_type", ""):
        yield "--context", "heads"
    overlaps = {
        "grad-reduce": _is(log, "overlap_grad_reduce"),
        "param-gather": _is(log, "overlap_param_gather"),
        "tp-comm": _is(log, "tp_comm_overlap"),
    }
    if overlaps["tp-comm"]:
        yield "--userbuffers", ""
    if any(overlaps.values()):
        yield "--overlap", ",".join(name for name, on in overlaps.items() if on)
    if _is(log, "cross_entropy_loss_fusion"):
        yield "--loss-fusion", "te" if said.get("cross_entropy_fusion_impl") == "te" else "native"
    if log.number("expert_model_parallel_size", 1) > 1:
        if said.get("moe_token_dispatcher_type") == "flex":
            yield "--exchange", "per-node"
        if said.get("moe_token_dispatcher_type") == "allgather":
            notes.append("tokens are gathered from all experts; here they are exchanged")
    if log.number("num_experts", 0) > 0:
        yield from _experts(log, notes)
    graphs = said.get("cuda_graph_impl", "none")
    modules = said.get("cuda_graph_modules", said.get("cuda_graph_scope", ""))
    held = [name for name in GRAPHED if re.search(rf"\b{name}\b", modules)]
    if graphs == "full_iteration" or "full_iteration" in modules:
        yield "--cuda-graphs", ""
    elif graphs not in ("none", "None") and held and log.number("num_experts", 0) > 0:
        yield "--cuda-graph-modules", ",".join(held)
    elif graphs not in ("none", "None"):
        notes.append(
            f"cuda_graph_impl {graphs}: graphs of layers are left out; their launches are taken as without"
        )


def _experts(log: Log, notes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what overlaps the exchange of tokens, and how many an expert may have."""
    said = log.arguments
    if _is(log, "overlap_moe_expert_parallel_comm"):
        yield "--pairs", "delayed-w" if _is(log, "delay_wgrad_compute") else "combined"
    ranks = said.get("moe_expert_rank_capacity_factor", "None")
    if ranks not in ("None", "") and float(ranks) >= 1:
        yield "--expert-rank-capacity", ranks
        if _is(log, "moe_paged_stash"):
            yield "--paged-stash", said.get("moe_paged_stash_buffer_size_factor_cuda", "1.1")
    capacity = said.get("moe_expert_capacity_factor", "None")
    if capacity not in ("None", "") and float(capacity) >= 1:
        yield "--capacity-factor", capacity
        if _is(log, "moe_pad_expert_input_to_capacity"):
            yield "--pad-to-capacity", ""
    if said.get("moe_router_force_load_balancing") == "False":
        notes.append(
            "routing was not balanced by force, and is taken as if it had been; --imbalance says how uneven it was"
            " (unknown: 1 to what two published runs imply)"
        )


def _fused_attention(log: Log) -> bool:
    """Whether attention is a fused kernel: TransformerEngine's unless told otherwise, or FlashAttention."""
    if "transformer_impl" not in log.arguments and "use_flash_attn" not in log.arguments:
        return not describes_model(log.arguments)  # before 2023 there was none
    backend = log.arguments.get("attention_backend", "")
    if "unfused" in backend or "local" in backend:
        return False
    return _is(log, "use_flash_attn") or log.arguments.get("transformer_impl") != "local"


def beside(log: Log) -> Iterator[str]:
    """Yield what no option of `evaluate` says."""
    if _is(log, "fine_grained_activation_offloading"):
        yield "fine_grained_activation_offloading: activations are taken as kept; --schedule megatron-offload:... replays its rule"
    if _is(log, "cpu_offloading"):
        yield "cpu_offloading: activations are taken as kept"
    if _is(log, "optimizer_cpu_offload"):
        yield "optimizer_cpu_offload: optimizer states are taken as on the GPUs"
    if log.number("gtp_weight_remat_size", 1) > 1:
        yield "gtp_weight_remat_size: weights are taken as not shared"


def _is(log: Log, name: str) -> bool:
    return log.arguments.get(name) == "True"


def described(log: Log, batch: int, name: str) -> dict[str, Any]:
    """Return the model, the sizes and the work of a run as `estimate` has them in a profile's `meta`, so that what asks
    for them there (export, tokens/s) has them; of a log without a model's arguments only its number of layers.

    Args:
        batch: sequences of an iteration. name: of the model.
    """
    layers = log.number("num_layers", 0)
    known = {"model": {"layers": layers}} if layers else {}
    if not describes_model(log.arguments):
        return known
    try:
        model = model_of(log.arguments, name)
    except ModelError:
        return known
    found = {**dict(sizes(log, batch)), **dict(recomputation(log, [])), **dict(kernels(log, []))}

    def number(option: str) -> int:
        return int(found.get(option, 1))

    tp, cp, ep = (number(option) for option in ("--tp", "--cp", "--ep"))
    devices = number("--pp") * tp * cp
    mtp = {"mtp": model.mtp} if model.mtp else {}
    parallel = {"devices": devices, "tp": tp, "cp": cp, "ep": ep}
    parallel |= {"dp": max(1, number("--gpus") // devices), "zero": number("--zero")}
    parallel |= {"etp": number("--etp")} if "--etp" in found else {}
    work: dict[str, Any] = {"microbatch": number("--microbatch"), "seq": number("--seq")}
    work |= {"recompute": found.get("--recompute", "none").replace(",", "+")}
    work |= {"flash": "--no-flash" not in found, "dtype": found["--dtype"]}
    work |= {"exchange": found.get("--exchange", "plain")} if ep > 1 else {}
    work |= {"sequence_parallel": False} if "--no-sequence-parallel" in found else {}
    work |= {key: read(found[option]) for option, (key, read) in _WORK.items() if option in found}
    return {
        "model": {
            "name": name,
            "kind": kind_of(model),
            "layers": layers,
            **mtp,
            "shape": model.shape(),
        },
        "parallel": parallel,
        "work": work,
    }
