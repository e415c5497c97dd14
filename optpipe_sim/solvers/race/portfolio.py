"""All engines at once, each in a process of its own, until the clock or a proof stops them."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection, wait
from typing import Any

from ...errors import OptPipeError
from ...schedule import Schedule
from ..covers import covers
from ..problem import Problem
from ..result import SolveResult, make_result, within
from .identity import identity

Job = Callable[..., None]
PATIENCE_S = 1.0  # for a process that has ended to be gone


@dataclass
class Race:
    """What the engines have reached so far.

    Attributes:
        gap: how far above the bound the best may be when the race ends, as a share.
        starts: further ones for the search that decides on treatments (see `treated.engine`).
        best, cost_ns, engine: the best schedule, its cost, and whose it is.
        bound_ns, bound_name: the best proven bound and whose it is.
        incumbents, bounds: (seconds, ns) of each improvement.
        infeasible: proven that nothing fits. `interrupted`: by Ctrl-C.
        variables, constraints: of the last model that an engine built.
        failures: what stopped an engine, by its name; also ``save``, see `keep`. `refusal`: the last
            of them that an engine reported itself.
        save: a file for the best schedule. `saved`: whether it has one.
        on_incumbent: called with each better schedule and its cost.
        watch: called with the race at every piece of news, and often while engines run.
    """

    problem: Problem
    gap: float = 0.0
    began: float = field(default_factory=time.monotonic)
    starts: list[Any] = field(default_factory=list)
    best: Schedule | None = None
    cost_ns: int = 2**62
    engine: str = ""
    bound_ns: int = 0
    bound_name: str = "none"
    incumbents: list[tuple[float, int]] = field(default_factory=list)
    bounds: list[tuple[float, int]] = field(default_factory=list)
    infeasible: bool = False
    interrupted: bool = False
    variables: int = 0
    constraints: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    refusal: OptPipeError | None = None
    save: str | os.PathLike[str] | None = None
    saved: bool = False
    on_incumbent: Callable[[Schedule, int], None] | None = None
    watch: Callable[[Race], None] | None = None

    @cached_property
    def unit_ns(self) -> int:
        return identity(self.problem).time_unit_ns

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def proven(self) -> bool:
        """Whether no schedule fits, or none is better than the best by more than `gap`."""
        close = self.best is not None and within(self.cost_ns, self.bound_ns, self.gap)
        return self.infeasible or close

    def offer(self, schedule: Schedule, engine: str) -> bool:
        """Take a schedule if its replay under the limit is better than the best so far."""
        try:
            trace = self.problem.replay(schedule, explain=False)
        except OptPipeError:
            return False
        return self.take(trace.schedule, trace.cost_ns, engine)

    def take(self, schedule: Schedule, cost_ns: int, engine: str) -> bool:
        """Take a schedule whose cost is known if it is better than the best so far."""
        if cost_ns >= self.cost_ns:
            return False
        self.best, self.cost_ns, self.engine = schedule, cost_ns, engine
        self.incumbents.append((self.seconds, cost_ns))
        self.keep()
        if self.on_incumbent is not None:
            self.on_incumbent(schedule, cost_ns)
        self.look()
        return True

    def keep(self) -> None:
        """Save the best. A disk that fills up later ends no search, but is noted in `failures`.

        Raises:
            OptPipeError: where the first schedule cannot be saved: better now than in an hour.
        """
        if self.save is None or self.best is None:
            return
        try:
            self.best.save(self.save)
            self.saved = True
            self.failures.pop("save", None)
        except OptPipeError as error:
            if not self.saved:
                raise
            self.failures["save"] = str(error)

    def hear(self, engine: str, what: str, value: Any) -> None:
        """Take what an engine reports; see `run_race`."""
        if what == "incumbent":
            self.offer(value, engine)
        elif what == "bound":
            self.prove(value, engine)
        elif what == "named bound":
            self.prove(*value)
        elif what == "infeasible":
            self.infeasible = True
        elif what == "size":
            self.variables, self.constraints = value
        elif what == "failed":
            if isinstance(value, OptPipeError):
                self.refusal, value = value, f"{type(value).__name__}: {value}"
            else:
                self.refusal = OptPipeError(f"{engine}: {value}")
            self.failures[engine] = value

    def prove(self, bound_ns: int, name: str) -> None:
        """Take a proven lower bound if it is better than the best so far.

        Costs are sums of times, so a bound counts as the next multiple of what divides all times.
        """
        bound_ns = -(-bound_ns // self.unit_ns) * self.unit_ns
        if bound_ns > self.bound_ns:
            self.bound_ns, self.bound_name = bound_ns, name
            self.bounds.append((self.seconds, bound_ns))
            self.look()

    def result(self, engine: str) -> SolveResult:
        """What has been reached; there has to be a best. `engine`: which was asked for."""
        return make_result(
            self.problem,
            self.engine if engine == "auto" else engine,
            self.best,
            self.bound_ns,
            self.bound_name,
            self.seconds,
            variables=self.variables,
            constraints=self.constraints,
            incumbents=tuple(self.incumbents),
            bounds=tuple(self.bounds),
            info={
                "found_by": self.engine,
                "covers": covers([self.problem.profile]),
                "failures": self.failures,
                "interrupted": self.interrupted,
            },
        )

    def look(self) -> None:
        """Let whoever watches look."""
        if self.watch is not None:
            self.watch(self)


def run_race(race: Race, jobs: list[tuple[str, Job, dict[str, Any]]], until: float) -> None:
    """Run each job (engine name, function, arguments) in its process until all have ended, the
    clock (seconds of the race) runs out, or what one found comes to what one proved (`Race.gap`).

    A job is called as ``function(problem, report, others=others, **arguments)`` and reports
    ``report("incumbent", schedule)``, ``("bound", ns)``, ``("named bound",
    (ns, name))`` where the engine has several, ``("infeasible", None)`` or ``("size", (variables,
    constraints))``. `others()` gives it the best schedule, if another engine has found one since.
    A process that dies takes nothing with it but itself. Ctrl-C ends the race and keeps the best.
    """
    context: Any = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    running: list[Any] = []
    news: list[Connection] = []
    tellers: list[Connection] = []
    words: list[_Word] = []  # to each process, of what others found
    ended: set[int] = set()
    try:
        with ctrl_c_later():  # while a process is forked Python drops the exception it would raise
            for _, function, arguments in jobs:
                ours, theirs = context.Pipe(duplex=False)
                hears, tells = context.Pipe(duplex=False)
                process = context.Process(
                    target=_work,
                    args=(theirs, hears, function, race.problem, arguments),
                    daemon=True,
                )
                process.start()
                for pipe in (theirs, hears):  # or what it has would not end with it
                    pipe.close()
                running.append(process)
                news.append(ours)
                tellers.append(tells)
        words += map(_Word, tellers)  # their threads begin once nothing is forked any more
        for number, what, value in _listen(news, race, until, ended):
            known = race.best
            race.hear(jobs[number][0], what, value)
            if race.proven:
                break
            if race.best is not None and race.best is not known:
                for other, word in enumerate(words):
                    if other != number and other not in ended:
                        word.tell(race.best)
    finally:
        for number, process in enumerate(running):
            if number not in ended:
                process.terminate()
        for number, process in enumerate(running):
            process.join(PATIENCE_S)
            if process.exitcode is None:
                process.kill()
                process.join()
            elif number in ended and process.exitcode:
                race.failures[jobs[number][0]] = _how(process.exitcode)
        for pipe in news:
            pipe.close()
        for word in words:
            word.close()


class _Word:
    """Tells a process of the newest schedule, and never waits for it."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.newest: queue.Queue[Schedule | None] = queue.Queue()
        self.thread = threading.Thread(target=self._send, daemon=True)
        self.thread.start()

    def tell(self, schedule: Schedule) -> None:
        self.newest.put(schedule)

    def close(self) -> None:
        """Once the process is gone."""
        self.newest.put(None)
        self.thread.join()
        self.pipe.close()

    def _send(self) -> None:
        while (schedule := self.newest.get()) is not None:
            if self.newest.empty():  # else there is a better one
                try:
                    self.pipe.send(schedule)
                except OSError:  # the process is gone
                    return


