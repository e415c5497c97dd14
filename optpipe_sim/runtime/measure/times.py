"""Times of the ops of one stage, in chains of one microbatch: on CUDA by events, else by the host's clock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch

from ..model.plan import Stages


class Spread(NamedTuple):
    """Times of one op in ns: median and quartiles; `issue`: the least that the host took to issue it,
    below which the op cannot last on a device."""

    median: float
    low: float
    high: float
    issue: float = 0.0


def spread(times: Sequence[float]) -> Spread:
    """Return the median and the quartiles."""
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
    """Measure F, B, W and BW of a stage, in chains F B W and F BW of one microbatch. Where sequences are
    cut a chain has the F's of all slices, then their backward passes in reverse: of slice 2 the times are
    ``F/2`` and so on, those of the whole are their sums.

    For each level of recomputation also of ``C level``, in chains F C BW, and of ``B level`` and
    ``BW level``, which recompute inside.
    """
    worker = plan.worker(stage, device)
    generator = torch.Generator(device=device).manual_seed(plan.seed)
    units = range(max(1, len(plan.slices)))
    xs = [worker.message(stage - 1, unit=unit, generator=generator) for unit in units]
    dys = [worker.message(stage, True, unit, generator) for unit in units]
    of = [f"/{unit}" if plan.slices else "" for unit in units]
    batch = plan.batch(device)
    clock = Clock(device)
    for at in range(samples + warmup):
        worker.start_step(*batch)
        keep = at >= warmup
        for chain in chains(levels):
            level = chain.level
            for unit in units:
                with clock(("F" if level is None else f"F {level}") + of[unit], keep):
                    worker.forward(stage, unit, xs[unit], level)
            for unit in reversed(units):
                if chain.apart:
                    with clock(f"C {level}" + of[unit], keep):
                        worker.recompute(stage, unit)
                with clock(chain.backward + of[unit], keep):
                    worker.backward(stage, unit, dys[unit], fused=chain.fused)
                if not chain.fused:
                    with clock("W" + of[unit], keep):
                        worker.weight(stage, unit)
        worker.finish_step()
        tick()
    found = {
        op: spread(times)._replace(issue=clock.issued_ns[op]) for op, times in clock.times().items()
    }
    if plan.slices:
        for op in dict.fromkeys(one.rpartition("/")[0] for one in list(found)):
            parts = zip(*(found[op + one] for one in of), strict=True)
            found[op] = Spread(*map(sum, parts))
    return found


class Chain(NamedTuple):
    """The ops of one microbatch, from F to the end of its backward."""

    fused: bool
    level: str | None = None
    apart: bool = False

    @property
    def backward(self) -> str:
        """The name of its backward's time; after a C it is as without a level."""
        op = "BW" if self.fused else "B"
        return op if self.level is None or self.apart else f"{op} {self.level}"


def chains(levels: Sequence[str]) -> list[Chain]:
    """Return the chains to be timed, in turn."""
    chains = [Chain(False), Chain(True)]
    for level in levels:
        chains += [Chain(False, level), Chain(True, level), Chain(True, level, apart=True)]
    return chains


def mark(device: torch.device) -> Any:
    """Return this moment: on CUDA an event on the current stream, else the host's clock, in ns."""
    if device.type != "cuda":
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between_ns(start: Any, end: Any) -> float:
    """Return the time between two marks; events have to have passed."""
    return float(end - start) if isinstance(start, int) else float(start.elapsed_time(end) * 1e6)


class Clock:
    """Times of ops: on CUDA by events, read once at the end; else by the host's clock.

    Attributes:
        issued_ns: by op, the least that the host took to issue it: nothing held it up then.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.issued_ns: dict[str, float] = {}
        self.marks: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    def __call__(self, op: str, keep: bool) -> Clock:
        self.op, self.keep = op, keep
        return self

    def __enter__(self) -> None:
        self.start = mark(self.device)
        self.began_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        took_ns = time.perf_counter_ns() - self.began_ns
        if self.keep:
            self.marks[self.op].append((self.start, mark(self.device)))
            self.issued_ns[self.op] = min(took_ns, self.issued_ns.get(self.op, took_ns))

    def times(self) -> dict[str, list[float]]:
        """Return the times by op, in ns."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return {
            op: [between_ns(start, end) for start, end in marks] for op, marks in self.marks.items()
        }
