"""The clocks of ranks: how far apart they are, a common start, and how to sleep exactly."""

from __future__ import annotations

import ctypes
import sys
import time

import torch
import torch.distributed as dist

HEAD_START_NS = 20_000_000  # from the agreement on a start to the start
PINGS = 8
PR_SET_TIMERSLACK = 29


def clock_offset_ns(rank: int, ranks: int) -> int:
    """Return how far this rank's clock is ahead of rank 0's, in ns; 0 where no difference can be
    measured, as on one host."""
    offset = 0
    for other in range(1, ranks):
        for _ in range(PINGS if rank in (0, other) else 0):
            if rank == 0:
                dist.recv(torch.zeros(1, dtype=torch.int64), src=other)
                dist.send(torch.tensor([time.monotonic_ns()]), dst=other)
                continue
            asked = time.monotonic_ns()
            dist.send(torch.tensor([asked]), dst=0)
            answer = torch.zeros(1, dtype=torch.int64)
            dist.recv(answer, src=0)
            back = time.monotonic_ns()
            off = (asked + back) // 2 - int(answer)
            # the answer was sent between the question and its receipt
            if abs(off) <= (back - asked) // 2:
                off = 0
            offset = off if _ == 0 or abs(off) < abs(offset) else offset
    return offset


def common_start_ns(offset_ns: int) -> int:
    """Agree with all ranks on when to start; on this rank's `time.monotonic_ns`."""
    dist.barrier()
    start = torch.tensor([time.monotonic_ns() + HEAD_START_NS])
    dist.broadcast(start, src=0)
    return int(start) + offset_ns


def sleep_until(time_ns: int) -> None:
    """Wait until that time of `time.monotonic_ns`, to some ten microseconds (see `sharp_timers`).

    It sleeps to the end: a spinning thread keeps others from running, in Python above all.
    """
    while (left := time_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def sharp_timers() -> None:
    """Make sleeps of this thread, and of those it starts, end on time: by default Linux adds 50 us to each. On
    other systems nothing changes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
