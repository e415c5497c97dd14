"""The provenance of estimated profiles, and the time and MFU of a whole iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..errors import OptPipeError
from ..profile import CostProfile
from ..profile.iteration import FLOPS, FLOPS_CAUSAL, replica_flops
from ..profile.iteration import iteration_ns as iteration_ns
from .doubt import doubt, kind_of
from .layer import layer
from .layout import Layout
from .machine_files import load_machine, machine_names
from .machines import Machine, Rates
from .models import Model, beyond_context
from .parallelism import (
    optimizer_seconds,
    replica_bandwidth,
    static_parts,
    step_bytes,
)
from .roofline import OpTime, head_gemm, projection
from .stages import OPS, Stages
from .work import GRADIENT_BYTES, Work

STEP = "step_bytes_per_device"  # of a profile's meta, where a copy is made for the optimizer's step
# weights in a bucket: Megatron-LM's default, the larger of these
BUCKET, BUCKET_PER_COPY = 40_000_000, 1_000_000

_USED = (
    "gemm",
    "attention",
    "bandwidth",
    "collective",
    "network_collective",
    "p2p",
    "memory_factor",
    "overhead",
)
_FLAGS = (
    "grad_reduce_in_bf16",
    "accumulate_grads_in_fp32",
    "weights_in_fp32",
    "launch_blocking",
    "userbuffers",
    "step_copy",
)
_SHARES = ("expert_rank_capacity", "paged_stash")
ONCE = (
    "optimizer_ms",
    "gradient_sync_ms",
    "exposed_exchange_ms",
    FLOPS,
    FLOPS_CAUSAL,
)


def provenance(stages: Stages, work: Work, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the provenance of a profile: the plan, and which of its numbers are estimated or fitted.

    Args:
        work: of whole sequences. `lengths`: the tokens of their slices.
    """
    model, machine, layout = stages.model, stages.machine, stages.layout
    rates, notes = machine.rates, iteration_facts(stages)
    fixed = rates.fixed_ms + (rates.expert_ms if model.experts else 0.0)
    how = {key: f"fitted to {source}" for key, source in rates.fitted.items()}
    times = "estimated" if not how else "estimated with fitted rates"
    beyond = beyond_context(model, work.seq)
    warnings = [
        *model.warnings,
        *([beyond] if beyond else []),
        *_unknown_host(machine, work),
        *_without_effect(model, layout, work, slices=len(lengths)),
    ]
    return {
        "source": f"optpipe-sim estimate: {model.name} on {machine.name}",
        **({"warnings": warnings} if warnings else {}),
        "model": {
            "name": model.name,
            "source": model.source,
            "kind": kind_of(model),
            **({"mtp": model.mtp} if model.mtp else {}),
            "shape": model.shape(),
        },
        "machine": {
            "name": machine.name,
            "title": machine.title,
            "devices_per_node": machine.devices_per_node,
            **({"devices_per_host": machine.devices_per_host} if machine.devices_per_host else {}),
        },
        "parallel": {
            **{key: getattr(layout, key) for key in ("devices", "tp", "cp", "ep", "dp", "zero")},
            **({"etp": layout.etp} if layout.etp is not None else {}),
        },
        "work": _work(work, lengths),
        "layers_per_stage": list(stages.counts),
        "iteration": {key: notes[key] for key in ONCE if key in notes}
        | ({"fixed_ms": fixed} if fixed else {})
        | {"overhead": rates.overhead, "peak_flops_per_device": machine.peak(work.dtype)},
        "parameters_per_device": notes["parameters_per_device"],
        "weights_bytes_per_device": notes["weights_bytes_per_device"],
        "static_by_stage": notes["static_by_stage"],
        **({STEP: notes[STEP]} if STEP in notes else {}),
        "time_spent": notes["time_spent"],
        "doubt": doubt(model, machine, layout, work).to_json(),
        "provenance": {
            "t_f, t_b, t_w": times,
            "t_comm": times if "p2p" in how else "estimated",
            "t_offload, t_reload": "estimated",
            "act, w, offload": "estimated"
            + (" with a fitted factor" if "memory_factor" in how else ""),
            "static": "estimated",
            "memory_limit, host_limit": "estimated",
        },
        "rates": {
            key: {
                "value": getattr(rates, key),
                "is": how.get(
                    key, f"estimated: {machine.sources.get(f'achieved.{key}', 'assumed')}"
                ),
            }
            for key in _used(model, work, rates)
        },
    }