def _how(code: int) -> str:
    """How a process ended that should not have."""
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and is raised there."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears of it
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _listen(
    news: Sequence[Connection], race: Race, until: float, ended: set[int]
) -> Iterator[tuple[int, str, Any]]:
    """Yield (worker, kind, payload) until the deadline; record workers that have exited in `ended`."""
    while len(ended) < len(news) and race.seconds < until:
        at_work = [number for number in range(len(news)) if number not in ended]
        left = max(0.0, min(0.05, until - race.seconds))
        ready = wait([news[number] for number in at_work], left)
        if not ready:
            race.look()
        for number in at_work:
            if news[number] not in ready:
                continue
            try:
                what, value = news[number].recv()
            except (EOFError, OSError):  # also in the midst of what it was sending
                ended.add(number)
                continue
            yield number, what, value


def _work(
    news: Connection,
    word: Connection,
    function: Job,
    problem: Problem,
    arguments: dict[str, Any],
) -> None:
    """The main function of a process."""
    lock = threading.Lock()  # engines report from several threads

    def report(what: str, value: Any) -> None:
        with lock:
            news.send((what, value))

    def others() -> Schedule | None:
        last = None
        while word.poll():
            last = word.recv()
        return last

    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the caller makes of it is not for us
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=_leave_with_parent, daemon=True).start()
        try:
            function(problem, report, others=others, **arguments)
        except OptPipeError as error:
            report("failed", error)
        except Exception as error:  # whatever it is, the others go on; the race says who failed
            # as text: not every error can be sent as it is
            report("failed", f"{type(error).__name__}: {error}")
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass  # the parent keeps what it has


def _leave_with_parent() -> None:
    """A parent that is killed takes its engines with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
