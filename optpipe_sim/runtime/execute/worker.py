"""The interface of a device's stages to an executor, and stages that only sleep."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Protocol

import torch
from torch import Tensor

from ...op_costs import op_costs
from ...ops import BW, B, C, F, O, Op, OpKind, R, W
from ...sim.lower import Lowered
from ..model.boundary import Layout

PR_SET_TIMERSLACK = 29
EMPTY = torch.empty(0)


class Worker(Protocol):
    """The stages of one device, driven op by op; `stage.StageWorker` has the meaning of each."""

    def forward(
        self, stage: int, mb: int, x: Tensor | None, level: str | None = None
    ) -> Tensor | None: ...

    def recompute(self, stage: int, mb: int) -> None: ...

    def backward(self, stage: int, mb: int, dy: Tensor | None, *, fused: bool) -> Tensor | None: ...

    def weight(self, stage: int, mb: int) -> None: ...

    def offload(self, stage: int, mb: int) -> None: ...

    def drop(self, stage: int, mb: int) -> None: ...

    def allocate(self, stage: int, mb: int) -> None: ...

    def reload(self, stage: int, mb: int) -> None: ...

    def boundary(self, stage: int, gradient: bool = False) -> Layout: ...


def compute(worker: Worker, op: Op, box: list[Tensor | None], level: str | None) -> Tensor | None:
    """One compute op, and what it makes for another stage.

    Args:
        box: holds its input, and releases it.
        level: of recomputation of its activation; None: it is kept whole.
    """
    at = op.stage, op.microbatch
    if op.kind is F:
        return worker.forward(*at, box.pop(), level)
    if op.kind in (B, BW):
        return worker.backward(*at, box.pop(), fused=op.kind is BW)
    if op.kind is C:
        worker.recompute(*at)
    else:
        worker.weight(*at)
    return None


class SyntheticWorker:
    """Stages whose ops sleep exactly as long as the profile says, and allocate nothing.

    Threads, messages and the issue order of the host are real.
    """

    def __init__(self, lowered: Lowered) -> None:
        schedule = lowered.schedule
        duration_ns = op_costs(schedule, lowered.profile).duration_ns.tolist()
        self.duration_ns = {schedule.op(row): time for row, time in enumerate(duration_ns)}

    def forward(self, stage: int, mb: int, x: Tensor | None, level: str | None = None) -> Tensor:
        """F takes its time."""
        return self._take(F, stage, mb)

    def recompute(self, stage: int, mb: int) -> None:
        """C likewise."""
        self._take(C, stage, mb)

    def backward(self, stage: int, mb: int, dy: Tensor | None, *, fused: bool) -> Tensor:
        """B or BW likewise."""
        return self._take(BW if fused else B, stage, mb)

    def weight(self, stage: int, mb: int) -> None:
        """W likewise."""
        self._take(W, stage, mb)

    def offload(self, stage: int, mb: int) -> None:
        """O likewise."""
        self._take(O, stage, mb)

    def drop(self, stage: int, mb: int) -> None:
        """Do nothing: there is no memory."""

    def allocate(self, stage: int, mb: int) -> None:
        """Do nothing: there is no memory."""

    def reload(self, stage: int, mb: int) -> None:
        """R takes its time."""
        self._take(R, stage, mb)

    def boundary(self, stage: int, gradient: bool = False) -> Layout:
        """Messages carry one number: when they arrive (see `transport.DelayedGloo`)."""
        return (1,), torch.int64

    def _take(self, kind: OpKind, stage: int, mb: int) -> Tensor:
        sleep_until(time.monotonic_ns() + self.duration_ns[Op(kind, stage, mb)])
        return EMPTY


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
