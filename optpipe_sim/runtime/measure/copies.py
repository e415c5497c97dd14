"""The speed of copies to and from the host, alone, both at once, and while GEMMs run; and how much longer the ops of a
stage take beside copies, and after an idle gap, each beside its own time alone.

On CUDA the copies beside ops are of pinned host memory on streams of their own, queued before the op for longer than
it takes; a sample beside copies that ended before it is dropped. On a CPU threads copy between two places of main
memory. The parts for CUDA have not run on a GPU yet.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...sim.interference import IDLE, KEY
from ..device import beside
from ..model.plan import Stages
from .footprint import OPS
from .times import Clock, Spread, mark

MODES = ("alone", "together", "loaded", "all")
DIRECTIONS = ("d2h", "h2d")
SMALLEST, LARGEST = 1 << 16, 1 << 28  # bytes of a copy that is timed
CPU_CACHE = 1 << 26  # more than a CPU caches: an activation has long left it when it is copied
COPIES_AHEAD, GEMMS_AHEAD = 3, 16  # beside a copy that is measured
LOAD_WIDTH = {"cpu": 512, "cuda": 4096}  # of the square GEMMs that load the device
ALONE, BOTH, MESSAGE = "alone", "both", "message"
SITUATIONS = {
    ALONE: (),
    "d2h": ("d2h",),
    "h2d": ("h2d",),
    BOTH: DIRECTIONS,
    MESSAGE: (MESSAGE,),
    IDLE: (),
}
IDLE_S = 0.01
LEAST, MOST = 1 << 20, {"cpu": 1 << 24, "cuda": 1 << 28}  # bytes of a copy beside an op
MEMORY_BYTES_PER_NS = 2000.0  # of a GPU, about: how many copies within it outlast an op
MOST_COPIES = 128  # in the queue of a stream at once: far fewer than it can hold
Factors = dict[str, dict[str, float]]


class Copy(NamedTuple):
    """A copy of n bytes takes ``latency_ns + n * ns_per_byte``."""

    latency_ns: float
    ns_per_byte: float
    medians_ns: dict[int, float]  # by size: the measurements behind the fit

    def time_ns(self, size: int, copies: int = 1) -> int:
        """Return how long `size` bytes take in so many copies."""
        return round(copies * self.latency_ns + size * self.ns_per_byte)

    @property
    def gb_per_s(self) -> float:
        """Bandwidth without the latency."""
        return 1 / self.ns_per_byte


def copy_sizes(largest: int) -> list[int]:
    """Return the sizes to measure for copies of up to so many bytes: powers of 4."""
    sizes = [SMALLEST]
    while 4 * sizes[-1] <= min(largest, LARGEST) or len(sizes) < 3:
        sizes.append(4 * sizes[-1])
    return sizes[-5:]


def measure_copies(
    device: torch.device,
    sizes: Sequence[int],
    samples: int = 10,
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, dict[str, Copy]]:
    """Measure copies; return the fitted `Copy` of each mode and direction.

    ``alone``: one direction, nothing else. ``together``: both directions at once. ``loaded``: one
    direction while GEMMs run. ``all``: both, while GEMMs run. Host memory is pinned
    on CUDA; on CPU a copy is one between two places of main memory, out of the cache.
    """
    found: dict[str, dict[str, Copy]] = {}
    for mode in MODES:
        progress(f"copies {mode}")
        found[mode] = {}
        for direction in DIRECTIONS:
            medians = {}
            for size in sizes:
                medians[size] = median(_times(device, size, samples, mode, direction))
            found[mode][direction] = _fit(medians)
    return found


def _fit(medians: dict[int, float]) -> Copy:
    """Return the line with the least squared relative errors, its latency not below 0."""
    size, t = np.array([*medians.items()], np.float64).T
    (latency, slope), *_ = np.linalg.lstsq(
        np.stack([1 / t, size / t], 1), np.ones(len(t)), rcond=None
    )
    if len(t) < 2 or latency <= 0:
        return Copy(0.0, float((size / t).sum() / ((size / t) ** 2).sum()), medians)
    if slope <= 0:  # noise: the largest copy gives the bandwidth
        return Copy(0.0, medians[max(medians)] / max(medians), medians)
    return Copy(float(latency), float(slope), medians)


def _times(device: torch.device, size: int, samples: int, mode: str, direction: str) -> list[float]:
    against = None
    if mode in ("together", "all"):
        against = _buffers(device, size, "h2d" if direction == "d2h" else "d2h")
    load = _square(device) if mode in ("loaded", "all") else None
    measure = _cuda_times if device.type == "cuda" else _cpu_times
    return measure(_buffers(device, size, direction), against, load, samples)


def _buffers(device: torch.device, size: int, direction: str) -> tuple[Tensor, Tensor]:
    """Return memory of its own for a copy: target and source."""
    here = torch.zeros(size, dtype=torch.uint8, device=device)
    there = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return (there, here) if direction == "d2h" else (here, there)


def _square(device: torch.device) -> Tensor:
    width = LOAD_WIDTH[device.type]
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.full((width, width), 1.0 / width, device=device, dtype=kind)


def _cpu_times(
    pair: tuple[Tensor, Tensor], against: tuple[Tensor, Tensor] | None, load: Tensor | None, n: int
) -> list[float]:
    times = []
    cold = torch.zeros(CPU_CACHE, dtype=torch.uint8)
    copying = nullcontext() if against is None else beside(lambda: against[0].copy_(against[1]))
    working = nullcontext() if load is None else beside(lambda: load @ load)
    with copying, working:
        for at in range(n + 1):
            cold.fill_(at % 2)
            start = time.perf_counter_ns()
            pair[0].copy_(pair[1])
            if at:  # the first touches the memory
                times.append(float(time.perf_counter_ns() - start))
    return times


def _cuda_times(
    pair: tuple[Tensor, Tensor], against: tuple[Tensor, Tensor] | None, load: Tensor | None, n: int
) -> list[float]:
    """Time copies on one stream, one at a time, while the host keeps the other streams busy.

    (Work queued beforehand runs out, or fills the launch queue so that copies behind it are not even
    issued.)
    """
    device = pair[0].device if pair[0].is_cuda else pair[1].device
    own, *others = streams(device)
    beside: list[_BusyStream] = []
    if against is not None:
        beside.append(
            _BusyStream(
                others[0], lambda: against[0].copy_(against[1], non_blocking=True), COPIES_AHEAD
            )
        )
    if load is not None:
        out = torch.empty_like(load)
        beside.append(_BusyStream(others[1], lambda: torch.mm(load, load, out=out), GEMMS_AHEAD))
    torch.cuda.synchronize(device)
    times = []
    for at in range(n + 1):
        for one in beside:
            one.keep_up()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(own):
            start.record()
            pair[0].copy_(pair[1], non_blocking=True)
            end.record()
        while not end.query():
            for one in beside:
                one.keep_up()
        if at:  # the first touches the memory
            times.append(float(start.elapsed_time(end) * 1e6))
    torch.cuda.synchronize(device)
    return times


class _BusyStream:
    """A stream that the host keeps busy, always the same number of kernels ahead."""

    def __init__(self, stream: Any, work: Callable[[], Any], ahead: int) -> None:
        self.stream, self.work, self.ahead = stream, work, ahead
        self.ends: deque[Any] = deque()

    def keep_up(self) -> None:
        """Issue the missing kernels."""
        while self.ends and self.ends[0].query():
            self.ends.popleft()
        with torch.cuda.stream(self.stream):
            while len(self.ends) < self.ahead:
                self.work()
                end = torch.cuda.Event()
                end.record()
                self.ends.append(end)


@cache
def streams(device: torch.device) -> tuple[Any, Any, Any]:
    """Return three streams of a device, made once."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device), torch.cuda.Stream(device)


