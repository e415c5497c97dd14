"""Measure the stages of a decoder on this machine: times, bytes and copies, and make a profile of them. On
CUDA by events and the allocator's statistics; not confirmed on a GPU yet.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch

from ...costs.parallelism import stage_layers
from ...errors import OptPipeError
from ...profile import CostProfile, Offload
from ...stage_cost import StageCost
from ..model.plan import Stages
from .copies import Copy, copy_sizes, measure_copies
from .environment import prepare_cuda
from .footprint import (
    OPS,
    StageBytes,
    byte_facts,
    check_levels,
    recompute_levels,
    stage_bytes,
    static_bytes,
)
from .machine import provenance

Progress = Callable[[str, int, int], None]


class Spread(NamedTuple):
    """Times of one op in ns: median and quartiles; `issue`: the least that the host took to issue it,
    below which the op cannot last on a device."""

    median: float
    low: float
    high: float
    issue: float = 0.0


def spread(times: Sequence[float]) -> Spread:
    """Median and quartiles."""
    low, _, high = quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return Spread(median(times), low, high)


def stage_times(
    plan: Stages,
    stage: int,
    device: torch.device,
    samples: int = 30,
    warmup: int = 5,
    tick: Callable[[], None] = lambda: None,
    levels: Sequence[str] = (),
) -> dict[str, Spread]:
    """Median and quartiles of F, B, W and BW, in chains F B W and F BW of one microbatch.

    For each level of recomputation also of ``C level``, in chains F C BW, and of ``B level`` and
    ``BW level``, which recompute inside.
    """
    worker = plan.worker(stage, device)
    generator = torch.Generator(device=device).manual_seed(plan.seed)
    x = plan.message(worker, stage - 1, generator=generator)
    dy = plan.message(worker, stage, gradient=True, generator=generator)
    batch = plan.batch(device)
    clock = _Clock(device)
    for at in range(samples + warmup):
        worker.start_step(*batch)
        keep = at >= warmup
        for chain in _chains(levels):
            level = chain.level
            with clock("F" if level is None else f"F {level}", keep):
                worker.forward(stage, 0, x, level)
            if chain.apart:
                with clock(f"C {level}", keep):
                    worker.recompute(stage, 0)
            with clock(chain.backward, keep):
                worker.backward(stage, 0, dy, fused=chain.fused)
            if not chain.fused:
                with clock("W", keep):
                    worker.weight(stage, 0)
        worker.finish_step()
        tick()
    return {
        op: spread(times)._replace(issue=clock.issued_ns[op]) for op, times in clock.times().items()
    }


class _Chain(NamedTuple):
    """The ops of one microbatch, from F to the end of its backward."""

    fused: bool
    level: str | None = None
    apart: bool = False

    @property
    def backward(self) -> str:
        """The name of its backward's time; after a C it is as without a level."""
        op = "BW" if self.fused else "B"
        return op if self.level is None or self.apart else f"{op} {self.level}"


def _chains(levels: Sequence[str]) -> list[_Chain]:
    """The chains to be timed, in turn."""
    chains = [_Chain(False), _Chain(True)]
    for level in levels:
        chains += [_Chain(False, level), _Chain(True, level), _Chain(True, level, apart=True)]
    return chains


