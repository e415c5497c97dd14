"""What ranks do with a user's own modules: steps of `PipelineStep` in a process per device."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import own_modules as own
import torch
import torch.distributed as dist
from runtime_cases import assert_equal, joined
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from optpipe_sim.errors import OptPipeError, RuntimeFault
from optpipe_sim.ops import Op
from optpipe_sim.profile import CostProfile
from optpipe_sim.runtime import PipelineStep
from optpipe_sim.schedule import Schedule


@dataclass(frozen=True)
class OwnJob:
    """Some steps with an optimizer; each rank gives back the last loss, norm, gradients and peaks.

    Attributes:
        models: the module that has the stages, their batch and loss.
        fault: what goes wrong on the last rank, see `_spoil`. What is refused is given back.
    """

    schedule: Schedule
    profile: CostProfile | None = None
    models: str = "own_modules"
    steps: int = 1
    tied: tuple[Any, ...] = ()
    fault: str = ""
    lr: float = 0.0
    timeout_s: float = 20.0

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> dict[str, Any]:
        shape, own = self.schedule.shape, import_module(self.models)
        every = own.stages_of(shape.stages)
        mine = {stage: every[stage] for stage in shape.stages_of(rank)}
        if rank == shape.devices - 1:
            _spoil(mine[max(mine)], self.fault)
        called: list[Tensor] = []
        step = PipelineStep(
            mine,
            self.schedule,
            own.loss,
            profile=self.profile,
            tied=self.tied,
            timeout_s=self.timeout_s,
            ready=lambda parameter: called.append(parameter),
            begun=begun,
        )
        optimizer = torch.optim.AdamW(step.parameters(), lr=self.lr)
        loss = norm = None
        for at in range(self.steps):
            try:
                inputs, targets = own.batch(shape.microbatches, at)
                loss = step(
                    inputs if 0 in mine else None,  # what others do not read they need not have
                    targets if shape.stages - 1 in mine else None,
                    measure=True,
                )
            except OptPipeError as error:
                if not self.fault or isinstance(error, RuntimeFault):
                    raise
                return {"refused": str(error)}
            norm = step.clip_grad_norm_(0.5) if self.lr else None
            optimizer.step()
        return {
            "loss": loss,
            "norm": norm,
            "peaks": step.peaks,
            "called": len(called) == self.steps * len(step.parameters()),
            "gradients": {
                f"{stage}.{name}": parameter.grad
                for stage, module in mine.items()
                for name, parameter in module.named_parameters()
            },
        }


def assert_as_unpipelined(results: list[dict[str, Any]], schedule: Schedule) -> None:
    """Loss and gradients of one step on all ranks are those of plain autograd, bitwise."""
    plain = own.stages_of(schedule.shape.stages)
    loss = own.unpipelined(plain, *own.batch(schedule.shape.microbatches, 0))
    assert_equal(joined(results), own.gradients(plain))
    assert [result["loss"] for result in results if result["loss"] is not None] == [loss]


@dataclass(frozen=True)
class ReplicaJob:
    """A replica per rank, each a pipeline of one device on a batch of its own; gradients are added up over
    the replicas as they are complete.

    Attributes:
        pipeline: what each runs. schedule: any of as many devices as there are replicas.
    """

    pipeline: Schedule
    schedule: Schedule

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> dict[str, Any]:
        modules = own.stages_of(self.pipeline.shape.stages)
        under_way: list[int] = []
        step = PipelineStep(
            modules,
            self.pipeline,
            own.loss,
            ready=lambda parameter: (
                under_way.append(len(under_way)),
                dist.all_reduce(parameter.grad, async_op=True),
            )[1],
        )
        step(*own.batch(self.pipeline.shape.microbatches, rank))
        assert len(under_way) == len(step.parameters())
        return own.gradients(modules)


def _spoil(module: nn.Module, fault: str) -> None:
    plain, calls = module.forward, []

    def forward(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:  # the first was before the first step
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments, **options)

    if fault == "killed":
        module.forward = forward  # type: ignore[method-assign]
    if fault == "hooks":
        next(module.parameters()).register_hook(lambda gradient: None)
    if fault in ("fsdp", "dtensor", "ddp"):
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        mesh = DeviceMesh.from_group(alone, "cpu")
        norm = module.layer.norm
        if fault == "fsdp":
            fully_shard(module.layer, mesh=mesh)
        elif fault == "ddp":
            module.layer = nn.parallel.DistributedDataParallel(module.layer, process_group=alone)
        else:
            norm.weight = nn.Parameter(distribute_tensor(norm.weight.detach(), mesh))
