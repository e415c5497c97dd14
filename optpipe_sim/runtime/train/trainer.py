"""One rank of a training run, step by step: iterations, optimizer, switch, checkpoints, progress reports."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from ...errors import OptPipeError
from ...ops import O, Op
from ...profile import CostProfile
from ...schedule import Schedule
from ..checkpoint import load_stages, save_stages
from ..execute.device import take_device
from ..execute.rank_step import RankStep
from ..execute.task import clock_offset_ns
from ..group import PipelineGroup
from ..measure.insitu import sample
from ..model.stage import StageWorker
from .online import Outcome, Report, Switch
from .planner import Proposal
from .task import NEWS, STOP, Slow, TrainResult, TrainTask, optimizer_for

UNUSUAL = 1  # iterations after a switch that do not count: their memory is new
METERED = 2  # the one after a switch in which memory is measured, which slows it down


class Trainer:
    """A rank that trains; all ranks run the same steps in the same order.

    The same on CPUs and GPUs: what they agree on goes over gloo in any case, results over gloo or NCCL.
    """

    def __init__(self, task: TrainTask, rank: int, begun: Callable[[Op], None]) -> None:
        self.task, self.rank, self.begun = task, rank, begun
        shape = task.schedule.shape
        self.now = task.prepare(rank, task.schedule, task.profile)
        self.worker = task.plan.rank_worker(shape, rank, task.device)
        if task.slow:
            _slow_down(self.worker, task.slow, lambda: self.step)
        self.optimizer = optimizer_for(self.worker.parameters(), task)
        self.rank_step = RankStep(
            self.worker, rank, self.now, timeout_s=task.timeout_s, begun=begun
        )
        self.offset_ns = clock_offset_ns(rank, shape.devices)
        self.switch = Switch(rank, shape.devices, lambda s, p: task.prepare(rank, s, p))
        self.result = TrainResult()
        self.step = self.epoch = self.since = 0
        if task.resume and task.checkpoints:
            meta = task.checkpoint()
            self.step = meta["step"]
            load_stages(task.checkpoints, meta, self.worker.modules, self.optimizer)
            self.result = TrainResult(meta["rows"], meta["events"], meta["phases"])
            self.epoch = len(self.result.phases)
        self.planner = task.planner(self.now.schedule, self.step, self.epoch) if rank == 0 else None
        self.proposed: Proposal | None = None
        self.collected = 0  # events of the planner that are in the result
        self._warm_up()
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
            boundary = self.switch.boundary(self._proposal(), self._asked_to_stop())
            if boundary.stop:
                self.result.stopped = True
                break
            self.rank_step.start(*task.batch(self.step))
            began, metered = time.monotonic_ns(), self.since == METERED
            record = self.rank_step.run(
                self.rank_step.meter() if metered else None, boundary.zero_ns + self.offset_ns
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
            self._note(report, metered, now - ended, ran_ns)
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

    def _warm_up(self) -> None:
        """Pin the host memory that the schedule needs, and load kernels, where that takes time."""
        if self.worker.slab.pinned:
            self.rank_step.start(*self.task.batch(self.step))
            self.rank_step.warm_up()

    # -- the switch ----------------------------------------------------------------------------------

    def _proposal(self) -> Proposal | None:
        """Return the proposal of rank 0, if there is one now."""
        if self.planner is None or self.switch.pending:
            return None
        proposal = self.planner.take()
        if proposal is not None:
            self.proposed = proposal
            self._happened(
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
            self._happened("refused", reasons=outcome.reasons)
            if self.planner is not None and proposal is not None:
                self.planner.rejected(proposal)
            return
        began = time.monotonic_ns()
        self._end_phase()
        self.now = outcome.prepared
        self.rank_step.follow(self.now)
        self._warm_up()
        self.since = 0
        self.epoch += 1
        swap_ns = time.monotonic_ns() - began
        if self.planner is not None and proposal is not None:
            self.planner.committed(proposal)
            self._begin_phase(proposal.profile, proposal)
        self._happened("switched", prepare_ns=max(outcome.prepare_ns), swap_ns=swap_ns)

    def _asked_to_stop(self) -> bool:
        return self.rank == 0 and (Path(self.task.folder) / STOP).exists()

    # -- the log ------------------------------------------------------------------------------------

    def _note(self, report: Report, metered: bool, wall_ns: int, ran_ns: int) -> None:
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
        self._tell(row)

    def _happened(self, event: str, **facts: Any) -> None:
        if self.rank == 0:
            self.result.events.append({"step": self.step, "event": event, **facts})
            self._tell(self.result.events[-1])

    def _collect_events(self) -> None:
        """Append the planner's new events to the result."""
        events = [] if self.planner is None else self.planner.events
        while self.collected < len(events):
            self.result.events.append(events[self.collected])
            self.collected += 1
            self._tell(self.result.events[-1])

    def _tell(self, row: dict[str, Any]) -> None:
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
        name = schedule.meta.get("name", "schedule")
        self.result.phases.append(
            {
                "schedule": str(name),
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
        save_stages(
            self.task.checkpoints,
            self.worker.modules,
            PipelineGroup(self.now.schedule.shape.devices),
            self.step,
            self.optimizer,
            meta=meta,
        )


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
