"""`RankStep`: one rank's part of a training step, whatever runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ...ops import Op
from ..measure.memory import Meter
from ..measure.memory import meter as meter_of
from ..model.split import zero_gradients
from ..model.stage import StageWorker
from ..program.prepare import Prepared
from ..program.program import inputs_of
from .device import executor_of, transport_of
from .iteration import Iteration, Record
from .transport import Transport
from .warmup import warm_up
from .worker import Worker


class RankStep:
    """One rank's part of a training step: its stages, its program, its messages, and the executor of its device.

    `PipelineStep`, torch's pipelines (`schedule_class`), training runs and `confirm` all stand on it. They differ
    in where stages and batches come from, and in what becomes of the gradients.

    Args:
        worker: the stages of this rank.
        prepared: the programs of all ranks.
        transport: of its messages; default: over gloo or NCCL between the processes of `group`, which all make
            theirs at the same time.
        timeout_s: how long an op may wait for another.
        begun, ended: called with each compute op, before it and once it is issued.
    """

    def __init__(
        self,
        worker: Worker,
        rank: int,
        prepared: Prepared,
        transport: Transport | None = None,
        *,
        group: Any = None,
        timeout_s: float = 60.0,
        begun: Callable[[Op], None] = lambda op: None,
        ended: Callable[[Op], None] = lambda op: None,
    ) -> None:
        self.worker, self.rank, self.timeout_s = worker, rank, timeout_s
        self.begun, self.ended = begun, ended
        self.transport = transport or transport_of(
            worker.device, rank, prepared.schedule, prepared.programs, timeout_s, group
        )
        self.follow(prepared)

    def follow(self, prepared: Prepared) -> None:
        """Go on with another schedule for the same stages, between two steps of all ranks."""
        self.prepared, self.program = prepared, prepared.programs[self.rank]
        self.inputs = inputs_of(prepared.schedule)
        self.transport.follow(prepared.schedule)

    def start(self, *batch: Any) -> None:
        """Start a step on these inputs and targets (see `StageWorker.start_step`), with gradients of zero."""
        zero_gradients(self.worker)
        self.worker.allocated = None
        self.worker.start_step(*batch)

    def warm_up(self, *batch: Any) -> None:
        """Load kernels and allocate workspaces and pinned host memory before any message is under way:
        that may wait for the device, which then waits for another rank, which may do the same. Gradients
        are lost."""
        assert isinstance(self.worker, StageWorker)
        self.start(*batch)
        warm_up(self.worker, self.program)

    def meter(self) -> Meter:
        """Return the meter of memory on this device, which slows the step down."""
        return meter_of(self.worker.device)

    def run(self, meter: Meter | None = None, start_ns: int = 0) -> Record:
        """Run the step that was started; the gradients of its stages are complete then.

        Args:
            meter: entered here; read between ops.
            start_ns: when to start, on `time.monotonic_ns`; 0: now.

        Raises:
            RuntimeFault: names the rank, the op and what went wrong.
        """
        with meter or nullcontext():
            self.worker.allocated = None if meter is None else meter.add
            record = executor_of(self.worker.device)(
                Iteration(
                    self.program,
                    self.prepared.schedule,
                    self.worker,
                    self.transport,
                    start_ns=start_ns,
                    meter=meter,
                    timeout_s=self.timeout_s,
                    begun=self.begun,
                    ended=self.ended,
                    inputs=self.inputs,
                )
            )
        self.worker.allocated = None
        loss = self.worker.finish_step()
        record.loss = None if loss is None else float(loss)
        return record
