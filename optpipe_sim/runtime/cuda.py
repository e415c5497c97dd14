"""Runs the program of one rank on a GPU: one host thread, a stream per engine, events between them;
messages over NCCL, or let in by a gate on the device.

No GPU has confirmed this yet. What is pure of it, the order of issue and its waits, is in `issue`
and tested; what follows here from the rules of CUDA, NCCL and torch's caching allocator is said
where it matters.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RuntimeFault
from ..ops import BW, B, F, Op
from ..schedule import Schedule
from .executor import Record
from .issue import Issue, issue_order
from .memory import Meter
from .program import COMPUTE_ENGINE, Event, Program, inputs_of
from .transport import Layout, Transport
from .worker import Worker, sharp_timers, sleep_until

AHEAD = 2  # compute ops that the host may be ahead of the device
WAIT_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
POLL_S = 0.0002


def run_program(
    program: Program,
    schedule: Schedule,
    worker: Worker,
    transport: Transport,
    *,
    start_ns: int = 0,
    meter: Meter | None = None,
    timeout_s: float = 60.0,
    begun: Callable[[Op], None] = lambda op: None,
) -> Record:
    """One iteration of one rank; arguments as for `executor.run_program`.

    The current stream is the compute stream, and `worker.start_step` has been called on it. The host
    stays at most two compute ops ahead, so that what is sent can be let go of soon, and a device
    that stands still is noticed. Times are those of CUDA events, start and end of every op on its
    stream; memory is read between the calls of the host.

    Raises:
        RuntimeFault: names the rank and the op.
    """
    run = _Run(program, schedule, worker, transport, meter, timeout_s)
    torch.cuda.synchronize()
    sharp_timers()
    sleep_until(start_ns)
    run.zero.record(run.streams[COMPUTE_ENGINE])
    started = getattr(transport, "start", None)
    if started is not None:
        started()
    for issue in issue_order(program):
        try:
            run.issue(issue, begun)
        except RuntimeFault:
            raise
        except Exception as error:
            raise RuntimeFault(
                f"rank {program.rank}: {issue.step.do} {issue.step.op}:"
                f" {type(error).__name__}: {error}"
            ) from error
    run.keep_up(0)
    for stream in run.streams.values():
        stream.synchronize()
    transport.finish()
    return run.measured()


class _Run:
    """An iteration under way."""

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        worker: Worker,
        transport: Transport,
        meter: Meter | None,
        timeout_s: float,
    ) -> None:
        self.rank, self.worker, self.transport = program.rank, worker, transport
        self.meter, self.timeout_s = meter, timeout_s
        self.inputs = inputs_of(schedule)
        self.results: dict[Op, Tensor | None] = {}
        self.streams: dict[str, Any] = {COMPUTE_ENGINE: torch.cuda.current_stream()}
        for issue in issue_order(program):
            if issue.stream not in self.streams:
                self.streams[issue.stream] = torch.cuda.Stream()
        self.zero = torch.cuda.Event(enable_timing=True)
        self.events: dict[Event, Any] = {}
        self.under_way: deque[Op] = deque()
        self.held: list[tuple[Op, int]] = []

    def issue(self, issue: Issue, begun: Callable[[Op], None]) -> None:
        """Issue one thing: its waits, its events around it."""
        step, stream = issue.step, self.streams[issue.stream]
        for event in issue.waits:
            stream.wait_event(self.events[event])
        if step.do == "run":
            self.keep_up(AHEAD)
            begun(step.op)
            self._weigh(step.op)
        with torch.cuda.stream(stream):
            self._record(issue, stream, start=True)
            self._do(issue)
            self._record(issue, stream, start=False)
        if step.do == "run":
            self.under_way.append(step.op)
        if step.do in ("run", "grant", "drop"):
            self._weigh(step.op)

    def keep_up(self, ahead: int) -> None:
        """Wait until no more than so many compute ops are under way on the device.

        Raises:
            RuntimeFault: where one does not end.
        """
        ends = time.monotonic() + self.timeout_s
        while len(self.under_way) > ahead:
            op = self.under_way[0]
            if self.events[Event("end", op)].query():
                self.under_way.popleft()
                ends = time.monotonic() + self.timeout_s
                continue
            if time.monotonic() > ends:
                raise RuntimeFault(
                    f"rank {self.rank}: {op} has not ended within {self.timeout_s:g} s on the device"
                )
            time.sleep(POLL_S)

    def measured(self) -> Record:
        """All times, once everything has ended."""
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

    def _weigh(self, op: Op) -> None:
        if self.meter is not None:
            self.held.append((op, self.meter.held()))

    def _do(self, issue: Issue) -> None:
        step, op = issue.step, issue.step.op
        if step.do == "post":
            stage = op.stage if op.kind is F else op.stage - 1
            self.transport.post(op, step.peer, self.worker.boundary(stage))
        elif step.do == "recv":
            self.results[op] = self.transport.recv(op, step.peer)
        elif step.do == "send":
            made = self.results.pop(op, None)
            if made is None:
                raise RuntimeFault(f"rank {self.rank}: {op} made nothing to send")
            self.transport.send(op, made, step.peer)
        elif step.do == "run":
            self._compute(op)
        elif step.do == "offload":
            self.worker.offload(op.stage, op.microbatch)
        elif step.do == "drop":
            # the compute stream waits for the copy, then the memory is its own again
            self.worker.drop(op.stage, op.microbatch)
        elif step.do == "grant":
            self.worker.allocate(op.stage, op.microbatch)
        else:
            self.worker.reload(op.stage, op.microbatch)

    def _compute(self, op: Op) -> None:
        source = self.inputs.get(op)
        box = [self.results.pop(source)] if source is not None else [None]
        made: Tensor | None = None
        if op.kind is F:
            made = self.worker.forward(op.stage, op.microbatch, box.pop())
        elif op.kind in (B, BW):
            made = self.worker.backward(op.stage, op.microbatch, box.pop(), fused=op.kind is BW)
        else:
            self.worker.weight(op.stage, op.microbatch)
        if made is not None:
            self.results[op] = made


# -- messages --------------------------------------------------------------------------------------


class Nccl:
    """Messages over NCCL: a communicator per directed pair of ranks.

    NCCL knows no tags: on a communicator messages come in the order in which both sides name them,
    and one that waits holds up those behind it. So each direction has its own, receives are posted
    in the sender's order (`program`), one compute op ahead, and neither direction waits for the
    other. A receive starts when the compute stream comes to where it was posted; its buffer
    is of the compute stream's memory there. What is sent is kept until its send has ended on the
    device, which is asked whenever something is sent: then its memory is free for the compute
    stream without `record_stream`.

    Every rank has to make one at the same time, for making the groups is collective.

    Args:
        rank: of this process. programs: of all ranks. timeout_s: for a message.
    """

    def __init__(self, rank: int, programs: Sequence[Program], timeout_s: float = 60.0) -> None:
        self.rank, self.timeout_s = rank, timeout_s
        pairs = {(p.rank, s.peer) for p in programs for s in p.steps if s.do == "send"}
        self._groups: dict[tuple[int, int], Any] = {}
        for pair in sorted(pairs):
            group = dist.new_group(sorted(pair), backend="nccl")
            if rank in pair:
                self._groups[pair] = group
        self._posted: dict[Op, tuple[Any, Tensor]] = {}
        self._out: deque[tuple[Op, Any, Tensor]] = deque()

    def post(self, op: Op, peer: int, layout: Layout) -> None:
        """Take memory for a message, and let it come."""
        buffer = torch.empty(layout[0], dtype=layout[1], device="cuda")
        group = self._groups[peer, self.rank]
        self._posted[op] = dist.irecv(buffer, src=peer, group=group), buffer

    def recv(self, op: Op, peer: int) -> Tensor:
        """The content of a posted message; the compute stream waits for it, the host does not."""
        work, buffer = self._posted.pop(op)
        work.wait()
        return buffer

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Send what the compute stream will have made by here."""
        self._let_go()
        kept = tensor.contiguous()
        self._out.append((op, dist.isend(kept, peer, group=self._groups[self.rank, peer]), kept))

    def expect_turn(self, op: Op, peer: int) -> None:
        """Links take turns by themselves."""

    def give_turn(self, op: Op, peer: int) -> None:
        """Likewise."""

    def take_turn(self, op: Op, peer: int) -> None:
        """Likewise."""

    def finish(self) -> None:
        """Wait for the sends.

        Raises:
            RuntimeFault: names one that does not end.
        """
        ends = time.monotonic() + self.timeout_s
        while self._out:
            self._let_go()
            if self._out and time.monotonic() > ends:
                raise RuntimeFault(
                    f"rank {self.rank}: the result of {self._out[0][0]} was not taken within"
                    f" {self.timeout_s:g} s"
                )
            time.sleep(POLL_S)

    def _let_go(self) -> None:
        self._out = deque(entry for entry in self._out if not entry[1].is_completed())


