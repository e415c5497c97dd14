"""Four ways to compare a prediction with real runs; none needs more than one machine and one device.

``synthetic``: p ranks whose ops sleep as long as the profile says confirm the times of the program:
messages, waits, copies beside compute. ``gradient``: p ranks with real stages confirm results and
memory, and where torchrun gives each a GPU, times. ``replay``: the ops of each rank one after the
other, confirms results, memory after each op, and what each op costs among the others. ``loop``: each
rank's whole program alone, real copies beside real ops, its neighbours played back. On CUDA the
last three have not been tried yet.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from ...errors import OptPipeError
from ...sim.difference import compare_traces
from ..device import threads
from ..execute.launch import JoinedRanks, Ranks
from ..execute.record import measured_trace
from ..measure.machine import device_facts
from .case import Case
from .one_device import Progress, expected, first_loss, loop, replay
from .task import Task
from .verdict import Confirmation, Peak

MODES = ("synthetic", "gradient", "replay", "loop")


def confirm(
    case: Case,
    mode: str,
    ranks: Ranks | JoinedRanks | None = None,
    progress: Progress = lambda name, done, total: None,
) -> Confirmation:
    """Run a case in a mode.

    Args:
        ranks: p processes that are there already, for ``synthetic`` and ``gradient``. Of those that torchrun has
            started the first calls this, the others run `task_of`.

    Raises:
        OptPipeError: what the case lacks, in one line.
        OutOfMemory: where a capped GPU does not do.
        RuntimeFault: names the rank and the op.
    """
    if mode not in MODES:
        raise OptPipeError(f"mode: expected {', '.join(MODES)}; got {mode!r}")
    if mode != "synthetic" and case.plan is None:
        raise OptPipeError(f"mode {mode}: needs a model; only synthetic goes without")
    if mode in ("synthetic", "gradient"):
        if case.device != "cpu" and not isinstance(ranks, JoinedRanks):
            raise OptPipeError(
                f"mode {mode}: its ranks are processes on the CPU; on a GPU take replay or loop, on"
                " several start a rank on each by torchrun"
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


def task_of(case: Case, mode: str, ranks: Ranks | JoinedRanks) -> Task:
    """Return what each rank does."""
    once = mode == "gradient" and case.kineto is None and not isinstance(ranks, JoinedRanks)
    return Task(case, mode, 1 if once else case.iterations)


def _on_ranks(
    case: Case, mode: str, ranks: Ranks | JoinedRanks, progress: Progress
) -> Confirmation:
    lowered = case.lowered
    progress("ranks at work", 0, 1)
    task = task_of(case, mode, ranks)
    results = ranks.run(task)
    traces = [
        measured_trace(lowered, [result.records[at] for result in results])
        for at in range(task.iterations)
    ]
    best = min(traces, key=lambda trace: trace.makespan_ns)
    found = Confirmation(
        mode,
        case.device,
        compare_traces(lowered, best, concurrent=case.device != "cpu"),
        tuple(trace.makespan_ns for trace in traces),
        tolerances=case.tolerances,
        machine=machine(case.device)
        | {"communicator_bytes": [result.message_bytes for result in results]},
    )
    if mode == "synthetic":
        return found
    progress("the same without pipeline", 1, 1)
    loss, check = expected(case)
    for result in results:
        check.add(result.gradients)
    most = [max(record.peak_bytes for record in result.records) for result in results]
    return replace(
        found,
        peaks=tuple(map(Peak, range(len(most)), case.predicted_peaks, most)),
        gradients=check.result(first_loss([result.records[-1] for result in results]), loss),
        tolerances=case.tolerated(),
    )


def machine(device: str) -> dict[str, Any]:
    """Return what it ran on, and how busy that was."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        **device_facts(torch.device(device)),
        "torch": str(torch.__version__),
        "load": None if load is None else round(load, 2),
    }
