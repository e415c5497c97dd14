"""The provenance of estimated profiles, and the time and MFU of a whole iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..profile import CostProfile
from .doubt import doubt, kind_of
from .layer import Work, layer
from .machines import Machine
from .models import Model, beyond_context
from .parallelism import Layout, optimizer_seconds, static_bytes, sync_seconds
from .roofline import OpTime, head_gemm, projection

OPS = ("F", "B", "W")

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
_ONCE = (
    "optimizer_ms",
    "gradient_sync_ms",
    "flops_per_microbatch",
    "flops_per_microbatch_causal",
)


def provenance(
    model: Model,
    machine: Machine,
    layout: Layout,
    work: Work,
    counts: Sequence[int],
    notes: dict[str, Any],
    lengths: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the provenance of a profile: the plan, and which of its numbers are estimated or fitted."""
    rates = machine.rates
    how = {key: f"fitted to {source}" for key, source in rates.fitted.items()}
    used = (*_USED, "all_to_all", "expert_us") if model.experts else _USED
    times = "estimated" if not how else "estimated with fitted rates"
    beyond = beyond_context(model, work.seq)
    warnings = [*model.warnings, *([beyond] if beyond else [])]
    return {
        "source": f"optpipe-sim estimate: {model.name} on {machine.name}",
        **({"warnings": warnings} if warnings else {}),
        "model": {
            "name": model.name,
            "source": model.source,
            "kind": kind_of(model),
            **({"mtp": model.mtp} if model.mtp else {}),
        },
        "machine": {"name": machine.name, "title": machine.title},
        "parallel": {
            **{key: getattr(layout, key) for key in ("devices", "tp", "cp", "ep", "dp", "zero")},
            **({"etp": layout.etp} if layout.etp is not None else {}),
        },
        "work": {
            "microbatch": work.microbatch,
            "seq": work.seq,
            "recompute": work.recompute,
            "flash": work.flash,
            "dtype": work.dtype,
            **({"exchange": work.exchange} if work.ep > 1 else {}),
            **({"sequence_parallel": False} if work.tp > 1 and not work.sequence_parallel else {}),
            **({"cuda_graphs": True} if work.cuda_graphs else {}),
            **({"context": work.context} if work.cp > 1 and work.context != "ring" else {}),
            **({"slices": list(lengths)} if len(lengths) > 1 else {}),
        },
        "layers_per_stage": list(counts),
        "iteration": {key: notes[key] for key in _ONCE}
        | {"overhead": rates.overhead, "peak_flops_per_device": machine.peak(work.dtype)},
        "parameters_per_device": notes["parameters_per_device"],
        "weights_bytes_per_device": notes["weights_bytes_per_device"],
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
            for key in used
        },
    }


def iteration_ns(profile: CostProfile, makespan_ns: float) -> float:
    """Return the time of an iteration: the schedule, gaps between ops, gradient sync, update."""
    extra: Mapping[str, float] = profile.meta.get("iteration", {})
    once = (extra.get("optimizer_ms", 0.0) + extra.get("gradient_sync_ms", 0.0)) * 1e6
    return makespan_ns / (1 - extra.get("overhead", 0.0)) + once


def mfu(profile: CostProfile, iteration: float, microbatches: int, causal: bool = False) -> float:
    """Model FLOPs per second over the peak of all devices, for an iteration of the given ns.

    Recomputation does not count. Of the attention's scores every one does (as in Megatron-LM's logs
    and Korthikanti et al., arXiv 2205.05198), or with `causal` the half that a causal mask leaves
    (as in Megatron-Bridge).
    """
    extra, parallel = profile.meta["iteration"], profile.meta["parallel"]
    key = "flops_per_microbatch_causal" if causal else "flops_per_microbatch"
    done = extra[key] * microbatches / (iteration * 1e-9)
    return float(done / (extra["peak_flops_per_device"] * parallel["devices"]))


def mfu_ceiling(profile: CostProfile, causal: bool = False) -> float:
    """Return the MFU of an estimated profile without bubbles, waiting, gradient sync or update.

    The slowest device works all the time; no schedule of the profile reaches more.
    """
    busy = [0] * profile.devices
    for device, cost in zip(profile.placement, profile.stages, strict=True):
        busy[device] += cost.t_f_ns + cost.t_b_ns + cost.t_w_ns
    whole = max(busy) / (1 - profile.meta["iteration"].get("overhead", 0.0))
    return mfu(profile, whole, 1, causal)


def iteration_facts(
    model: Model,
    machine: Machine,
    layout: Layout,
    work: Work,
    spent: Mapping[str, OpTime],
    weights: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """Return what holds for the whole iteration, as `provenance` takes it.

    Args:
        work: whole sequences. spent: by op, on one microbatch by all stages.
        weights: per stage, outside and inside experts.
    """
    devices = layout.pipeline
    # as with placement loop; others differ only where stages differ
    held = [
        tuple(sum(pair[i] for pair in weights[d::devices]) for i in (0, 1)) for d in range(devices)
    ]
    pairs = [(int(pair[0]), int(pair[1])) for pair in held]
    whole = sum(time.total for time in spent.values()) or 1.0
    return {
        "parameters_per_device": [sum(pair) for pair in pairs],
        "weights_bytes_per_device": [
            static_bytes(pair, layout, weight_bytes(work)) for pair in pairs
        ],
        "optimizer_ms": _ms(max(optimizer_seconds(p, layout, machine) for p in pairs)),
        "gradient_sync_ms": _ms(max(sync_seconds(p, layout, machine) for p in pairs)),
        "time_spent": {
            part: round(sum(getattr(time, part) for time in spent.values()) / whole, 4)
            for part in OpTime._fields
        },
        "flops_per_microbatch": _flops(model, work),
        "flops_per_microbatch_causal": _flops(model, work, causal=True),
    }


def weight_bytes(work: Work) -> int:
    """Of one weight."""
    return 4 if work.dtype in ("fp32", "tf32") else 2


def _flops(model: Model, work: Work, causal: bool = False) -> int:
    """Model FLOPs of the whole model's F, B and W of one microbatch, as MFU counts them.

    Every score is counted, or with `causal` half of them, layers that predict further tokens with their heads (as
    in Megatron-LM, training.py), and no recomputation.
    """
    whole = Work(work.microbatch, work.seq)
    total = 3 * (1 + model.mtp) * head_gemm(model, whole).flops
    total += model.mtp * sum(projection(model, whole).flops(op) for op in OPS)
    kinds = [model.is_dense(at) for at in range(model.layers)]
    kinds += kinds[-1:] * model.mtp
    for kind, number in ((True, sum(kinds)), (False, len(kinds) - sum(kinds))):
        if number:
            one = layer(model, kind, whole)
            total += number * sum(one.flops(op) for op in OPS)
            if causal:  # F once, B twice
                total -= number * 3 * one.attention_flops // 2
    return total


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)
