"""``replay`` and ``loop``: one rank at a time on one device; what it receives from others is computed
beforehand.

The device holds the weights, gradients, activations and messages of one rank only, so a plan can be tried
whose ranks each fill it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TypeVar, cast

import numpy as np
from torch import Tensor

from ...errors import OutOfMemory, RuntimeFault
from ...ops import Op
from ...sim.difference import compare_traces
from ...sim.in_situ import InSitu, compose, median_of
from ...sim.lower import Lowered
from ...trace import Trace
from ..execute.rank_step import RankStep
from ..execute.record import Record
from ..execute.serial import run_serially
from ..execute.sweeps import HeldBytes, Sweep, played_back, received, sweep_ranks
from ..execute.transport import Loopback
from ..execute.unpipelined import make_contents, named_gradients, reference
from ..measure.memory import CappedCudaBytes, LiveBytes, Meter
from ..model.stage import StageWorker
from ..model.stash import HostSlab
from ..program.program import Prepared, check_tier
from .case import Case, free_bytes
from .verdict import Confirmation, GradientCheck, Gradients, Peak, peaks_after_ops

Progress = Callable[[str, int, int], None]
Times = dict[Op, int]
HEAD_START_NS = 1_000_000  # for the threads of a rank to start
_Item = TypeVar("_Item")


class Bench:
    """The device, with one rank on it at a time, and the gradients that all ranks together are to have."""

    def __init__(self, case: Case) -> None:
        check_tier(case.schedule, case.profile)
        self.case, self.lowered = case, case.lowered
        self.shape = case.lowered.schedule.shape
        self.prepared = Prepared(case.lowered)
        data = case.stages.step_batch(self.shape.microbatches, case.seed)
        self.batch = tuple(part.to(case.device) for part in data)
        self.slab = HostSlab(pinned=case.device == "cuda")
        self.contents = make_contents(case.stages, case.lowered.schedule, case.seed, case.device)
        loss, wanted = self._reference()
        exact = None
        if case.stages.slices and case.device == "cpu":
            _, exact = reference(
                case.stages, self.shape.microbatches, case.seed, case.device, exact=True
            )
        self.expected_loss, self.check = loss, GradientCheck(wanted, exact)
        self._tied: dict[int, tuple[str, Tensor]] = {}
        self._messages: tuple[int, dict[Op, Tensor]] = (-1, {})

    def step(self, rank: int, arrive_ns: Mapping[Op, int] | None = None) -> RankStep:
        """Return the step of a rank, warmed up and started; what it receives arrives at these times.
        None: it runs op by op, and all of it is there."""
        worker = self.case.stages.rank_worker(self.shape, rank, self.case.device)
        worker.slab = self.slab
        messages = self.messages(rank)
        transport = Loopback(messages)
        if arrive_ns is not None:
            transport = played_back(worker.device, messages, arrive_ns)
        step = RankStep(worker, rank, self.prepared, transport)
        step.start(*self.batch)
        step.warm_up()
        step.start(*self.batch)
        return step

    def messages(self, rank: int) -> dict[Op, Tensor]:
        """Return what a rank receives, on the device."""
        if self._messages[0] != rank:
            self._messages = (-1, {})  # first release another rank's
            kept, device = self.contents.messages, self.case.device
            here = {op: kept[op].to(device) for op in received(self.lowered, rank)}
            self._messages = rank, here
        return self._messages[1]

    def compare(self, worker: StageWorker) -> None:
        """Set the gradients of a rank beside the unpipelined model's."""
        found = named_gradients(worker)
        ends = [end for end in (0, worker.stages - 1) if worker.tied(end) is not None]
        if len(ends) == 1:  # the other copy of a tied weight is another rank's
            weight = worker.tied(ends[0])
            name = next(n for n, gradient in found.items() if gradient is weight.grad)  # type: ignore[union-attr]
            self._tied[ends[0]] = name, found.pop(name).to("cpu", copy=True)
        self.check.add(found)

    def gradients(self, loss: float) -> Gradients:
        """Return the comparison, once all ranks have been there."""
        if len(self._tied) == 2:
            (name, first), (_, last) = (tied for _, tied in sorted(self._tied.items()))
            self.check.add({name: first + last})
        elif self._tied:
            self.check.add(dict(self._tied.values()))
        found = self.check.result(loss, self.expected_loss)
        if self.case.device == "cpu" or found.bitwise == found.parameters:
            return found
        # kernels that do not repeat: by how much the reference is off from itself
        case = self.case
        again = make_contents(case.stages, case.lowered.schedule, case.seed, case.device)
        noise = GradientCheck(self.contents.gradients)
        noise.add(again.gradients)
        return replace(found, noise=noise.worst[2])

    def _reference(self) -> tuple[float, Mapping[str, Tensor]]:
        """Return loss and gradients to compare with: on a CPU of the whole model at once; a GPU holds
        one stage at a time."""
        case = self.case
        if case.device == "cpu":
            return reference(case.stages, self.shape.microbatches, case.seed, "cpu")
        return self.contents.loss, self.contents.gradients