class GatedLoopback:
    """`transport.Loopback` for a GPU: each message has a gate, at which the compute stream waits
    until a thread of the host opens it at the message's time.

    The host may issue ahead as ever, for the wait is the device's (`cuStreamWaitValue32` on pinned
    memory, which needs no kernel and takes no multiprocessor).

    Args:
        contents, arrive_ns: as for `transport.Loopback`, the contents on the device.
    """

    def __init__(
        self, contents: Mapping[Op, Tensor], arrive_ns: Mapping[Op, int] | None = None
    ) -> None:
        self.contents, self.arrive_ns, self.start_ns = contents, dict(arrive_ns or {}), 0
        self.sent: dict[Op, tuple[int, Tensor]] = {}
        self.turns_ns: dict[Op, int] = {}
        self._order = sorted(contents, key=lambda op: self.arrive_ns.get(op, 0))
        self._place = {op: at for at, op in enumerate(self._order)}
        self._gates = torch.zeros(max(1, len(contents)), dtype=torch.int32, pin_memory=True)
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._zero = torch.cuda.Event(enable_timing=True)
        self._marks: dict[Op, tuple[Any, Tensor]] = {}
        self._opener: threading.Thread | None = None
        self._over = threading.Event()

    def start(self) -> None:
        """The zero of all times is now."""
        self._zero.record()
        self.start_ns = time.monotonic_ns()
        self._opener = threading.Thread(target=self._open, daemon=True)
        self._opener.start()

    def post(self, op: Op, peer: int, layout: Layout) -> None:
        """Nothing to do: it is here."""

    def recv(self, op: Op, peer: int) -> Tensor:
        """A copy of the content, which the compute stream makes when the gate is open."""
        address = self._gates.data_ptr() + 4 * self._place[op]
        failed = self._driver.cuStreamWaitValue32_v2(
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(1),
            ctypes.c_uint(WAIT_AT_LEAST),
        )
        if failed:
            raise RuntimeFault(f"cuStreamWaitValue32 for {op}: CUDA error {failed}")
        return self.contents[op].clone()

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Note when the compute stream comes to it; what it is, is known."""
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        self._marks[op] = mark, tensor.new_empty(0)

    def expect_turn(self, op: Op, peer: int) -> None:
        """Links take turns by themselves."""

    def give_turn(self, op: Op, peer: int) -> None:
        """Likewise."""

    def take_turn(self, op: Op, peer: int) -> None:
        """Likewise."""

    def finish(self) -> None:
        """Read the times of what was sent; all streams have ended."""
        self._over.set()
        if self._opener is not None:
            self._opener.join()
        for op, (mark, tensor) in self._marks.items():
            self.sent[op] = round(self._zero.elapsed_time(mark) * 1e6), tensor
        self._marks.clear()

    def _open(self) -> None:
        """Open each gate when its time has come; all at once where the run has failed."""
        for op in self._order:
            if not self._over.is_set():
                sleep_until(self.start_ns + self.arrive_ns.get(op, 0))
            self._gates[self._place[op]] = 1
