"""Jobs of ranks on virtual GPUs: a process per rank, each with a GPU that is a model, messages of NCCL over gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch_pipeline import TorchJob
from virtual_gpu import OnHost, VirtualGpu, nccl

from optpipe_sim.ops import Op
from optpipe_sim.runtime import device as devices
from optpipe_sim.runtime.execute import rank_step, streams
from optpipe_sim.runtime.measure.memory import LiveBytes
from optpipe_sim.runtime.modules import examine
from optpipe_sim.runtime.program.issue import Issue, issue_order
from optpipe_sim.runtime.train.task import TrainResult
from optpipe_sim.runtime.train.trainer import RankTraining


@contextmanager
def gpu_of_this_rank() -> Iterator[pytest.MonkeyPatch]:
    """A virtual GPU in the place of a real one; the fault is the first race, or use of memory that is another's
    by then."""
    gpu = VirtualGpu()
    with pytest.MonkeyPatch.context() as patch:
        gpu.install(patch)
        patch.setattr(devices, "check_device", lambda name: None)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.setattr(torch.cuda, "set_device", lambda number: None)
        patch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
        patch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
        patch.setattr(rank_step, "meter_of", lambda device: LiveBytes())
        patch.setattr(examine, "_elsewhere", lambda *_: False)  # modules are on the host
        with OnHost(), gpu, nccl(gpu, carried=True) as sends:
            yield patch
    streams.copy_stream.cache_clear()
    assert gpu.faults == [], gpu.faults[0]
    assert sends
    # those of copies, once for all steps and schedules
    assert gpu.pool_streams <= 2, f"{gpu.pool_streams} streams of the pool"


@dataclass(frozen=True)
class OnVirtualGpus(RankTraining):
    """The part of one rank in a training run.

    Attributes:
        forgetful: copies out do not wait for what they copy.
    """

    forgetful: bool = False

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> TrainResult:
        with gpu_of_this_rank() as patch:
            if self.forgetful:
                patch.setattr(streams, "issue_order", _without_waits)
            return super().perform(rank, begun)


@dataclass(frozen=True)
class TorchOnVirtualGpus(TorchJob):
    """The part of one rank under torch's runtime for schedules."""

    device: str = "cuda"

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> Any:
        with gpu_of_this_rank():
            return super().perform(rank, begun)


def _without_waits(program: Any) -> tuple[Issue, ...]:
    return tuple(
        replace(issue, waits=()) if issue.step.do == "offload" else issue
        for issue in issue_order(program)
    )
