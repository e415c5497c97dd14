"""What is profiled or run, and one microbatch of it: a model and how it is cut, or a user's own stages."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...costs.models import Model
from ...costs.parallelism import OPTIMIZER_BYTES, stage_kinds
from ...costs.work import GRADIENT_BYTES
from ...errors import OptPipeError
from ...schedule.shape import Shape
from .boundary import Boundary
from .decoder import Decoder, build_stage, check_model, layer_counts, torch_dtype
from .sliced import Cut
from .stage import Loss, StageWorker


@dataclass(frozen=True)
class Plan:
    """What is profiled: a model cut into ``devices * chunks`` stages, and one microbatch of it.

    `optimizer_bytes`: per weight, for the static memory; default: Adam, as in ``estimate``.
    `slices`: tokens of each slice that sequences are cut into, in order; none: they stay whole.
    `tokens`: of the sequences of each microbatch where these differ, at most `seq`; none: all have `seq`.
    """

    model: Model
    devices: int
    chunks: int = 1
    seq: int = 2048
    microbatch: int = 1
    dtype: str = "fp32"
    layers: tuple[int, ...] | None = None
    seed: int = 0
    optimizer_bytes: int | None = None
    slices: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for key in ("devices", "chunks", "microbatch", "seq"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                name = "stages" if key == "devices" else key
                raise OptPipeError(f"{name}: must be a whole number of at least 1, got {value!r}")
        torch_dtype(self.dtype)
        check_model(self.model, self.seq)
        counts = layer_counts(self.model, self.stages, seq=self.seq, layers=self.layers)
        object.__setattr__(self, "layers", tuple(counts))
        self._check_tokens()
        self._check_slices()

    def _check_tokens(self) -> None:
        wrong = [one for one in self.tokens if not 1 <= one <= self.seq]
        if wrong:
            raise OptPipeError(f"tokens: expected 1 to {self.seq} per sequence, got {wrong[0]}")
        if self.tokens and self.slices:
            raise OptPipeError("slices: of sequences of one length; leave them out")

    def _check_slices(self) -> None:
        if not self.slices:
            return
        if min(self.slices) < 1 or sum(self.slices) != self.seq:
            raise OptPipeError(
                f"slices: expected tokens of slices that add up to the {self.seq} of a sequence, got"
                f" {', '.join(map(str, self.slices))}"
            )
        if self.model.experts:
            raise OptPipeError(
                f"slices: {self.model.name} has experts, whose room is a share of the tokens of a whole"
                " sequence: slice by slice they would drop other tokens"
            )

    @property
    def cut(self) -> Cut:
        """The slices, for one worker."""
        return Cut(self.slices, self.tokens)

    @property
    def stages(self) -> int:
        """The number of stages of the whole model."""
        return self.devices * self.chunks

    def alike(self) -> list[int]:
        """Return, for each stage, the first one that has the same layers."""
        assert self.layers is not None
        kinds = stage_kinds(self.model, self.layers)
        last = self.stages - 1
        keys = [(kind, at == 0, at == last) for at, kind in enumerate(kinds)]
        return [keys.index(key) for key in keys]

    def worker(self, stage: int, device: str | torch.device, fill: bool = True) -> StageWorker:
        """Return a worker with just this stage."""
        module = self.module(stage, device=device, fill=fill)
        return StageWorker({stage: module}, self.stages, self.boundary, device=device, cut=self.cut)

    def rank_worker(
        self, shape: Shape, rank: int, device: str | torch.device = "cpu"
    ) -> StageWorker:
        """Return a worker with the stages of one rank, where the model is cut as `shape` says.

        Raises:
            OptPipeError: where `shape` cuts sequences into other slices.
        """
        there = max(1, len(self.slices))
        if there != shape.slices:
            raise OptPipeError(
                f"slices: the schedule cuts sequences into {shape.slices}, the stages into {there}"
            )
        modules = {
            stage: self.module(stage, shape.stages, device) for stage in shape.stages_of(rank)
        }
        return StageWorker(
            modules, shape.stages, self.boundary, device=device, rank=rank, cut=self.cut
        )

    def step_batch(
        self, microbatches: int, seed: int, device: str | torch.device = "cpu"
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return tokens of each microbatch and the tokens that follow them, (microbatch, tokens) each; the same
        everywhere.

        Raises:
            OptPipeError: where sequences differ, and are those of another number of microbatches.
        """
        lengths = self.tokens or (self.seq,) * microbatches
        if len(lengths) != microbatches:
            raise OptPipeError(f"tokens: of {len(lengths)} microbatches, but {microbatches} run")
        generator = torch.Generator().manual_seed(seed)
        shape = (microbatches, self.microbatch, self.seq + 1)
        drawn = torch.randint(0, self.model.vocab, shape, generator=generator)
        inputs, targets = (
            [
                one[:, first : first + count].contiguous().to(device)
                for one, count in zip(drawn, lengths, strict=True)
            ]
            for first in (0, 1)
        )
        return inputs, targets

    def module(
        self,
        stage: int,
        stages: int | None = None,
        device: str | torch.device = "cpu",
        fill: bool = True,
    ) -> Decoder:
        """Return a stage of the model, where it is cut into so many; default: as the plan says.
        ``module(0, 1)`` is all of it, with the same weights (see `build_stage`)."""
        count = stages or self.stages
        return build_stage(
            self.model,
            stage,
            count,
            seq=self.seq,
            dtype=self.dtype,
            device=device,
            seed=self.seed,
            layers=self.layers if count == self.stages else None,
            fill=fill,
        )

    @property
    def boundary(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of what goes from stage to stage."""
        return (self.microbatch, self.seq, self.model.hidden), torch_dtype(self.dtype)

    def batch(self, device: str | torch.device) -> tuple[Tensor, Tensor]:
        """Return two microbatches, inputs and targets."""
        shape = (2, self.microbatch, self.seq)
        tokens = torch.randint(0, self.model.vocab, shape, device=device)
        return tokens, tokens

    @property
    def title(self) -> str:
        """The model's name."""
        return self.model.name

    def name(self, kind: str) -> str:
        """Return what a profile of it on such a device is called."""
        sliced = f"-{len(self.slices)}slices" if self.slices else ""
        size = f"s{self.seq}{sliced}-b{self.microbatch}-{self.dtype}"
        return f"{self.model.name}-{kind}-p{self.devices}-{size}"

    @property
    def adam_bytes(self) -> int:
        """What the optimizer keeps per weight."""
        if self.optimizer_bytes is not None:
            return self.optimizer_bytes
        return OPTIMIZER_BYTES - (GRADIENT_BYTES if torch_dtype(self.dtype).itemsize == 4 else 0)

    def facts(self) -> dict[str, Any]:
        """Return the model and the work, for the `meta` of a profile."""
        model = self.model
        work: dict[str, Any] = {
            "microbatch": self.microbatch,
            "seq": self.seq,
            "dtype": self.dtype,
        }
        if self.slices:
            work["slices"] = list(self.slices)
        return {
            "model": {"name": model.name, "source": model.source, "shape": model_shape(model)},
            "work": work,
        }


def model_shape(model: Model) -> dict[str, Any]:
    """Return the fields of a model that differ from their defaults, all that its stages need; `costs.load_model` reads
    them."""
    named = {"name", "source", "published_parameters", "published_active"}
    return {
        field.name: value
        for field in fields(model)
        if field.name not in named and (value := getattr(model, field.name)) != field.default
    }


@dataclass(frozen=True)
class ModuleStages:
    """What is profiled: a user's own stages, with the messages that they sent when they were examined.

    Attributes:
        example: one microbatch for the first stage, and one for the loss.
        boundaries, messages: by the stage that sends.
        adam_bytes: what the optimizer keeps per weight. title: of the model.
    """

    modules: tuple[nn.Module, ...]
    loss: Loss
    example: tuple[Any, Any]
    devices: int
    boundaries: list[Boundary | None]
    messages: list[Tensor | None]
    adam_bytes: int
    title: str
    slices: tuple[int, ...] = ()
    seed: int = 0

    @property
    def stages(self) -> int:
        """The number of stages of the whole model."""
        return len(self.modules)

    @property
    def chunks(self) -> int:
        """Stages per device."""
        return self.stages // self.devices

    @property
    def layers(self) -> None:
        """None: the layers of a user's modules are unknown."""
        return

    def alike(self) -> list[int]:
        """Return the stages to measure: all of them."""
        return list(range(self.stages))

    def worker(self, stage: int, device: str | torch.device, fill: bool = True) -> StageWorker:
        """Return a worker with just this stage."""
        return StageWorker(
            {stage: self.modules[stage]},
            self.stages,
            self.boundaries,
            device=device,
            loss=self.loss,
            cut=Cut(self.slices),
            examples=self._example,
        )

    def batch(self, device: str | torch.device) -> tuple[Any, Any]:
        """Return two microbatches, inputs and targets, which share no memory."""
        inputs, targets = (
            [pytree.tree_map_only(Tensor, Tensor.clone, one), one] for one in self.example
        )
        return inputs, targets

    def _example(self, stage: int, unit: int) -> Tensor:
        """Return the message that was sent when the stages were examined, for a slice its tokens repeated."""
        kind, message = self.boundaries[stage], self.messages[stage]
        assert kind is not None
        assert message is not None
        if not self.slices:
            return message.clone()
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
        """Return the model and the work, for the `meta` of a profile."""
        return {
            "model": {"name": self.title, "stages": [type(m).__name__ for m in self.modules]},
            "work": {
                "boundaries": [str(one.message) for one in self.boundaries if one],
                **({"slices": list(self.slices)} if self.slices else {}),
            },
        }


Stages = Plan | ModuleStages  # what can be profiled
