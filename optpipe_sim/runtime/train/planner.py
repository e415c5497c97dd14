"""Search for better schedules while training runs: profile it, solve beside it, watch for drift. The planner
is a thread on rank 0; the solver is a process. Training passes samples and polls for a proposal; it never
waits for either.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from ...ops import BW, B, W
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim import simulate
from ...solvers.online import SolverProcess
from ..settings import Online
from .observed import Sample, Window, drift, measured_profile

TURN_S = 0.1  # how often the solver is polled
BEHIND = 10  # the solver's niceness, so that training goes first


@dataclass(frozen=True)
class Proposal:
    """A schedule to switch to.

    Attributes:
        profile: the measured costs that it was found for.
        predicted_ns: its time with them; `instead_of_ns`: that of the one that runs.
    """

    schedule: Schedule
    profile: CostProfile
    predicted_ns: int
    instead_of_ns: int

    @property
    def gain(self) -> float:
        """The share of the time that it is predicted to save."""
        return 1 - self.predicted_ns / self.instead_of_ns


def in_order(schedule: Schedule) -> bool:
    """Whether every stage adds up its gradients in the order of microbatches: those of weights in
    W, those of norms, biases and embeddings in B, both in BW."""
    for program in schedule.flat_programs:
        for kinds in ((B, BW), (W, BW)):
            last: dict[int, int] = {}
            for op in program:
                if op.kind in kinds:
                    if op.microbatch < last.get(op.stage, 0):
                        return False
                    last[op.stage] = op.microbatch
    return True


class Planner:
    """Proposes schedules.

    Args:
        schedule: the one that runs. given: its costs before any are measured; the bytes stay.
        limit: of memory, per device.
        step, epoch: how many steps and switches there have been already.

    Attributes:
        events: what happened, each with its ``step``: ``profiled``, ``solved``, ``solver_failed``,
            ``drift``.
    """

    def __init__(
        self,
        schedule: Schedule,
        given: CostProfile,
        limit: Sequence[int] | None,
        options: Online,
        step: int = 0,
        epoch: int = 0,
    ) -> None:
        self.schedule, self.options, self.step, self.epoch = schedule, options, step, epoch
        self.given = self.profile = given.for_shape(schedule.shape)
        self.limit = None if limit is None else list(limit)
        self.events: list[dict[str, Any]] = []
        self.window = Window(options.warmup)
        self.measuring = True  # the samples are collected for a profile
        self.solver: SolverProcess | None = None
        self.refused: list[Schedule] = []
        self._considered: Schedule | None = None
        self._since = 0.0  # when the solver last reported an incumbent
        self._proposal: Proposal | None = None
        self._open = False  # a proposal was taken, and its outcome is not known yet
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name="planner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and the solver."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._stop_solver()

    # -- for the training loop: nothing here waits ---------------------------------------------------

    def observe(self, step: int, epoch: int, measured: Sample) -> None:
        """Add a sample of the schedule that runs after so many switches."""
        self._calls.put(lambda: self._add(step, epoch, measured))

    def take(self) -> Proposal | None:
        """Take the proposal, if there is one; it is returned once."""
        proposal, self._proposal = self._proposal, None
        self._open = self._open or proposal is not None
        return proposal

    def committed(self, proposal: Proposal) -> None:
        """Note that all ranks have switched to it."""
        self._calls.put(lambda: self._switched(proposal))

    def rejected(self, proposal: Proposal) -> None:
        """Note that a rank has refused it; it is not proposed again."""
        self._calls.put(lambda: self._refused(proposal))

    # -- the work ------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._over.wait(TURN_S):
            try:
                self.turn()
            except Exception as error:  # training goes on, whatever happens here
                self._note("solver_failed", error=f"{type(error).__name__}: {error}")
                self._stop_solver()

    def turn(self) -> None:
        """Process new samples and poll the solver."""
        with contextlib.suppress(Empty):
            while True:
                self._calls.get_nowait()()
        self._poll_solver()

    def _refused(self, proposal: Proposal) -> None:
        self.refused.append(proposal.schedule)
        self._open = False

    def _switched(self, proposal: Proposal) -> None:
        self.schedule = proposal.schedule
        self._open = False
        self.epoch += 1
        self.window.samples.clear()

    def _add(self, step: int, epoch: int, measured: Sample) -> None:
        self.step = step
        if epoch != self.epoch:
            return  # of the schedule before
        self.window.samples.append(measured)
        if not self.window.full:
            return
        medians = self.window.medians()
        if self.measuring:
            self._profile(medians)
            return
        if self.solver is not None:
            return  # on a CPU its own load would look like drift
        found = drift(self.profile, medians, self.schedule)
        if found.share > self.options.drift:
            self._note("drift", stage=found.stage, what=found.what, share=round(found.share, 4))
            self._stop_solver()
            # part of the window may be from before
            self.window.samples.clear()
            self.measuring = True

    def _profile(self, medians: Sample) -> None:
        self.measuring = False
        self.profile = measured_profile(self.given, medians, self.schedule)
        options = self.options
        self.solver = SolverProcess(
            self.profile,
            self.schedule.shape.microbatches,
            self.limit,
            warm_start=self.schedule,
            time_limit=options.solver_s,
            workers=options.workers,
            # which keeps microbatches in order by itself
            engine="search" if options.exact else "auto",
            seed=options.seed,
        )
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.solver.pid, BEHIND)
        self._considered, self._since = None, time.monotonic()
        self._note(
            "profiled",
            predicted_ns=self._predict(self.schedule),
            measured_ns=round(medians.makespan_ns),
            solver_pid=self.solver.pid,
        )

    def _poll_solver(self) -> None:
        if self.solver is None:
            return
        done = not self.solver.running  # asked first: what it leaves behind is complete
        best = self.solver.best()
        if best is not None and best is not self._considered:
            self._considered, self._since = best, time.monotonic()
            best.meta["name"] = f"solved ({self.solver.state().get('found_by', 'solver')})"
        if done:
            self._note_end_of(self.solver)
            self._stop_solver()
            self.window.samples.clear()
        if done or time.monotonic() > self._since + self.options.settle_s:
            self._consider(self._considered)

    def _consider(self, schedule: Schedule | None) -> None:
        """Propose a schedule if it is better by enough."""
        if self._open or schedule is None or schedule in (self.schedule, *self.refused):
            return
        if self.options.exact and not in_order(schedule):
            return
        if self._proposal is not None and self._proposal.schedule == schedule:
            return
        proposal = Proposal(
            schedule, self.profile, self._predict(schedule), self._predict(self.schedule)
        )
        if proposal.gain >= self.options.min_gain:
            self._proposal = proposal

    def _predict(self, schedule: Schedule) -> int:
        return simulate(schedule, self.profile, self.limit).makespan_ns

    def _note_end_of(self, solver: SolverProcess) -> None:
        state = solver.state()
        if state.get("status") in ("failed", "unknown", "infeasible"):
            self._note("solver_failed", error=str(state.get("error", "no reason given")))
            return
        keys = ("status", "seconds", "objective_ns", "lower_bound_ns", "found_by")
        self._note("solved", **{key: state.get(key) for key in keys})

    def _stop_solver(self) -> None:
        solver, self.solver = self.solver, None
        if solver is not None:
            solver.stop()

    def _note(self, event: str, **facts: Any) -> None:
        self.events.append({"step": self.step, "event": event, **facts})
