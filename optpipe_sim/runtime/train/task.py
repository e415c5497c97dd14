"""A training run as data: its model, its settings and its result."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidSchedule, OptPipeError
from ...files import plain
from ...profile import CostProfile
from ...schedule import Schedule
from ..checkpoint import NAME, published
from ..model.plan import Plan, model_shape
from ..model.tokens import Tokens
from ..program.program import Prepared, check_tier, check_whole, prepare
from ..settings import Online
from .planner import Planner

NEWS, STOP = "news.jsonl", "stop"


def require_same_shape(new: Schedule, old: Schedule) -> None:
    """Refuse a schedule for stages that lie elsewhere, or for another batch.

    Raises:
        InvalidSchedule: says what differs.
    """
    if new.shape != old.shape:
        raise InvalidSchedule(
            f"a switch keeps devices, chunks, placement and microbatches: {new.shape} is not"
            f" {old.shape}"
        )


@dataclass(frozen=True)
class Slow:
    """An artificial delay for testing drift: all compute ops of a stage, from a step on."""

    stage: int
    step: int
    extra_ns: int


@dataclass(frozen=True)
class TrainTask:
    """A training run.

    Attributes:
        schedule: to start with; the halves of its pairs run one after the other. profile: its costs,
            before any are measured; the bytes stay.
        limit: of memory per device, kept by every schedule.
        folder: for progress reports and the request to stop, as rank 0 sees it.
        online: how to search for better schedules; None: not at all.
        checkpoints: a folder for them; None: none are written.
        every: steps between checkpoints. resume: go on from the last.
        slow: see `Slow`.
        device: of the stages, ``cpu`` or ``cuda`` (a GPU per rank, messages over NCCL).
    """

    schedule: Schedule
    profile: CostProfile
    plan: Plan
    tokens: Tokens
    steps: int
    folder: str = ""
    limit: tuple[int, ...] | None = None
    lr: float = 3e-3
    weight_decay: float = 0.1
    online: Online | None = None
    checkpoints: str | None = None
    every: int = 100
    resume: bool = False
    slow: Slow | None = None
    timeout_s: float = 60.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", self.schedule.parted())
        # nor may the search for better schedules count on what pairs hide
        object.__setattr__(self, "profile", replace(self.profile, pair_hidden=0))
        check_tier(self.schedule, self.profile)
        check_whole(self.schedule, "training runs")
        if self.steps < 1 or self.every < 1:
            raise OptPipeError(f"steps: must be at least 1, got {self.steps}, {self.every}")
        if self.tokens.vocab > self.plan.model.vocab:
            raise OptPipeError(
                f"vocab: {self.plan.model.name} knows {self.plan.model.vocab} tokens, the text has"
                f" {self.tokens.vocab}"
            )
        if not 0 < self.lr < math.inf or self.weight_decay < 0:
            raise OptPipeError(f"lr: must be above 0, got {self.lr}; weight decay at least 0")
        if self.slow is not None and self.device != "cpu":
            raise OptPipeError("slow: delays the ops of CPU ranks; of a GPU, lower the clocks")
        if self.slow is not None and not 0 <= self.slow.stage < self.schedule.shape.stages:
            raise OptPipeError(f"slow: there is no stage {self.slow.stage}")

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed run has to have in common with the one before."""
        shape, plan, text = self.schedule.shape, self.plan, self.tokens.text
        return {
            "model": model_shape(plan.model),
            "placement": list(shape.placement),
            "layers_per_stage": list(plan.layers or ()),
            "microbatches": shape.microbatches,
            "microbatch": plan.microbatch,
            "seq": plan.seq,
            "dtype": plan.dtype,
            "seed": plan.seed,
            "tokens": [self.tokens.seed, None if text is None else zlib.crc32(text)],
            "lr": self.lr,
            "weight_decay": self.weight_decay,
        }

    def checkpoint(self, folder: str | None = None) -> dict[str, Any]:
        """Return what is known of the checkpoint to resume from, in `checkpoints` or a `folder`.

        Raises:
            OptPipeError: where there is none, or it is of another run: names what differs.
        """
        folder = folder or self.checkpoints or "--checkpoint"
        path = Path(folder) / NAME
        if not path.exists():
            raise OptPipeError(
                f"{folder}: no checkpoint to resume from; leave --resume out to start"
            )
        meta = published(folder, "`optpipe-sim train`", "identity")
        before, wanted = meta["identity"], plain(self.identity)
        for key in wanted:
            if before.get(key) != wanted[key]:
                raise OptPipeError(
                    f"{path}: {key} was {before.get(key)}, now it is {wanted[key]};"
                    " resume with the same, or start over without --resume"
                )
        return meta

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of a step and those that follow them, on the device."""
        shape = (self.schedule.shape.microbatches, self.plan.microbatch, self.plan.seq)
        tokens, targets = self.tokens.batch(step, *shape)
        return tokens.to(self.device), targets.to(self.device)

    def prepare(self, rank: int, schedule: Schedule, profile: CostProfile) -> Prepared:
        """Make a schedule ready to run on a rank.

        Raises:
            OptPipeError: where this rank cannot run it.
        """
        require_same_shape(schedule, self.schedule)
        return prepare(schedule, profile, self.limit)

    def planner(self, schedule: Schedule, step: int, epoch: int) -> Planner | None:
        """Return the search for better schedules, for rank 0; None where none is wanted."""
        if self.online is None:
            return None
        return Planner(schedule, self.profile, self.limit, self.online, step, epoch)


@dataclass
class TrainResult:
    """The result of a training run, from rank 0; the other ranks return nothing.

    Attributes:
        rows: per step ``step, loss, epoch, makespan_ns, wall_ns, between_ns, usual``.
        events: what happened when: see `Planner`, and ``proposed, switched, refused``.
        phases: per schedule its name, steps, predicted and measured time and memory.
        stopped: whether it was asked to stop before the last step.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False


def optimizer_for(parameters: list[torch.nn.Parameter], task: TrainTask) -> torch.optim.AdamW:
    """Return AdamW, the same for a rank's share and for the whole model."""
    return torch.optim.AdamW(
        parameters, lr=task.lr, betas=(0.9, 0.95), weight_decay=task.weight_decay
    )
