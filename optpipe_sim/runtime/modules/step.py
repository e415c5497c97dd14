"""`PipelineStep`: one training step of a user's own stages, as a schedule says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ...errors import OptPipeError
from ...ops import Op
from ...profile import CostProfile
from ...schedule import Schedule
from ..device import current_device
from ..execute.rank_step import RankStep
from ..execute.run import run_step
from ..execute.serial import run_serially
from ..execute.transport import Loopback
from ..group import PipelineGroup, Tied, TiedWeights
from ..measure.memory import meter as meter_of
from ..model.sliced import Cut
from ..model.split import Ready
from ..model.stage import Loss, StageWorker, parameters_of
from ..program.program import prepare
from .examine import examine


class PipelineStep:
    """Forward and backward of a batch through stages of your own, as a schedule says.

        step = PipelineStep(stages, schedule, loss, profile=profile)
        optimizer = torch.optim.AdamW(step.parameters())
        for inputs, targets in batches:
            mean_loss = step(inputs, targets)
            step.clip_grad_norm_(1.0)
            optimizer.step()

    Without a process group one process runs all ranks, op by op in the order of their predicted
    times, for tests and small models. Where torch.distributed has a process for each device of the
    schedule (gloo on CPUs, NCCL on GPUs), each runs its own stages: all make the same calls.

    What a stage returns the next one takes: a tensor, or a tuple (its positional arguments) or dict
    (its keywords) of tensors and constants. The first stage takes a microbatch of the inputs likewise.
    Gradients are those of the mean loss over the microbatches; every call starts them at zero. Plain
    ``nn.Linear`` layers are split into B and W; other weights get theirs in B, as do those in
    compiled modules. Autocast around the call is that of the forward passes. A stage may have frozen
    parameters, and activation checkpointing of its own (`torch.utils.checkpoint`).

    A schedule over slices of the sequence runs each stage on one slice after the other: every tensor is
    (sequences, tokens, ...) then; attention takes the keys and values of all tokens so far from
    `with_earlier`, positions count from `first_token()`, and the loss is a mean over tokens. The first
    call compares two slices of the first tokens with the whole.

    Args:
        modules: all stages in order; in a process group those of this rank, by number, will do.
        schedule: of as many stages; `profile` has its costs, which decide when memory may be dropped
            (default: none is limited), and its levels of recomputation.
        loss: of what the last stage returns and the target of a microbatch: one number.
        memory_limit: bytes per device; default: the profile's.
        slices: tokens of each slice of the sequences, in order, where the schedule has slices; default: those
            that the profile was measured with (`profile_modules`).
        tied: per weight that several stages have copies of, which stages and its name in each, as in
            ``[[(0, "embed.weight"), (3, "head.weight")]]``: all start as the first, and get the sum
            of all gradients. Stages of one process may share the parameter itself instead.
        group: the process group of this pipeline; default: all processes. On GPUs those of all
            pipelines make their first call at the same time.
        device: of the modules, ``cpu`` or ``cuda``: the current GPU.
        ready: called with each parameter once no further op of the step adds to its gradient, while
            the step goes on; a handle that it returns is waited for at the end (``.wait()``). For data
            parallelism: ``lambda p: dist.all_reduce(p.grad, group=replicas, async_op=True)``.
        accumulate: dtype in which gradients add up, as torch.float32 for weights in bf16.
        timeout_s: how long to wait for a message.
        begun: called with each op that starts.

    Attributes:
        ranks: after the first call, the part of each rank of this process (`RankStep`).
        peaks: after a call with ``measure=True``, by rank of this process, the most activation bytes
            held between ops.

    Raises:
        OptPipeError: one line, with what does not fit.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module] | Mapping[int, nn.Module],
        schedule: Schedule,
        loss: Loss,
        *,
        profile: CostProfile | None = None,
        memory_limit: int | Sequence[int] | None = None,
        slices: Sequence[int] = (),
        tied: Sequence[Tied] = (),
        group: Any = None,
        device: str | torch.device = "cpu",
        ready: Callable[[nn.Parameter], Any] | None = None,
        accumulate: torch.dtype | None = None,
        timeout_s: float = 60.0,
        begun: Callable[[Op], None] = lambda op: None,
    ) -> None:
        shape = schedule.shape
        self.device = current_device(device)
        self.loss, self.timeout_s, self.begun = loss, timeout_s, begun
        self.group = PipelineGroup(shape.devices, group)
        self.modules = _own(modules, schedule, self.group)
        self.slices = _lengths(schedule, profile, slices)
        self.prepared = prepare(schedule, profile, memory_limit)
        self.tied = TiedWeights.named(tied, self.modules, shape, self.group)
        self.tied.start_equal()
        self.ready, self.accumulate = ready, accumulate
        if accumulate is not None and not hasattr(torch.Tensor, "grad_dtype"):
            raise OptPipeError(f"accumulate: torch {torch.__version__} has no Tensor.grad_dtype")
        self.peaks: dict[int, int] = {}
        self.ranks: dict[int, RankStep] = {}
        self._waiting: list[Any] = []

    @property
    def schedule(self) -> Schedule:
        """As it is issued."""
        return self.prepared.schedule

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of this process's stages, each once: for the optimizer."""
        return parameters_of(self.modules)

    # -- a step --------------------------------------------------------------------------------------

    def __call__(self, inputs: Any, targets: Any, measure: bool = False) -> float | None:
        """Run forward and backward of a batch; the gradients are in `.grad` then.

        Args:
            inputs: one per microbatch, in a list, or along the first dimension of a tensor; only the
                first stage's process reads them (others may give None). targets: likewise, for the
                last one.
            measure: count bytes (into `peaks`), which slows the step down.

        Returns:
            The mean loss; None in a process without the last stage.

        Raises:
            OptPipeError: at the first call, where a stage cannot be run so.
            RuntimeFault: names the rank, the op and what went wrong.
        """
        self._check_batch(inputs, targets)
        if not self.ranks:
            self.prepare(inputs, targets)
        if self.accumulate is not None:
            self._accumulate_in(self.accumulate)
        later = self._later()
        for one in self.ranks.values():
            one.start(*self._read(inputs, targets))
            if self.ready is not None:
                units = self.schedule.shape.units
                modules = one.worker.modules
                one.worker.ready = Ready(modules, units, self._complete, {id(p) for p in later})
        loss = self._run(measure)
        self.tied.add_up()
        if self.ready is not None:
            for parameter in later:
                self._complete(parameter)
        for work in self._waiting:
            work.wait()
        self._waiting.clear()
        return loss

    def _run(self, measure: bool) -> float | None:
        if self.group.rank is not None:
            one = self.ranks[self.group.rank]
            record = run_step(one, one.meter() if measure else None)
            if measure:
                self.peaks = {one.rank: record.peak_bytes}
            return record.loss
        with nullcontext() if not measure else meter_of(self.device) as meter:
            run = run_serially(self.ranks, meter=meter)
        if measure:
            self.peaks = {r: max(held for _, held in each) for r, each in run.held.items()}
        return run.loss

    def _complete(self, parameter: nn.Parameter) -> None:
        assert self.ready is not None
        work = self.ready(parameter)
        if work is not None:
            self._waiting.append(work)

    def _later(self) -> list[nn.Parameter]:
        """Return the parameters whose gradient is complete only at the end of the step."""
        seen: set[int] = set()
        shared: dict[int, nn.Parameter] = {id(p): p for p in self.tied.every()}
        for _, module in sorted(self.modules.items()):
            own = list(module.parameters())
            shared |= {id(p): p for p in own if id(p) in seen and p.requires_grad}
            seen |= {id(p) for p in own}
        return list(shared.values())

    # -- before the first one ------------------------------------------------------------------------

    def prepare(self, inputs: Any, targets: Any) -> None:
        """Examine all stages with the first microbatch; the first call does it.

        Raises:
            OptPipeError: one line, the same on all ranks, with what cannot work.
        """
        shape = self.schedule.shape
        passed = examine(
            self.modules,
            shape,
            self.group,
            self.device,
            inputs[0] if 0 in self.modules else None,
            targets[0] if shape.stages - 1 in self.modules else None,
            self.loss,
            slices=self.slices,
        )
        boundaries = [one.boundary for one in passed]
        for rank in filter(self.group.has, range(shape.devices)):
            worker = StageWorker(
                {stage: self.modules[stage] for stage in shape.stages_of(rank)},
                shape.stages,
                boundaries,
                device=self.device,
                rank=rank,
                loss=self.loss,
                cut=Cut(self.slices),
            )
            self.ranks[rank] = RankStep(
                worker,
                rank,
                self.prepared,
                # one process hands results over without messages
                Loopback({}) if self.group.rank is None else None,
                group=self.group.group,
                timeout_s=self.timeout_s,
                begun=self.begun,
            )
        for one in self.ranks.values():
            one.start(*self._read(inputs, targets))  # which warms up

    def _read(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Return what this process needs of a batch: nothing, where it has neither the first nor the
        last stage."""
        last = self.schedule.shape.stages - 1
        return inputs if 0 in self.modules else (), targets if last in self.modules else ()

    def _check_batch(self, inputs: Any, targets: Any) -> None:
        shape = self.schedule.shape
        for what, given, stage in (("inputs", inputs, 0), ("targets", targets, shape.stages - 1)):
            if stage in self.modules and len(given) != shape.microbatches:
                raise OptPipeError(
                    f"{what}: {len(given)} given, the schedule has {shape.microbatches} microbatches"
                )

    def _accumulate_in(self, dtype: torch.dtype) -> None:
        for parameter in self.parameters():
            if parameter.requires_grad and parameter.grad_dtype != dtype:
                parameter.grad = None
                parameter.grad_dtype = dtype

    # -- after one -----------------------------------------------------------------------------------

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all gradients of the pipeline down to a norm of at most `max_norm`.

        Tied weights count once. The norm is the same, bit by bit, on all ranks, and for any cut of
        the same layers.

        Returns:
            The norm before.
        """
        repeated, seen = self.tied.repeated(), set[int]()
        norms: list[tuple[int, list[float]]] = []
        for stage, module in sorted(self.modules.items()):
            own = []
            for parameter in module.parameters():
                if parameter.grad is None or id(parameter) in seen | repeated:
                    continue
                seen.add(id(parameter))
                own.append(float(torch.linalg.vector_norm(parameter.grad)))
            norms.append((stage, own))
        every = sorted(pair for part in self.group.gather(norms) for pair in part)
        # floats of Python hold those of torch exactly; summed up as torch does it
        total = torch.linalg.vector_norm(torch.tensor([norm for _, own in every for norm in own]))
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, total)
        return float(total)

    def gradients_as_weights(self) -> None:
        """Round gradients that were accumulated in another dtype to that of their weights, for
        optimizers that want it (AdamW); the next call starts in the other dtype again."""
        for parameter in self.parameters():
            if parameter.grad is not None and parameter.grad.dtype != parameter.dtype:
                rounded = parameter.grad.to(parameter.dtype)
                parameter.grad, parameter.grad_dtype = None, parameter.dtype
                parameter.grad = rounded


