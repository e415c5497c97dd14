"""The task of a rank, and its execution: some iterations of one schedule over gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ...errors import OptPipeError
from ...ops import Op
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim.lower import lower
from ..model.stage import StageWorker
from ..program.program import Prepared, Program, check_tier
from .rank_step import RankStep
from .record import Record
from .run import run_step
from .transport import DelayedGloo, Transport
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
        """Run the part of one rank; the default process group has to exist.

        Raises:
            RuntimeFault: names the rank, the op and what went wrong.
        """
        with recorded(self.kineto, rank, self.device):
            return self._run(rank, begun)

    def _run(self, rank: int, begun: Callable[[Op], None]) -> Result:
        lowered = lower(self.schedule, self.profile, self.memory_limit)
        prepared, shape = Prepared(lowered, self.programs or ()), lowered.schedule.shape
        offset_ns = clock_offset_ns(rank, shape.devices)
        worker: StageWorker | SyntheticWorker = SyntheticWorker(lowered)
        transport: Transport | None = None
        data: tuple[Tensor, ...] = ()
        real = self.plan is not None and self.mode == "gradient"
        if self.plan is not None and real:
            worker = self.plan.rank_worker(shape, rank, self.device)
            batch = self.plan.step_batch(shape.microbatches, self.seed)
            data = tuple(part.to(self.device) for part in batch)
        else:
            transport = DelayedGloo(rank, lowered.schedule, lowered.profile, self.timeout_s)
        step = RankStep(worker, rank, prepared, transport, timeout_s=self.timeout_s, begun=begun)
        if self.device == "cuda":
            step.start(*data)
            step.warm_up()
        records = []
        for _ in range(self.iterations):
            step.start(*data)
            records.append(
                run_step(step, step.meter() if real else None, common_start_ns(offset_ns))
            )
            step.exchange_tied()
        gradients = {}
        if self.gradients and isinstance(worker, StageWorker):
            gradients = named_gradients(worker)
        return Result(rank, records, gradients, step.transport.buffer_bytes)


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


@contextmanager
def recorded(folder: str | None, rank: int, device: str = "cpu") -> Iterator[None]:
    """Record everything in between by torch.profiler into ``folder/rankN.json``; nothing where `folder` is None.

    Compute ops have a range of their own name each (``F0.3``); see `RankStep.do`.
    """
    if folder is None:
        yield
        return
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, profile_memory=True) as run:
        yield
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        run.export_chrome_trace(str(path / f"rank{rank}.json"))
    except (OSError, RuntimeError) as error:
        raise OptPipeError(f"{folder}: cannot be written: {error}") from None


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
