"""Stages that only sleep, and how to sleep exactly."""

from __future__ import annotations

import ctypes
import sys
import time

import torch
from torch import Tensor, nn

from ...op_costs import op_costs
from ...ops import BW, B, C, F, O, OpKind, R, W
from ...sim.lower import Lowered
from ..model.stage import StageWorker

PR_SET_TIMERSLACK = 29
EMPTY = torch.empty(0)
ARRIVAL = (1,), torch.int64  # the message of an op that sleeps (see `transport.DelayedGloo`)


class SyntheticWorker(StageWorker):
    """Stages whose ops sleep exactly as long as the profile says, and allocate nothing.

    Threads, messages and the order in which the host issues ops are real.
    """

    def __init__(self, lowered: Lowered, rank: int) -> None:
        schedule = lowered.schedule
        modules = {stage: nn.Identity() for stage in schedule.shape.stages_of(rank)}
        super().__init__(modules, schedule.shape.stages, ARRIVAL, rank=rank)
        duration_ns = op_costs(schedule, lowered.profile).duration_ns.tolist()
        ops = map(tuple, schedule.table.tolist())  # kind, stage, unit
        self.duration_ns = dict(zip(ops, duration_ns, strict=True))

    def forward(
        self, stage: int, unit: int, x: Tensor | None, level: str | None = None
    ) -> Tensor | None:
        return self._sleep(F, stage, unit)

    def recompute(self, stage: int, unit: int) -> None:
        self._sleep(C, stage, unit)

    def backward(self, stage: int, unit: int, dy: Tensor | None, *, fused: bool) -> Tensor | None:
        return self._sleep(BW if fused else B, stage, unit)

    def weight(self, stage: int, unit: int) -> None:
        self._sleep(W, stage, unit)

    def offload(self, stage: int, unit: int, keys: bool = False) -> None:
        self._sleep(O, stage, unit)

    def drop(self, stage: int, unit: int) -> None:
        """Do nothing."""

    def allocate(self, stage: int, unit: int) -> None:
        """Do nothing."""

    def reload(self, stage: int, unit: int) -> None:
        self._sleep(R, stage, unit)

    def _sleep(self, kind: OpKind, stage: int, unit: int) -> Tensor:
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
