"""Rank in the loop: run the whole program of each rank alone, with real ops and copies, its neighbours played
back. This tries a plan for p devices on one.

In a sweep every rank runs once, and messages arrive at the times computed from the previous sweep. A sweep
measures the duration of each op and the delay after its inputs; the replay of these gives the arrivals of the
next sweep, for all ranks at once. (If a message arrived when its sender's last run produced it, a delay would
move on by one device per sweep: 28 sweeps at p = 4, m = 32.) The fixed point is the run of all ranks together,
where replay and run agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...ops import F, Op
from ...sim.in_situ import InSitu, compose, in_situ
from ...sim.lower import Lowered
from ...trace import Trace
from ..measure.memory import Meter
from ..model.stage import StageWorker
from ..program.program import inputs_of
from .record import Record, measured_trace
from .transport import Loopback

Arrivals = dict[Op, int]


@dataclass(frozen=True)
class Sweep:
    """One pass over all ranks.

    Attributes:
        trace: as measured, each rank at the times of its own run.
        found: what every op took, and how late it began.
        composed: the replay of `found`: all ranks together.
        moved_ns: how far that moves the arrivals from those of this sweep, at most.
    """

    trace: Trace
    records: tuple[Record, ...]
    found: InSitu
    composed: Trace
    moved_ns: int


class HeldBytes(Meter):
    """A memory meter that sums what the slots and queues of a worker hold; faster than watching every
    storage."""

    def __init__(self, worker: StageWorker) -> None:
        self.worker = worker

    def held(self) -> int:
        """Return the bytes now."""
        return self.worker.held_bytes()


def sweep_ranks(
    lowered: Lowered,
    run: Callable[[int, Mapping[Op, int]], Record],
    *,
    sweeps: int = 6,
    arrive_ns: Mapping[Op, int] | None = None,
    progress: Callable[[int, int], None] = lambda sweep, rank: None,
) -> list[Sweep]:
    """Run every rank, `sweeps` times.

    Args:
        run: runs a rank alone, with its messages arriving at these times.
        arrive_ns: of the first sweep; default: as predicted.
    """
    arrive = dict(arrive_ns or arrivals(lowered, lowered.replay()))
    found: list[Sweep] = []
    for sweep in range(sweeps):
        records = []
        for rank in range(lowered.schedule.shape.devices):
            progress(sweep, rank)
            records.append(run(rank, arrive))
        trace = measured_trace(lowered, records)
        measured = in_situ(lowered, trace, arrive)
        composed = compose(lowered, measured)
        after = arrivals(lowered, composed)
        moved = max((abs(when - arrive[op]) for op, when in after.items()), default=0)
        found.append(Sweep(trace, tuple(records), measured, composed, moved))
        arrive = after
    return found


def received(lowered: Lowered, rank: int) -> list[Op]:
    """Return the ops of other ranks whose results a rank receives."""
    place = lowered.schedule.shape.placement
    return [
        source
        for consumer, source in inputs_of(lowered.schedule).items()
        if place[consumer.stage] == rank != place[source.stage]
    ]


def played_back(
    device: torch.device, contents: Mapping[Op, Tensor], arrive_ns: Mapping[Op, int]
) -> Loopback:
    """Return the transport of a rank that runs alone, its neighbours played back. On a GPU its streams wait for
    messages, not the host (not confirmed on a GPU yet).

    Args:
        contents: what the rank receives, on its device.
    """
    if device.type != "cuda":
        return Loopback(contents, arrive_ns)
    from .gates import GatedLoopback

    return GatedLoopback(contents, arrive_ns)


def arrivals(lowered: Lowered, trace: Trace) -> Arrivals:
    """Return when the results of a trace's ops arrive at other ranks: messages `t_comm` after their op,
    on serial links after the earlier messages between the same ranks; turns on shared host links when
    their transfer has ended."""
    ends = {span.op: span.end_ns for span in trace.spans}
    sent = [source for rank in range(trace.profile.devices) for source in received(lowered, rank)]
    return ends | message_arrivals(lowered, {op: ends[op] for op in sent})


def message_arrivals(lowered: Lowered, sent_ns: Mapping[Op, int]) -> Arrivals:
    """Return when messages arrive that were sent at these times."""
    profile, place = lowered.profile, lowered.schedule.shape.placement
    arrive: Arrivals = {}
    free: dict[tuple[int, int], int] = {}
    for op in sorted(sent_ns, key=lambda op: (sent_ns[op], op)):
        depart = sent_ns[op]
        if profile.serial_links:
            # a backward sends to the stage before
            receiver = op.stage + (1 if op.kind is F else -1)
            link = place[op.stage], place[receiver]
            depart = max(depart, free.get(link, 0))
            free[link] = depart + profile.occupancy_ns
        arrive[op] = depart + profile.t_comm_ns
    return arrive