def _unknown_host(machine: Machine, work: Work) -> list[str]:
    """Return the warning that graphs of modules save no time on a machine whose host is not known: what of
    `Rates.expert_us` they spare is not (published/launches.yaml has a gain beside an overlapped exchange, a loss without)."""
    if machine.rates.host_us or not work.cuda_graph_modules:
        return []
    known = [name for name in machine_names() if load_machine(name).rates.host_us]
    return [
        f"CUDA graphs of modules change memory alone, no times: {machine.name} does not know the host (host_us), as"
        f" {' and '.join(known)} do"
    ]


def _without_effect(model: Model, layout: Layout, work: Work, slices: int) -> list[str]:
    """Return a warning for each option that was given and changes nothing in this layout."""
    given = [
        (f"exchange {work.exchange}", work.exchange != "plain" and layout.ep == 1, "ep is 1"),
        (
            f"etp {layout.etp}",
            layout.etp is not None and not model.experts,
            f"{model.name} has no experts",
        ),
        (f"context {work.context}", work.context != "ring" and layout.cp == 1, "cp is 1"),
        (
            f"slice-by {work.slice_by}",
            work.slice_by != "length" and slices == 1,
            "sequences are whole",
        ),
    ]
    for name in work.overlap:
        shared, alone = (
            (layout.tp, "tp is 1") if name == "tp-comm" else (layout.copies, "dp x cp is 1")
        )
        given.append((f"overlap {name}", shared == 1, alone))
    return [f"{option} has no effect: {why}" for option, idle, why in given if idle]


def _work(work: Work, lengths: Sequence[int]) -> dict[str, Any]:
    """Return how layers run, what is usual left out."""
    return {
        "microbatch": work.microbatch,
        "seq": work.seq,
        "recompute": work.recompute,
        "flash": work.flash,
        "dtype": work.dtype,
        **({"exchange": work.exchange} if work.ep > 1 else {}),
        **({"sequence_parallel": False} if work.tp > 1 and not work.sequence_parallel else {}),
        **({"cuda_graphs": True} if work.cuda_graphs else {}),
        **({"cuda_graph_modules": list(modules)} if (modules := work.cuda_graph_modules) else {}),
        **{key: True for key in _FLAGS if getattr(work, key)},
        **{key: value for key in _SHARES if (value := getattr(work, key))},
        **({"loss_fusion": work.loss_fusion} if work.loss_fusion else {}),
        **({"fp8_weights": work.fp8_weights} if work.fp8_weights != "primary" else {}),
        **({"gradient_sums": work.gradient_sums} if work.gradient_sums != "fused" else {}),
        **({"overlap": list(work.overlap)} if work.overlap else {}),
        **({"context": work.context} if work.cp > 1 and work.context != "ring" else {}),
        **({"slices": list(lengths)} if len(lengths) > 1 else {}),
        **({"pairs": work.pairs} if work.pairs != "none" else {}),
        **({"imbalance": work.imbalance} if work.imbalance != 1 else {}),
    }


def _used(model: Model, work: Work, rates: Rates) -> tuple[str, ...]:
    """Return the rates that an estimate rests on."""
    experts = (
        (
            "all_to_all",
            "expert_us",
            *(key for key in ("expert_ms", "host_us", "network_dispatch") if getattr(rates, key)),
        )
        if model.experts
        else ()
    )
    times = tuple(key for key in ("fixed_ms", "op_us") if getattr(rates, key))
    fp8 = ("gemm_fp8",) if work.dtype == "fp8" and rates.gemm_fp8 else ()
    blocking = ("launch_us",) if work.launch_blocking else ()
    return (*_USED, *experts, *times, *fp8, *blocking)


