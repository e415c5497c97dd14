"""``synthetic`` and ``gradient``: what each of p ranks does, some iterations of one schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ...errors import OptPipeError
from ...ops import Op
from ...schedule import Schedule
from ..execute.clocks import clock_offset_ns, common_start_ns
from ..execute.rank_step import RankStep
from ..execute.record import Record
from ..execute.run import run_step
from ..execute.transport import DelayedGloo, Transport
from ..execute.unpipelined import named_gradients
from ..execute.worker import SyntheticWorker
from ..model.stage import StageWorker
from ..program.program import Prepared, Program, check_tier
from .case import Case


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
        data: tuple[Tensor, ...] = ()
        if real:
            worker = case.stages.rank_worker(shape, rank, case.device)
            batch = case.stages.step_batch(shape.microbatches, case.seed)
            data = tuple(part.to(case.device) for part in batch)
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
