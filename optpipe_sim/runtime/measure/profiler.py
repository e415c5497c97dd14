"""Measure the stages of a decoder on this machine: times, bytes and copies, and make a profile of them. On
CUDA by events and the allocator's statistics; not confirmed on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...costs.parallelism import stage_layers
from ...errors import OptPipeError
from ...profile import CostProfile, Offload
from ...profile.parts import join
from ...stage_cost import StageCost
from ..device import check_device
from ..model.plan import Plan, Stages
from .copies import Copy, Factors, copy_sizes, interference_facts, measure_copies, op_factors
from .footprint import (
    OPS,
    StageBytes,
    byte_facts,
    check_levels,
    recompute_levels,
    stage_bytes,
    static_bytes,
)
from .machine import communicator_bytes, provenance
from .times import Spread, stage_times

Progress = Callable[[str, int, int], None]


def measure(
    plan: Stages,
    device: str = "cpu",
    samples: int = 30,
    warmup: int = 5,
    progress: Progress = lambda name, done, total: None,
    name: str | None = None,
    levels: Sequence[str] = (),
) -> CostProfile:
    """Return the profile of `plan`, measured on this machine's CPU or GPU. No link is measured: `t_comm` is 0.

    `levels` of recomputation (see `recompute.level_of`) are measured for stages that have the parts they drop.

    Raises:
        OptPipeError: where the device does not exist or is too small.
    """
    place = check_device(device)
    check_levels(levels)
    if samples < 1 or warmup < 0:
        raise OptPipeError(f"samples: must be at least 1, got {samples}; warmup at least 0")
    alike = plan.alike()
    different = sorted(set(alike))
    beside = (
        [] if plan.slices else different
    )  # what copies do to ops is measured of whole sequences
    total = len(different) * (samples + warmup + 1) + len(beside) + 4
    done = 0

    def tick(what: str) -> None:
        nonlocal done
        done += 1
        progress(what, done, total)

    sizes: dict[int, StageBytes] = {}
    times: dict[int, dict[str, Spread]] = {}
    factors: dict[int, Factors] = {}
    try:
        for stage in different:
            what = f"stage {stage} of {plan.stages}"
            sizes[stage] = stage_bytes(plan, stage, place, levels=levels)
            tick(what)
            own = tuple(sizes[stage].levels)
            times[stage] = stage_times(
                plan, stage, place, samples, warmup, partial(tick, what), own
            )
        largest = max(size for one in sizes.values() for size in one.copied)
        copies = measure_copies(place, copy_sizes(largest), max(3, samples // 3), tick)
        for stage in beside:
            few, moved = max(2, samples // 5), sizes[stage].moved
            factors[stage] = op_factors(plan, stage, place, times[stage], copies, moved, few)
            tick(f"stage {stage} of {plan.stages} beside copies")
    except torch.cuda.OutOfMemoryError:
        raise OptPipeError(
            f"stage {stage} of {plan.title} does not fit on {device} with three microbatches:"
            " take more stages, a shorter --seq or a smaller --microbatch"
        ) from None
    meta = provenance(plan, place)
    if beside:
        meta |= interference_facts([factors[at] for at in alike], copies, largest)
    meta["copies"] = {
        mode: {way: copy_facts(copy) for way, copy in both.items()} for mode, both in copies.items()
    }
    meta["samples"], meta["warmup"] = samples, warmup
    if place.type == "cuda":
        meta["reserved_bytes"] = _reserved_bytes(meta["device"])
    return assemble(
        plan, [sizes[at] for at in alike], [times[at] for at in alike], copies, meta, name
    )


def measure_microbatch(
    plan: Plan, device: str, samples: int, warmup: int, progress: Progress
) -> tuple[int, int]:
    """Return the compute time of one microbatch in all stages (F, B and W), in ns, and the bytes that these hold for
    it; all else as in `measure`."""
    place, alike, found = check_device(device), plan.alike(), dict[int, tuple[int, int]]()
    for at, stage in enumerate(sorted(set(alike))):
        progress(f"sequences of {plan.seq}", at, len(set(alike)))
        times = stage_times(plan, stage, place, samples, warmup)
        held = max(stage_bytes(plan, stage, place).held)
        found[stage] = round(sum(times[op].median for op in ("F", "B", "W"))), held
    return sum(found[at][0] for at in alike), sum(found[at][1] for at in alike)


def copy_facts(copy: Copy) -> dict[str, Any]:
    """Return a `Copy` as plain data."""
    return {
        "gb_per_s": round(copy.gb_per_s, 3),
        "latency_us": round(copy.latency_ns / 1e3, 3),
        "median_us_by_bytes": {str(n): round(t / 1e3, 2) for n, t in copy.medians_ns.items()},
    }


def assemble(
    plan: Stages,
    sizes: Sequence[StageBytes],
    times: Sequence[Mapping[str, Spread]],
    copies: Mapping[str, Mapping[str, Copy]],
    meta: dict[str, Any],
    name: str | None,
) -> CostProfile:
    """Return a profile from measurements; O and R take the time of copies beside GEMMs."""
    costs, facts = [], []
    rows = zip(sizes, times, static_bytes(plan, sizes), strict=True)
    for at, (size, time_of, static) in enumerate(rows):
        # a stage of unknown layers is one: it is not divided
        layers = 1 if plan.layers is None else stage_layers(plan.layers)[at]
        parts = [
            _cost(part, time_of, f"/{number}" if size.slices else "", copies)
            for number, part in enumerate(size.units)
        ]
        costs.append(join(parts, sum(static.values()), layers))
        times_us = {
            op: {key: round(value / 1e3, 2) for key, value in one._asdict().items()}
            for op, one in time_of.items()
        }
        facts.append({"times_us": times_us, **byte_facts(size, static)})
    meta["stages"] = facts
    return CostProfile(
        name=name or plan.name(meta["device"]["kind"]),
        devices=plan.devices,
        chunks=plan.chunks,
        stages=tuple(costs),
        offload=Offload(),
        memory_limit=memory_limit(plan, meta),
        slices=max(1, len(plan.slices)),
        meta=meta,
    )


def _cost(
    size: StageBytes,
    times: Mapping[str, Spread],
    which: str,
    copies: Mapping[str, Mapping[str, Copy]],
) -> StageCost:
    """Return the cost of a stage, or of a slice there, without what is static; `which`: what the names of its times
    end with."""
    d2h, h2d = copies["loaded"]["d2h"], copies["loaded"]["h2d"]
    # with much in queued gradients, B may hold more than F: that counts from the start
    act = max(size.held)
    ns = {op: max(1, round(times[op + which].median)) for op in OPS}
    recomputing = {level: times[f"C {level}{which}"].median for level in size.levels}
    return StageCost(
        t_f_ns=ns["F"],
        t_b_ns=ns["B"],
        t_w_ns=ns["W"],
        t_bw_ns=ns["BW"],
        act_bytes=act,
        w_bytes=size.held[1],
        offload_bytes=min(size.moved, act),
        t_offload_ns=d2h.time_ns(size.moved, len(size.copied)),
        t_reload_ns=h2d.time_ns(size.moved, len(size.copied)),
        recompute=recompute_levels(size, recomputing),
        kv_bytes=size.kv,
    )


def _reserved_bytes(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what torch's allocator cannot have: the CUDA context (with what other processes hold), and a
    communicator of NCCL, or why that is not known."""
    torch.cuda.empty_cache()  # the process that measures it needs a context of its own
    each = communicator_bytes(torch.cuda.current_device())
    return {"context": facts["memory_bytes"] - facts["usable_bytes"], "communicator": each}


def memory_limit(plan: Stages, meta: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the memory of a GPU that torch can allocate beside the communicators of a pipeline; None on a CPU."""
    usable = meta["device"].get("usable_bytes")
    if usable is None:
        return None
    # messages of F's and of B's, to and from each neighbour in a ring of devices
    pairs = 2 * min(2, plan.devices - 1)
    each = meta.get("reserved_bytes", {}).get("communicator")
    return (usable - (pairs * each if isinstance(each, int) else 0),) * plan.devices
