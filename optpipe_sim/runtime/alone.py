"""Rank in the loop: the whole program of each rank alone, with real ops and copies, its neighbours
played back. A plan for p devices is so tried on one.

Messages are let in when their sender's last run produced them plus the time of the link. The ranks
are swept, one after the other, until the times at which messages come do not change any more: that
is a fixed point, for a later message never makes anything earlier, and nothing later by more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..ops import F, Op
from ..sim.lower import Lowered
from ..trace import Trace
from .executor import Record, measured_trace, run_program
from .memory import Meter
from .program import linear_programs
from .stage import StageWorker
from .transport import Loopback
from .worker import EMPTY


@dataclass(frozen=True)
class Sweep:
    """One pass over all ranks: the measured trace, and how far message times still moved."""

    trace: Trace
    records: tuple[Record, ...]
    moved_ns: int


class HeldBytes:
    """Weighs a worker by what its slots and queues hold; quicker than watching every storage."""

    def __init__(self, worker: StageWorker) -> None:
        self.worker = worker

    def __enter__(self) -> HeldBytes:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def held(self) -> int:
        """Bytes now."""
        return self.worker.held_bytes()

    def peak(self) -> int:
        """Bytes now: nothing is watched in between."""
        return self.worker.held_bytes()

    def reset_peak(self) -> None:
        """Nothing to reset."""

    def add(self, storage: object) -> None:
        """Slots know."""


def sweep_ranks(
    lowered: Lowered,
    make_worker: Callable[[int], StageWorker],
    contents: dict[Op, Tensor],
    *,
    sweeps: int = 6,
    still_ns: int = 0,
    make_meter: Callable[[int, StageWorker], Meter] = lambda rank, worker: HeldBytes(worker),
    progress: Callable[[int, int], None] = lambda sweep, rank: None,
) -> list[Sweep]:
    """Run rank after rank until what they see of each other stands still, or `sweeps` times.

    Args:
        make_worker: the worker of a rank, its step started, the same every time.
        contents: what ranks send to each other (`serial.run_serially` keeps it).
        still_ns: changes up to this are no changes.
        make_meter: weighs a rank between its ops; entered for its run.
    """
    schedule, programs = lowered.schedule, linear_programs(lowered)
    ends = {span.op: span.end_ns for span in lowered.replay().spans}
    arrive = ends | _arrivals(lowered, {op: ends[op] for op in contents})
    found: list[Sweep] = []
    for sweep in range(sweeps):
        records, moved = [], 0
        for program in programs:
            progress(sweep, program.rank)
            worker = make_worker(program.rank)
            transport, run_one = _player(worker, contents, arrive)
            transport.start_ns = start = time.monotonic_ns() + 1_000_000
            with make_meter(program.rank, worker) as meter:
                record = run_one(program, schedule, worker, transport, start_ns=start, meter=meter)
            loss = worker.finish_step()
            record.loss = None if loss is None else float(loss)
            records.append(record)
            came = _arrivals(lowered, {op: sent for op, (sent, _) in transport.sent.items()})
            came |= transport.turns_ns
            moved = max([moved, *(abs(came[op] - arrive[op]) for op in came)])
            arrive |= came
        found.append(Sweep(measured_trace(lowered, records), tuple(records), moved))
        if moved <= still_ns:
            break
    return found


class _Alone(Loopback):
    """Keeps of what is sent only when: its content is known, and its memory would count."""

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Note when."""
        super().send(op, EMPTY, peer)


def _player(
    worker: StageWorker, contents: dict[Op, Tensor], arrive_ns: Mapping[Op, int]
) -> tuple[Any, Callable[..., Record]]:
    """What plays the neighbours back on that device, and what runs a program there; on a GPU its
    streams wait for messages, not the host (which no GPU has confirmed yet)."""
    if worker.device.type == "cuda":
        from . import cuda

        return cuda.GatedLoopback(contents, dict(arrive_ns)), cuda.run_program
    return _Alone(contents, dict(arrive_ns)), run_program


def _arrivals(lowered: Lowered, sent_ns: Mapping[Op, int]) -> dict[Op, int]:
    """When messages arrive that were sent at these times: `t_comm` later, and on serial links after
    those that the same rank has sent to the same rank before."""
    profile, place = lowered.profile, lowered.schedule.shape.placement
    arrive: dict[Op, int] = {}
    free: dict[tuple[int, int], int] = {}
    for op in sorted(sent_ns, key=lambda op: (sent_ns[op], op)):
        depart = sent_ns[op]
        if profile.links == "serial":
            way = place[op.stage], place[op.stage + (1 if op.kind is F else -1)]
            depart = max(depart, free.get(way, 0))
            free[way] = depart + profile.occupancy_ns
        arrive[op] = depart + profile.t_comm_ns
    return arrive