def replay(case: Case, progress: Progress) -> Confirmation:
    """Confirm a case rank by rank, op by op: once for memory, then for time."""
    lowered, p, each = case.lowered, case.schedule.shape.devices, case.iterations + 1
    total = 1 + p * each
    progress("what the ranks send to each other", 0, total)
    bench = Bench(case)
    held: list[list[tuple[Op, int]]] = []
    durations: list[Times] = [{} for _ in range(case.iterations)]
    loss = float("nan")
    for rank in range(p):
        progress("measuring memory op by op", 1 + rank * each, total)
        step = bench.step(rank)
        with step.meter() as scale:
            measured = run_serially({rank: step}, meter=scale)
        bench.compare(cast(StageWorker, step.worker))
        held.append(measured.held[rank])
        loss = measured.loss if measured.loss == measured.loss else loss
        for at, times in enumerate(durations):
            progress("timing every op", 2 + rank * each + at, total)
            step.start(*bench.batch)
            times |= run_serially({rank: step}).duration_ns
        del step
    composed = lowered.replay(_medians(lowered, durations))
    return Confirmation(
        "replay",
        case.device,
        compare_traces(lowered, composed),
        tuple(lowered.replay(_medians(lowered, [one])).makespan_ns for one in durations),
        noise_ns=_noise([lowered.replay(_medians(lowered, half)) for half in halves(durations)]),
        peaks=peaks_after_ops(lowered.schedule, lowered.profile, held),
        gradients=bench.gradients(loss),
        tolerances=case.tolerated(),
    )


def loop(case: Case, progress: Progress) -> Confirmation:
    """Run each rank's whole program alone: a sweep that measures memory, then those that count."""
    lowered, p = case.lowered, case.schedule.shape.devices
    total = 1 + (1 + case.sweeps) * p
    progress("what the ranks send to each other", 0, total)
    bench = Bench(case)
    meters: dict[int, Meter] = {}

    def run(rank: int, arrive_ns: Mapping[Op, int], metered: bool) -> Record:
        step = bench.step(rank, arrive_ns)
        worker = cast(StageWorker, step.worker)
        scale: Meter = HeldBytes(worker)
        if metered:  # what stays refers to no worker: a device holds one rank at a time
            scale = meters[rank] = _rank_meter(case, rank)
        record = step.run(scale, time.monotonic_ns() + HEAD_START_NS)
        if metered:
            bench.compare(worker)
        return record

    def notify(metered: bool) -> Callable[[int, int], None]:
        name = "each rank alone, memory measured" if metered else "each rank alone"
        return lambda sweep, rank: progress(name, 1 + (1 - metered + sweep) * p + rank, total)

    try:
        first = sweep_ranks(lowered, partial(run, metered=True), sweeps=1, progress=notify(True))[0]
        peaks = _peaks(case, first.records, meters)
        sweeps = sweep_ranks(
            lowered, partial(run, metered=False), sweeps=case.sweeps, progress=notify(False)
        )
    except RuntimeFault as error:
        if case.cap_memory and "OutOfMemoryError" in str(error):
            raise OutOfMemory(f"{error} (memory was capped at the limit)") from None
        raise
    return Confirmation(
        "loop",
        case.device,
        compare_traces(lowered, compose(lowered, median_of(_found(sweeps))), concurrent=True),
        tuple(sweep.composed.makespan_ns for sweep in sweeps),
        noise_ns=_noise([compose(lowered, median_of(half)) for half in halves(_found(sweeps))]),
        closure_ns=sweeps[-1].moved_ns,
        peaks=peaks,
        gradients=bench.gradients(first_loss(first.records)),
        tolerances=case.tolerated(),
        last=sweeps[-1].trace,
    )


def halves(runs: Sequence[_Item]) -> list[Sequence[_Item]]:
    """Return every other run, and the rest; none where there is but one."""
    return [runs[0::2], runs[1::2]] if len(runs) > 1 else []


def _noise(composed: Sequence[Trace]) -> int | None:
    """Return how much two measurements of the same quantity differ."""
    if len(composed) < 2:
        return None
    one, other = (trace.makespan_ns for trace in composed)
    return abs(one - other)


def _found(sweeps: Sequence[Sweep]) -> list[InSitu]:
    return [sweep.found for sweep in sweeps]


def _medians(lowered: Lowered, runs: Sequence[Times]) -> np.ndarray:
    """Return, by rows, the median of what each op took, in ns."""
    ops = (op for program in lowered.schedule.flat_programs for op in program)
    return np.array([round(median(run[op] for run in runs)) for op in ops], np.int64)


def first_loss(records: Sequence[Record]) -> float:
    """Return the loss, of the rank that has the last stage."""
    losses = [record.loss for record in records if record.loss is not None]
    return losses[0] if losses else float("nan")


def _peaks(case: Case, records: Sequence[Record], meters: Mapping[int, Meter]) -> tuple[Peak, ...]:
    rows = []
    for rank, record in enumerate(records):
        taken: dict[str, int | None] = {}
        scale = meters[rank]
        if isinstance(scale, CappedCudaBytes):
            taken = {
                "inside_bytes": scale.most["requested"],
                "allocated_bytes": scale.most["allocated"],
                "reserved_bytes": scale.most["reserved"],
                "cap_bytes": scale.room_bytes,
            }
        rows.append(Peak(rank, case.predicted_peaks[rank], record.peak_bytes, **taken))  # type: ignore[arg-type]
    return tuple(rows)


def _rank_meter(case: Case, rank: int) -> Meter:
    if case.device == "cpu":
        return LiveBytes()
    return CappedCudaBytes(case.device, free_bytes(case, rank) if case.cap_memory else None)
