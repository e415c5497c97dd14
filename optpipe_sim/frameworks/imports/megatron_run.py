"""A run of Megatron-LM as the options of `evaluate`: its arguments, the time of its iterations, and its memory.

It needs no timers: the lines that every run logs are enough.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median

from ...costs.megatron_arguments import describes_model
from ...costs.models import Model
from ...costs.work import GRAPHED
from ...errors import OptPipeError
from ...files import read_bytes
from ...schedules import INTERLEAVED, PLAIN
from ..megatron.layout import layers_in
from .megatron_lines import Log, read_lines
from .megatron_log import batch_of, layers_of, steady

Path = str | os.PathLike[str]
_NEEDED = ("world_size", "pipeline_model_parallel_size", "seq_length", "micro_batch_size")
_SHARDS = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_COMPARED = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "experts": "num_experts",
}


@dataclass(frozen=True)
class MegatronRun:
    """What a log says of a run.

    Attributes:
        options: of `evaluate`, by name; an empty text for a flag.
        iteration_ns: the median of the iterations that count, `iterations` of them. `peak_bytes`: of the
            fullest rank;
            None: the log has no lines of memory.
        notes: what the options cannot say of the run, in sentences.
    """

    options: dict[str, str] = field(default_factory=dict)
    iteration_ns: int = 0
    iterations: int = 0
    peak_bytes: int | None = None
    notes: tuple[str, ...] = ()


def read_run(path: Path) -> MegatronRun:
    """Read the last run in a log that has iterations.

    Raises:
        OptPipeError: names the file and what is missing in it.
    """
    log = _last(path)
    for key in _NEEDED:
        if log.number(key, 0) < 1:
            raise OptPipeError(
                f"{path}: no argument {key}; expected the arguments that Megatron-LM prints when it starts"
            )
    timed = [one for one in log.blocks if one.elapsed_ms is not None][1:]
    if not timed:
        what = log.unread or "no two iterations with their time"
        raise OptPipeError(
            f"{path}: {what}; expected lines such as iteration 2/ 100 | ... elapsed time per iteration (ms): 15230.0 |,"
            " of which the first, that of the warm-up, does not count"
        )
    same = steady(log, timed, path)
    batch = batch_of(log, same, path)
    options, notes = dict(_parallel(log, batch)), []
    counts, why = _layers(log, path)
    options |= {"--layers": ",".join(map(str, counts))} if counts else {}
    notes += [why] if why else []
    options |= dict(_recomputation(log, notes))
    options |= dict(_kernels(log, notes))
    notes += _beside(log)
    peak = max((most for _, most in log.memory.values()), default=None)
    if len(timed) > len(same):
        notes.append(f"{len(timed) - len(same)} iterations with other global batch sizes")
    if peak is None:
        notes.append("peak memory: the log has no lines of memory")
    taken = median(one.elapsed_ms or 0.0 for one in same)
    return MegatronRun(options, round(taken * 1e6), len(same), peak, tuple(notes))


def _last(path: Path) -> Log:
    """Return the last run in a log that has iterations, or else the last one."""
    state = os.stat(path) if os.path.exists(path) else None
    return _read(os.fspath(path), state and (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=1)
def _read(path: str, state: tuple[int, int] | None) -> Log:
    """Read a file in this state once, however often it is asked for."""
    runs = read_lines(read_bytes(path).decode(errors="replace"))
    logged = [run for run in runs if any(one.elapsed_ms is not None for one in run.blocks)]
    return logged[-1] if logged else runs[-1]


def differs(model: Model, path: Path) -> str | None:
    """Return how a model differs from that of a log's arguments, in words; None where it does not, or
    the log does not describe one."""
    log = _last(path)
    if not describes_model(log.arguments):
        return None
    for ours, theirs in _COMPARED.items():
        mine, said = getattr(model, ours), log.number(theirs, 0)
        if mine != said:
            return f"{theirs} {mine or 'None'}, but the log has {said or 'None'}"
    return None


def _is(log: Log, name: str) -> bool:
    return log.arguments.get(name) == "True"


def _parallel(log: Log, batch: int) -> Iterator[tuple[str, str]]:
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


def _layers(log: Log, path: Path) -> tuple[Sequence[int | str] | None, str]:
    """Return the decoder layers of each stage, and why they are not known."""
    stages = log.number("pipeline_model_parallel_size", 1)
    stages *= log.number("virtual_pipeline_model_parallel_size", 1)
    counts, layout = (
        layers_of(log, stages, path),
        log.arguments.get("pipeline_model_parallel_layout", "None"),
    )
    if counts is not None:
        return counts if layout == "None" else layers_in(layout), ""
    return (
        None,
        "layers: the arguments do not say how they are dealt to the stages; they are balanced here",
    )


def _recomputation(log: Log, notes: list[str]) -> Iterator[tuple[str, str]]:
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


def _kernels(log: Log, notes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield number formats, kernels and what overlaps."""
    said = log.arguments
    formats = ("fp8", "fp16", "bf16")
    dtype = next((one for one in formats if said.get(one, "None") not in ("None", "False")), "fp32")
    yield "--dtype", dtype
    if dtype == "fp16" and _is(log, "accumulate_allreduce_grads_in_fp32"):
        yield "--accumulate-grads-in-fp32", ""
    if dtype != "fp16" and _is(log, "grad_reduce_in_bf16"):
        yield "--grad-reduce-in-bf16", ""
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


def _beside(log: Log) -> Iterator[str]:
    """Yield what no option of `evaluate` says."""
    if _is(log, "fine_grained_activation_offloading"):
        yield "fine_grained_activation_offloading: activations are taken as kept; --schedule megatron-offload:... replays its rule"
    if _is(log, "cpu_offloading"):
        yield "cpu_offloading: activations are taken as kept"
    if _is(log, "optimizer_cpu_offload"):
        yield "optimizer_cpu_offload: optimizer states are taken as on the GPUs"
    if log.number("gtp_weight_remat_size", 1) > 1:
        yield "gtp_weight_remat_size: weights are taken as not shared"
