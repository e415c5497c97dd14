"""The task of a rank, and its execution: some iterations of one schedule over gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import OptPipeError
from ...ops import Op
from ...profile import CostProfile
from ...schedule import Schedule
from ...schedule.shape import Shape
from ...sim.lower import lower
from ..group.pipeline_group import PipelineGroup
from ..group.tied import TiedWeights
from ..measure.kineto import recorded
from ..model.stage import StageWorker
from ..program.prepare import Prepared, check_tier
from ..program.program import Program, linear_programs
from .iteration import Record
from .rank_step import RankStep
from .transport import DelayedGloo
from .unpipelined import named_gradients
from .worker import SyntheticWorker

if TYPE_CHECKING:
    from ..model.plan import Plan

MODES = ("synthetic", "gradient")
DEVICES = ("cpu", "cuda")
HEAD_START_NS = 20_000_000  # from the agreement on a start to the start
PINGS = 8


@dataclass(frozen=True)
class Task:
    """Some iterations of a schedule on p ranks.

    Attributes:
        schedule: the halves of its pairs run one after the other.
        mode: ``synthetic`` (ops sleep as long as the profile says: the time is real) or
            ``gradient`` (real stages: results and memory are real).
        plan: the model of real stages; its own `devices` and `chunks` do not matter here.
        seed: of the batch.
        gradients: whether ranks return them.
        programs: in place of those of the schedule, for tests.
        timeout_s: of every wait, in seconds.
        device: of real stages, ``cpu`` or ``cuda`` (a GPU per rank, messages over NCCL).
        kineto: a folder for what torch.profiler records, a file per rank; None: it records nothing.
    """

    schedule: Schedule
    profile: CostProfile
    memory_limit: int | Sequence[int] | None = None
    mode: str = "synthetic"
    plan: Plan | None = None
    iterations: int = 1
    seed: int = 0
    gradients: bool = False
    programs: tuple[Program, ...] | None = None
    timeout_s: float = 60.0
    device: str = "cpu"
    kineto: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", self.schedule.parted())
        if self.device not in DEVICES:
            raise OptPipeError(f"device: expected {' or '.join(DEVICES)}, got {self.device!r}")
        if self.device == "cuda" and self.mode == "synthetic":
            raise OptPipeError("mode synthetic: its ops sleep on the CPU; on cuda take gradient")
        if self.mode not in MODES:
            raise OptPipeError(f"mode: expected {' or '.join(MODES)}, got {self.mode!r}")
        if self.mode == "gradient":
            if self.plan is None:
                raise OptPipeError("mode gradient: needs a model")
            check_tier(self.schedule, self.profile)
        if self.iterations < 1:
            raise OptPipeError(f"iterations: must be at least 1, got {self.iterations}")

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> Result:
        """Run the part of one rank; see `perform`."""
        with recorded(self.kineto, rank, self.device):
            return perform(self, rank, begun)


@dataclass
class Result:
    """The result of a rank: a record per iteration; gradients by name (see `named_gradients`).

    `message_bytes`: device memory of NCCL's communicators, which no profile of one device knows: to
    be added to its static memory.
    """

    rank: int
    records: list[Record]
    gradients: dict[str, Tensor] = field(default_factory=dict)
    message_bytes: int = 0


def perform(task: Task, rank: int, begun: Callable[[Op], None] = lambda op: None) -> Result:
    """Run the part of one rank; the default process group has to exist.

    Raises:
        RuntimeFault: names the rank, the op and what went wrong.
    """
    lowered = lower(task.schedule, task.profile, task.memory_limit)
    shape = lowered.schedule.shape
    prepared = Prepared(lowered, task.programs or linear_programs(lowered))
    offset_ns = clock_offset_ns(rank, shape.devices)
    data: tuple[Tensor, Tensor] | tuple[()] = ()
    stages: StageWorker | None = None
    options: dict[str, Any] = {"timeout_s": task.timeout_s, "begun": begun}
    if task.plan is None or task.mode == "synthetic":
        transport = DelayedGloo(rank, lowered.schedule, lowered.profile, task.timeout_s)
        step = RankStep(SyntheticWorker(lowered), rank, prepared, transport, **options)
    else:
        stages = task.plan.rank_worker(shape, rank, task.device)
        inputs, targets = task.plan.step_batch(shape.microbatches, task.seed)
        data = inputs.to(task.device), targets.to(task.device)
        step = RankStep(stages, rank, prepared, **options)
        if task.device == "cuda":
            step.warm_up(*data)
    records = []
    for _ in range(task.iterations):
        step.start(*data)
        records.append(step.run(step.meter() if stages else None, common_start_ns(offset_ns)))
        if stages is not None:
            exchange_tied(stages, shape, rank)
    gradients = named_gradients(stages) if stages and task.gradients else {}
    return Result(rank, records, gradients, step.transport.buffer_bytes)


def exchange_tied(worker: StageWorker, shape: Shape, rank: int) -> None:
    """Add up the gradients of a tied weight whose copies two ranks have."""
    ends = {0: shape.placement[0], shape.stages - 1: shape.placement[-1]}
    members = {stage: worker.tied(stage) for stage in ends}
    if (
        rank not in ends.values()
        or len(set(ends.values())) < 2
        or all(weight is None or weight.grad is None for weight in members.values())
    ):
        return
    TiedWeights([members], shape, PipelineGroup(shape.devices)).add_up()


def clock_offset_ns(rank: int, ranks: int) -> int:
    """Return how far this rank's clock is ahead of rank 0's, in ns; 0 where no difference can be
    measured, as on one host."""
    offset = 0
    for other in range(1, ranks):
        for _ in range(PINGS if rank in (0, other) else 0):
            if rank == 0:
                dist.recv(torch.zeros(1, dtype=torch.int64), src=other)
                dist.send(torch.tensor([time.monotonic_ns()]), dst=other)
                continue
            asked = time.monotonic_ns()
            dist.send(torch.tensor([asked]), dst=0)
            answer = torch.zeros(1, dtype=torch.int64)
            dist.recv(answer, src=0)
            back = time.monotonic_ns()
            off = (asked + back) // 2 - int(answer)
            # the answer was sent between the question and its receipt
            if abs(off) <= (back - asked) // 2:
                off = 0
            offset = off if _ == 0 or abs(off) < abs(offset) else offset
    return offset


def common_start_ns(offset_ns: int) -> int:
    """Agree with all ranks on when to start; on this rank's `time.monotonic_ns`."""
    dist.barrier()
    start = torch.tensor([time.monotonic_ns() + HEAD_START_NS])
    dist.broadcast(start, src=0)
    return int(start) + offset_ns
