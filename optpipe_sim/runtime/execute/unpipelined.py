"""The same step without a pipeline, by plain autograd: what a pipelined step is compared with, and what
ranks send to each other in it. Of the whole model at once, or with one stage on the device at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ...ops import BW, B, F, Op
from ...schedule import Schedule
from ..model.decoder import Decoder
from ..model.plan import Plan
from ..model.stage import StageWorker, token_loss


def named_gradients(worker: StageWorker) -> dict[str, Tensor]:
    """Return the gradients by the names that the unpipelined model has for its parameters."""
    found: dict[str, Tensor] = {}
    for _, module in sorted(worker.modules.items()):
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                found[name] = parameter.grad
    return found


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
    losses = []
    data = [part.to(device) for part in plan.step_batch(microbatches, seed)]
    for tokens, targets in zip(*data, strict=True):
        logits = whole(tokens)
        loss = token_loss(logits, targets)
        (loss / microbatches).backward()
        losses.append(loss.detach())
    gradients = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    return float(torch.stack(losses).mean()), gradients


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
    return _Step(plan, schedule, seed, device).run()


class _Step:
    """The step, boundary by boundary: `forward[s, j]` and `backward[s, j]` are what stage s makes."""

    def __init__(self, plan: Plan, schedule: Schedule, seed: int, device: str) -> None:
        self.plan, self.schedule, self.device = plan, schedule, device
        self.shape = schedule.shape
        self.inputs, self.targets = plan.step_batch(self.shape.microbatches, seed)
        self.forward: dict[tuple[int, int], Tensor] = {}
        self.backward: dict[tuple[int, int], Tensor] = {}

    def run(self) -> Contents:
        stages, m = self.shape.stages, self.shape.microbatches
        for stage in range(stages - 1):
            module = self._module(stage)
            for mb in range(m):
                with torch.no_grad():
                    self.forward[stage, mb] = self._kept(module(self._input(stage, mb)))
            del module
        found = Contents()
        losses: list[Tensor] = []
        tied: Tensor | None = None  # the last stage's share of a weight that the first has as well
        for stage in reversed(range(stages)):
            module = self._module(stage)
            for mb in range(m):
                self._back(module, stage, mb, losses)
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
        found.messages = dict(self._messages())
        return found

    def _back(self, module: nn.Module, stage: int, mb: int, losses: list[Tensor]) -> None:
        x = self._input(stage, mb)
        if stage:
            x.requires_grad_()
        y = module(x)
        if stage == self.shape.stages - 1:
            loss = token_loss(y, self.targets[mb].to(self.device))
            losses.append(loss.detach())
            (loss / self.shape.microbatches).backward()
        else:
            y.backward(self.backward[stage + 1, mb].to(self.device))
        if stage:
            assert x.grad is not None
            self.backward[stage, mb] = self._kept(x.grad)

    def _module(self, stage: int) -> Decoder:
        return self.plan.module(stage, self.shape.stages, self.device)

    def _input(self, stage: int, mb: int) -> Tensor:
        source = self.forward[stage - 1, mb] if stage else self.inputs[mb]
        return source.to(self.device, copy=True)

    def _kept(self, tensor: Tensor) -> Tensor:
        """Return a copy in host memory."""
        cuda = tensor.is_cuda
        kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=cuda)
        return kept.copy_(tensor.detach())

    def _messages(self) -> list[tuple[Op, Tensor]]:
        place, schedule = self.shape.placement, self.schedule
        found = []
        for (stage, mb), kept in self.forward.items():
            if place[stage] != place[stage + 1]:
                found += [
                    (self.shape.op(F, stage, unit), each) for unit, each in self._units(mb, kept)
                ]
        for (stage, mb), kept in self.backward.items():
            if place[stage] != place[stage - 1]:
                for unit, each in self._units(mb, kept):
                    fused = self.shape.op(BW, stage, unit)
                    whole = schedule.row(fused) >= 0
                    found.append((fused if whole else fused._replace(kind=B), each))
        return found

    def _units(self, mb: int, kept: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the units of a microbatch, and their parts of a tensor of it."""
        cut, slices = self.plan.cut, self.shape.slices
        for unit in range(mb * slices, (mb + 1) * slices):
            yield unit, self._kept(cut.of_batch(kept, unit)) if slices > 1 else kept
