"""Stages whose ops take 20 ms, and profiles of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from optpipe_sim import CostProfile
from optpipe_sim.runtime.execute.clocks import sleep_until
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.stage import StageWorker

MS = 1_000_000
OP_NS = 20 * MS


def paced(profile: CostProfile, f_ns: int = OP_NS, **changes: Any) -> CostProfile:
    """Ops of 20 ms, copies of 8."""
    times = {"t_f_ns": f_ns, "t_b_ns": OP_NS, "t_w_ns": OP_NS, "t_bw_ns": None}
    copies = {"t_offload_ns": 8 * MS, "t_reload_ns": 8 * MS}
    profile = profile.map_stages(lambda _, cost: replace(cost, **times, **copies))
    return replace(profile, memory_limit=None, latency_ns=MS, occupancy_ns=0, **changes)


def with_long_levels(profile: CostProfile) -> CostProfile:
    """Recomputing takes 20 ms too."""
    return profile.map_stages(
        lambda _, cost: replace(
            cost, recompute=tuple(replace(level, t_ns=OP_NS) for level in cost.recompute)
        )
    )


class Paced(StageWorker):
    """Every op takes at least 20 ms."""

    pace_ns = OP_NS

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.slowly(super().forward, *args, **options)

    def backward(self, *args: Any, **options: Any) -> Any:
        return self.slowly(super().backward, *args, **options)

    def weight(self, *args: Any, **options: Any) -> Any:
        return self.slowly(super().weight, *args, **options)

    def recompute(self, *args: Any, **options: Any) -> Any:
        return self.slowly(super().recompute, *args, **options)

    def slowly(self, function: Any, *args: Any, **options: Any) -> Any:
        end = time.monotonic_ns() + self.pace_ns
        found = function(*args, **options)
        sleep_until(end)
        return found


class Leaking(StageWorker):
    """Keeps what it is given, where no slot and no queue knows of it."""

    def forward(self, stage: int, *rest: Any) -> Any:
        self.kept = [*getattr(self, "kept", ()), torch.zeros(2**18)] if stage else []
        return super().forward(stage, *rest)


def as_(kind: type[StageWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the workers of this process be of that kind."""

    real = Plan.rank_worker

    def make(self: Plan, *args: Any) -> StageWorker:
        worker = real(self, *args)
        worker.__class__ = kind
        return worker

    monkeypatch.setattr(Plan, "rank_worker", make)
