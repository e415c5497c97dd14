"""What ranks do with torch's pipeline stages: steps of a schedule of ours in torch's own runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from stage_cases import held_bytes
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.distributed.tensor import distribute_tensor

from optpipe_sim.errors import OptPipeError, RuntimeFault
from optpipe_sim.ops import Op
from optpipe_sim.runtime import PipelineStep, schedule_class
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.split import zero_gradients
from optpipe_sim.runtime.model.stage import token_loss
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim.lower import Lowered

CPU = torch.device("cpu")


@dataclass(frozen=True)
class TorchJob:
    """A step of a schedule of ours in torch's runtime, and the same step of `PipelineStep`.

    Each rank gives back losses and gradients, and of both the peak and the bytes held before each
    compute op; what is refused if there is a `fault`.

    Attributes:
        fault: ``ddp``, ``dtensor``, ``hooks``, ``builder`` or ``in place``: of the last stage.
        own: whether `PipelineStep` runs too. evaluate: forwards alone as well, first and last.
        titan: as torchtitan makes and calls its schedules: the loss scaled beforehand, gradients not
            scaled, no list of losses where there is no last stage, extra keywords.
        device: of the stages.
    """

    lowered: Lowered
    plan: Plan
    fault: str = ""
    own: bool = True
    evaluate: bool = False
    titan: bool = False
    timeout_s: float = 20.0
    device: str = "cpu"

    @property
    def schedule(self) -> Schedule:
        return self.lowered.schedule

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> dict[str, Any]:
        shape, limit = self.schedule.shape, self.lowered.memory_limit
        inputs, targets = self.plan.step_batch(shape.microbatches, 0)
        modules = self.plan.rank_worker(shape, rank).modules
        zero_gradients(nn.ModuleList(modules.values()).parameters())  # as an optimizer leaves them
        x = (torch.cat(inputs),) if 0 in modules else ()
        y = torch.cat(targets) if shape.stages - 1 in modules else None
        losses: list[Tensor] = []
        held: list[tuple[Op, int]] = []
        pinned: list[int] = []
        evaluated = []
        try:
            stages = [self.stage(at, module) for at, module in sorted(modules.items())]
            made = schedule_class(self.schedule, self.lowered.profile, limit, self.timeout_s)
            m = shape.microbatches
            if self.titan:
                scaled = lambda found, wanted: token_loss(found, wanted) / m  # noqa: E731
                schedule = made(stages, n_microbatches=m, loss_fn=scaled, scale_grads=False)
            else:
                schedule = made(stages, n_microbatches=m, loss_fn=token_loss)
            schedule.begun = lambda op: (
                begun(op),
                held.append((op, held_bytes(schedule.worker))),
                pinned.append(schedule.worker.slab.reserved),
            )
            schedule.measure = True
            if self.evaluate:
                evaluated.append(schedule.eval(*x, target=y, losses=losses))
            told = losses if y is not None or not self.titan else None
            schedule.step(*x, target=y, losses=told, return_outputs=False)
            losses = [m * loss if self.titan else loss for loss in losses]
            if self.evaluate:
                evaluated.append(schedule.eval(*x, target=y))
        except OptPipeError as problem:
            if not self.fault or isinstance(problem, RuntimeFault):
                raise
            return {"refused": str(problem)}
        found = {
            "losses": [float(loss) for loss in losses],
            "gradients": gradients(modules),
            "held": held,
            "reserved": (pinned[0], schedule.worker.slab.reserved),
            "peak": schedule.record.peak_bytes,
            "evaluated": evaluated,
        }
        return found | (self.own_step(rank, inputs, targets) if self.own else {})

    def own_step(self, rank: int, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """The same by `PipelineStep`."""
        held: list[tuple[Op, int]] = []
        step = PipelineStep(
            self.plan.rank_worker(self.schedule.shape, rank).modules,
            self.schedule,
            token_loss,
            profile=self.lowered.profile,
            memory_limit=self.lowered.memory_limit,
            timeout_s=self.timeout_s,
        )
        step.begun = lambda op: held.append((op, held_bytes(step.ranks[rank].worker)))
        step(inputs, targets, measure=True)
        return {
            "own_gradients": gradients(step.modules),
            "own_held": held,
            "own_peak": step.peaks[rank],
        }

    def stage(self, at: int, module: nn.Module) -> PipelineStage:
        """Torch's stage; the last one with the fault."""
        last = at == self.schedule.shape.stages - 1
        fault = self.fault if last else ""
        if fault == "ddp":
            mine = dist.new_group([dist.get_rank()], use_local_synchronization=True)
            module = nn.parallel.DistributedDataParallel(module, process_group=mine)
        if fault == "dtensor":  # as tensor parallelism leaves its weights
            mine = dist.new_group([dist.get_rank()], use_local_synchronization=True)
            head = next(part for part in module.modules() if isinstance(part, nn.Linear))
            mesh = DeviceMesh.from_group(mine, "cpu")
            head.weight = nn.Parameter(distribute_tensor(head.weight.detach(), mesh))
        if fault == "hooks":
            next(module.parameters()).register_hook(lambda gradient: None)
        if fault == "in place":
            module.register_forward_pre_hook(lambda _, arguments: arguments[0].mul_(2))
        builder = (lambda: lambda: None) if fault == "builder" else None
        stages, device = self.schedule.shape.stages, torch.device(self.device)
        return PipelineStage(module, at, stages, device, dw_builder=builder)


def gradients(modules: dict[int, nn.Module]) -> dict[str, Any]:
    """By the names that the whole model has."""
    every = [module.named_parameters() for _, module in sorted(modules.items())]
    return {name: parameter.grad for each in every for name, parameter in each}


@dataclass(frozen=True)
class ShardedJob:
    """Two steps of two replicas of a pipeline on one device each, their weights sharded over both by FSDP:
    each rank gives back its gradients by torch's own schedule, and by ours.

    Attributes:
        lowered: of one device. reshard: whether FSDP releases weights after each forward.
        schedule: any for as many devices as there are ranks.
    """

    lowered: Lowered
    plan: Plan
    reshard: bool
    schedule: Schedule

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> Any:
        shape = self.lowered.schedule.shape
        ours = schedule_class(self.lowered.schedule, self.lowered.profile)
        alone = [dist.new_group([each]) for each in range(dist.get_world_size())][rank]
        inputs, targets = self.plan.step_batch(shape.microbatches, rank)
        found = []
        for kind in (ScheduleInterleaved1F1B, ours):
            modules = self.plan.rank_worker(shape, 0).modules
            stages = [
                PipelineStage(self.sharded(module), at, shape.stages, CPU, group=alone)
                for at, module in modules.items()
            ]
            schedule = kind(stages, n_microbatches=shape.microbatches, loss_fn=token_loss)
            for cold in (
                False,
                True,
            ):  # ours warms up, as on a GPU, and keeps the gradients of the first step
                schedule._cold = cold
                schedule.step(torch.cat(inputs), target=torch.cat(targets))
            found.append({n: g.to_local().clone() for n, g in gradients(modules).items()})
        return found

    def sharded(self, module: nn.Module) -> nn.Module:
        """The layers by themselves, and the rest."""
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in module.layers.values():
            fully_shard(layer, mesh=mesh, reshard_after_forward=self.reshard)
        return fully_shard(module, mesh=mesh, reshard_after_forward=self.reshard)
