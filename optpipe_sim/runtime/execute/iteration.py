"""One iteration of one rank: what each step of its program does, the same in an executor of threads, of
streams or op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor
from torch.profiler import record_function

from ...errors import RuntimeFault
from ...ops import BW, B, C, F, Op, R
from ...schedule import Schedule
from ...sim.lower import Lowered
from ...trace import Trace
from ..measure.memory import Meter
from ..program.program import Program, Step, inputs_of
from .transport import Transport
from .worker import Worker

Times = dict[Op, tuple[int, int]]


@dataclass
class Record:
    """What one rank measured in one iteration.

    Attributes:
        times_ns: start and end of every op, in ns after the common start.
        granted_ns: of every R, when its memory was allocated.
        held: (ns, bytes) around every compute op, and after changes of memory between them; empty without a
            meter.
        loss: of the last stage's rank.
    """

    rank: int
    times_ns: Times = field(default_factory=dict)
    granted_ns: dict[Op, int] = field(default_factory=dict)
    held: list[tuple[int, int]] = field(default_factory=list)
    loss: float | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that was held at a boundary between ops."""
        return max((held for _, held in self.held), default=0)


@dataclass
class Iteration:
    """What a rank runs in one iteration. An executor decides when and where each step runs; what it does is here.

    A result is in `results` from the op that makes it, or the receive, until the op or the send that uses it: no
    other reference keeps its memory from being offloaded or freed.

    Attributes:
        program: of this rank. schedule: of all ranks, as it was lowered.
        worker: its stages, the step started. transport: sends and receives.
        start_ns: when to start, on `time.monotonic_ns`; all times count from it. 0: now.
        meter: entered already in this thread; read between ops.
        timeout_s: how long an op may wait for another.
        begun, ended: called with each compute op, before it and once it is issued.
        results: what ops have made or receives have brought, until it is used; ranks of one process share it.
        inputs: for each op that takes another's result, that one (`inputs_of`); default: worked out here.
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
    results: dict[Op, Tensor | None] = field(default_factory=dict)
    inputs: Mapping[Op, Op] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inputs = self.inputs or inputs_of(self.schedule)

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self.program.rank

    def at(self, op: Op) -> tuple[int, int]:
        """Return the stage and the unit of an op, as workers know it."""
        return op.stage, self.schedule.shape.unit(op)

    def post(self, step: Step) -> None:
        """Post the receive of a message."""
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

    def run(self, step: Step) -> None:
        """Run a compute op on its input; torch.profiler sees it by its name."""
        op, at, made = step.op, self.at(step.op), None
        with record_function(str(op)):
            if op.kind is F:
                made = self.worker.forward(*at, self._input(op), self.program.levels.get(op[1:]))
            elif op.kind in (B, BW):
                made = self.worker.backward(*at, self._input(op), fused=op.kind is BW)
            elif op.kind is C:
                self.worker.recompute(*at)
            else:
                self.worker.weight(*at)
        if made is not None:
            self.results[op] = made
        self.ended(op)

    def _input(self, op: Op) -> Tensor | None:
        """Return what an op takes; the caller has the only reference then."""
        source = self.inputs.get(op)
        return None if source is None else self.results.pop(source)

    def offload(self, step: Step) -> None:
        """Copy an activation to the host."""
        self.worker.offload(*self.at(step.op), step.keys)

    def drop(self, step: Step) -> None:
        """Release the device memory of an offloaded activation."""
        self.worker.drop(*self.at(step.op))

    def grant(self, step: Step) -> None:
        """Allocate the device memory of a reload."""
        self.worker.allocate(*self.at(step.op))

    def reload(self, step: Step) -> None:
        """Copy an activation back."""
        self.worker.reload(*self.at(step.op))


def measured_trace(lowered: Lowered, records: Sequence[Record]) -> Trace:
    """Return what all ranks measured in one iteration, as a trace: for figures, Perfetto, explanations.

    Raises:
        RuntimeFault: where an op was not measured.
    """
    schedule = lowered.schedule
    times: Times = {}
    grants: dict[Op, int] = {}
    for record in records:
        times |= record.times_ns
        grants |= record.granted_ns
    ops = [op for program in schedule.flat_programs for op in program]
    missing = [op for op in ops if op not in times]
    if missing:
        raise RuntimeFault(f"{missing[0]} was not measured")
    start, end = np.array([times[op] for op in ops], np.int64).T
    grant = [grants.get(op, times[op][0]) if op.kind is R else times[op][0] for op in ops]
    return Trace(
        schedule,
        lowered.profile,
        start.copy(),
        end.copy(),
        np.array(grant, np.int64),
        memory_limit=lowered.memory_limit,
    )
