"""What the stages of a decoder cost here: times, bytes and copies, measured; and a profile of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..costs.models import Model
from ..costs.parallelism import GRADIENT_BYTES, OPTIMIZER_BYTES, stage_kinds
from ..errors import OptPipeError
from ..profile import CostProfile, Offload
from ..stage_cost import StageCost
from .copies import Copy, copy_sizes, measure_copies
from .machine import provenance
from .memory import Meter, meter
from .models import build_stage, check_model, layer_counts, torch_dtype
from .stage import StageWorker

OPS = ("F", "B", "W", "BW")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """What is profiled: a model cut into ``devices * chunks`` stages, and one microbatch of it.

    `optimizer_bytes`: per weight, for the static memory; default: Adam, as in ``estimate``.
    """

    model: Model
    devices: int
    chunks: int = 1
    seq: int = 2048
    microbatch: int = 1
    dtype: str = "fp32"
    layers: tuple[int, ...] | None = None
    seed: int = 0
    optimizer_bytes: int | None = None

    def __post_init__(self) -> None:
        for key in ("devices", "chunks", "microbatch", "seq"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                name = "stages" if key == "devices" else key
                raise OptPipeError(f"{name}: must be a whole number of at least 1, got {value!r}")
        torch_dtype(self.dtype)
        check_model(self.model, self.seq)
        counts = layer_counts(self.model, self.stages, seq=self.seq, layers=self.layers)
        object.__setattr__(self, "layers", tuple(counts))

    @property
    def stages(self) -> int:
        """Of the whole model."""
        return self.devices * self.chunks

    def alike(self) -> list[int]:
        """For each stage the first one that is just like it."""
        assert self.layers is not None
        kinds = stage_kinds(self.model, self.layers)
        last = self.stages - 1
        keys = [(kind, at == 0, at == last) for at, kind in enumerate(kinds)]
        return [keys.index(key) for key in keys]

    def worker(self, stage: int, device: str | torch.device, fill: bool = True) -> StageWorker:
        """A worker with just this stage, its step begun with two microbatches."""
        module = build_stage(
            self.model,
            stage,
            self.stages,
            seq=self.seq,
            dtype=self.dtype,
            device=device,
            seed=self.seed,
            layers=self.layers,
            fill=fill,
        )
        return StageWorker({stage: module}, self.stages, self.boundary, device=device)

    @property
    def boundary(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of what goes from stage to stage."""
        return (self.microbatch, self.seq, self.model.hidden), torch_dtype(self.dtype)

    def tokens(self, device: str | torch.device) -> Tensor:
        """A batch of two microbatches."""
        shape = (2, self.microbatch, self.seq)
        return torch.randint(0, self.model.vocab, shape, device=device)


@dataclass(frozen=True)
class StageBytes:
    """Bytes of one stage, measured.

    Attributes:
        held: by one microbatch after F and after B.
        copied: what an O copies, storage by storage.
        inside: by op, what it needed for a moment beyond what the accounting of schedules knows
            (act from the start of F, until the end of B).
        weights, gradients: of the parameters.
    """

    held: tuple[int, int]
    copied: tuple[int, ...]
    inside: dict[str, int]
    weights: int
    gradients: int
    parameters: int

    @property
    def moved(self) -> int:
        """By an O."""
        return sum(self.copied)


class Spread(NamedTuple):
    """Times of one op in ns: median and quartiles."""

    median: float
    low: float
    high: float


def spread(times: Sequence[float]) -> Spread:
    """Median and quartiles."""
    low, _, high = quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return Spread(median(times), low, high)


def stage_bytes(
    plan: Plan, stage: int, device: str | torch.device, fill: bool = True
) -> StageBytes:
    """Run two microbatches through a stage and read the meter after and inside every op.

    Raises:
        OptPipeError: where the second microbatch gives other numbers than the first.
    """
    worker = plan.worker(stage, device, fill)
    for parameter in worker.parameters():
        parameter.grad = torch.zeros_like(parameter)
    shape, kind = plan.boundary
    tokens = plan.tokens(device)
    with meter(device) as counter:
        after_f, after_b, sizes, inside = _Pass(worker, stage, shape, kind, counter, tokens).run()
    parameters = worker.parameters()
    size = sum(p.numel() * p.element_size() for p in parameters)
    return StageBytes(
        held=(after_f, after_b),
        copied=tuple(sizes),
        inside=dict(inside),
        weights=size,
        gradients=size,
        parameters=sum(p.numel() for p in parameters),
    )


class _Pass:
    """F F B W B BW of two microbatches, with the meter read around each."""

    def __init__(
        self,
        worker: StageWorker,
        stage: int,
        shape: tuple[int, ...],
        kind: torch.dtype,
        counter: Meter,
        tokens: Tensor,
    ) -> None:
        self.worker, self.stage, self.meter, self.tokens = worker, stage, counter, tokens
        self.shape, self.kind = shape, kind
        self.inside = dict.fromkeys(OPS, 0)

    def run(self) -> tuple[int, int, list[int], tuple[tuple[str, int], ...]]:
        """Bytes after F and after B, the storages that O copies, and inside each op."""
        self.worker.start_step(self.tokens, self.tokens)
        after_f = [self.change("F", mb) for mb in (0, 1)]
        moved = self.worker.offload_sizes(self.stage, 0)
        act = max(after_f)
        after_b = act + self.change("B", 0)
        self.change("W", 0)
        self.change("BW", 1)
        self.worker.finish_step()
        if after_f[0] != after_f[1]:
            raise OptPipeError(
                f"stage {self.stage}: two microbatches hold {after_f[0]} and {after_f[1]} bytes"
            )
        # what F needs beyond act, which counts from its start
        self.inside["F"] = max(0, self.inside["F"] - act)
        return act, after_b, moved, tuple(self.inside.items())

    def change(self, op: str, mb: int) -> int:
        """Run an op; bytes held after it less before, its own messages left out."""
        worker, stage = self.worker, self.stage
        before = self.meter.held()
        self.meter.reset_peak()
        if op == "F":
            x = self.message() if stage else None
            worker.forward(stage, mb, x)
            del x
        elif op == "W":
            worker.weight(stage, mb)
        else:
            dy = self.message() if stage < worker.stages - 1 else None
            worker.backward(stage, mb, dy, fused=op == "BW")
            del dy
        self.inside[op] = max(self.inside[op], self.meter.peak() - before)
        return self.meter.held() - before

    def message(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.kind, device=self.worker.device)


