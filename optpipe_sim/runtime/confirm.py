"""Four ways to hold a prediction against real runs on one machine; none needs more than one device.

``synthetic``: p ranks whose ops sleep as long as the profile says confirm the times of the program:
messages, waits, copies beside compute. ``gradient``: p ranks with real stages confirm results and
memory. ``replay``: all stages in one process, op by op, confirms results, memory after each op, and
what each op costs among the others. ``loop``: each rank's whole program alone, real copies beside
real ops, its neighbours played back. On CUDA the last two have not been tried yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import OptPipeError, OutOfMemory, RuntimeFault
from ..ops import Op
from ..sim.difference import compare_traces
from ..sim.lower import Lowered
from .alone import Sweep, sweep_ranks
from .case import Case, free_bytes
from .executor import Record, measured_trace
from .launch import Ranks
from .machine import device_facts
from .memory import CappedCudaBytes, LiveBytes, Meter, meter
from .serial import SerialRun, run_serially
from .stage import StageWorker, sum_tied
from .task import Task, batch, named_gradients, reference, stage_worker, zero_gradients
from .verdict import (
    Confirmation,
    Gradients,
    Peak,
    compare_gradients,
    peaks_after_ops,
)

MODES = ("synthetic", "gradient", "replay", "loop")
STILL = 0.005  # of the makespan: sweeps whose messages move by less have come to rest
Progress = Callable[[str, int, int], None]
Times = dict[Op, int]


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
    with _threads(case):
        return _replay(case, progress) if mode == "replay" else _loop(case, progress)


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
        iterations=1 if real else case.iterations,
        seed=case.seed,
        gradients=real,
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
    gradients: dict[str, Tensor] = {}
    for result in results:
        gradients |= result.gradients
    return replace(
        found,
        peaks=_peaks(case, records),
        gradients=_compare(case, gradients, _loss(records)),
        tolerances=case.tolerated(),
    )


# -- one process ----------------------------------------------------------------------------------


def _replay(case: Case, progress: Progress) -> Confirmation:
    """All stages in one process: once weighed, which warms it up as well, then timed."""
    lowered, total = case.lowered, case.iterations + 2
    workers = _workers(case)
    progress("weighing every op", 0, total)
    with meter(case.device) as scale:
        weighed = run_serially(lowered, _started(case, workers), meter=scale)
    progress("gradients", 1, total)
    gradients = _compare(case, _gathered(workers), weighed.loss)
    runs: list[SerialRun] = []
    for at in range(case.iterations):
        progress("timing every op", 2 + at, total)
        runs.append(run_serially(lowered, _started(case, workers)))
    return Confirmation(
        "replay",
        case.device,
        compare_traces(lowered, lowered.replay(_medians(lowered, [r.lasts_ns for r in runs]))),
        tuple(lowered.replay(run.durations_ns(lowered)).makespan_ns for run in runs),
        peaks=peaks_after_ops(lowered.profile, weighed.held),
        gradients=gradients,
        tolerances=case.tolerated(),
        machine=machine(case.device),
    )


def _loop(case: Case, progress: Progress) -> Confirmation:
    """Each rank alone: a sweep that is weighed, which warms up as well, then those that count."""
    lowered, p = case.lowered, case.schedule.shape.devices
    workers = _workers(case)
    total = (2 + case.sweeps) * p
    progress("what the ranks send to each other", 0, total)
    contents = run_serially(lowered, _started(case, workers), keep=True).contents
    meters: dict[int, Meter] = {}

    def make(rank: int) -> StageWorker:
        return _started(case, workers, rank)[0]

    def weigh(rank: int, worker: StageWorker) -> Meter:
        meters[rank] = _rank_meter(case, rank, worker)
        return meters[rank]

    def tell(weighing: bool) -> Callable[[int, int], None]:
        name = "each rank alone, weighed" if weighing else "each rank alone"
        return lambda sweep, rank: progress(name, (2 - weighing + sweep) * p + rank, total)

    try:
        first = sweep_ranks(
            lowered, make, contents, sweeps=1, make_meter=weigh, progress=tell(True)
        )[0]
        peaks = _peaks(case, first.records, meters)
        gradients = _compare(case, _gathered(workers), _loss(first.records))
        still = int(STILL * lowered.replay().makespan_ns)
        sweeps = sweep_ranks(
            lowered, make, contents, sweeps=case.sweeps, still_ns=still, progress=tell(False)
        )
    except RuntimeFault as error:
        if case.cap_memory and "OutOfMemoryError" in str(error):
            raise OutOfMemory(f"{error} (memory was capped at the limit)") from None
        raise
    medians = _medians(lowered, [_lasting(sweep) for sweep in sweeps])
    return Confirmation(
        "loop",
        case.device,
        compare_traces(lowered, sweeps[-1].trace),
        tuple(sweep.trace.makespan_ns for sweep in sweeps),
        composed_ns=lowered.replay(medians).makespan_ns,
        closure_ns=sweeps[-1].moved_ns,
        peaks=peaks,
        gradients=gradients,
        tolerances=case.tolerated(),
        machine=machine(case.device),
    )


def _workers(case: Case) -> list[StageWorker]:
    """Of all ranks."""
    shape = case.lowered.schedule.shape
    return [stage_worker(case.stages, shape, rank, case.device) for rank in range(shape.devices)]


def _started(
    case: Case, workers: Sequence[StageWorker], rank: int | None = None
) -> list[StageWorker]:
    """All workers, or that of a rank, at the start of the step."""
    chosen = list(workers) if rank is None else [workers[rank]]
    data = batch(case.stages, case.schedule.shape.microbatches, case.seed)
    for worker in chosen:
        zero_gradients(worker)
        worker.allocated = None
        worker.start_step(*(part.to(case.device) for part in data))
    return chosen


def _gathered(workers: Sequence[StageWorker]) -> dict[str, Tensor]:
    """Gradients of all ranks by name, those of a tied weight added up."""
    found: dict[str, Tensor] = {}
    for worker in workers:
        found |= named_gradients(worker)
    last = workers[0].stages - 1
    ends = [
        (worker, tied)
        for stage in (0, last)
        for worker in workers
        if (tied := worker.tied(stage)) is not None
    ]
    if len(ends) == 2 and ends[0][0] is not ends[1][0]:
        sum_tied(ends[0][1], ends[1][1])
        for worker in (ends[0][0], ends[1][0]):
            found |= named_gradients(worker)
    return found


def _medians(lowered: Lowered, runs: Sequence[Times]) -> np.ndarray:
    """By rows, the median of what each op took, in ns."""
    ops = (op for program in lowered.schedule.programs for op in program)
    return np.array([round(median(run[op] for run in runs)) for op in ops], np.int64)


def _lasting(sweep: Sweep) -> Times:
    return {span.op: span.end_ns - span.start_ns for span in sweep.trace.spans}


# -- pieces ---------------------------------------------------------------------------------------


def _compare(case: Case, found: dict[str, Tensor], loss: float) -> Gradients:
    m = case.schedule.shape.microbatches
    expected_loss, wanted = reference(case.stages, m, case.seed, case.device)
    return compare_gradients(found, loss, wanted, expected_loss)


def _loss(records: Sequence[Record]) -> float:
    losses = [record.loss for record in records if record.loss is not None]
    return losses[0] if losses else float("nan")


def _peaks(
    case: Case, records: Sequence[Record], meters: dict[int, Meter] | None = None
) -> tuple[Peak, ...]:
    rows = []
    for rank, record in enumerate(records):
        row = Peak(rank, case.predicted_peaks[rank], record.peak_bytes)
        scale = (meters or {}).get(rank)
        if isinstance(scale, CappedCudaBytes):
            row = replace(row, inside_bytes=scale.inside, reserved_bytes=scale.reserved)
        rows.append(row)
    return tuple(rows)


def _rank_meter(case: Case, rank: int, worker: StageWorker) -> Meter:
    if case.device == "cpu":
        scale = LiveBytes()
        worker.allocated = scale.add
        return scale
    return CappedCudaBytes(case.device, free_bytes(case, rank) if case.cap_memory else None)


@contextmanager
def _threads(case: Case) -> Iterator[None]:
    """As many threads as the profile was measured with."""
    before = torch.get_num_threads()
    facts: Any = case.profile.meta.get("device") or {}
    if case.device == "cpu" and isinstance(facts.get("threads"), int):
        torch.set_num_threads(facts["threads"])
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine(device: str) -> dict[str, Any]:
    """What it ran on, and how busy that was."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        **device_facts(torch.device(device)),
        "torch": str(torch.__version__),
        "load": None if load is None else round(load, 2),
    }
