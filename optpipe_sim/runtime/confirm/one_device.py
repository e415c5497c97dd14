"""``replay`` and ``loop``: one rank at a time on one device; what it receives from others is computed beforehand.

The device holds the weights, gradients, activations and messages of one rank only, so a plan can be tried
whose ranks each fill it.

``loop`` runs the whole program of each rank alone, with real ops and copies, its neighbours played back. In a sweep
every rank runs once, and messages arrive at the times computed from the previous sweep. A sweep measures the duration
of each op and the delay after its inputs; the replay of these gives the arrivals of the next sweep, for all ranks at
once. (If a message arrived when its sender's last run produced it, a delay would move on by one device per sweep: 28
sweeps at p = 4, m = 32.) The fixed point is the run of all ranks together, where replay and run agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np
from torch import Tensor

from ...errors import OutOfMemory, RuntimeFault
from ...ops import F, Op
from ...sim.difference import compare_traces
from ...sim.in_situ import InSitu, compose, in_situ, median_of
from ...sim.lower import Lowered
from ...trace import Trace
from ..execute.rank_step import RankStep
from ..execute.record import Record, measured_trace
from ..execute.run import run_step
from ..execute.serial import run_serially
from ..execute.transport import GatedLoopback, Loopback
from ..execute.unpipelined import Contents, make_contents, named_gradients, reference
from ..measure.memory import CudaBytes, Meter
from ..measure.memory import meter as meter_of
from ..model.stage import StageWorker
from ..model.stash import HostSlab
from ..program.program import Prepared, check_tier, inputs_of
from .case import Case, free_bytes
from .verdict import Confirmation, GradientCheck, Gradients, Peak, peaks_after_ops

Progress = Callable[[str, int, int], None]
HEAD_START_NS = 1_000_000  # for the threads of a rank to start
_Run = TypeVar("_Run")
Times = dict[Op, int]  # in ns: what each op takes, or when its result arrives


class Bench:
    """The device, with one rank on it at a time, and the gradients that all ranks together are to have."""

    def __init__(self, case: Case) -> None:
        check_tier(case.schedule, case.profile)
        self.case, self.lowered = case, case.lowered
        self.shape = case.lowered.schedule.shape
        self.prepared = Prepared(case.lowered)
        self.batch = case.stages.step_batch(self.shape.microbatches, case.seed, case.device)
        self.slab = HostSlab(pinned=case.device == "cuda")
        self.contents = make_contents(case.stages, case.lowered.schedule, case.seed, case.device)
        self.expected_loss, self.check = expected(case, self.contents)
        self._tied: dict[int, tuple[str, Tensor]] = {}
        self._messages: tuple[int, dict[Op, Tensor]] = (-1, {})

    def step(self, rank: int, arrive_ns: Mapping[Op, int] | None = None) -> RankStep:
        """Return the step of a rank, warmed up and started; what it receives arrives at these times.
        None: it runs op by op, and all of it is there."""
        worker = self.case.stages.rank_worker(self.shape, rank, self.case.device)
        worker.slab = self.slab
        # on a GPU its streams wait for messages, not the host
        gated = arrive_ns is not None and worker.device.type == "cuda"
        transport = (GatedLoopback if gated else Loopback)(self.messages(rank), arrive_ns)
        step = RankStep(worker, rank, self.prepared, transport)
        step.cold = True  # on a CPU too, for the times
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
        """Compare the gradients of a rank with the unpipelined model's."""
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


def expected(case: Case, contents: Contents | None = None) -> tuple[float, GradientCheck]:
    """Return the loss without a pipeline, and the gradients to compare with: on a CPU of the whole model at once, on
    a GPU, which holds one stage at a time, those of `contents`."""
    if case.device != "cpu":
        kept = contents or make_contents(case.stages, case.lowered.schedule, case.seed, case.device)
        return kept.loss, GradientCheck(kept.gradients)
    given = case.stages, case.schedule.shape.microbatches, case.seed, case.device
    loss, wanted = reference(*given)
    exact = reference(*given, exact=True)[1] if case.stages.slices else None
    return loss, GradientCheck(wanted, exact)


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
        with step.meter() as meter:
            measured = run_serially({rank: step}, meter=meter)
        bench.compare(step.worker)
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
        noise_ns=_noise(durations, lambda runs: lowered.replay(_medians(lowered, runs))),
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
        meter = None
        if metered:  # what stays refers to no worker: a device holds one rank at a time
            room_bytes = free_bytes(case, rank) if case.cap_memory else None
            meter = meters[rank] = meter_of(case.device, room_bytes)
        record = run_step(step, meter, time.monotonic_ns() + HEAD_START_NS)
        if metered:
            bench.compare(step.worker)
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
    found = [sweep.found for sweep in sweeps]
    return Confirmation(
        "loop",
        case.device,
        compare_traces(lowered, compose(lowered, median_of(found)), concurrent=True),
        tuple(sweep.composed.makespan_ns for sweep in sweeps),
        noise_ns=_noise(found, lambda runs: compose(lowered, median_of(runs))),
        closure_ns=sweeps[-1].moved_ns,
        peaks=peaks,
        gradients=bench.gradients(first_loss(first.records)),
        tolerances=case.tolerated(),
        last=sweeps[-1].trace,
    )


