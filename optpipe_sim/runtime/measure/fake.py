"""Exact bytes of a stage of any size, with no device that could hold it: fake tensors.

A fake tensor has a shape, strides and a storage of some size, and no data. Ops on it take no time,
autograd saves what it would save, and the same worker and meter as on a real device count the
bytes. They are the bytes of the CPU's kernels (its fused attention keeps what CUDA's keeps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch._subclasses.fake_tensor import FakeTensorMode

from ...costs import estimate
from ...costs.estimating import Source
from ...costs.machines import Machine
from ...errors import OptPipeError
from ...profile import CostProfile
from ...stage_cost import StageCost
from ..model.plan import Plan
from .footprint import StageBytes, byte_facts, recompute_levels, stage_bytes, static_bytes
from .machine import provenance

ALL_AT_ONCE = "stage"  # a level that no estimate has: it takes what F takes

ESTIMATED = {
    "t_f, t_b, t_w": "estimated",
    "t_comm": "estimated",
    "t_offload, t_reload": "estimated",
    "act, w, offload": "exact, counted on fake tensors",
    "levels of recomputation": "bytes exact, times estimated",
    "static": "weights, gradients and reserve counted on fake tensors; optimizer by its bytes per"
    " weight",
    "memory_limit, host_limit": "estimated",
}


def fake_bytes(plan: Plan, stage: int, levels: Sequence[str] = ()) -> StageBytes:
    """Return `footprint.stage_bytes` without data: the same numbers, for a stage of any size."""
    with FakeTensorMode():
        return stage_bytes(plan, stage, "cpu", fill=False, levels=levels)


def estimated(plan: Plan, machine: Machine | Source, levels: bool = False) -> CostProfile:
    """Return what ``costs.estimate`` says of the same plan."""
    return estimate(
        plan.model,
        machine,
        plan.devices,
        microbatch=plan.microbatch,
        seq=plan.seq,
        chunks=plan.chunks,
        dtype=plan.dtype,
        layers=plan.layers,
        levels=levels,
        execution="ideal",  # the runtime's own is measured, not known
    )


def with_latency(profile: CostProfile, plan: Plan, machine: Machine | Source) -> CostProfile:
    """Return a measured profile with the estimated P2P latency of a machine, which one device cannot measure."""
    guess = estimated(plan, machine)
    said = {"t_comm": f"estimated for {guess.meta['machine']['name']}"}
    return replace(
        profile,
        latency_ns=guess.latency_ns,
        occupancy_ns=guess.occupancy_ns,
        meta=profile.meta | {"provenance": profile.meta["provenance"] | said},
    )


def fake_profile(
    plan: Plan,
    machine: Machine | Source,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    levels: Sequence[str] | None = None,
) -> CostProfile:
    """Return a profile with exact bytes, and with times estimated for `machine` (``costs.estimate``).

    `levels` of recomputation: of those that the estimate has, and ``stage``; an empty list stands
    for all of these, None for none.

    Raises:
        OptPipeError: one line with what does not fit.
    """
    guess = estimated(plan, machine, levels is not None)
    times = [_level_times(cost, levels) for cost in guess.stages]
    alike = plan.alike()
    found: dict[int, StageBytes] = {}
    for at, stage in enumerate(sorted(set(alike))):
        progress(f"stage {stage} of {plan.stages}", at, len(set(alike)))
        found[stage] = fake_bytes(plan, stage, tuple(times[stage]))
    sizes = [found[at] for at in alike]
    statics = static_bytes(plan, sizes)
    costs = []
    for cost, size, static, level_times in zip(guess.stages, sizes, statics, times, strict=True):
        moved = min(size.moved, max(size.held))
        change = {}
        if guess.offload is not None and cost.offloadable:
            # the same bandwidth, for the bytes that really move
            for key in ("t_offload_ns", "t_reload_ns"):
                change[key] = round(getattr(cost, key) * moved / cost.offloadable)
        costs.append(
            replace(
                cost,
                act_bytes=max(size.held),
                w_bytes=size.held[1],
                offload_bytes=moved,
                static_bytes=sum(static.values()),
                recompute=recompute_levels(size, level_times),
                **change,
            )
        )
    meta = provenance(plan, None) | {"provenance": dict(ESTIMATED)}
    meta |= {key: guess.meta[key] for key in ("machine", "iteration", "parallel")}
    meta["stages"] = [byte_facts(*pair) for pair in zip(sizes, statics, strict=True)]
    return replace(guess, name=plan.name("fake"), stages=tuple(costs), meta=meta)


def fake_microbatch(plan: Plan, machine: Machine | Source) -> tuple[int, int]:
    """Return what `profiler.measure_microbatch` does: the time estimated, the bytes exact."""
    held = {stage: max(fake_bytes(plan, stage).held) for stage in set(plan.alike())}
    work = sum(cost.work_ns for cost in estimated(plan, machine).stages)
    return work, sum(held[at] for at in plan.alike())


def _level_times(cost: StageCost, names: Sequence[str] | None) -> dict[str, float]:
    """Return the estimated time of recomputing, by level of a stage, in ns."""
    if names is None:
        return {}
    known = {level.name: float(level.t_ns) for level in cost.recompute}
    known[ALL_AT_ONCE] = float(cost.t_f_ns)
    missing = [name for name in names if name not in known]
    if missing:
        raise OptPipeError(
            f"levels: no time is estimated for {missing[0]!r}; there are {', '.join(known)}"
        )
    return {name: known[name] for name in names or known}
