"""One rank of a training run, step by step: iterations, optimizer, switch, checkpoints, progress reports.

It switches to another schedule on all ranks at once, or on none: between two iterations rank 0 sends the others a
schedule and its costs. Every rank lowers and checks it in a thread of its own while iterations continue. After each
iteration all ranks learn from each other who is ready and who refuses: once all are ready, all switch with the next
iteration; if one refuses, none switches.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np

from ...errors import OptPipeError
from ...ops import O, Op
from ...profile import CostProfile
from ...profile_io import load_profile, profile_to_json
from ...schedule import Schedule
from ..checkpoint import load_pipeline, save_pipeline
from ..device import in_thread, take_device
from ..execute.clocks import clock_offset_ns
from ..execute.rank_step import RankStep
from ..execute.run import run_step
from ..group import PipelineGroup
from ..model.stage import StageWorker
from ..program.program import Prepared
from .observed import sample
from .planner import Proposal
from .task import NEWS, STOP, Slow, TrainResult, TrainTask, optimizer_for

UNUSUAL = 1  # iterations after a switch that do not count: their memory is new
METERED = 2  # the one after a switch in which memory is measured, which slows it down


@dataclass
class Report:
    """The measurements of an iteration, the same on all ranks.

    Attributes:
        start_ns, end_ns: of every op, by rows. peaks: activation bytes per rank; 0: not measured.
        loss: the mean over microbatches.
    """

    loss: float
    start_ns: np.ndarray
    end_ns: np.ndarray
    peaks: list[int]


@dataclass
class Outcome:
    """How a proposal ended: with a `Prepared` on all ranks, or with the reasons of those who refused.

    Attributes:
        prepare_ns: how long each rank took to prepare, beside training.
    """

    prepared: Prepared | None
    reasons: list[str]
    prepare_ns: list[int]


class Switch:
    """One rank's part in agreeing on a schedule; all ranks call its methods in the same order.

    Args:
        prepare: makes a proposal ready to run, or raises.
    """

    def __init__(
        self, group: PipelineGroup, prepare: Callable[[Schedule, CostProfile], Prepared]
    ) -> None:
        self.group, self.prepare = group, prepare
        self._pending: Future[tuple[Prepared, int]] | None = None

    @property
    def pending(self) -> bool:
        """Whether a proposal is not decided yet."""
        return self._pending is not None

    def boundary(self, proposal: Proposal | None = None, stop: bool = False) -> tuple[bool, int]:
        """Agree on the state between iterations: that of rank 0, with a proposal if it has one.

        Returns:
            Whether to end here, and a moment on rank 0's clock, the zero of the iteration's times.
        """
        text = None
        if proposal is not None and self._pending is None:
            profile = profile_to_json(proposal.profile)
            text = json.dumps({"schedule": proposal.schedule.to_json(), "profile": profile})
        stop, text, zero_ns = self.group.gather((stop, text, time.monotonic_ns()))[0]
        if text is not None:
            self._pending = in_thread(partial(self._prepare, text))
        return stop, zero_ns

    def _prepare(self, text: str) -> tuple[Prepared, int]:
        """Return a proposal that this rank can run, and how long it took to prepare, in ns."""
        began, data = time.monotonic_ns(), json.loads(text)
        schedule = Schedule.from_json(data["schedule"], "proposed schedule")
        prepared = self.prepare(schedule, load_profile(data["profile"]))
        return prepared, time.monotonic_ns() - began

    def exchange(
        self,
        schedule: Schedule,
        times_ns: dict[Op, tuple[int, int]],
        loss: float | None,
        peak: int = 0,
    ) -> tuple[Report, Outcome | None]:
        """Exchange every rank's times, the loss, and the votes on the proposal after an iteration."""
        pending = self._pending
        vote = None
        if pending is not None and pending.done():
            error = pending.exception()  # whatever it is, this rank cannot run the proposal
            vote = (f"{type(error).__name__}: {error}", 0) if error else ("", pending.result()[1])
        rows = np.array([schedule.row(op) for op in times_ns])
        own = rows, np.array([*times_ns.values()]), loss, peak, vote
        every_rows, every_times, losses, peaks, votes = zip(*self.group.gather(own), strict=True)
        times = np.zeros((len(schedule), 2), np.int64)
        times[np.concatenate(every_rows)] = np.concatenate(every_times)
        mean = next(loss for loss in losses if loss is not None)
        start, end = times.T
        return Report(mean, start, end, list(peaks)), self._decide(votes)

    def _decide(self, votes: Sequence[tuple[str, int] | None]) -> Outcome | None:
        """Return the outcome, once a rank refuses or all are ready; a vote is a reason to refuse, or none, and how
        long it took."""
        refused = [f"rank {rank}: {vote[0]}" for rank, vote in enumerate(votes) if vote and vote[0]]
        pending = self._pending
        if pending is None or (not refused and None in votes):
            return None
        self._pending = None
        took = [0 if vote is None else vote[1] for vote in votes]
        return Outcome(None if refused else pending.result()[0], refused, took)


