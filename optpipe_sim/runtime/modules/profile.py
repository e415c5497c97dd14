"""`profile_modules`: what a user's own stages cost here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...errors import OptPipeError
from ...profile import CostProfile
from ...schedule.shape import Shape
from ..group import PipelineGroup
from ..measure.profiler import Progress, measure
from ..model.boundary import Boundary
from ..model.sliced import Cut
from ..model.stage import Loss, StageWorker
from .examine import Halves, Passed, examine


def profile_modules(
    modules: Sequence[nn.Module],
    loss: Loss,
    inputs: Any,
    target: Any,
    *,
    devices: int | None = None,
    device: str = "cpu",
    levels: Sequence[str] = (),
    slices: Sequence[int] = (),
    samples: int = 30,
    warmup: int = 5,
    optimizer_bytes: int = 8,
    latency_ns: int = 0,
    occupancy_ns: int = 0,
    name: str = "modules",
    progress: Progress = lambda name, done, total: None,
) -> CostProfile:
    """Measure every stage of a model on this machine's CPU or GPU, for `solve` and `PipelineStep`.

    One process has all stages; one at a time runs, F, B, W and BW of a microbatch, its bytes counted
    after and inside every op. No link is measured.

    Args:
        modules: all stages in order, as `PipelineStep` takes them.
        loss, inputs, target: the loss, and one microbatch for the first and the last stage.
        devices: how many the stages are dealt out to, in turn; default: one each.
        device: where the modules are, ``cpu`` or ``cuda``.
        levels: of recomputation: ``stage`` (all of a stage at once, always possible); ``full`` and
            ``full-50%``, where stages mark their layers (`mark_layers`, `checkpoint`); ``norms``,
            ``attention``, ``mlp`` and so on, where they mark these parts (`part`).
        slices: tokens of each slice of the sequences, in order; none: they stay whole. See
            `PipelineStep` for what the modules have to do.
        samples, warmup: chains of ops that are timed, and that are not.
        optimizer_bytes: what the optimizer keeps per trained weight (8: two moments in fp32).
        latency_ns, occupancy_ns: a message between devices takes their sum, and the link is busy for
            the latter.
        progress: called with what is measured, how much is done, and of how much.

    Raises:
        OptPipeError: one line, with what cannot work.
    """
    place = torch.device(device)
    p = devices or len(modules)
    if not modules or p < 1 or len(modules) % p:
        raise OptPipeError(f"devices: {len(modules)} stages cannot be dealt out to {p} devices")
    shape = Shape(p, len(modules) // p, 1)
    halves = Halves(slices, loss, target) if slices else None
    found = examine(
        dict(enumerate(modules)),
        shape,
        PipelineGroup(p, alone=True),
        place,
        inputs,
        halves.ending if halves else lambda made: loss(made, target),
        halves=halves,
    )
    example, lengths = (inputs, target), tuple(slices)
    stages = ModuleStages(tuple(modules), loss, example, p, found, optimizer_bytes, name, lengths)
    profile = measure(stages, device, samples, warmup, progress, levels=levels)
    return replace(profile, latency_ns=latency_ns, occupancy_ns=occupancy_ns)


@dataclass(frozen=True)
class ModuleStages:
    """A user's own stages, as the profiler takes them (`plan.Stages`)."""

    modules: tuple[nn.Module, ...]
    loss: Loss
    example: tuple[Any, Any]
    devices: int
    passed: Mapping[int, Passed]
    adam_bytes: int
    title: str
    slices: tuple[int, ...] = ()
    seed: int = 0

    @property
    def stages(self) -> int:
        """Of the whole model."""
        return len(self.modules)

    @property
    def chunks(self) -> int:
        """Per device."""
        return self.stages // self.devices

    @property
    def layers(self) -> None:
        """Nothing that could be cut elsewhere."""
        return

    @property
    def boundaries(self) -> list[Boundary | None]:
        """By the stage that sends."""
        return [self.passed[stage].boundary for stage in range(self.stages - 1)]

    def marked_layers(self, stage: int) -> int:
        """Return 0: the layers of a user's modules are unknown."""
        return 0

    def alike(self) -> list[int]:
        """Return the stages to measure: all of them."""
        return list(range(self.stages))

    def worker(self, stage: int, device: str | torch.device, fill: bool = True) -> StageWorker:
        """Return a worker with just this stage."""
        modules = {stage: self.modules[stage]}
        cut = Cut(self.slices, layouts={stage: self.passed[stage].keys})
        return StageWorker(
            modules, self.stages, self.boundaries, device=device, loss=self.loss, cut=cut
        )

    def batch(self, device: str | torch.device) -> tuple[Any, Any]:
        """Return two microbatches, inputs and targets, which share no memory."""
        copy = lambda value: value.clone() if isinstance(value, Tensor) else value  # noqa: E731
        inputs, targets = ([pytree.tree_map(copy, one), one] for one in self.example)
        return inputs, targets

    def message(
        self,
        worker: StageWorker,
        boundary: int,
        gradient: bool = False,
        generator: torch.Generator | None = None,
        unit: int = 0,
    ) -> Tensor | None:
        """Return what the stage before sent when it was examined, of a slice over and over again; a gradient of
        zeros, or drawn."""
        if not 0 <= boundary < self.stages - 1:
            return None
        if not gradient:
            message = self.passed[boundary].message
            assert message is not None
            return message.clone() if not self.slices else self._repeated(boundary, unit)
        kind = self.passed[boundary].boundary
        assert kind is not None
        kind = worker.cut.boundary(kind, unit)
        made = torch.zeros(kind.gradient[0], dtype=kind.gradient[1], device=worker.device)
        if generator is not None and kind.differentiable:
            for part in kind.unpack_gradient(made):
                part.normal_(generator=generator).div_(part.numel())
        return made

    def _repeated(self, boundary: int, unit: int) -> Tensor:
        """Return the message of the first tokens, as long as a slice."""
        kind, message = self.passed[boundary].boundary, self.passed[boundary].message
        assert kind is not None
        assert message is not None
        length = self.slices[unit % len(self.slices)]
        made = []
        for one in kind.unpack(message):
            count = -(-length // one.shape[1])
            made.append(torch.cat([one] * count, 1)[:, :length].contiguous())
        return kind.of_slice(length).pack(made, message.device).clone()

    def name(self, kind: str) -> str:
        """Return what a profile of it on such a device is called."""
        sliced = f"-{len(self.slices)}slices" if self.slices else ""
        return f"{self.title}-{kind}-p{self.devices}{sliced}"

    def facts(self) -> dict[str, Any]:
        """Return what a profile of it tells of its origin."""
        return {
            "model": {"name": self.title, "stages": [type(m).__name__ for m in self.modules]},
            "work": {
                "boundaries": [str(one.message) for one in self.boundaries if one],
                **({"slices": list(self.slices)} if self.slices else {}),
            },
        }
