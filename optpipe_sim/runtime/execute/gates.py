"""One rank alone on a GPU: the compute stream waits at a gate for each message. Not confirmed on a GPU yet."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import RuntimeFault
from ...ops import Op
from ..model.boundary import Layout
from .worker import EMPTY, sleep_until

WAIT_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
SWITCH_S = (
    1e-4  # a host that issues ops keeps the thread that opens gates waiting so long, not 5 ms
)


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
        self._gates = pinned_zeros(max(1, len(contents)))
        self._driver = driver()
        self._zero = torch.cuda.Event(enable_timing=True)
        self._marks: dict[Op, Any] = {}
        self._opener: threading.Thread | None = None
        self._over = threading.Event()
        self._switch_s = sys.getswitchinterval()

    def start(self) -> None:
        """The zero of all times is now."""
        sys.setswitchinterval(SWITCH_S)
        self._zero.record()
        self.start_ns = time.monotonic_ns()
        self._opener = threading.Thread(target=self._open, daemon=True)
        self._opener.start()

    def post(self, op: Op, peer: int, layout: Layout) -> None:
        """Nothing to do: the content is here already."""

    def recv(self, op: Op, peer: int) -> Tensor:
        """Copy the content on the compute stream, once the gate is open."""
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
        """Record when the compute stream reaches it; the content is known."""
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        self._marks[op] = mark

    def release_sent(self) -> None:
        """Nothing is kept."""

    def expect_turn(self, op: Op, peer: int) -> None:
        """Links take turns by themselves."""

    def give_turn(self, op: Op, peer: int) -> None:
        """Likewise."""

    def take_turn(self, op: Op, peer: int) -> None:
        """Likewise."""

    def finish(self) -> None:
        """Read the times of the sends, after all streams have ended."""
        self._over.set()
        sys.setswitchinterval(self._switch_s)
        if self._opener is not None:
            self._opener.join()
        for op, mark in self._marks.items():
            self.sent[op] = round(self._zero.elapsed_time(mark) * 1e6), EMPTY
        self._marks.clear()

    def _open(self) -> None:
        """Open each gate at its time; all of them at once if the run has failed."""
        for op in self._order:
            if not self._over.is_set():
                sleep_until(self.start_ns + self.arrive_ns.get(op, 0))
            self._gates[self._place[op]] = 1


def pinned_zeros(count: int) -> Tensor:
    """`count` 32-bit zeros in pinned host memory that the device can read."""
    return torch.zeros(count, dtype=torch.int32, pin_memory=True)


def driver() -> Any:
    """Return the CUDA driver's own library."""
    return ctypes.CDLL("libcuda.so.1")
