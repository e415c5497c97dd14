"""The same step without a pipeline, by plain autograd: what a pipelined step is compared with, and what
ranks send to each other in it. Of the whole model at once, or with one stage on the device at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ...ops import BW, B, F, Op
from ...schedule import Schedule
from ..model.plan import Plan
from ..model.stage import StageWorker, token_loss


def named_gradients(worker: StageWorker) -> dict[str, Tensor]:
    """Return the gradients by the names that the unpipelined model has for its parameters."""
    return {
        name: parameter.grad
        for _, module in sorted(worker.modules.items())
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def plain_step(whole: nn.Module, inputs: Iterable[Tensor], targets: Sequence[Tensor]) -> float:
    """Run a batch through the whole model, microbatch by microbatch; return the mean loss. Gradients are added to."""
    losses = []
    for tokens, wanted in zip(inputs, targets, strict=True):
        loss = token_loss(whole(tokens), wanted)
        (loss / len(targets)).backward()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def reference(
    plan: Plan, microbatches: int, seed: int, device: str = "cpu", *, exact: bool = False
) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients of the same step without a pipeline, by plain autograd: what a pipelined
    step on that kind of device is compared with.

    `exact`: with the same weights in fp64, which shows how far the other one is off by rounding alone.
    """
    whole = plan.module(0, 1, device)
    if exact:
        whole = whole.double()
    inputs, targets = plan.step_batch(microbatches, seed, device)
    loss = plain_step(whole, inputs, targets)
    return loss, {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}


@dataclass
class Contents:
    """One step by plain autograd, cut at the boundaries of stages; everything in host memory.

    Attributes:
        messages: by the op that makes it, what goes to another rank; pinned where a GPU is to read it.
        loss: the mean over the microbatches.
        gradients: by the names of the unpipelined model; of a weight whose two copies are in
            different stages, the sum.
    """

    messages: dict[Op, Tensor] = field(default_factory=dict)
    loss: float = float("nan")
    gradients: dict[str, Tensor] = field(default_factory=dict)


def make_contents(plan: Plan, schedule: Schedule, seed: int, device: str = "cpu") -> Contents:
    """Run the stages one after the other, forward, then forward and backward from the last to the
    first, microbatch by microbatch.

    The device holds one stage, its gradients and one activation; the same ops on the same numbers
    as in the unpipelined model, so the results are bitwise those where kernels are deterministic.
    """
    stages, m = schedule.shape.stages, schedule.shape.microbatches
    inputs, targets = plan.step_batch(m, seed)
    # by stage, what it makes of each microbatch, and the gradients of what it takes
    forward: list[list[Tensor]] = []
    backward: list[list[Tensor]] = [[] for _ in range(stages)]

    def taken(stage: int, mb: int) -> Tensor:
        return (forward[stage - 1] if stage else inputs)[mb].to(device, copy=True)

    for stage in range(stages - 1):
        module = plan.module(stage, stages, device)
        with torch.no_grad():
            forward.append([_on_host(module(taken(stage, mb))) for mb in range(m)])
        del module
    found, losses = Contents(), list[Tensor]()
    tied: Tensor | None = None  # the last stage's share of a weight that the first has as well
    for stage in reversed(range(stages)):
        module = plan.module(stage, stages, device)
        for mb in range(m):
            x = taken(stage, mb).requires_grad_(bool(stage))
            y = module(x)
            if stage == stages - 1:
                loss = token_loss(y, targets[mb].to(device))
                losses.append(loss.detach())
                (loss / m).backward()
            else:
                y.backward(backward[stage + 1][mb].to(device))
            if stage:
                assert x.grad is not None
                backward[stage].append(_on_host(x.grad))
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad.to("cpu")
            if parameter is module.tied_weight and stage:
                tied = gradient
                continue
            if parameter is module.tied_weight and tied is not None:
                gradient = gradient + tied
            found.gradients[name] = gradient
        del module
    found.loss = float(torch.stack(losses).mean())
    found.messages = dict(_messages(plan, schedule, forward, backward))
    return found


def _on_host(tensor: Tensor) -> Tensor:
    """Return a copy in host memory."""
    kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return kept.copy_(tensor.detach())


def _messages(
    plan: Plan, schedule: Schedule, forward: list[list[Tensor]], backward: list[list[Tensor]]
) -> Iterator[tuple[Op, Tensor]]:
    """Yield what goes from rank to rank, slice by slice where sequences are cut, by the op that makes it."""
    shape, place = schedule.shape, schedule.shape.placement
    for stage, unit in itertools.product(range(shape.stages), range(shape.units)):
        whole = unit // shape.slices
        if stage < shape.stages - 1 and place[stage] != place[stage + 1]:
            yield shape.op(F, stage, unit), _unit(plan, forward[stage][whole], unit)
        if stage and place[stage] != place[stage - 1]:
            op = shape.op(BW, stage, unit)
            if schedule.row(op) < 0:
                op = op._replace(kind=B)
            yield op, _unit(plan, backward[stage][whole], unit)


def _unit(plan: Plan, kept: Tensor, unit: int) -> Tensor:
    """Return a unit's part of a tensor of its microbatch."""
    return _on_host(plan.cut.of_batch(kept, unit)) if plan.slices else kept