def _noise(runs: Sequence[_Run], composed: Callable[[Sequence[_Run]], Trace]) -> int | None:
    """Return by how much the makespan composed of every other run differs from that of the rest; None where there is
    only one run."""
    if len(runs) < 2:
        return None
    return abs(composed(runs[0::2]).makespan_ns - composed(runs[1::2]).makespan_ns)


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
        meter = meters[rank]
        if isinstance(meter, CudaBytes):
            taken = {
                "inside_bytes": meter.most["requested"],
                "allocated_bytes": meter.most["allocated"],
                "reserved_bytes": meter.most["reserved"],
                "cap_bytes": meter.room_bytes,
            }
        rows.append(Peak(rank, case.predicted_peaks[rank], record.peak_bytes, **taken))  # type: ignore[arg-type]
    return tuple(rows)


@dataclass(frozen=True)
class Sweep:
    """One pass over all ranks.

    Attributes:
        trace: as measured, each rank at the times of its own run.
        found: what every op took, and how late it began.
        composed: the replay of `found`: all ranks together.
        moved_ns: how far that moves the arrivals from those of this sweep, at most.
    """

    trace: Trace
    records: tuple[Record, ...]
    found: InSitu
    composed: Trace
    moved_ns: int


def sweep_ranks(
    lowered: Lowered,
    run: Callable[[int, Mapping[Op, int]], Record],
    *,
    sweeps: int = 6,
    arrive_ns: Mapping[Op, int] | None = None,
    progress: Callable[[int, int], None] = lambda sweep, rank: None,
) -> list[Sweep]:
    """Run every rank, `sweeps` times.

    Args:
        run: runs a rank alone, with its messages arriving at these times.
        arrive_ns: of the first sweep; default: as predicted.
    """
    arrive = dict(arrive_ns or arrivals(lowered, lowered.replay()))
    found: list[Sweep] = []
    for sweep in range(sweeps):
        records = []
        for rank in range(lowered.schedule.shape.devices):
            progress(sweep, rank)
            records.append(run(rank, arrive))
        trace = measured_trace(lowered, records)
        measured = in_situ(lowered, trace, arrive)
        composed = compose(lowered, measured)
        after = arrivals(lowered, composed)
        moved = max((abs(when - arrive[op]) for op, when in after.items()), default=0)
        found.append(Sweep(trace, tuple(records), measured, composed, moved))
        arrive = after
    return found


def received(lowered: Lowered, rank: int) -> list[Op]:
    """Return the ops of other ranks whose results a rank receives."""
    place = lowered.schedule.shape.placement
    return [
        source
        for consumer, source in inputs_of(lowered.schedule).items()
        if place[consumer.stage] == rank != place[source.stage]
    ]


def arrivals(lowered: Lowered, trace: Trace) -> Times:
    """Return when the results of a trace's ops arrive at other ranks: messages `t_comm` after their op,
    on serial links after the earlier messages between the same ranks; turns on shared host links when
    their transfer has ended."""
    ends = {span.op: span.end_ns for span in trace.spans}
    sent = [source for rank in range(trace.profile.devices) for source in received(lowered, rank)]
    return ends | message_arrivals(lowered, {op: ends[op] for op in sent})


def message_arrivals(lowered: Lowered, sent_ns: Mapping[Op, int]) -> Times:
    """Return when messages arrive that were sent at these times."""
    profile, place = lowered.profile, lowered.schedule.shape.placement
    arrive: Times = {}
    free: dict[tuple[int, int], int] = {}
    for op in sorted(sent_ns, key=lambda op: (sent_ns[op], op)):
        depart = sent_ns[op]
        if profile.serial_links:
            # a backward sends to the stage before
            receiver = op.stage + (1 if op.kind is F else -1)
            link = place[op.stage], place[receiver]
            depart = max(depart, free.get(link, 0))
            free[link] = depart + profile.occupancy_ns
        arrive[op] = depart + profile.t_comm_ns
    return arrive
