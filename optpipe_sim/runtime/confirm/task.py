"""``synthetic`` and ``gradient``: what each of p ranks does, some iterations of one schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from ...errors import OptPipeError
from ...op_costs import op_costs
from ...ops import BW, COMPUTE, B, C, F, O, Op, OpKind, R, W
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim.lower import Lowered
from ..execute.clocks import clock_offset_ns, common_start_ns, sleep_until
from ..execute.rank_step import RankStep
from ..execute.record import Record
from ..execute.run import run_step
from ..execute.transport import EMPTY, Gloo, Transport, content_of
from ..execute.unpipelined import named_gradients
from ..group import blamed
from ..model.stage import StageWorker
from ..program.program import Prepared, Program, check_tier
from .case import Case

ARRIVAL = (1,), torch.int64  # the message of an op that sleeps (see `DelayedGloo`)


@dataclass(frozen=True)
class Task:
    """What each of p ranks does in a case: some iterations of its schedule.

    Attributes:
        mode: ``synthetic`` (ops sleep as long as the profile says: the time is real) or
            ``gradient`` (real stages: results and memory are real; on ``cuda`` a GPU per rank, messages over NCCL).
        programs: in place of those of the schedule, for tests.
        timeout_s: of every wait, in seconds.
    """

    case: Case
    mode: str = "synthetic"
    iterations: int = 1
    programs: tuple[Program, ...] | None = None
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.mode == "gradient":
            check_tier(self.schedule, self.case.profile)
        elif self.case.device == "cuda":
            raise OptPipeError("mode synthetic: its ops sleep on the CPU; on cuda take gradient")

    @property
    def schedule(self) -> Schedule:
        """That of the case."""
        return self.case.schedule

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> Result:
        """Run the part of one rank; the default process group has to exist.

        Raises:
            RuntimeFault: names the rank, the op and what went wrong.
        """
        with recorded(self.case.kineto, rank, self.case.device):
            return self._run(rank, begun)

    def _run(self, rank: int, begun: Callable[[Op], None]) -> Result:
        case, lowered = self.case, self.case.lowered
        shape, real = lowered.schedule.shape, self.mode == "gradient"
        offset_ns = clock_offset_ns(rank, shape.devices)
        worker: StageWorker
        transport: Transport | None = None
        data: tuple[list[Tensor], ...] = ()
        if real:
            worker = case.stages.rank_worker(shape, rank, case.device)
            data = case.stages.step_batch(shape.microbatches, case.seed, case.device)
        else:
            worker = SyntheticWorker(lowered, rank)
            transport = DelayedGloo(rank, lowered.schedule, lowered.profile, self.timeout_s)
        prepared = Prepared(lowered, self.programs or ())
        step = RankStep(worker, rank, prepared, transport, timeout_s=self.timeout_s, begun=begun)
        records = []
        for _ in range(self.iterations):
            step.start(*data)
            meter = step.meter() if real else None
            records.append(run_step(step, meter, common_start_ns(offset_ns)))
            step.exchange_tied()
        gradients = {name: gradient.cpu() for name, gradient in named_gradients(worker).items()}
        return Result(rank, records, gradients, step.transport.buffer_bytes)


@dataclass
class Result:
    """The result of a rank: a record per iteration; the gradients of the last by name (see `named_gradients`).

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


# -- synthetic: stages that only sleep, and messages that carry their arrival times -----------------


class SyntheticWorker(StageWorker):
    """Stages whose ops sleep exactly as long as the profile says, and allocate nothing.

    Threads, messages and the order in which the host issues ops are real.
    """

    def __init__(self, lowered: Lowered, rank: int) -> None:
        schedule = lowered.schedule
        modules = {stage: nn.Identity() for stage in schedule.shape.stages_of(rank)}
        super().__init__(modules, schedule.shape.stages, ARRIVAL, rank=rank)
        duration_ns = op_costs(schedule, lowered.profile).duration_ns.tolist()
        ops = map(tuple, schedule.table.tolist())  # kind, stage, unit
        self.duration_ns = dict(zip(ops, duration_ns, strict=True))

    def forward(
        self, stage: int, unit: int, x: Tensor | None, level: str | None = None
    ) -> Tensor | None:
        return self._sleep(F, stage, unit)

    def recompute(self, stage: int, unit: int) -> None:
        self._sleep(C, stage, unit)

    def backward(self, stage: int, unit: int, dy: Tensor | None, *, fused: bool) -> Tensor | None:
        return self._sleep(BW if fused else B, stage, unit)

    def weight(self, stage: int, unit: int) -> None:
        self._sleep(W, stage, unit)

    def offload(self, stage: int, unit: int, keys: bool = False) -> None:
        self._sleep(O, stage, unit)

    def drop(self, stage: int, unit: int) -> None:
        """Do nothing."""

    def allocate(self, stage: int, unit: int) -> None:
        """Do nothing."""

    def reload(self, stage: int, unit: int) -> None:
        self._sleep(R, stage, unit)

    def _sleep(self, kind: OpKind, stage: int, unit: int) -> Tensor:
        sleep_until(time.monotonic_ns() + self.duration_ns[kind, stage, unit])
        return EMPTY


class DelayedGloo(Gloo):
    """Messages that carry no result but arrive when the profile's links say.

    A message carries its arrival time: `t_comm` after it was sent, and on serial links after the messages
    before it; a turn arrives at once. The time that gloo takes shows only where it is longer than that.
    """

    def __init__(
        self, rank: int, schedule: Schedule, profile: CostProfile, timeout_s: float = 60.0
    ) -> None:
        super().__init__(rank, schedule, timeout_s)
        self.profile = profile
        self._free_ns: dict[int, int] = {}
        self._sent: list[tuple[Op, int, Any]] = []

    def recv(self, op: Op, peer: int) -> Tensor:
        """Wait for the message, and until its arrival time."""
        content = super().recv(op, peer)
        if op.kind not in COMPUTE:
            return content
        sleep_until(int(content.item()))
        return EMPTY

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Send the arrival time instead of `tensor`."""
        if op.kind not in COMPUTE:
            super().send(op, tensor, peer)
            return
        depart = time.monotonic_ns()
        if self.profile.serial_links:
            depart = max(depart, self._free_ns.get(peer, 0))
            self._free_ns[peer] = depart + self.profile.occupancy_ns
        super().send(op, torch.tensor([depart + self.profile.t_comm_ns]), peer)

    def finish(self) -> None:
        for op, peer, work in self._sent:
            with blamed(self.rank, f"sending {content_of(op)} to rank {peer}"):
                work.wait(self.timeout)
        self._sent.clear()

    def _keep(self, op: Op, peer: int, work: Any) -> None:
        # there is no memory to release, and a thread that wakes would disturb the others
        self._sent.append((op, peer, work))
