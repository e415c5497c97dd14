"""How much longer the ops of a stage take beside copies, and after an idle gap; each beside its own time alone.

On CUDA the copies are of pinned host memory on streams of their own, queued before the op for longer than it
takes; a sample beside copies that ended before it is dropped. On a CPU threads copy between two places of main
memory. (The part for CUDA has not run on a GPU yet.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...sim.interference import IDLE, KEY
from ..model.plan import Stages
from .copies import DIRECTIONS, Copy, keep_copying, streams
from .footprint import OPS
from .times import Clock, Spread

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
SMALLEST, LARGEST = 1 << 20, {"cpu": 1 << 24, "cuda": 1 << 28}  # bytes of a copy
MEMORY_BYTES_PER_NS = 2000.0  # of a GPU, about: how many copies within it outlast an op
MOST_COPIES = 128  # in the queue of a stream at once: far fewer than it can hold
Factors = dict[str, dict[str, float]]


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
    x, dy = plan.message(worker, stage - 1), plan.message(worker, stage, gradient=True)
    batch = plan.batch(device)
    size = min(LARGEST[device.type], max(SMALLEST, moved))
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
                with _copying(device, [lanes[way] for way in ways], times[op].median) as lasted:
                    with clock(f"{op} {how}", at > 0):
                        run[op]()
                    if at and not lasted():
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
    cuda = device.type == "cuda"
    lanes: dict[str, Lane] = {}
    own = streams(device)[1:] if cuda else (None, None)
    # a message's stand-in stays on the device: it is as fast as memory, so that it slows ops down at least as much as one over a link
    pair = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
    lanes[MESSAGE] = Lane(pair[0], pair[1], max(1.0, 2 * size / MEMORY_BYTES_PER_NS), own[0])
    for way, stream in zip(DIRECTIONS, own, strict=True):
        here = torch.zeros(size, dtype=torch.uint8, device=device)
        there = torch.zeros(size, dtype=torch.uint8, pin_memory=cuda)
        ways = (there, here) if way == "d2h" else (here, there)
        lanes[way] = Lane(*ways, max(1.0, copies[way].time_ns(size)), stream)
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
                stack.enter_context(keep_copying(lane.target, lane.source))
            yield lambda: True
        return
    torch.cuda.synchronize(device)
    ends = []
    for lane in lanes:
        with torch.cuda.stream(lane.stream):
            for _ in range(min(MOST_COPIES, 2 + int(2 * op_ns / lane.copy_ns))):
                lane.target.copy_(lane.source, non_blocking=True)
            ends.append(_mark())

    def lasted() -> bool:
        over = _mark()
        torch.cuda.synchronize(device)
        return all(over.elapsed_time(end) >= 0 for end in ends)

    yield lasted
    torch.cuda.synchronize(device)


def _mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
