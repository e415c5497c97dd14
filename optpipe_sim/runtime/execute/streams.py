"""Run the program of one rank on a GPU: one host thread, a stream per engine, events between them.

Not confirmed on a GPU yet. The order of issue and its waits are pure functions (`issue`); this executor,
the stages and both transports run in the tests on a model of a GPU that knows streams, events and
the caching allocator by vector clocks, and reports races and memory that is reused too early.
"""

from __future__ import annotations

import time
from collections import deque
from functools import cache
from typing import Any

import torch

from ...errors import RuntimeFault
from ...ops import Op
from ..measure.memory import Meter
from ..program.issue import Issue, issue_order
from ..program.program import COMPUTE_ENGINE, Event
from .clocks import sharp_timers, sleep_until
from .rank_step import RankStep
from .record import Record

AHEAD = 2  # compute ops that the host may be ahead of the device
POLL_S = 0.0002


def run_program(step: RankStep, meter: Meter | None = None, start_ns: int = 0) -> Record:
    """Run the program of a rank; `meter` is entered already.

    The current stream is the compute stream, and the step was started on it. The host stays at
    most two compute ops ahead, so that a stalled device is noticed; whenever it issues a compute op or waits
    for one, it releases the tensors whose sends have ended. Times are those of CUDA
    events, start and end of every op on its stream; memory is read between the calls of the host.

    Raises:
        RuntimeFault: names the rank and the op.
    """
    run = _Run(step, meter)
    torch.cuda.synchronize()
    sharp_timers()
    sleep_until(start_ns)
    run.zero.record(run.streams[COMPUTE_ENGINE])
    step.transport.start(start_ns)
    for issue in run.order:
        with step.named(issue.step):
            run.issue(issue)
    run.keep_up(0)
    for stream in run.streams.values():
        stream.synchronize()
    step.transport.finish()
    return run.measured()


@cache
def copy_stream(engine: str, device: int) -> Any:
    """Return the one stream of a copy engine (``offload``, ``reload`` or ``copies``) on a device.

    Made once: torch hands out new streams from a pool of 32, which share the connections to the
    device (8 unless CUDA_DEVICE_MAX_CONNECTIONS says more), and a copy would wait behind the
    compute stream whose connection it happens to share.
    """
    return torch.cuda.Stream(device)


class _Run:
    """An iteration under way."""

    def __init__(self, step: RankStep, meter: Meter | None) -> None:
        self.rank_step, self.rank, self.meter = step, step.rank, meter
        self.transport = step.transport
        self.order = issue_order(step.program)
        self.streams: dict[str, Any] = {COMPUTE_ENGINE: torch.cuda.current_stream()}
        for issue in self.order:
            if issue.stream not in self.streams:
                self.streams[issue.stream] = copy_stream(issue.stream, torch.cuda.current_device())
        self.zero = torch.cuda.Event(enable_timing=True)
        self.events: dict[Event, Any] = {}
        self.under_way: deque[Op] = deque()
        self.held: list[tuple[Op, int]] = []

    def issue(self, issue: Issue) -> None:
        """Issue one step: its waits, and the events around it."""
        step, stream = issue.step, self.streams[issue.stream]
        for event in issue.waits:
            stream.wait_event(self.events[event])
        if step.do == "run":
            self.keep_up(AHEAD)
            self.rank_step.begun(step.op)
            self._read_memory(step.op)
        with torch.cuda.stream(stream):
            self._record(issue, stream, start=True)
            # a drop releases what the compute stream has waited for: its memory is that stream's own again
            self.rank_step.do(step)
            self._record(issue, stream, start=False)
        if step.do == "run":
            self.under_way.append(step.op)
        if step.do in ("run", "grant", "drop"):
            self._read_memory(step.op)

    def keep_up(self, ahead: int) -> None:
        """Wait until at most so many compute ops are in flight on the device; release the tensors whose sends
        have ended meanwhile.

        Raises:
            RuntimeFault: where one does not end.
        """
        ends = time.monotonic() + self.rank_step.timeout_s
        self.transport.release_sent()
        while len(self.under_way) > ahead:
            op = self.under_way[0]
            if self.events[Event("end", op)].query():
                self.under_way.popleft()
                ends = time.monotonic() + self.rank_step.timeout_s
                continue
            self.transport.release_sent()
            if time.monotonic() > ends:
                raise RuntimeFault(
                    f"rank {self.rank}: {op} has not ended within {self.rank_step.timeout_s:g} s on the device"
                )
            time.sleep(POLL_S)

    def measured(self) -> Record:
        """Read all times, after everything has ended."""
        record = Record(self.rank)
        at = {
            event: round(self.zero.elapsed_time(mark) * 1e6) for event, mark in self.events.items()
        }
        for event, when in at.items():
            op = event.op
            if event.point == "end":
                record.times_ns[op] = at[Event("start", op)], when
            elif event.point == "granted":
                record.granted_ns[op] = when
        for op, held in self.held:
            seen = record.times_ns.get(op) or (record.granted_ns[op],) * 2
            record.held.append((seen[0], held))
        return record

    def _record(self, issue: Issue, stream: Any, *, start: bool) -> None:
        for event in issue.makes:
            if (event.point == "start") == start:
                mark = torch.cuda.Event(enable_timing=True)
                mark.record(stream)
                self.events[event] = mark

    def _read_memory(self, op: Op) -> None:
        if self.meter is not None:
            self.held.append((op, self.meter.held()))
