"""Switch to another schedule while training runs: on all ranks at once, or on none.

Between two iterations rank 0 sends the others a schedule and its costs. Every rank lowers and checks it in a
thread of its own while iterations continue. After each iteration the ranks sum up how many are ready and how
many refuse: once all are ready, all switch with the next iteration, as all read the same sum; if one refuses,
none switches. The exchange costs two small messages: one with the proposal, and the all-reduce that follows
every iteration anyway.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import InvalidSchedule
from ...profile import CostProfile
from ...profile_io import load_profile, profile_to_json
from ...schedule import Schedule
from ..program.program import Prepared
from .planner import Proposal


def require_same_shape(new: Schedule, old: Schedule) -> None:
    """Refuse a schedule for stages that lie elsewhere, or for another batch.

    Raises:
        InvalidSchedule: says what differs.
    """
    if new.shape != old.shape:
        raise InvalidSchedule(
            f"a switch keeps devices, chunks, placement and microbatches: {new.shape} is not"
            f" {old.shape}"
        )


@dataclass
class Boundary:
    """The state that all ranks share between two iterations.

    Attributes:
        stop: end here. zero_ns: a moment on rank 0's clock, the zero of the iteration's times.
    """

    stop: bool
    zero_ns: int


@dataclass
class Report:
    """The measurements of an iteration, the same on all ranks.

    Attributes:
        start_ns, end_ns: of every op, by rows. peaks: activation bytes per rank; 0: not measured.
        loss: the mean over microbatches.
    """

    loss: float
    start_ns: np.ndarray
    end_ns: np.ndarray
    peaks: list[int]


@dataclass
class Outcome:
    """How a proposal ended: with a `Prepared` on all ranks, or with the reasons of those who refused.

    Attributes:
        prepare_ns: how long each rank took to prepare, beside training.
    """

    prepared: Prepared | None
    reasons: list[str]
    prepare_ns: list[int]


@dataclass
class _Pending:
    """A proposal that this rank prepares in the background."""

    prepare: Callable[[Schedule, CostProfile], Prepared]
    text: bytes
    ready: Prepared | None = None
    reason: str = ""
    took_ns: int = 0
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._work, name="prepare", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        began = time.monotonic_ns()
        try:
            data = json.loads(self.text)
            schedule = Schedule.from_json(data["schedule"], "proposed schedule")
            self.ready = self.prepare(schedule, load_profile(data["profile"]))
        except Exception as error:  # whatever the reason, this rank cannot run it
            self.reason = f"{type(error).__name__}: {error}"
        self.took_ns = time.monotonic_ns() - began


class Switch:
    """One rank's part in agreeing on a schedule; all ranks call its methods in the same order.

    Args:
        prepare: makes a proposal ready to run, or raises.
        device: where the tensors of messages have to be (``cuda`` for NCCL, unconfirmed).
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        prepare: Callable[[Schedule, CostProfile], Prepared],
        device: str = "cpu",
    ) -> None:
        self.rank, self.ranks, self.prepare, self.device = rank, ranks, prepare, device
        self._pending: _Pending | None = None

    @property
    def pending(self) -> bool:
        """Whether a proposal is not decided yet."""
        return self._pending is not None

    def boundary(self, proposal: Proposal | None = None, stop: bool = False) -> Boundary:
        """Agree on the state between iterations: rank 0 broadcasts it, and a proposal if it has one."""
        text = b""
        if proposal is not None and self._pending is None:
            text = json.dumps(
                {
                    "schedule": proposal.schedule.to_json(),
                    "profile": profile_to_json(proposal.profile),
                }
            ).encode()
        header = torch.tensor([int(stop), len(text), time.monotonic_ns()], device=self.device)
        dist.broadcast(header, src=0)
        stopping, size, zero_ns = header.tolist()
        if size:
            letters = torch.empty(size, dtype=torch.uint8, device=self.device)
            if self.rank == 0:
                letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
            dist.broadcast(letters, src=0)
            self._pending = _Pending(self.prepare, letters.cpu().numpy().tobytes())
        return Boundary(bool(stopping), zero_ns)

    def exchange(
        self,
        schedule: Schedule,
        times_ns: dict[Any, tuple[int, int]],
        loss: float | None,
        peak: int = 0,
    ) -> tuple[Report, Outcome | None]:
        """Exchange every rank's times, the loss, and the votes on the proposal after an iteration.

        One sum over all ranks, each of which fills in its own entries; in doubles, which hold
        times in ns exactly for a hundred days.
        """
        p, ops = self.ranks, len(schedule)
        table = torch.zeros(3 + 2 * p + 2 * ops, dtype=torch.float64)
        pending = self._pending
        if pending is not None and not pending.thread.is_alive():
            table[0 if pending.ready is not None else 1] = 1
            table[3 + self.rank] = pending.took_ns
        table[2] = loss or 0.0
        table[3 + p + self.rank] = peak
        rows = [schedule.row(op) for op in times_ns]
        table[3 + 2 * p :].view(ops, 2)[rows] = torch.tensor(
            list(times_ns.values()), dtype=torch.float64
        )
        table = table.to(self.device)
        dist.all_reduce(table)
        table = table.cpu()
        start, end = table[3 + 2 * p :].view(ops, 2).to(torch.int64).numpy().T
        peaks = [int(peak) for peak in table[3 + p : 3 + 2 * p]]
        report = Report(float(table[2]), start, end, peaks)
        return report, self._decide(table)

    def _decide(self, table: Tensor) -> Outcome | None:
        pending = self._pending
        if pending is None or (table[1] == 0 and table[0] < self.ranks):
            return None
        self._pending = None
        took = [int(ns) for ns in table[3 : 3 + self.ranks]]
        if table[1] == 0:
            return Outcome(pending.ready, [], took)
        reasons: list[str] = [""] * self.ranks
        dist.all_gather_object(reasons, pending.reason)
        refused = [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]
        return Outcome(None, refused, took)