class Lane(NamedTuple):
    """Copies in one direction: target, source, how long one takes, and on which stream (CUDA)."""

    target: Tensor
    source: Tensor
    copy_ns: float
    stream: Any = None


def op_factors(
    plan: Stages,
    stage: int,
    device: torch.device,
    times: Mapping[str, Spread],
    copies: Mapping[str, Mapping[str, Copy]],
    moved: int,
    samples: int,
) -> Factors:
    """Return, by op and situation, the median duration over that alone; what could not be measured is missing.

    Args:
        moved: bytes that an O of the stage copies.
        times: of the ops, as `stage_times` gives them. copies: as `measure_copies` does.
        samples: chains F B W and F BW per situation, which take turns.
    """
    worker = plan.worker(stage, device)
    x, dy = worker.message(stage - 1), worker.message(stage, gradient=True)
    batch = plan.batch(device)
    size = min(MOST[device.type], max(LEAST, moved))
    lanes = _lanes(device, size, copies["all"])
    clock = Clock(device)
    run: dict[str, Callable[[], Any]] = {
        "F": lambda: worker.forward(stage, 0, x),
        "B": lambda: worker.backward(stage, 0, dy, fused=False),
        "W": lambda: worker.weight(stage, 0),
        "BW": lambda: worker.backward(stage, 0, dy, fused=True),
    }
    for at in range(samples + 1):
        for how, ways in SITUATIONS.items():
            worker.start_step(*batch)
            for op in ("F", "B", "W", "F", "BW"):
                if how == IDLE:
                    time.sleep(IDLE_S)
                with _copying(device, [lanes[way] for way in ways], times[op].median) as covered:
                    with clock(f"{op} {how}", at > 0):
                        run[op]()
                    if at and not covered():
                        clock.marks[f"{op} {how}"].pop()
            worker.finish_step()
    found = {op: median(taken) for op, taken in clock.times().items() if taken}
    return {
        op: {
            how: round(found[f"{op} {how}"] / found[f"{op} {ALONE}"], 4)
            for how in SITUATIONS
            if how != ALONE and f"{op} {how}" in found
        }
        for op in OPS
    }


