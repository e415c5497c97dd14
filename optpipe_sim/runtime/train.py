"""A training run: what is trained, with what schedule to start with, and its result."""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..errors import OptPipeError
from ..ops import Op
from ..profile import CostProfile
from ..schedule import Schedule
from .launch import Ranks
from .machine import model_shape
from .models import build_stage
from .online import Prepared, prepare, require_same_shape
from .plan import Plan
from .planner import Online, Planner
from .profiler import measure
from .stage import token_loss
from .tokens import Tokens

NEWS, STOP = "news.jsonl", "stop"
POLL_S = 0.1
NEAR = 10  # iterations before and after a switch that are compared
SAMPLES, WARMUP = 10, 3  # of the costs to start with


@dataclass(frozen=True)
class Slow:
    """An op delay for trying what drift does: all compute ops of a stage, from a step on."""

    stage: int
    step: int
    extra_ns: int


@dataclass(frozen=True)
class TrainTask:
    """A training run.

    Attributes:
        schedule: to start with. profile: its costs, before any are measured; the bytes stay.
        limit: of memory per device, kept by every schedule.
        folder: for news and the request to stop, as rank 0 sees it.
        online: how better schedules are looked for; None: not at all.
        checkpoints: a folder for them; None: none are written.
        every: steps between checkpoints. resume: go on from the last.
        slow: see `Slow`.
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

    def __post_init__(self) -> None:
        if self.steps < 1 or self.every < 1:
            raise OptPipeError(f"steps: must be at least 1, got {self.steps}, {self.every}")
        if self.tokens.vocab > self.plan.model.vocab:
            raise OptPipeError(
                f"vocab: {self.plan.model.name} knows {self.plan.model.vocab} tokens, the text has"
                f" {self.tokens.vocab}"
            )
        if not 0 < self.lr < math.inf or self.weight_decay < 0:
            raise OptPipeError(f"lr: must be above 0, got {self.lr}; weight decay at least 0")
        if self.slow is not None and not 0 <= self.slow.stage < self.schedule.shape.stages:
            raise OptPipeError(f"slow: there is no stage {self.slow.stage}")

    @property
    def identity(self) -> dict[str, Any]:
        """What a run that goes on has to have in common with the one before."""
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

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The tokens of a step."""
        shape = (self.schedule.shape.microbatches, self.plan.microbatch, self.plan.seq)
        return self.tokens.batch(step, *shape)

    def prepare(self, rank: int, schedule: Schedule, profile: CostProfile) -> Prepared:
        """Make a schedule ready to run on a rank.

        Raises:
            OptPipeError: where this rank cannot run it.
        """
        require_same_shape(schedule, self.schedule)
        return prepare(schedule, profile, self.limit)

    def planner(self, schedule: Schedule, step: int, epoch: int) -> Planner | None:
        """What looks for better schedules, on rank 0."""
        if self.online is None:
            return None
        return Planner(schedule, self.profile, self.limit, self.online, step, epoch)

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> TrainResult:
        """The part of one rank; the default process group has to be there."""
        from .trainer import Trainer  # which knows this module

        return Trainer(self, rank, begun).run()


