"""Transports of results between ranks: gloo; a loop-back, on a CPU and on a GPU (the latter not confirmed on one
yet).

Receives are posted before they are needed; sends never block, and release their tensor once it is sent.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import RuntimeFault
from ...ops import COMPUTE, Op
from ...schedule import Schedule
from ..group import blamed
from ..model.boundary import Layout
from .clocks import sleep_until

Sent = SimpleQueue[tuple[Op, Any] | None]
EMPTY = torch.empty(0)  # the content of a turn
WAIT_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
# a host that issues ops keeps the thread that opens gates waiting so long, not 5 ms
SWITCH_S = 1e-4


class Transport:
    """What executors ask of messages; `peer` is the other rank.

    A message is identified by the op that makes it. Those of O and R are turns on host links that ranks share: they
    say that a transfer has ended, and have no content. (On GPUs the links themselves take turns.)
    """

    buffer_bytes = 0  # device memory of communicators, outside of torch's allocator

    def start(self, start_ns: int = 0) -> None:
        """Begin an iteration, whose times count from `start_ns` on `time.monotonic_ns`."""

    def follow(self, schedule: Schedule) -> None:
        """Go on with another schedule for the same stages, between two iterations of all ranks."""

    def post(self, op: Op, peer: int, layout: Layout) -> None:
        """Allocate memory for a message and post its receive."""

    def recv(self, op: Op, peer: int) -> Tensor:
        """Wait for a posted message; return its content."""
        raise NotImplementedError

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Begin to send; the tensor is released once it is sent."""

    def release_sent(self) -> None:
        """Release the tensors whose sends have ended, where nothing else does."""

    def finish(self) -> None:
        """Wait for the sends."""