def stage_times(
    plan: Plan,
    stage: int,
    device: torch.device,
    samples: int = 30,
    warmup: int = 5,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Spread]:
    """Median and quartiles of F, B, W and BW, in chains F B W and F BW of one microbatch."""
    worker = plan.worker(stage, device)
    shape, kind = plan.boundary
    generator = torch.Generator(device=device).manual_seed(plan.seed)
    x = torch.empty(shape, dtype=kind, device=device).normal_(generator=generator)
    dy = torch.empty(shape, dtype=kind, device=device).normal_(generator=generator) / x.numel()
    tokens = plan.tokens(device)
    first, last = stage == 0, stage == plan.stages - 1
    clock = _Clock(device)
    for at in range(samples + warmup):
        worker.start_step(tokens, tokens)
        keep = at >= warmup
        for mb, fused in ((0, False), (1, True)):
            with clock("F", keep):
                worker.forward(stage, mb, None if first else x)
            with clock("BW" if fused else "B", keep):
                worker.backward(stage, mb, None if last else dy, fused=fused)
            if not fused:
                with clock("W", keep):
                    worker.weight(stage, mb)
        worker.finish_step()
        tick()
    return {op: spread(times) for op, times in clock.times().items()}


class _Clock:
    """Times of ops: on CUDA by events, read once at the end; else by the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: dict[str, list[tuple[Any, Any]]] = {op: [] for op in OPS}

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

    def __exit__(self, *_: object) -> None:
        if self.keep:
            self.marks[self.op].append((self.start, self.now()))

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
    plan: Plan,
    device: str = "cpu",
    samples: int = 30,
    warmup: int = 5,
    progress: Progress = lambda name, done, total: None,
    name: str | None = None,
) -> CostProfile:
    """The profile of `plan` on this machine's CPU or GPU. No link is measured: `t_comm` is 0.

    Raises:
        OptPipeError: where the device is not there or too small.
    """
    place = check_device(device)
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
            sizes[stage] = stage_bytes(plan, stage, place)
            tick(what)
            times[stage] = stage_times(plan, stage, place, samples, warmup, partial(tick, what))
    except torch.cuda.OutOfMemoryError:
        raise OptPipeError(
            f"stage {stage} of {plan.model.name} does not fit on {device} with three microbatches:"
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
    """The device of that name, or one line that says why not."""
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
    plan: Plan,
    sizes: Sequence[StageBytes],
    times: Sequence[Mapping[str, Spread]],
    copies: Mapping[str, Mapping[str, Copy]],
    meta: dict[str, Any],
    name: str | None,
) -> CostProfile:
    """A profile from what was measured; O and R take the time of copies beside products."""
    costs = []
    d2h, h2d = copies["loaded"]["d2h"], copies["loaded"]["h2d"]
    for size, time_of, static in zip(sizes, times, static_bytes(plan, sizes), strict=True):
        # with much in queued gradients, B may hold more than F: that counts from the start
        act = max(size.held)
        ns = {op: max(1, round(one.median)) for op, one in time_of.items()}
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
        name=name or profile_name(plan, meta["device"]["kind"]),
        devices=plan.devices,
        chunks=plan.chunks,
        stages=tuple(costs),
        offload=Offload(),
        memory_limit=memory_limit(plan, meta),
        meta=meta,
    )


def byte_facts(size: StageBytes, static: Mapping[str, int]) -> dict[str, Any]:
    """The bytes of a stage as plain data."""
    return {
        "bytes_after": {"F": size.held[0], "B": size.held[1], "W": 0},
        "copies": len(size.copied),
        "bytes_inside_beyond": dict(size.inside),
        "static_bytes": dict(static),
    }


def profile_name(plan: Plan, kind: str) -> str:
    """What a profile is called that nobody named."""
    return f"{plan.model.name}-{kind}-p{plan.devices}-s{plan.seq}-b{plan.microbatch}-{plan.dtype}"


def memory_limit(plan: Plan, meta: Mapping[str, Any]) -> tuple[int, ...] | None:
    """What torch can have of a GPU; none on a CPU."""
    usable = meta["device"].get("usable_bytes")
    return None if usable is None else (usable,) * plan.devices


def static_bytes(plan: Plan, sizes: Sequence[StageBytes]) -> list[dict[str, int]]:
    """Per stage: weights, gradients, optimizer, and its share of the device's reserve.

    The reserve is what the hungriest op of the device needs for a moment; its stages share it.
    """
    wide = torch_dtype(plan.dtype).itemsize == 4
    each = plan.optimizer_bytes
    if each is None:
        each = OPTIMIZER_BYTES - (GRADIENT_BYTES if wide else 0)
    parts = []
    for stage, size in enumerate(sizes):
        mates = sizes[stage % plan.devices :: plan.devices]
        reserve = max(max(mate.inside.values()) for mate in mates)
        parts.append(
            {
                "weights": size.weights,
                "gradients": size.gradients,
                "optimizer": each * size.parameters,
                "reserve": -(-reserve // plan.chunks),
            }
        )
    return parts
