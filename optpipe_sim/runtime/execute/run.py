"""Run the step of a rank by the executor of its device."""

from __future__ import annotations

from contextlib import nullcontext

from ..measure.memory import Meter
from . import streams, threads
from .rank_step import RankStep
from .record import Record


def run_step(step: RankStep, meter: Meter | None = None, start_ns: int = 0) -> Record:
    """Run a step that was started; the gradients of its stages are complete then.

    Args:
        meter: of memory, which is entered here, and read between ops.
        start_ns: when to start, on `time.monotonic_ns`; 0: now.

    Raises:
        RuntimeFault: names the rank, the op and what went wrong.
    """
    executor = streams if step.worker.device.type == "cuda" else threads
    with meter or nullcontext():
        step.worker.allocated = None if meter is None else meter.add
        record = executor.run_program(step, meter, start_ns)
    step.worker.allocated = None
    loss = step.worker.finish_step()
    record.loss = None if loss is None else float(loss)
    return record
