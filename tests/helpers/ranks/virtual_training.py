"""Training on virtual GPUs: a process per rank, each with a GPU that is a model, messages of NCCL over gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from virtual_gpu import OnHost, VirtualGpu, nccl

from optpipe_sim.ops import Op
from optpipe_sim.runtime.execute import cuda, device
from optpipe_sim.runtime.measure import profiler
from optpipe_sim.runtime.measure.memory import LiveBytes
from optpipe_sim.runtime.program.issue import Issue, issue_order
from optpipe_sim.runtime.train import trainer
from optpipe_sim.runtime.train.task import TrainResult
from optpipe_sim.runtime.train.trainer import RankTraining


@dataclass(frozen=True)
class OnVirtualGpus(RankTraining):
    """The part of one rank; its fault is the first race, or use of memory that is another's by then.

    Attributes:
        forgetful: copies out do not wait for what they copy.
    """

    forgetful: bool = False

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> TrainResult:
        gpu = VirtualGpu()
        with pytest.MonkeyPatch.context() as patch:
            gpu.install(patch)
            patch.setattr(profiler, "check_device", lambda name: None)
            patch.setattr(device.torch.cuda, "device_count", lambda: 2)
            patch.setattr(device.torch.cuda, "set_device", lambda number: None)
            patch.setattr(trainer, "meter_of", lambda name: LiveBytes())
            if self.forgetful:
                patch.setattr(cuda, "issue_order", _without_waits)
            with OnHost(), gpu, nccl(gpu, carried=True) as sends:
                found = super().perform(rank, begun)
        cuda.copy_stream.cache_clear()
        assert gpu.faults == [], gpu.faults[0]
        assert sends
        # those of copies, once for all steps and schedules
        assert gpu.pool_streams <= 2, f"{gpu.pool_streams} streams of the pool"
        return found


def _without_waits(program: Any) -> tuple[Issue, ...]:
    return tuple(
        replace(issue, waits=()) if issue.step.do == "offload" else issue
        for issue in issue_order(program)
    )
