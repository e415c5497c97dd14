"""What is profiled or run: a model, how it is cut, and one microbatch of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...costs.models import Model
from ...costs.parallelism import stage_kinds
from ...errors import OptPipeError
from .models import build_stage, check_model, layer_counts, torch_dtype
from .stage import StageWorker


@dataclass(frozen=True)
class Plan:
    """What is profiled: a model cut into ``devices * chunks`` stages, and one microbatch of it.

    `optimizer_bytes`: per weight, for the static memory; default: Adam, as in ``estimate``.
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

    @property
    def stages(self) -> int:
        """Of the whole model."""
        return self.devices * self.chunks

    def alike(self) -> list[int]:
        """For each stage the first one that is just like it."""
        assert self.layers is not None
        kinds = stage_kinds(self.model, self.layers)
        last = self.stages - 1
        keys = [(kind, at == 0, at == last) for at, kind in enumerate(kinds)]
        return [keys.index(key) for key in keys]

    def worker(self, stage: int, device: str | torch.device, fill: bool = True) -> StageWorker:
        """A worker with just this stage, its step begun with two microbatches."""
        module = build_stage(
            self.model,
            stage,
            self.stages,
            seq=self.seq,
            dtype=self.dtype,
            device=device,
            seed=self.seed,
            layers=self.layers,
            fill=fill,
        )
        return StageWorker({stage: module}, self.stages, self.boundary, device=device)

    @property
    def boundary(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of what goes from stage to stage."""
        return (self.microbatch, self.seq, self.model.hidden), torch_dtype(self.dtype)

    def tokens(self, device: str | torch.device) -> Tensor:
        """A batch of two microbatches."""
        shape = (2, self.microbatch, self.seq)
        return torch.randint(0, self.model.vocab, shape, device=device)

    def name(self, kind: str) -> str:
        """What a profile of it on such a device is called."""
        size = f"s{self.seq}-b{self.microbatch}-{self.dtype}"
        return f"{self.model.name}-{kind}-p{self.devices}-{size}"