class Gloo(Transport):
    """torch.distributed with gloo: messages by tags, so that any order of receives will do.

    A send begins at once in the calling thread; a thread per peer waits for its end and releases the tensor.
    (One thread for all peers would hold a tensor until earlier sends to other peers have ended.)

    Args:
        rank: of this process in the group; the default process group has to be there.
        schedule: gives every op its tag.
        timeout_s: of the wait for a message.
        group: of the ranks of one pipeline; default: all.
    """

    def __init__(
        self, rank: int, schedule: Schedule, timeout_s: float = 60.0, group: Any = None
    ) -> None:
        self.rank, self.schedule, self.timeout = rank, schedule, timedelta(seconds=timeout_s)
        self._group: Any = group or dist.group.WORLD  # `dist.isend` takes a quarter longer
        self._posted: dict[Op, tuple[Any, Tensor]] = {}
        self._out: dict[int, tuple[Sent, threading.Thread]] = {}
        self._lock = threading.Lock()
        self._failure: RuntimeFault | None = None

    def follow(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def post(self, op: Op, peer: int, layout: Layout) -> None:
        buffer = torch.empty(layout[0], dtype=layout[1])
        with blamed(self.rank, f"posting the receive of {op} from rank {peer}"):
            self._posted[op] = self._group.recv([buffer], peer, self.schedule.row(op)), buffer

    def recv(self, op: Op, peer: int) -> Tensor:
        work, buffer = self._posted.pop(op)
        with blamed(self.rank, f"waiting for {content_of(op)} from rank {peer}"):
            work.wait(self.timeout)
        return buffer

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        with blamed(self.rank, f"sending {content_of(op)} to rank {peer}"):
            work = self._group.send([tensor.contiguous()], peer, self.schedule.row(op))
        self._keep(op, peer, work)

    def finish(self) -> None:
        """Wait for the sends.

        Raises:
            RuntimeFault: names the first that failed.
        """
        for sent, thread in self._out.values():
            sent.put(None)
            thread.join()
        self._out.clear()
        if self._failure is not None:
            raise self._failure

    def _keep(self, op: Op, peer: int, work: Any) -> None:
        with self._lock:  # copy engines pass turns on
            if peer not in self._out:
                sent: Sent = SimpleQueue()
                thread = threading.Thread(target=self._settle, args=(peer, sent), daemon=True)
                self._out[peer] = sent, thread
                thread.start()
        self._out[peer][0].put((op, work))

    def _settle(self, peer: int, sent: Sent) -> None:
        while (one := sent.get()) is not None:
            op, work = one
            del one
            try:
                with blamed(self.rank, f"sending {content_of(op)} to rank {peer}"):
                    work.wait(self.timeout)
            except RuntimeFault as fault:
                self._failure = self._failure or fault
            del work


def content_of(op: Op) -> str:
    """Return what the message of an op is, for errors."""
    return f"the result of {op}" if op.kind in COMPUTE else f"the turn after {op}"


class Loopback(Transport):
    """One rank alone: what the others would send is there beforehand and arrives at given times; what it sends
    itself is dropped.

    Args:
        contents: by the op that makes it, what a message holds.
        arrive_ns: by op, when its message may be received, in ns after the start; default: at once.
    """

    def __init__(
        self, contents: Mapping[Op, Tensor], arrive_ns: Mapping[Op, int] | None = None
    ) -> None:
        self.contents, self.arrive_ns, self.start_ns = contents, arrive_ns or {}, 0

    def start(self, start_ns: int = 0) -> None:
        self.start_ns = start_ns

    def recv(self, op: Op, peer: int) -> Tensor:
        """Wait until the arrival time; return a copy of the content."""
        sleep_until(self.start_ns + self.arrive_ns.get(op, 0))
        return self.contents[op].clone() if op.kind in COMPUTE else EMPTY


class GatedLoopback(Loopback):
    """`Loopback` for a GPU: each message has a gate, at which the compute stream waits until a thread of the host
    opens it at the message's time.

    The host may issue ahead as ever, for the wait is the device's (`cuStreamWaitValue32` on pinned
    memory, which needs no kernel and takes no multiprocessor).

    Args:
        contents: on the device.
    """

    def __init__(
        self, contents: Mapping[Op, Tensor], arrive_ns: Mapping[Op, int] | None = None
    ) -> None:
        super().__init__(contents, arrive_ns)
        self._order = sorted(contents, key=lambda op: self.arrive_ns.get(op, 0))
        self._place = {op: at for at, op in enumerate(self._order)}
        self._gates = pinned_zeros(max(1, len(contents)))
        self._driver = driver()
        self._opener: threading.Thread | None = None
        self._over = threading.Event()
        self._switch_s = sys.getswitchinterval()

    def start(self, start_ns: int = 0) -> None:
        """Count arrivals from now, when the device has nothing to do."""
        sys.setswitchinterval(SWITCH_S)
        self.start_ns = time.monotonic_ns()
        self._opener = threading.Thread(target=self._open, daemon=True)
        self._opener.start()

    def recv(self, op: Op, peer: int) -> Tensor:
        """Copy the content on the compute stream, once the gate is open."""
        failed = wait_for_one(self._driver, self._gates.data_ptr() + 4 * self._place[op])
        if failed:
            raise RuntimeFault(f"cuStreamWaitValue32 for {op}: CUDA error {failed}")
        return self.contents[op].clone()

    def finish(self) -> None:
        """End the thread that opens the gates, after all streams have ended."""
        self._over.set()
        sys.setswitchinterval(self._switch_s)
        if self._opener is not None:
            self._opener.join()

    def _open(self) -> None:
        """Open each gate at its time; all of them at once if the run has failed."""
        for op in self._order:
            if not self._over.is_set():
                sleep_until(self.start_ns + self.arrive_ns.get(op, 0))
            self._gates[self._place[op]] = 1


def wait_for_one(driver: Any, address: int) -> int:
    """Have the current stream wait until the 32 bits at an address in pinned host memory are at least 1; return
    CUDA's error, 0 for none."""
    failed: int = driver.cuStreamWaitValue32_v2(
        ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        ctypes.c_uint64(address),
        ctypes.c_uint32(1),
        ctypes.c_uint(WAIT_AT_LEAST),
    )
    return failed


def pinned_zeros(count: int) -> Tensor:
    """Return 32-bit zeros in pinned host memory that the device can read."""
    return torch.zeros(count, dtype=torch.int32, pin_memory=True)


def driver() -> Any:
    """Return the CUDA driver's own library."""
    return ctypes.CDLL("libcuda.so.1")