class Trainer:
    """A rank that trains; all ranks run the same steps in the same order.

    The same on CPUs and GPUs: what they agree on goes over gloo in any case, results over gloo or NCCL.
    """

    def __init__(self, task: TrainTask, rank: int, begun: Callable[[Op], None]) -> None:
        self.task, self.rank = task, rank
        shape = task.schedule.shape
        self.now = task.prepare(rank, task.schedule, task.profile)
        self.worker = task.plan.rank_worker(shape, rank, task.device)
        self.modules, self.group = self.worker.modules, PipelineGroup(shape.devices)
        if task.slow:
            _slow_down(self.worker, task.slow, lambda: self.step)
        self.optimizer = optimizer_for(self.worker.parameters(), task)
        self.rank_step = RankStep(
            self.worker, rank, self.now, timeout_s=task.timeout_s, begun=begun
        )
        self.offset_ns = clock_offset_ns(rank, shape.devices)
        self.switch = Switch(self.group, lambda s, p: task.prepare(rank, s, p))
        self.result = TrainResult()
        self.step = self.epoch = self.since = 0
        if task.resume and task.checkpoints:
            meta = task.checkpoint()
            self.step = load_pipeline(task.checkpoints, self, self.optimizer)
            self.result = TrainResult(meta["rows"], meta["events"], meta["phases"])
            self.epoch = len(self.result.phases)
        self.planner = task.planner(self.now.schedule, self.step, self.epoch) if rank == 0 else None
        self.proposed: Proposal | None = None
        self.collected = 0  # events of the planner that are in the result
        self.news: TextIO | None = None

    def run(self) -> TrainResult:
        """Run all steps, or until a request to stop."""
        if self.rank == 0:
            self.news = (Path(self.task.folder) / NEWS).open("w")
        self._begin_phase(self.task.profile, None)
        try:
            if self.planner is not None:
                self.planner.start()
            self._steps()
        finally:
            if self.planner is not None:
                self.planner.close()
            self._collect_events()
            if self.news is not None:
                self.news.close()
        return self.result if self.rank == 0 else TrainResult()

    def _steps(self) -> None:
        task, saved, ended = self.task, self.step, time.monotonic_ns()
        while self.step < task.steps:
            stop, zero_ns = self.switch.boundary(self._proposal(), self._asked_to_stop())
            if stop:
                self.result.stopped = True
                break
            self.rank_step.start(*task.batch(self.step))
            began, metered = time.monotonic_ns(), self.since == METERED
            record = run_step(
                self.rank_step,
                self.rank_step.meter() if metered else None,
                zero_ns + self.offset_ns,
            )
            ran_ns = time.monotonic_ns() - began
            self.rank_step.exchange_tied()
            self.optimizer.step()
            report, outcome = self.switch.exchange(
                self.now.schedule,
                record.times_ns,
                record.loss,
                record.peak_bytes,
            )
            if not math.isfinite(report.loss):
                raise OptPipeError(f"step {self.step}: the loss is {report.loss}; lower the lr")
            now = time.monotonic_ns()
            self._note_iteration(report, metered, now - ended, ran_ns)
            ended = now
            self.step += 1
            self.since += 1
            if outcome is not None:
                self._decided(outcome)
            if task.checkpoints and self.step % task.every == 0:
                self._save()
                saved = self.step
        self._end_phase()
        if task.checkpoints and saved != self.step:
            self._save()

    # -- the switch ----------------------------------------------------------------------------------

    def _proposal(self) -> Proposal | None:
        """Return the proposal of rank 0, if there is one now."""
        if self.planner is None or self.switch.pending:
            return None
        proposal = self.planner.take()
        if proposal is not None:
            self.proposed = proposal
            self._note_event(
                "proposed",
                gain=proposal.gain,
                predicted_ns=proposal.predicted_ns,
                instead_of_ns=proposal.instead_of_ns,
            )
        return proposal

    def _decided(self, outcome: Outcome) -> None:
        """Switch to the proposed schedule, or keep the present one; all ranks decide alike."""
        proposal, self.proposed = self.proposed, None
        if outcome.prepared is None:
            self._note_event("refused", reasons=outcome.reasons)
            if self.planner is not None and proposal is not None:
                self.planner.rejected(proposal)
            return
        began = time.monotonic_ns()
        self._end_phase()
        self.now = outcome.prepared
        self.rank_step.follow(self.now)
        self.since = 0
        self.epoch += 1
        swap_ns = time.monotonic_ns() - began
        if self.planner is not None and proposal is not None:
            self.planner.committed(proposal)
            self._begin_phase(proposal.profile, proposal)
        self._note_event("switched", prepare_ns=max(outcome.prepare_ns), swap_ns=swap_ns)

    def _asked_to_stop(self) -> bool:
        return self.rank == 0 and (Path(self.task.folder) / STOP).exists()

    # -- the log ------------------------------------------------------------------------------------

    def _note_iteration(self, report: Report, metered: bool, wall_ns: int, ran_ns: int) -> None:
        if self.rank != 0:
            return
        measured = sample(self.now.schedule, report.start_ns, report.end_ns)
        usual = self.since >= UNUSUAL and not metered
        if self.planner is not None and usual:
            self.planner.observe(self.step, self.epoch, measured)
        if metered:
            self.result.phases[-1]["held_bytes"] = report.peaks
        row = {
            "step": self.step,
            "loss": report.loss,
            "epoch": self.epoch,
            "makespan_ns": round(measured.makespan_ns),
            "wall_ns": wall_ns,
            "between_ns": wall_ns - ran_ns,
            "usual": usual,
        }
        self.result.rows.append(row)
        self._collect_events()
        self._report(row)

    def _note_event(self, event: str, **facts: Any) -> None:
        if self.rank == 0:
            self.result.events.append({"step": self.step, "event": event, **facts})
            self._report(self.result.events[-1])

    def _collect_events(self) -> None:
        """Append the planner's new events to the result."""
        events = [] if self.planner is None else self.planner.events
        while self.collected < len(events):
            self.result.events.append(events[self.collected])
            self.collected += 1
            self._report(self.result.events[-1])

    def _report(self, row: dict[str, Any]) -> None:
        if self.news is not None:
            self.news.write(json.dumps(row) + "\n")
            self.news.flush()

    def _begin_phase(self, profile: CostProfile, proposal: Proposal | None) -> None:
        """Record what is known before the first iteration with a schedule."""
        if self.rank != 0:
            return
        trace = self.now.lowered.replay()
        static = trace.profile.static_bytes
        schedule = self.now.schedule
        self.result.phases.append(
            {
                "schedule": schedule.name,
                "from_step": self.step,
                "offloaded": int((schedule.table[:, 0] == O).sum()),
                "recomputed": int((schedule.levels.table > 0).sum()),
                "costs": "given" if proposal is None else "measured",
                "predicted_ns": trace.makespan_ns,
                "predicted_bytes": [
                    peak - own for peak, own in zip(trace.peak_bytes, static, strict=True)
                ],
                "static_bytes": list(static),
            }
        )

    def _end_phase(self) -> None:
        """Record what was measured of a schedule."""
        if self.rank != 0:
            return
        phase = self.result.phases[-1]
        phase["to_step"] = self.step
        rows = [row for row in self.result.rows if phase["from_step"] <= row["step"]]
        usual = [row for row in rows if row["usual"]]
        phase["iterations"] = len(rows)
        for key in ("makespan_ns", "wall_ns", "between_ns"):
            phase[key] = round(median(row[key] for row in usual)) if usual else None

    def _save(self) -> None:
        assert self.task.checkpoints is not None
        self._end_phase()
        result = self.result
        meta = {
            "identity": self.task.identity,
            "schedule": self.now.schedule.to_json(),
            "rows": result.rows,
            "events": result.events,
            "phases": result.phases,
        }
        save_pipeline(self.task.checkpoints, self, self.step, self.optimizer, meta=meta)


def _slow_down(worker: StageWorker, slow: Slow, step: Callable[[], int]) -> None:
    """Have the compute ops of one stage take longer from a step on; `step` returns the present one."""

    def slowed(plain: Callable[..., Any], stage: int, *arguments: Any, **options: Any) -> Any:
        if stage == slow.stage and step() >= slow.step:
            time.sleep(slow.extra_ns / 1e9)
        return plain(stage, *arguments, **options)

    for name in ("forward", "backward", "recompute", "weight"):
        setattr(worker, name, partial(slowed, getattr(worker, name)))


@dataclass(frozen=True)
class RankTraining:
    """What `Ranks` runs of a training run: the part of one rank."""

    task: TrainTask

    @property
    def schedule(self) -> Schedule:
        """What it starts with."""
        return self.task.schedule

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> TrainResult:
        """Train on this rank; the default process group has to be there.

        Raises:
            OptPipeError: where there is no device for it.
        """
        take_device(self.task.device, rank, self.schedule.shape.devices)
        return Trainer(self.task, rank, begun).run()
