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
from .transport import Loopback
from .worker import sleep_until

WAIT_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
# a host that issues ops keeps the thread that opens gates waiting so long, not 5 ms
SWITCH_S = 1e-4


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


def pinned_zeros(count: int) -> Tensor:
    """Return 32-bit zeros in pinned host memory that the device can read."""
    return torch.zeros(count, dtype=torch.int32, pin_memory=True)


def driver() -> Any:
    """Return the CUDA driver's own library."""
    return ctypes.CDLL("libcuda.so.1")
