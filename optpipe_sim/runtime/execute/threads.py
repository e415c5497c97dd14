"""Run the program of one rank on a CPU: a thread per engine, events between them, times of every op."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from ...errors import RuntimeFault
from ...ops import O
from ..program.program import COMPUTE_ENGINE, DROP, Event, Step
from .iteration import Iteration, Record
from .worker import sharp_timers, sleep_until


class Board:
    """Events that threads set and wait for; a failure of one wakes all.

    An event that has happened stays so. Each waiting thread has a lock of its own, which it holds while
    an event that it waits for is missing: an event wakes those that wait for it and no others.

    Args:
        timeout_s: the longest time without any event while a thread waits.
    """

    def __init__(self, timeout_s: float) -> None:
        self.failure: BaseException | None = None
        self._timeout_s = timeout_s
        self._happened: set[Event] = set()
        self._waiting: dict[threading.Lock, set[Event]] = {}
        self._lock = threading.Lock()
        self._last_s = time.monotonic()

    def happen(self, *events: Event) -> None:
        """Set events."""
        with self._lock:
            self._last_s = time.monotonic()
            self._happened.update(events)
            for own, missing in self._waiting.items():
                if missing:
                    missing.difference_update(events)
                    if not missing:
                        own.release()

    def has(self, event: Event) -> bool:
        """Whether an event has happened."""
        with self._lock:
            return event in self._happened

    def fail(self, error: BaseException) -> None:
        """Stop all threads; the first error counts."""
        with self._lock:
            self.failure = self.failure or error
            for own, missing in self._waiting.items():
                if missing:
                    missing.clear()
                    own.release()

    def wait(self, events: Collection[Event], doing: str) -> None:
        """Wait until all of them have happened.

        Raises:
            RuntimeFault: after `timeout_s` without any event.
            Stopped: another thread has failed.
        """
        own = threading.Lock()
        own.acquire()
        with self._lock:
            missing = set(events) - self._happened
            if missing and self.failure is None:
                self._waiting[own] = missing
        if missing and self.failure is None:
            while not own.acquire(timeout=self._timeout_s):
                if time.monotonic() - self._last_s > self._timeout_s:
                    break
            with self._lock:
                del self._waiting[own]
        if self.failure is not None:
            raise Stopped
        if missing:
            raise RuntimeFault(
                f"{doing}: the {min(missing)} does not come; nothing has happened for"
                f" {self._timeout_s:g} s"
            )


class Stopped(Exception):
    """Another thread has failed; its error is the one to report."""


def run_program(iteration: Iteration) -> Record:
    """Run one iteration of one rank.

    Compute runs in the calling thread, each other engine in one of its own. Device memory is
    dropped as soon as an O has ended, which is when the model of memory lets it fall.

    Raises:
        RuntimeFault: names the rank and the op.
    """
    run = _Run(iteration)
    program, transport = iteration.program, iteration.transport
    sharp_timers()
    transport.start(run.start_ns)
    for step in program.steps:
        if step.do == "turn" and step.peer != program.rank:
            transport.expect_turn(step.op, step.peer)
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
        thread.join(iteration.timeout_s)
    error = run.board.failure
    if error is None:
        transport.finish()
        return run.record
    if isinstance(error, RuntimeFault):
        raise error
    raise RuntimeFault(f"rank {program.rank}: {type(error).__name__}: {error}") from error


class _Run:
    """An iteration under way."""

    def __init__(self, iteration: Iteration) -> None:
        self.iteration, self.rank = iteration, iteration.rank
        self.transport, self.meter = iteration.transport, iteration.meter
        self.queues = iteration.program.by_engine()
        # a missing message is reported by the engine that waits for it, before those that wait for this one
        self.board = Board(2 * iteration.timeout_s)
        self.record = Record(self.rank)
        self.start_ns = iteration.start_ns or time.monotonic_ns()
        self.computing = False
        self.between = threading.Lock()

    def engine(self, queue: Sequence[Step]) -> None:
        """Take the steps of one queue in order."""
        # no attribute: the run would refer to itself, and hold the stages until a garbage collection
        do: dict[str, Callable[[Step], None]] = {
            "post": self.iteration.post,
            "recv": self.iteration.recv,
            "run": self._compute,
            "send": self.iteration.send,
            "offload": self._offload,
            "grant": self._grant,
            "reload": self._reload,
            "pass": lambda step: self.transport.pass_turn(step.op, step.peer),
            "turn": self._turn,
        }
        step = None
        try:
            for step in queue:
                if self.board.failure is not None:
                    return
                if step.after:
                    self.board.wait(step.after, f"rank {self.rank}: {step.do} {step.op}")
                do[step.do](step)
        except Stopped:
            pass
        except RuntimeFault as error:
            self.board.fail(error)
        except Exception as error:
            fault = RuntimeFault(
                f"rank {self.rank}: {step and step.do} {step and step.op}:"
                f" {type(error).__name__}: {error}"
            )
            fault.__cause__ = error
            self.board.fail(fault)

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
        self.iteration.begun(op)
        start = self.now_ns()
        self.board.happen(Event("start", op))
        self.iteration.run(step)
        self.record.times_ns[op] = start, self.now_ns()
        self.board.happen(Event("end", op))
        self.computing = False
        self._read_memory()

    def _offload(self, step: Step) -> None:
        op, start = step.op, self.now_ns()
        self.iteration.offload(step)
        end = self.now_ns()
        self.iteration.drop(step)
        self.record.times_ns[op] = start, end
        self.board.happen(Event("start", op), Event("end", op), Event("dropped", op))
        self._read_memory()

    def _grant(self, step: Step) -> None:
        # an R may be granted before its O has ended; then `reload` takes the memory
        if self.board.has(Event("dropped", step.op._replace(kind=O))):
            self.record.granted_ns[step.op] = self.now_ns()
            self.iteration.grant(step)
        self.board.happen(Event("granted", step.op))
        self._read_memory()

    def _turn(self, step: Step) -> None:
        if step.peer == self.rank:
            self.board.wait([Event("end", step.op)], f"rank {self.rank}: {step}")
        else:
            self.transport.wait_for_turn(step.op, step.peer)

    def _reload(self, step: Step) -> None:
        op, start = step.op, self.now_ns()
        self.record.granted_ns.setdefault(op, start)
        self.iteration.reload(step)
        self.record.times_ns[op] = start, self.now_ns()
        self.board.happen(Event("start", op), Event("end", op))
