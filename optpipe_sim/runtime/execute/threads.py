"""Run the program of one rank on a CPU: a thread per engine, events between them, times of every op."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...errors import RuntimeFault
from ...ops import O
from ..measure.memory import Meter
from ..model.boundary import NOTHING
from ..program.program import COMPUTE_ENGINE, DROP, Event, Step
from .clocks import sharp_timers, sleep_until
from .rank_step import RankStep
from .record import Record


class Board:
    """Events that threads set and wait for; a failure of one wakes all.

    Args:
        awaited: the events that a thread may wait for; each stays set once it has happened.
        timeout_s: the longest time without any event while a thread waits.
    """

    def __init__(self, awaited: Iterable[Event], timeout_s: float) -> None:
        self.failure: RuntimeFault | None = None
        self._events = {event: threading.Event() for event in awaited}
        self._timeout_s = timeout_s
        self._last_s = time.monotonic()

    def happen(self, *events: Event) -> None:
        """Set events."""
        self._last_s = time.monotonic()
        for event in events:
            if event in self._events:
                self._events[event].set()

    def has(self, event: Event) -> bool:
        """Whether an event has happened."""
        return self._events[event].is_set()

    def fail(self, fault: RuntimeFault) -> None:
        """Stop all threads; the first fault counts."""
        self.failure = self.failure or fault
        for event in self._events.values():
            event.set()

    def wait(self, events: Iterable[Event], doing: str) -> None:
        """Wait until all of them have happened.

        Raises:
            RuntimeFault: after `timeout_s` without any event; that of another thread, where one has failed.
        """
        for event in sorted(events):
            while not self._events[event].wait(self._timeout_s):
                if time.monotonic() - self._last_s > self._timeout_s:
                    raise RuntimeFault(
                        f"{doing}: the {event} does not come; nothing has happened for"
                        f" {self._timeout_s:g} s"
                    )
            if self.failure is not None:
                raise self.failure


def run_program(step: RankStep, meter: Meter | None = None, start_ns: int = 0) -> Record:
    """Run the program of a rank, whose step is started; `meter` is entered already in this thread.

    Compute runs in the calling thread, each other engine in one of its own. Device memory is
    dropped as soon as an O has ended, which is when the model of memory lets it fall.

    Raises:
        RuntimeFault: names the rank and the op.
    """
    run = _Run(step, meter, start_ns or time.monotonic_ns())
    sharp_timers()
    step.transport.start(run.start_ns)
    for each in step.program.steps:
        if each.do == "turn" and each.peer != step.rank:
            step.transport.post(each.op, each.peer, NOTHING)
    threads = [
        threading.Thread(target=run.engine, args=(queue,), name=engine, daemon=True)
        for engine, queue in run.queues.items()
        if engine not in (COMPUTE_ENGINE, DROP)  # drops are done where an O ends
    ]
    for thread in threads:
        thread.start()
    sleep_until(run.start_ns)
    run.engine(run.queues[COMPUTE_ENGINE])
    for thread in threads:
        thread.join(step.timeout_s)
    if run.board.failure is not None:
        raise run.board.failure
    step.transport.finish()
    return run.record


class _Run:
    """An iteration under way."""

    def __init__(self, step: RankStep, meter: Meter | None, start_ns: int) -> None:
        self.rank_step, self.rank, self.meter, self.start_ns = step, step.rank, meter, start_ns
        self.queues = step.program.by_engine()
        awaited = {event for each in step.program.steps for event in each.after}
        awaited |= {Event("end", each.op) for each in step.program.steps if each.do == "turn"}
        # a missing message is reported by the engine that waits for it, before those that wait for this one
        self.board = Board(awaited, 2 * step.timeout_s)
        self.record = Record(self.rank)
        self.computing = False
        self.between = threading.Lock()

    def engine(self, queue: Sequence[Step]) -> None:
        """Take the steps of one queue in order."""
        try:
            for step in queue:
                if self.board.failure is not None:
                    return
                if step.after:
                    self.board.wait(step.after, f"rank {self.rank}: {step.do} {step.op}")
                with self.rank_step.named(step):
                    self._take(step)
        except RuntimeFault as fault:
            self.board.fail(fault)

    def _take(self, step: Step) -> None:
        match step.do:
            case "run":
                self._compute(step)
            case "offload":
                self._offload(step)
            case "grant":
                self._grant(step)
            case "reload":
                self._reload(step)
            case "turn" if step.peer == self.rank:
                self.board.wait([Event("end", step.op)], f"rank {self.rank}: {step}")
            case _:
                self.rank_step.do(step)

    def now_ns(self) -> int:
        """Return the time since the common start."""
        return time.monotonic_ns() - self.start_ns

    def _read_memory(self) -> None:
        """Read the memory unless a compute op runs: its temporary memory is no activation."""
        if self.meter is None:
            return
        with self.between:
            if not self.computing:
                self.record.held.append((self.now_ns(), self.meter.held()))

    def _compute(self, step: Step) -> None:
        op = step.op
        self._read_memory()
        with self.between:
            self.computing = True
        self.rank_step.begun(op)
        start = self.now_ns()
        self.board.happen(Event("start", op))
        self.rank_step.do(step)
        self.record.times_ns[op] = start, self.now_ns()
        self.board.happen(Event("end", op))
        self.computing = False
        self._read_memory()

    def _offload(self, step: Step) -> None:
        op, start = step.op, self.now_ns()
        self.rank_step.do(step)
        end = self.now_ns()
        self.rank_step.do(replace(step, do="drop"))
        self.record.times_ns[op] = start, end
        self.board.happen(Event("start", op), Event("end", op), Event("dropped", op))
        self._read_memory()

    def _grant(self, step: Step) -> None:
        # an R may be granted before its O has ended; then its reload takes the memory
        if self.board.has(Event("dropped", step.op._replace(kind=O))):
            self.record.granted_ns[step.op] = self.now_ns()
            self.rank_step.do(step)
        self.board.happen(Event("granted", step.op))
        self._read_memory()

    def _reload(self, step: Step) -> None:
        op, start = step.op, self.now_ns()
        self.record.granted_ns.setdefault(op, start)
        self.rank_step.do(step)
        self.record.times_ns[op] = start, self.now_ns()
        self.board.happen(Event("start", op), Event("end", op))
