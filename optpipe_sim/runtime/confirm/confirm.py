"""Four ways to compare a prediction with real runs on one machine; none needs more than one device.

``synthetic``: p ranks whose ops sleep as long as the profile says confirm the times of the program:
messages, waits, copies beside compute. ``gradient``: p ranks with real stages confirm results and
memory. ``replay``: the ops of each rank one after the other, confirms results, memory after each op,
and what each op costs among the others. ``loop``: each rank's whole program alone, real copies beside
real ops, its neighbours played back. On CUDA the last two have not been tried yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...errors import OptPipeError
from ...sim.difference import compare_traces
from ..device import threads
from ..execute.launch import Ranks
from ..execute.record import Record, measured_trace
from ..execute.task import Task
from ..measure.machine import device_facts
from .case import Case
from .one_device import expected, first_loss, loop, replay
from .verdict import Confirmation, Peak

MODES = ("synthetic", "gradient", "replay", "loop")
Progress = Callable[[str, int, int], None]


def confirm(
    case: Case,
    mode: str,
    ranks: Ranks | None = None,
    progress: Progress = lambda name, done, total: None,
) -> Confirmation:
    """Run a case in a mode.

    Args:
        ranks: p processes that are there already, for ``synthetic`` and ``gradient``.

    Raises:
        OptPipeError: what the case lacks, in one line.
        OutOfMemory: where a capped GPU does not do.
        RuntimeFault: names the rank and the op.
    """
    if mode not in MODES:
        raise OptPipeError(f"mode: expected {', '.join(MODES)}; got {mode!r}")
    if mode in ("synthetic", "gradient"):
        if case.device != "cpu":
            raise OptPipeError(
                f"mode {mode}: its ranks are processes on the CPU; on a GPU take replay or loop"
            )
        if ranks is not None:
            return _on_ranks(case, mode, ranks, progress)
        with Ranks(case.schedule.shape.devices) as own:
            return _on_ranks(case, mode, own, progress)
    run = replay if mode == "replay" else loop
    # as many threads as the profile was measured with
    facts: Any = case.profile.meta.get("device") or {}
    with threads(facts.get("threads") if case.device == "cpu" else None):
        return replace(run(case, progress), machine=machine(case.device))


# -- p ranks --------------------------------------------------------------------------------------


def _on_ranks(case: Case, mode: str, ranks: Ranks, progress: Progress) -> Confirmation:
    lowered, real = case.lowered, mode == "gradient"
    progress("ranks at work", 0, 1)
    task = Task(
        case.schedule,
        case.profile,
        case.memory_limit,
        mode=mode,
        plan=case.stages if real else None,
        iterations=case.iterations if case.kineto or not real else 1,
        seed=case.seed,
        gradients=real,
        kineto=case.kineto,
    )
    results = ranks.run(task)
    traces = [
        measured_trace(lowered, [result.records[at] for result in results])
        for at in range(task.iterations)
    ]
    best = min(traces, key=lambda trace: trace.makespan_ns)
    found = Confirmation(
        mode,
        "cpu",
        compare_traces(lowered, best),
        tuple(trace.makespan_ns for trace in traces),
        tolerances=case.tolerances,
        machine=machine(case.device),
    )
    if not real:
        return found
    progress("the same without pipeline", 1, 1)
    records = [result.records[0] for result in results]
    loss, check = expected(case)
    for result in results:
        check.add(result.gradients)
    return replace(
        found,
        peaks=_peaks(case, records),
        gradients=check.result(first_loss(records), loss),
        tolerances=case.tolerated(),
    )


# -- pieces ---------------------------------------------------------------------------------------


def _peaks(case: Case, records: Sequence[Record]) -> tuple[Peak, ...]:
    pairs = zip(case.predicted_peaks, records, strict=True)
    return tuple(Peak(rank, most, record.peak_bytes) for rank, (most, record) in enumerate(pairs))


def machine(device: str) -> dict[str, Any]:
    """Return what it ran on, and how busy that was."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        **device_facts(torch.device(device)),
        "torch": str(torch.__version__),
        "load": None if load is None else round(load, 2),
    }