class _Clock:
    """Times of ops: on CUDA by events, read once at the end; else by the host's clock.

    Attributes:
        issued_ns: by op, the least that the host took to issue it: nothing held it up then.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.issued_ns: dict[str, float] = {}
        self.marks: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    def __call__(self, op: str, keep: bool) -> _Clock:
        self.op, self.keep = op, keep
        return self

    def now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def __enter__(self) -> None:
        self.start = self.now()
        self.began_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        took_ns = time.perf_counter_ns() - self.began_ns
        if self.keep:
            self.marks[self.op].append((self.start, self.now()))
            self.issued_ns[self.op] = min(took_ns, self.issued_ns.get(self.op, took_ns))

    def times(self) -> dict[str, list[float]]:
        """By op, in ns."""
        if self.device.type != "cuda":
            return {
                op: [float(end - start) for start, end in marks] for op, marks in self.marks.items()
            }
        torch.cuda.synchronize(self.device)
        return {
            op: [start.elapsed_time(end) * 1e6 for start, end in marks]
            for op, marks in self.marks.items()
        }


def measure(
    plan: Stages,
    device: str = "cpu",
    samples: int = 30,
    warmup: int = 5,
    progress: Progress = lambda name, done, total: None,
    name: str | None = None,
    levels: Sequence[str] = (),
) -> CostProfile:
    """The profile of `plan` on this machine's CPU or GPU. No link is measured: `t_comm` is 0.

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
    total = len(different) * (samples + warmup + 1) + 4
    done = 0

    def tick(what: str) -> None:
        nonlocal done
        done += 1
        progress(what, done, total)

    sizes: dict[int, StageBytes] = {}
    times: dict[int, dict[str, Spread]] = {}
    try:
        for stage in different:
            what = f"stage {stage} of {plan.stages}"
            sizes[stage] = stage_bytes(plan, stage, place, levels=levels)
            tick(what)
            own = tuple(sizes[stage].levels)
            times[stage] = stage_times(
                plan, stage, place, samples, warmup, partial(tick, what), own
            )
    except torch.cuda.OutOfMemoryError:
        raise OptPipeError(
            f"stage {stage} of {plan.title} does not fit on {device} with three microbatches:"
            " take more stages, a shorter --seq or a smaller --microbatch"
        ) from None
    largest = max(size for one in sizes.values() for size in one.copied)
    copies = measure_copies(place, copy_sizes(largest), max(3, samples // 3), tick)
    meta = provenance(plan, place)
    meta["copies"] = {
        mode: {way: copy_facts(copy) for way, copy in both.items()} for mode, both in copies.items()
    }
    meta["samples"], meta["warmup"] = samples, warmup
    return assemble(
        plan, [sizes[at] for at in alike], [times[at] for at in alike], copies, meta, name
    )


def check_device(device: str) -> torch.device:
    """Check that the device exists; prepare CUDA before it starts (`environment`)."""
    if device == "cuda":
        prepare_cuda()
    if device == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda
        why = "this torch is built without CUDA" if built is None else "torch sees no GPU"
        raise OptPipeError(f"--device cuda: {why}; take --device cpu, or fake for bytes alone")
    if device not in ("cpu", "cuda"):
        raise OptPipeError(f"--device {device}: expected cpu, cuda or fake")
    return torch.device(device)


def copy_facts(copy: Copy) -> dict[str, Any]:
    """A `Copy` as plain data."""
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
    """A profile from measurements; O and R take the time of copies beside GEMMs."""
    costs = []
    d2h, h2d = copies["loaded"]["d2h"], copies["loaded"]["h2d"]
    for at, (size, time_of, static) in enumerate(
        zip(sizes, times, static_bytes(plan, sizes), strict=True)
    ):
        # with much in queued gradients, B may hold more than F: that counts from the start
        act = max(size.held)
        ns = {op: max(1, round(time_of[op].median)) for op in OPS}
        costs.append(
            StageCost(
                t_f_ns=ns["F"],
                t_b_ns=ns["B"],
                t_w_ns=ns["W"],
                t_bw_ns=ns["BW"],
                act_bytes=act,
                w_bytes=size.held[1],
                offload_bytes=min(size.moved, act),
                static_bytes=sum(static.values()),
                t_offload_ns=d2h.time_ns(size.moved, len(size.copied)),
                t_reload_ns=h2d.time_ns(size.moved, len(size.copied)),
                # a stage of unknown layers is one: it is not divided
                layers=1 if plan.layers is None else stage_layers(plan.layers)[at],
                recompute=recompute_levels(
                    size, {one: time_of[f"C {one}"].median for one in size.levels}
                ),
            )
        )
    meta["stages"] = [
        {
            "times_us": {
                op: {key: round(value / 1e3, 2) for key, value in one._asdict().items()}
                for op, one in time_of.items()
            },
            **byte_facts(size, static),
        }
        for size, time_of, static in zip(sizes, times, static_bytes(plan, sizes), strict=True)
    ]
    return CostProfile(
        name=name or plan.name(meta["device"]["kind"]),
        devices=plan.devices,
        chunks=plan.chunks,
        stages=tuple(costs),
        offload=Offload(),
        memory_limit=memory_limit(plan, meta),
        meta=meta,
    )


def memory_limit(plan: Stages, meta: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The memory of a GPU that torch can allocate; none on a CPU."""
    usable = meta["device"].get("usable_bytes")
    return None if usable is None else (usable,) * plan.devices
