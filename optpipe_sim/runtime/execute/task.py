"""The task of a rank, and its execution: some iterations of one schedule over gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
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
from ..measure.memory import meter as meter_of
from ..model.models import build_stage, layer_counts
from ..model.split import zero_gradients
from ..model.stage import StageWorker, token_loss
from ..program.prepare import check_tier
from ..program.program import Program, linear_programs
from .device import executor_of, transport_of
from .executor import Record
from .iteration import Iteration
from .transport import DelayedGloo, Transport
from .warmup import warm_up
from .worker import SyntheticWorker

if TYPE_CHECKING:
    from ..model.plan import Plan

MODES = ("synthetic", "gradient")
DEVICES = ("cpu", "cuda")
HEAD_START_NS = 20_000_000  # from the agreement on a start to the start
PINGS = 8


@dataclass(frozen=True)
class Modules:
    """Stages that a user hands over, in place of a `Plan`: two functions that ranks can import.

    Attributes:
        worker: the stages of one rank, by shape and rank.
        batch: by number of microbatches and seed, inputs and targets; the same on all ranks.
    """

    worker: Callable[[Shape, int], StageWorker]
    batch: Callable[[int, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """Some iterations of a schedule on p ranks.

    Attributes:
        schedule: the halves of its pairs run one after the other.
        mode: ``synthetic`` (ops sleep as long as the profile says: the time is real) or
            ``gradient`` (real stages: results and memory are real).
        plan: the model of real stages (its own `devices` and `chunks` do not matter here), or
            modules that are the stages.
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
    plan: Plan | Modules | None = None
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
        """`perform` this task."""
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
    schedule = lowered.schedule
    programs = task.programs or linear_programs(lowered)
    offset_ns = clock_offset_ns(rank, schedule.shape.devices)
    stages: StageWorker | None = None
    data: tuple[Tensor, Tensor] | tuple[()] = ()
    transport: Transport
    run = executor_of(task.device)
    if task.plan is None or task.mode == "synthetic":
        worker: Any = SyntheticWorker(lowered)
        transport = DelayedGloo(rank, schedule, lowered.profile, task.timeout_s)
    else:
        worker = stages = stage_worker(task.plan, schedule.shape, rank, task.device)
        inputs, targets = batch(task.plan, schedule.shape.microbatches, task.seed)
        data = inputs.to(task.device), targets.to(task.device)
        transport = transport_of(task.device, rank, schedule, programs, task.timeout_s)
    records = []
    if stages is not None and task.device == "cuda":
        zero_gradients(stages)
        stages.start_step(*data)
        warm_up(stages, programs[rank])
    for _ in range(task.iterations):
        if stages is not None:
            zero_gradients(stages)
            stages.start_step(*data)
        with nullcontext() if stages is None else meter_of(task.device) as meter:
            if stages is not None and meter is not None:
                stages.allocated = meter.add
            record = run(
                Iteration(
                    programs[rank],
                    schedule,
                    worker,
                    transport,
                    start_ns=common_start_ns(offset_ns),
                    meter=meter,
                    timeout_s=task.timeout_s,
                    begun=begun,
                )
            )
        if stages is not None:
            loss = stages.finish_step()
            record.loss = None if loss is None else float(loss)
            exchange_tied(stages, schedule.shape, rank)
        records.append(record)
    return Result(
        rank,
        records,
        named_gradients(stages) if stages and task.gradients else {},
        getattr(transport, "buffer_bytes", 0),
    )


def stage_worker(plan: Plan | Modules, shape: Shape, rank: int, device: str = "cpu") -> StageWorker:
    """The stages of one rank, with the weights that the whole model has."""
    check_slices(plan, shape)
    if isinstance(plan, Modules):
        return plan.worker(shape, rank)
    layers = plan.layers if plan.stages == shape.stages else None
    layers = layers or tuple(layer_counts(plan.model, shape.stages, seq=plan.seq))
    modules = {
        stage: build_stage(
            plan.model,
            stage,
            shape.stages,
            seq=plan.seq,
            dtype=plan.dtype,
            device=device,
            seed=plan.seed,
            layers=layers,
        )
        for stage in shape.stages_of(rank)
    }
    return StageWorker(modules, shape.stages, plan.boundary, device=device, rank=rank, cut=plan.cut)


def check_slices(plan: Plan | Modules, shape: Shape) -> None:
    """Refuse a schedule whose slices are not those of the stages.

    Raises:
        OptPipeError: says how many there are of each.
    """
    there = 1 if isinstance(plan, Modules) else max(1, len(plan.slices))
    if there != shape.slices:
        raise OptPipeError(
            f"slices: the schedule cuts sequences into {shape.slices}, the stages into {there}"
        )


def batch(plan: Plan | Modules, microbatches: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and the tokens that follow them, (m, microbatch, seq) each; the same on all ranks."""
    if isinstance(plan, Modules):
        return plan.batch(microbatches, seed)
    generator = torch.Generator().manual_seed(seed)
    shape = (microbatches, plan.microbatch, plan.seq + 1)
    tokens = torch.randint(0, plan.model.vocab, shape, generator=generator)
    return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()


def named_gradients(worker: StageWorker) -> dict[str, Tensor]:
    """Gradients by the names that the unpipelined model has for its parameters."""
    found: dict[str, Tensor] = {}
    for _, module in sorted(worker.modules.items()):
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                found[name] = parameter.grad
    return found


def reference(
    plan: Plan, microbatches: int, seed: int, device: str = "cpu", *, exact: bool = False
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the same step without pipeline, by plain autograd: what a pipelined
    step on that kind of device is compared with.

    `exact`: with the same weights in fp64, which shows how far the other one is off by rounding alone.
    """
    whole = build_stage(
        plan.model, 0, 1, seq=plan.seq, dtype=plan.dtype, device=device, seed=plan.seed
    )
    if exact:
        whole = whole.double()
    losses = []
    data = [part.to(device) for part in batch(plan, microbatches, seed)]
    for tokens, targets in zip(*data, strict=True):
        logits = whole(tokens)
        loss = token_loss(logits, targets)
        (loss / microbatches).backward()
        losses.append(loss.detach())
    gradients = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    return float(torch.stack(losses).mean()), gradients


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
    """How far this rank's clock is ahead of rank 0's, in ns; 0 where no difference can be measured, as on one
    host."""
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
