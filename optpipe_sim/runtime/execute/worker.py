"""What an executor needs of the stages of a device, and stages that only take time."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Protocol

import torch
from torch import Tensor

from ...ops import BW, B, F, O, R, W
from ...profile import CostProfile

PR_SET_TIMERSLACK = 29
EMPTY = torch.empty(0)


class Worker(Protocol):
    """The stages of one device, driven op by op; `stage.StageWorker` has the meaning of each."""

    def forward(self, stage: int, mb: int, x: Tensor | None) -> Tensor | None: ...

    def backward(self, stage: int, mb: int, dy: Tensor | None, *, fused: bool) -> Tensor | None: ...

    def weight(self, stage: int, mb: int) -> None: ...

    def offload(self, stage: int, mb: int) -> None: ...

    def drop(self, stage: int, mb: int) -> None: ...

    def allocate(self, stage: int, mb: int) -> None: ...

    def reload(self, stage: int, mb: int) -> None: ...

    def boundary(self, stage: int) -> tuple[tuple[int, ...], torch.dtype]: ...


class SyntheticWorker:
    """Stages whose ops take exactly the time that the profile says, and no memory.

    What remains real: the threads, the messages, the order in which a host issues things.
    """

    def __init__(self, profile: CostProfile) -> None:
        self.lasts_ns = profile.durations_ns

    def forward(self, stage: int, mb: int, x: Tensor | None) -> Tensor:
        """F takes its time."""
        return self._take(F, stage)

    def backward(self, stage: int, mb: int, dy: Tensor | None, *, fused: bool) -> Tensor:
        """B or BW likewise."""
        return self._take(BW if fused else B, stage)

    def weight(self, stage: int, mb: int) -> None:
        """W likewise."""
        self._take(W, stage)

    def offload(self, stage: int, mb: int) -> None:
        """O likewise."""
        self._take(O, stage)

    def drop(self, stage: int, mb: int) -> None:
        """No memory, nothing to drop."""

    def allocate(self, stage: int, mb: int) -> None:
        """Nor to take."""

    def reload(self, stage: int, mb: int) -> None:
        """R takes its time."""
        self._take(R, stage)

    def boundary(self, stage: int) -> tuple[tuple[int, ...], torch.dtype]:
        """Messages carry one number: when they arrive (see `transport.DelayedGloo`)."""
        return (1,), torch.int64

    def _take(self, kind: int, stage: int) -> Tensor:
        sleep_until(time.monotonic_ns() + int(self.lasts_ns[kind, stage]))
        return EMPTY


def sleep_until(time_ns: int) -> None:
    """Wait until that time of `time.monotonic_ns`, to some ten microseconds (see `sharp_timers`).

    It sleeps to the end: a thread that spins keeps others from running, in Python above all.
    """
    while (left := time_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def sharp_timers() -> None:
    """Let sleeps of this thread, and of those it starts, end when they should: Linux adds 50 us to
    each unless told otherwise. Elsewhere nothing is done."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
