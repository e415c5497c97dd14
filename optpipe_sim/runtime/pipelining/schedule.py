"""`schedule_class`: a schedule of ours where torch.distributed.pipelining takes one of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from ...errors import OptPipeError
from ...ops import BW, B, C, F, Op, W
from ...profile import CostProfile
from ...profile_io import load_profile
from ...schedule import Schedule
from ..device import current_device
from ..execute.rank_step import RankStep
from ..execute.record import Record
from ..execute.run import run_step
from ..group import PipelineGroup
from ..model.boundary import Boundary, tensors_of
from ..model.stage import Loss, StageWorker
from ..modules.examine import examine
from ..modules.examine import refuse as refuse_module
from ..program.program import Prepared, check_whole, prepare
from .probe import Action, Kind, Runtime, add_reduce_grad, add_unshard_reshard

KINDS = {
    F: Kind.FORWARD,
    B: Kind.BACKWARD_INPUT,
    W: Kind.BACKWARD_WEIGHT,
    BW: Kind.FULL_BACKWARD,
    C: Kind.FORWARD,  # to FSDP, which gathers the same weights for it
}
REDUCED = "torch's fully_shard or replicate reduce gradients here, or reduce them after the step"


def schedule_class(
    schedule: Schedule | str | os.PathLike[str],
    profile: CostProfile | str | os.PathLike[str] | None = None,
    memory_limit: int | Sequence[int] | None = None,
    timeout_s: float = 60.0,
) -> type[Any]:
    """Return a class to use in the place of one from torch's `get_schedule_class`.

        Schedule = schedule_class("plan.json", "profile.yaml")
        schedule = Schedule(stages, n_microbatches=8, loss_fn=loss)
        schedule.step(x, target=y, losses=losses)  # x on the first rank, y on the last

    It is a subclass of torch's own runtime for schedules and takes the same arguments: torch's
    `PipelineStage`'s of this rank, in torchtitan as in a script. It offloads, reloads, recomputes and
    defers weight gradients as the schedule says, holds no more than was predicted, and releases what is
    sent once it is sent. Weights that torch's `fully_shard` shards are gathered and released, and their
    gradients reduced, where torch's runtime would. `eval` runs the forwards alone, without gradients.

    Args:
        schedule: or a file of one. profile: its costs, which decide when memory may be released, and
            its levels of recomputation; default: no memory is limited.
        memory_limit: bytes per device; default: the profile's.
        timeout_s: how long to wait for a message.

    Raises:
        OptPipeError: one line: the schedule is not sound, or needs levels and there is no profile, or
            this torch's runtime is another than the adapter knows.
    """
    plan = schedule if isinstance(schedule, Schedule) else Schedule.load(schedule)
    costs = load_profile(profile) if isinstance(profile, str | os.PathLike) else profile
    check_whole(plan, "torch's pipelines")
    prepared = prepare(plan, costs, memory_limit)
    made = {"prepared": prepared, "timeout_s": timeout_s, "__doc__": PlanSchedule.__doc__}
    return type("PlanSchedule", (PlanSchedule,), made)


class PlanSchedule(Runtime):
    """A schedule of optpipe_sim in torch's runtime; see `schedule_class`, which makes the subclasses.

    Attributes:
        measure: count activation bytes in the next steps (into `record`), which slows them down.
        record: what this rank measured in the last step.
        begun: called with each compute op that starts.
    """

    prepared: ClassVar[Prepared]
    timeout_s: ClassVar[float]

    def __init__(
        self,
        stages: list[Any],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        **options: Any,
    ) -> None:
        given = list(stages) if isinstance(stages, list | tuple) else [stages]
        plan = self.prepared.schedule
        check_stages(given, plan.shape, n_microbatches)
        super().__init__(given, n_microbatches, loss_fn, **options)
        self.group = PipelineGroup(plan.shape.devices, given[0].group)
        self.device = current_device(given[0].device)
        self.pipeline_order = {
            rank: [_action(op) for op in ops if op.kind in (F, B, W, BW)]
            for rank, ops in enumerate(plan.flat_programs)
        }
        self._prepare_schedule_with_comms(self.pipeline_order)
        self.measure = False
        self.record: Record | None = None
        self.begun: Callable[[Op], None] = lambda op: None
        self.worker: TorchStages | None = None
        self._cold = self.device.type == "cuda"
        self._rank = given[0].group_rank
        self._stage = {stage.stage_index: stage for stage in given}
        self._actions = _actions(plan, self._rank)
        self._forwards = [
            step
            for step in self.prepared.programs[self._rank].steps
            if step.op.kind is F and step.do in ("post", "recv", "run", "send")
        ]
        self._loss_keywords: dict[str, Any] = {}
        self._one: RankStep | None = None

    def _load_csv(self, filename: str, format: str = "compute_only") -> None:
        """Refuse: torch's runtime would read the file, and this step would not look at it.

        Raises:
            OptPipeError: always.
        """
        raise OptPipeError(f"csv: this class has a plan already; leave {filename} out")

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Run one iteration; arguments and result are those of torch's method."""
        arg_mbs, kwarg_mbs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        self._loss_keywords = loss_kwargs or {}
        last = next((stage for stage in self._stages if stage.is_last), None)
        if last is not None and target_mbs is None and self._has_backward:
            raise OptPipeError("target: the rank of the last stage needs it for the loss")
        if self.worker is None:
            target = target_mbs[0] if target_mbs and self._loss_fn is not None else None
            self.worker = self._made_worker(arg_mbs[0], kwarg_mbs[0], target)
        batch = arg_mbs, kwarg_mbs, target_mbs or (), return_outputs, not self._has_backward
        if self._cold and self._has_backward:
            self.worker.begin(*batch)
            self._warm_up()
            self._cold = False
        self.worker.begin(*batch)
        if self._has_backward:
            self._run()
        else:
            self._evaluate()
        if last is not None:
            self._internal_losses.extend(self.worker.losses())
            last.output_chunks.extend(made for _, made in sorted(self.worker.outputs.items()))
            self.worker.outputs = {}
        self._update_losses(self._stages, losses)

    def _run(self) -> None:
        """Run all ops of this rank, and what FSDP does between them."""
        assert self._one is not None
        for action in self._actions[None]:
            self._perform(action)
        self.record = run_step(self._one, self._one.meter() if self.measure else None)

    def _begin(self, op: Op) -> None:
        """Have the weights of a compute op gathered before it starts."""
        stage = self._stage[op.stage]
        self._assert_unsharded(stage)
        if op.kind is not W:
            _hold_back(stage)
            if op.kind is not F and op[1:] in self.prepared.programs[self._rank].levels:
                self._gather(op.stage)  # no hook of FSDP sees parts that are recomputed
        self.begun(op)

    def _end(self, op: Op) -> None:
        for action in self._actions.get(op, ()) if self._has_backward else ():
            self._perform(action)

    # -- FSDP ------------------------------------------------------------------------------------------

    def _perform(self, action: Any) -> None:
        """Perform an action that is no op: gather or release weights, or reduce and scale gradients."""
        stage = self._stage[action.stage_index]
        if action.computation_type == Kind.UNSHARD:
            self._unshard(stage)
        elif action.computation_type == Kind.RESHARD:
            self._reshard(stage)
        else:
            stage.perform_reduce_grad(self._n_microbatches if self.scale_grads else 1)

    def _unshard(self, stage: Any) -> None:
        for module in sharding(stage.submod):
            self.unshard_ops[stage.stage_index].append(module.unshard(async_op=True))

    def _reshard(self, stage: Any) -> None:
        for module in sharding(stage.submod):
            module.reshard()
        self.unsharded_stages.discard(stage.stage_index)

    # -- before the first step -----------------------------------------------------------------------

    def _made_worker(self, args: Any, keywords: Any, target: Any) -> TorchStages:
        """Examine all stages with the first microbatch; see `examine`."""
        shape = self.prepared.schedule.shape
        modules = {at: stage.submod for at, stage in self._stage.items()}
        weights: list[Tensor] = []
        for stage in self._stages:
            self._unshard(stage)
            self._assert_unsharded(stage)
            _hold_back(stage)
            if sharding(stage.submod):
                weights += [*stage.submod.parameters()]
        passed = examine(
            modules,
            shape,
            self.group,
            self.device,
            args,
            target,
            None if target is None else self._loss,
            run=lambda module, tree: called(module, tree, keywords),
            refuse=lambda at, module, device: refuse(self._stage[at], module, device),
        )
        for stage in self._stages:
            self._reshard(stage)
        made = TorchStages(
            modules,
            shape.stages,
            [one.boundary for one in passed],
            device=self.device,
            rank=self._rank,
            loss=self._loss,
            weights=weights,
        )
        self._one = RankStep(
            made,
            self._rank,
            self.prepared,
            group=self.group.group,
            timeout_s=self.timeout_s,
            begun=self._begin,
            ended=self._end,
        )
        return made

    def _loss(self, made: Any, target: Any) -> Tensor:
        assert self._loss_fn is not None
        return self._loss_fn(made, target, **self._loss_keywords)

    def _warm_up(self) -> None:
        """Have workspaces and pinned host memory allocated before any message is under way (see
        `PipelineStep`), and where FSDP reduces gradients, its communicators; gradients stay as they are."""
        assert self._one is not None
        every = [p for stage in self._stages for p in stage.submod.parameters()]
        gradients = [parameter.grad for parameter in every]
        for parameter in every:
            parameter.grad = None
        self._one.warm_up(self._gather)
        for stage in self._stages:
            stage.perform_reduce_grad(1)
            self._reshard(stage)
        for parameter, gradient in zip(every, gradients, strict=True):
            parameter.grad = gradient

    def _gather(self, number: int) -> None:
        """Have the weights of a stage there, whatever its last op left."""
        stage = self._stage[number]
        _hold_back(stage)
        for module in sharding(stage.submod):
            module.unshard()

    # -- without a backward ----------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Run the forwards alone, in the schedule's order, for `eval`; FSDP gathers weights as it meets them."""
        assert self._one is not None
        with torch.no_grad():
            for step in self._forwards:
                self._one.do(step)
        self._one.transport.finish()
        self._one.worker.finish_step()
        for stage in self._stages:
            self._reshard(stage)


