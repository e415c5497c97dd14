"""One iteration of one rank: its inputs, and the steps that are the same on every kind of device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.profiler import record_function

from ...errors import RuntimeFault
from ...ops import F, Op
from ...schedule import Schedule
from ..measure.memory import Meter
from ..program.program import Program, Step, inputs_of
from .transport import Transport
from .worker import Worker, compute


@dataclass
class Iteration:
    """What a rank runs in one iteration.

    Attributes:
        program: of this rank. schedule: of all ranks, as it was lowered.
        worker: its stages, the step started. transport: sends and receives.
        start_ns: when to start, on `time.monotonic_ns`; all times count from it. 0: now.
        meter: entered already in this thread; read between ops.
        timeout_s: how long an op may wait for another.
        begun, ended: called with each compute op, before it and once it is issued.
    """

    program: Program
    schedule: Schedule
    worker: Worker
    transport: Transport
    start_ns: int = 0
    meter: Meter | None = None
    timeout_s: float = 60.0
    begun: Callable[[Op], None] = lambda op: None
    ended: Callable[[Op], None] = lambda op: None

    def __post_init__(self) -> None:
        self.inputs = inputs_of(self.schedule)
        self.results: dict[Op, Tensor | None] = {}  # made or received, until they are used

    @property
    def rank(self) -> int:
        """Which one."""
        return self.program.rank

    def at(self, op: Op) -> tuple[int, int]:
        """Stage and unit of an op, as workers know it."""
        return op.stage, self.schedule.shape.unit(op)

    def post(self, step: Step) -> None:
        """Expect a message."""
        # what F makes goes forward, what B makes is the gradient of what the stage before sent
        back = step.op.kind is not F
        stage, unit = self.at(step.op)
        layout = self.worker.boundary(stage - back, back, unit)
        self.transport.post(step.op, step.peer, layout)

    def recv(self, step: Step) -> None:
        """Wait for a message."""
        self.results[step.op] = self.transport.recv(step.op, step.peer)

    def send(self, step: Step) -> None:
        """Send the result of an op."""
        made = self.results.pop(step.op, None)
        if made is None:
            raise RuntimeFault(f"rank {self.rank}: {step.op} made nothing to send")
        self.transport.send(step.op, made, step.peer)

    def compute(self, step: Step) -> None:
        """Run a compute op on the input that was received for it; torch.profiler sees it by its name."""
        op, source = step.op, self.inputs.get(step.op)
        box = [self.results.pop(source)] if source is not None else [None]
        with record_function(str(op)):
            made = compute(self.worker, op, self.at(op), box, self.program.levels.get(op[1:]))
        if made is not None:
            self.results[op] = made
        self.ended(op)