def _own(
    modules: Sequence[nn.Module] | Mapping[int, nn.Module],
    schedule: Schedule,
    group: PipelineGroup,
) -> dict[int, nn.Module]:
    """Return the stages of this process, by number."""
    shape = schedule.shape
    given = dict(modules) if isinstance(modules, Mapping) else dict(enumerate(modules))
    if not isinstance(modules, Mapping) and len(given) != shape.stages:
        raise OptPipeError(f"modules: {len(given)} given, the schedule has {shape.stages} stages")
    wanted = [stage for stage in range(shape.stages) if group.has(shape.placement[stage])]
    missing = [stage for stage in wanted if stage not in given]
    if missing:
        whose = "one process runs all stages" if group.rank is None else f"rank {group.rank} has it"
        raise OptPipeError(f"modules: stage {missing[0]} is missing; {whose}")
    return {stage: given[stage] for stage in wanted}


def _lengths(
    schedule: Schedule, profile: CostProfile | None, given: Sequence[int]
) -> tuple[int, ...]:
    """Return the tokens of each slice: those given, or those of the profile; none without slices."""
    count = schedule.shape.slices
    work = None if profile is None else profile.meta.get("work")
    said = given or (work.get("slices") if isinstance(work, dict) else None) or ()
    if count == 1:
        if given:
            raise OptPipeError(f"slices: {len(given)} given, the schedule has whole sequences")
        return ()
    if len(said) != count:
        raise OptPipeError(
            f"slices: the schedule cuts sequences into {count}, tokens are given of {len(said)}; expected"
            " slices=[tokens of the first, of the second, ...]"
        )
    return tuple(map(int, said))