def _hold_back(stage: Any) -> None:
    """Have FSDP, where it shards a stage, neither reduce gradients nor release weights in the backward: the schedule
    says when."""
    if not sharding(stage.submod):
        return
    stage.submod.set_is_last_backward(False)
    stage.submod.set_reshard_after_backward(False)
    stage.submod.set_requires_gradient_sync(False)


def _action(op: Op) -> Any:
    return Action(op.stage, KINDS[op.kind], op.microbatch)


def _actions(schedule: Schedule, rank: int) -> dict[Op | None, list[Any]]:
    """Return, by op of a rank, where torch gathers and releases weights and reduces gradients after it
    (None: before all)."""
    ops = [op for op in schedule.flat_programs[rank] if op.kind in KINDS]
    actions = add_unshard_reshard([_action(op) for op in ops])
    found: dict[Op | None, list[Any]] = {None: []}
    left = iter(ops)
    at: Op | None = None
    for action in add_reduce_grad(actions, schedule.shape.microbatches):
        if action.computation_type in KINDS.values():
            at = next(left)
            found[at] = []
        else:
            found[at].append(action)
    return found


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
        self.keep_outputs = self.evaluating = False
        self.outputs: dict[int, Any] = {}

    def begin(
        self,
        inputs: Sequence[Any],
        keywords: Sequence[Mapping[str, Any]],
        targets: Sequence[Any],
        keep_outputs: bool,
        evaluating: bool,
    ) -> None:
        """Begin a step; all by microbatch. `evaluating`: no backward follows."""
        self.keywords, self.keep_outputs, self.outputs = keywords, keep_outputs, {}
        self.evaluating = evaluating
        self.start_step(inputs, targets)
        self.leave_out([*self.weights, *tensors_of([dict(each) for each in keywords])])

    def finish_step(self) -> None:
        """End a step; torch's schedule reports its `losses`, one by one."""
        super().finish_step()

    def losses(self) -> list[Tensor]:
        """Return the losses of the last step, by microbatch."""
        return [loss for _, loss in sorted(self._losses.items())]

    def leave_out(self, tensors: Any) -> None:
        """Count these as no activations; sharded weights are in no graph."""
        super().leave_out(tensor for tensor in tensors if not isinstance(tensor, DTensor))

    def forward(
        self, stage: int, unit: int, x: Tensor | None, level: str | None = None
    ) -> Tensor | None:
        """Run F; where no backward follows, keep nothing for it."""
        if not self.evaluating:
            return super().forward(stage, unit, x, level)
        if x is None:
            tree = self._inputs[unit]
        else:
            tree = self._boundary(stage - 1).tree(self._boundary(stage - 1).unpack(x))
        found = self._call(stage, unit, tree)
        if stage < self.stages - 1:
            return self._boundary(stage).pack(tensors_of(found), self.device)
        if len(self._targets):
            self._losses[unit] = self.loss(found, self._targets[unit])
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
