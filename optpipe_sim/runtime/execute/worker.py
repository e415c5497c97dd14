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
        self, stage: int, unit: int, x: Tensor | None, level: str | None = None
    ) -> Tensor | None: ...

    def recompute(self, stage: int, unit: int) -> None: ...

    def backward(
        self, stage: int, unit: int, dy: Tensor | None, *, fused: bool
    ) -> Tensor | None: ...

    def weight(self, stage: int, unit: int) -> None: ...

    def offload(self, stage: int, unit: int, keys: bool = False) -> None: ...

    def drop(self, stage: int, unit: int) -> None: ...

    def allocate(self, stage: int, unit: int) -> None: ...

    def reload(self, stage: int, unit: int) -> None: ...

    def boundary(self, stage: int, gradient: bool = False, unit: int = 0) -> Layout: ...


def compute(
    worker: Worker, op: Op, at: tuple[int, int], box: list[Tensor | None], level: str | None
) -> Tensor | None:
    """Run one compute op; returns what it makes for another stage.

    Args:
        at: its stage and unit.
        box: holds its input, and releases it.
        level: of recomputation of its activation; None: it is kept whole.
    """
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
        ops = map(tuple, schedule.table.tolist())  # kind, stage, unit
        self.duration_ns = dict(zip(ops, duration_ns, strict=True))

    def forward(self, stage: int, unit: int, x: Tensor | None, level: str | None = None) -> Tensor:
        """F takes its time."""
        return self._take(F, stage, unit)

    def recompute(self, stage: int, unit: int) -> None:
        """C likewise."""
        self._take(C, stage, unit)

    def backward(self, stage: int, unit: int, dy: Tensor | None, *, fused: bool) -> Tensor:
        """B or BW likewise."""
        return self._take(BW if fused else B, stage, unit)

    def weight(self, stage: int, unit: int) -> None:
        """W likewise."""
        self._take(W, stage, unit)

    def offload(self, stage: int, unit: int, keys: bool = False) -> None:
        """O likewise."""
        self._take(O, stage, unit)

    def drop(self, stage: int, unit: int) -> None:
        """Do nothing: there is no memory."""

    def allocate(self, stage: int, unit: int) -> None:
        """Do nothing: there is no memory."""

    def reload(self, stage: int, unit: int) -> None:
        """R takes its time."""
        self._take(R, stage, unit)

    def boundary(self, stage: int, gradient: bool = False, unit: int = 0) -> Layout:
        """Messages carry one number: when they arrive (see `transport.DelayedGloo`)."""
        return (1,), torch.int64

    def _take(self, kind: OpKind, stage: int, unit: int) -> Tensor:
        sleep_until(time.monotonic_ns() + self.duration_ns[kind, stage, unit])
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