def interference_facts(
    stages: Sequence[Factors], copies: Mapping[str, Mapping[str, Copy]], size: int
) -> dict[str, Any]:
    """Return what a profile's `meta` says of it, under `KEY`; see `sim.interference.Interference`.

    Args:
        size: of the copies whose slowdown by the other direction counts.
    """
    slower = {
        way: round(copies["all"][way].time_ns(size) / copies["loaded"][way].time_ns(size), 4)
        for way in DIRECTIONS
    }
    facts = {"stages": list(stages), "copies": slower, "idle_ns": round(IDLE_S * 1e9)}
    return {KEY: facts}


def _lanes(device: torch.device, size: int, copies: Mapping[str, Copy]) -> dict[str, Lane]:
    """Return, by direction, memory of its own for copies of so many bytes; and for the stand-in of a message."""
    lanes: dict[str, Lane] = {}
    own = streams(device)[1:] if device.type == "cuda" else (None, None)
    # a message's stand-in stays on the device: it is as fast as memory, so that it slows ops down at least as much as one over a link
    pair = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
    lanes[MESSAGE] = Lane(pair[0], pair[1], max(1.0, 2 * size / MEMORY_BYTES_PER_NS), own[0])
    for way, stream in zip(DIRECTIONS, own, strict=True):
        copy_ns = max(1.0, copies[way].time_ns(size))
        lanes[way] = Lane(*_buffers(device, size, way), copy_ns, stream)
    return lanes


@contextmanager
def _copying(
    device: torch.device, lanes: Sequence[Lane], op_ns: float
) -> Iterator[Callable[[], bool]]:
    """Run copies while the block does, from a device that is idle; yields a function that says, inside the
    block, whether they have run up to where the compute stream is then."""
    if device.type != "cuda":
        with ExitStack() as stack:
            for lane in lanes:
                stack.enter_context(beside(partial(lane.target.copy_, lane.source)))
            yield lambda: True
        return
    torch.cuda.synchronize(device)
    ends = []
    for lane in lanes:
        with torch.cuda.stream(lane.stream):
            for _ in range(min(MOST_COPIES, 2 + int(2 * op_ns / lane.copy_ns))):
                lane.target.copy_(lane.source, non_blocking=True)
            ends.append(mark(device))

    def covered() -> bool:
        over = mark(device)
        torch.cuda.synchronize(device)
        return all(over.elapsed_time(end) >= 0 for end in ends)

    yield covered
    torch.cuda.synchronize(device)
