"""The modules of torch's pipeline stages, driven op by op by our executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from ...errors import OptPipeError
from ..model.boundary import Boundary
from ..model.stage import Loss, StageWorker
from ..modules.examine import refuse as refuse_module

REDUCED = "torch's fully_shard or replicate reduce gradients here, or reduce them after the step"


def called(module: nn.Module, tree: Any, keywords: Mapping[str, Any]) -> Any:
    """Return what a stage returns as torch calls it: arguments from the stage before, keywords from the
    step."""
    made = module(*(tree if type(tree) is tuple else (tree,)), **keywords)
    return tuple(made) if type(made) is list else made


def refuse(stage: Any, module: nn.Module, device: torch.device) -> None:
    """Refuse one of torch's stages that our executors cannot run; FSDP's weights have to be gathered.

    Raises:
        OptPipeError: names the stage and the parameter.
    """
    if stage.dw_builder is not None:
        raise OptPipeError(
            f"stage {stage.stage_index}: has a dw_builder; the schedule defers weight gradients by"
            " itself: leave it out"
        )
    refuse_module(stage.stage_index, module, device, REDUCED, fsdp=True)


def sharding(module: nn.Module) -> list[FSDPModule]:
    """Return the modules that FSDP shards in a stage; torch's runtime asks the outermost."""
    if not isinstance(module, FSDPModule):
        return []
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


class TorchStages(StageWorker):
    """The stages of one rank as torch's schedules see them.

    Differs from its base in what stages are called with, in that gradients are those of the sum of
    the losses (torch scales them afterwards) and add to what is there, and in that the weights of
    FSDP come and go.

    Attributes:
        weights: of FSDP, gathered: no activations, and always in the same storages.
        outputs: by microbatch, what the last stage returned, if `keep_outputs`.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        stages: int,
        boundaries: list[Boundary | None],
        *,
        device: torch.device,
        rank: int,
        loss: Loss,
        weights: Sequence[Tensor],
    ) -> None:
        super().__init__(modules, stages, boundaries, device=device, rank=rank, loss=loss)
        self.share, self.weights = 1.0, weights
        self.keywords: Sequence[Mapping[str, Any]] = ()
        self.keep_outputs = False
        self.outputs: dict[int, Any] = {}

    def begin(
        self,
        inputs: Sequence[Any],
        keywords: Sequence[Mapping[str, Any]],
        targets: Sequence[Any],
        keep_outputs: bool,
    ) -> None:
        """Begin a step; all by microbatch."""
        self.keywords, self.keep_outputs, self.outputs = keywords, keep_outputs, {}
        self.start_step(inputs, targets)
        values = pytree.tree_leaves([dict(each) for each in keywords])
        self.leave_out([*self.weights, *(value for value in values if isinstance(value, Tensor))])

    def finish_step(self) -> None:
        """End a step; torch's schedule reports its `losses`, one by one."""
        super().finish_step()

    def losses(self) -> list[Tensor]:
        """Return the losses of the last step, by microbatch."""
        return [loss for _, loss in sorted(self._losses.items())]

    def leave_out(self, tensors: Any) -> None:
        """Count these as no activations; sharded weights are in no graph."""
        super().leave_out(tensor for tensor in tensors if not isinstance(tensor, DTensor))

    def evaluate(self, stage: int, mb: int, x: Tensor | None) -> Tensor | None:
        """Run a forward that no backward follows; see `forward`."""
        if x is None:
            tree = self._inputs[mb]
        else:
            tree = self._boundary(stage - 1).tree(self._boundary(stage - 1).unpack(x))
        found = self._call(stage, mb, tree)
        if stage < self.stages - 1:
            made = [value for value in pytree.tree_leaves(found) if isinstance(value, Tensor)]
            return self._boundary(stage).pack(made, self.device)
        if len(self._targets):
            self._losses[mb] = self.loss(found, self._targets[mb])
        return None

    def _call(self, stage: int, mb: int, tree: Any) -> Any:
        found = called(self.modules[stage], tree, self.keywords[mb])
        if stage == self.stages - 1 and self.keep_outputs:
            self.outputs[mb] = pytree.tree_map_only(Tensor, Tensor.detach, found)
        return found


def check_stages(stages: Sequence[Any], shape: Any, microbatches: int) -> None:
    """Check that torch's stages are those of this rank in the schedule.

    Raises:
        OptPipeError: says which are expected.
    """
    if not stages:
        raise OptPipeError("stages: none given")
    first = stages[0]
    if first.num_stages != shape.stages:
        raise OptPipeError(f"stages: of {first.num_stages}, the schedule has {shape.stages}")
    if first.group_size != shape.devices:
        raise OptPipeError(
            f"stages: their group has {first.group_size} ranks, the schedule {shape.devices} devices"
        )
    given = sorted(stage.stage_index for stage in stages)
    wanted = sorted(shape.stages_of(first.group_rank))
    if given != wanted:
        raise OptPipeError(
            f"stages: rank {first.group_rank} has {given}, in the schedule it has {wanted}"
        )
    if microbatches != shape.microbatches:
        raise OptPipeError(
            f"n_microbatches: {microbatches}, the schedule has {shape.microbatches} microbatches"
        )