def sync_seconds(
    counts: tuple[int, int], layout: Layout, machine: Machine, gradient_bytes: int = GRADIENT_BYTES
) -> tuple[float, float]:
    """Return the times per iteration to reduce gradients over the replicas, and to gather updated weights.

    ZeRO 2 and 3 reduce with every W instead: `zero_seconds`. What of these times is hidden: `exposed_sync`.
    """
    reduce = gather = 0.0
    for count, copies in zip(counts, (layout.copies, layout.expert_copies), strict=True):
        part = count * (copies - 1) / copies / replica_bandwidth(layout, copies, machine)
        # an all-reduce is a reduce-scatter and an all-gather of gradients; ZeRO 1 gathers weights
        reduce += part * {0: 2, 1: 1, 2: 0, 3: 0}[layout.zero] * gradient_bytes
        gather += part * (2 if layout.zero in (1, 2) else 0)
    return reduce, gather


def exposed_sync(
    counts: tuple[int, int],
    layout: Layout,
    machine: Machine,
    overlap: Sequence[str],
    forward: Sequence[float],
    backward: Sequence[float],
    gradient_bytes: int = GRADIENT_BYTES,
) -> float:
    """Return the seconds of `sync_seconds` that nothing hides.

    With ``grad-reduce`` a device reduces the gradients of a part of its layers (a bucket, Megatron-LM's
    default size) as soon as its last backward pass has them: behind the rest of that pass and, with
    several chunks, behind the passes of the chunks that follow, of a group of p microbatches each, as
    Megatron-LM orders them. What is ready last is exposed. ``param-gather`` hides the updated weights of
    ZeRO 1 behind the first forward passes in the same way.

    Args:
        counts: weights outside and inside experts, of all chunks of the device.
        forward, backward: seconds of compute that one microbatch takes in each chunk, F, and B with W.
    """
    reduce, gather = sync_seconds(counts, layout, machine, gradient_bytes)
    bucket = max(BUCKET, BUCKET_PER_COPY * layout.copies) / max(1, sum(counts))
    hiding = machine.rates.gemm_overlap

    def exposed(whole: float, chunks: Sequence[float]) -> float:
        each, number = hiding * sum(chunks) / len(chunks), len(chunks)
        last = 1 + (number - 1) * layout.pipeline  # passes from the first chunk's on
        return max(min(1.0, bucket) * whole, whole / number - each, whole - last * each)

    if "grad-reduce" in overlap:
        reduce = exposed(reduce, backward)
    if "param-gather" in overlap and layout.zero == 1:
        gather = exposed(gather, forward)
    return reduce + gather


def mfu(profile: CostProfile, iteration: float, microbatches: int, causal: bool = False) -> float:
    """Model FLOPs per second over the peak of all devices, for an iteration of the given ns.

    Recomputation does not count. Of the attention's scores every one does (as in Megatron-LM's logs
    and Korthikanti et al., arXiv 2205.05198), or with `causal` the half that a causal mask leaves
    (as in Megatron-Bridge). Of microbatches that differ, each counts its own.

    Raises:
        OptPipeError: for microbatches that differ in what the profile does not say.
    """
    extra, parallel = profile.meta["iteration"], profile.meta["parallel"]
    flops = replica_flops(profile, microbatches, causal)
    if flops is None:
        raise OptPipeError(
            f"profile {profile.name}: does not say the lengths of its microbatches, which differ; estimate with --lengths"
        )
    done = flops / (iteration * 1e-9)
    return float(done / (extra["peak_flops_per_device"] * parallel["devices"]))


def mfu_ceiling(profile: CostProfile, causal: bool = False) -> float:
    """Return the MFU of an estimated profile without bubbles, waiting, gradient sync or update.

    The slowest device works all the time; no schedule of the profile reaches more.
    """
    busy = [0] * profile.devices
    counts = Counter(profile.factors or profile.classes)
    for factors, count in counts.items():
        for device, cost in zip(profile.placement, profile.stages_of(*factors), strict=True):
            busy[device] += count * (cost.t_f_ns + cost.t_b_ns + cost.t_w_ns)
    whole = max(busy) / (1 - profile.meta["iteration"].get("overhead", 0.0))
    return mfu(profile, whole, counts.total(), causal)