@dataclass
class TrainResult:
    """What came of it; of rank 0, the others give back nothing.

    Attributes:
        rows: per step ``step, loss, epoch, makespan_ns, wall_ns, between_ns, metered``.
        events: what happened when: see `Planner`, and ``proposed, switched, refused``.
        phases: per schedule its name, steps, predicted and measured time and memory.
        stopped: whether it was asked to stop before the last step.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False


def optimizer_for(parameters: list[torch.nn.Parameter], task: TrainTask) -> torch.optim.AdamW:
    """AdamW, the same for a rank's share and for the whole model."""
    return torch.optim.AdamW(
        parameters, lr=task.lr, betas=(0.9, 0.95), weight_decay=task.weight_decay
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, as ranks have: sums in another order are other sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def first_costs(
    plan: Plan, progress: Callable[[str, int, int], None] = lambda name, done, total: None
) -> CostProfile:
    """Costs to start with: bytes, copies and times of each stage alone on this CPU."""
    with one_thread():
        return measure(plan, "cpu", SAMPLES, WARMUP, progress)


@one_thread()
def unpipelined(
    task: TrainTask, steps: int, tick: Callable[[int], None] = lambda step: None
) -> list[float]:
    """The losses of the same run without a pipeline, by plain autograd, from the first step on."""
    plan, m = task.plan, task.schedule.shape.microbatches
    whole = build_stage(plan.model, 0, 1, seq=plan.seq, dtype=plan.dtype, seed=plan.seed)
    parameters = list(whole.parameters())
    optimizer = optimizer_for(parameters, task)
    found = []
    for step in range(steps):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        losses = []
        for tokens, targets in zip(*task.batch(step), strict=True):
            loss = token_loss(whole(tokens), targets)
            (loss / m).backward()
            losses.append(loss.detach())
        optimizer.step()
        found.append(float(torch.stack(losses).mean()))
        tick(step)
    return found


def train(
    task: TrainTask,
    news: Callable[[dict[str, Any]], object] = lambda row: None,
    ranks: Ranks | None = None,
) -> TrainResult:
    """Train on processes of this machine.

    `news` is told every row and event as it comes; where it returns True, training stops, as it
    does after Ctrl-C: when the step that runs is over, with a checkpoint where they are wanted.
    A second Ctrl-C ends it at once.

    Args:
        ranks: processes that are there already; default: own ones, which end with this.

    Raises:
        OptPipeError: where a rank fails; it is named.
    """
    with ExitStack() as stack:
        if ranks is None:
            ranks = stack.enter_context(Ranks(task.schedule.shape.devices))
        folder = stack.enter_context(TemporaryDirectory(prefix="optpipe-train-"))
        return _Driver(replace(task, folder=folder), news, ranks).run()


class _Driver:
    """Has ranks train in a thread, and listens meanwhile."""

    def __init__(
        self, task: TrainTask, news: Callable[[dict[str, Any]], object], ranks: Ranks
    ) -> None:
        self.task, self.news, self.ranks = task, news, ranks
        self.tail = _Tail(Path(task.folder) / NEWS)
        self.stop = Path(task.folder) / STOP
        self.found: TrainResult | None = None
        self.error: BaseException | None = None

    def run(self) -> TrainResult:
        """The result of rank 0."""
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        going = True
        while going:
            try:
                thread.join(POLL_S)
                going = thread.is_alive()
                self._listen()
            except KeyboardInterrupt:
                if self.stop.exists():
                    raise
                self.stop.touch()
        if self.error is not None:
            raise self.error
        assert self.found is not None
        return self.found

    def _work(self) -> None:
        try:
            self.found = self.ranks.run(self.task)[0]
        except BaseException as error:
            self.error = error

    def _listen(self) -> None:
        for row in self.tail.read():
            if self.news(row) is True:
                self.stop.touch()


def switch_costs(result: TrainResult) -> list[dict[str, Any]]:
    """What each switch cost, in ns.

    ``stall_ns``: by how much the two pauses between iterations with an exchange (proposal, change)
    were longer than the median pause before; with noise it may be below 0. ``while_preparing_ns``:
    the median iteration while ranks lowered the new schedule beside it; ``before_ns`` and
    ``after_ns``: that of the ten iterations before, beside the solver, and after; ``profiled_ns``:
    before the solver started (None without one).
    """
    found = []
    rows = {row["step"]: row for row in result.rows}
    for at, event in enumerate(result.events):
        if event["event"] != "switched" or event["step"] not in rows:
            continue
        past = result.events[at::-1]
        proposed = next(e for e in past if e["event"] == "proposed")
        profiled = next((e["measured_ns"] for e in past if e["event"] == "profiled"), None)
        first, last = proposed["step"], event["step"]
        epoch = rows[last]["epoch"]
        usual = [row for row in result.rows if row["usual"]]
        before = [row for row in usual if row["epoch"] == epoch - 1 and row["step"] < first]
        after = [row for row in usual if row["epoch"] == epoch][:NEAR]
        before = before[-NEAR:]
        if not before or not after:
            continue
        pause = median(row["between_ns"] for row in before)
        pauses = [rows[step]["between_ns"] for step in (first, last)]
        during = [rows[step]["makespan_ns"] for step in range(first, last)]
        found.append(
            {
                "step": last,
                "gain": proposed["gain"],
                "profiled_ns": profiled,
                "stall_ns": round(sum(pauses) - 2 * pause),
                "pause_ns": round(pause),
                "pauses_ns": pauses,
                "swap_ns": event["swap_ns"],
                "prepare_ns": event["prepare_ns"],
                "while_preparing_ns": round(median(during)),
                "before_ns": round(median(row["makespan_ns"] for row in before)),
                "after_ns": round(median(row["makespan_ns"] for row in after)),
            }
        )
    return found


class _Tail:
    """The lines that a file has got since it was last read."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Whole lines only."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