def iteration_facts(stages: Stages) -> dict[str, Any]:
    """Return what holds for the whole iteration: weights, what replicas exchange, the update, and the FLOPs."""
    model, machine, layout, work = stages.model, stages.machine, stages.layout, stages.work
    keys, parts, exposed = stages.keys, stages.parts, stages.exposed_s
    spent = {key: _of_sequence(part.times, work.slices) for key, part in parts.items()}
    totals = {key: [time.total for time in times.values()] for key, times in spent.items()}
    whole = sum(total for key in keys for total in totals[key]) or 1.0
    columns = zip(*(time for key in keys for time in spent[key].values()), strict=True)
    # as with placement loop; others differ only where stages differ
    devices = [tuple(keys[device :: layout.pipeline]) for device in range(layout.pipeline)]
    weights = {own: _sum_of([parts[key].weights for key in own]) for own in dict.fromkeys(devices)}
    pairs = {pair: sum(static_parts(pair, layout, work)) for pair in weights.values()}
    synced = (
        exposed_sync(
            pair,
            layout,
            machine,
            work.overlap,
            [spent[key]["F"].compute for key in own],
            [spent[key]["B"].compute + spent[key]["W"].compute for key in own],
            work.gradient_bytes,
        )
        for own, pair in weights.items()
    )
    flops, causal = model_flops(model, work.microbatch, work.slices * work.seq, work.attended)
    return {
        "parameters_per_device": [sum(weights[own]) for own in devices],
        "weights_bytes_per_device": [pairs[weights[own]] for own in devices],
        "static_by_stage": [list(parts[key].static) for key in keys],
        **(
            {STEP: [step_bytes(weights[own], layout, work) for own in devices]}
            if work.step_copy
            else {}
        ),
        "optimizer_ms": _ms(max(optimizer_seconds(pair, layout, machine) for pair in pairs)),
        "gradient_sync_ms": _ms(max(synced)),
        **({"exposed_exchange_ms": _ms(exposed)} if exposed > 0 else {}),
        "time_spent": {
            part: round(sum(column) / whole, 4)
            for part, column in zip(OpTime._fields, columns, strict=True)
        },
        FLOPS: flops,
        FLOPS_CAUSAL: causal,
    }


def _of_sequence(times: Mapping[str, OpTime], slices: int) -> Mapping[str, OpTime]:
    """Return the times of a slice with the attention of the mean one, for all tokens before it."""
    if slices == 1:
        return times
    return {op: time._replace(attention=slices * time.attention) for op, time in times.items()}


def _sum_of(weights: Sequence[tuple[int, int]]) -> tuple[int, int]:
    outside, inside = map(sum, zip(*weights, strict=True))
    return outside, inside


@lru_cache(maxsize=1024)
def model_flops(model: Model, microbatch: int, seq: int, attended: float = 0.0) -> tuple[int, int]:
    """Model FLOPs of the whole model's F, B and W of one microbatch, as MFU counts them.

    Every score is counted, and second half of them, layers that predict further tokens with their heads (as
    in Megatron-LM, training.py), and no recomputation.

    Args:
        attended: see `Work`.
    """
    whole = Work(microbatch, seq, attended=attended)
    total = 3 * (1 + model.mtp) * head_gemm(model, whole).flops
    total += model.mtp * sum(projection(model, whole).flops(op) for op in OPS)
    kinds = [*model.dense, *model.dense[-1:] * model.mtp]
    masked = 0  # of the scores: F once, B twice
    for kind, number in ((True, sum(kinds)), (False, len(kinds) - sum(kinds))):
        if number:
            one = layer(model, kind, whole)
            total += number * sum(one.flops(op) for op in OPS)
            masked += number * 3 * one.attention_flops // 2
    return total, total if model.bidirectional else total - masked


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)
