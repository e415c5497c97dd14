"""The race of all engines to solve one problem: its state, and the processes that run them in parallel
until the time limit or a proof stops them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from ...errors import Infeasible, NoSolution, OptPipeError
from ...processes.workers import Workers
from ...schedule import Schedule
from ..axes import covers
from ..problem import Problem
from ..reports import Others, Report
from ..result import SolveResult, make_result, within
from .identity import identity


@dataclass(eq=False)
class Race:
    """The state of a race: incumbent, bound and how they came about.

    Attributes:
        gap: the optimality gap at which the race ends.
        turns: how often this problem has had its turn so far.
        starts: further start schedules for the search over treatments (see `starts.fixed_levels`).
        best, cost_ns, engine: the incumbent, its cost, and the engine that found it.
        bound_ns, bound_name: the best proven bound and the name of its proof.
        incumbents, bounds: (seconds, ns) of each improvement.
        infeasible: proven that no schedule fits. `interrupted`: by Ctrl-C.
        variables, constraints: of the last model that an engine built.
        untried: how many rules of published schedules (see `rules`) were not tried for lack of
            time.
        published: the fastest published schedule and its name, where the rules ended with one as the incumbent.
        compiling_s: what compiling took before the race began.
        failures: the error that stopped an engine, by engine name; also ``save``, see `keep`.
            `refusal`: the last error that an engine reported itself.
        save: a file for the incumbent. `saved`: whether it has been written.
        on_incumbent: called with each better schedule and its cost.
        watch: called with the race at every change, and regularly while engines run.
    """

    problem: Problem
    gap: float = 0.0
    began: float = field(default_factory=time.monotonic)
    turns: int = 0
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
    untried: int = 0
    published: tuple[str, Schedule] | None = None
    compiling_s: float = 0.0
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
        """Whether it is proven that no schedule fits, or that the incumbent is within `gap`."""
        close = self.best is not None and within(self.cost_ns, self.bound_ns, self.gap)
        return self.infeasible or close

    @property
    def optimal(self) -> bool:
        """Whether the incumbent is proven to be optimal."""
        return self.infeasible or self.cost_ns <= self.bound_ns

    def offer(self, schedule: Schedule, engine: str) -> bool:
        """Take a schedule if its replay under the limit beats the incumbent."""
        try:
            trace = self.problem.replay(schedule)
        except OptPipeError:
            return False
        return self.take(trace.schedule, trace.cost_ns, engine)

    def take(self, schedule: Schedule, cost_ns: int, engine: str) -> bool:
        """Take a schedule of known cost if it beats the incumbent."""
        if cost_ns >= self.cost_ns:
            return False
        self.best, self.cost_ns, self.engine = schedule, cost_ns, engine
        self.incumbents.append((self.seconds, cost_ns))
        self.keep()
        if self.on_incumbent is not None:
            self.on_incumbent(schedule, cost_ns)
        self.notify()
        return True

    def keep(self) -> None:
        """Save the incumbent. If the disk fills up later, the search continues and `failures`
        records it.

        Raises:
            OptPipeError: if the first schedule cannot be saved, so that users learn of it early.
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

    def receive(self, engine: str, kind: str, value: Any) -> None:
        """Process a message of an engine; see `solvers.reports`."""
        if kind == "incumbent":
            self.offer(*value)
        elif kind == "bound":
            self.prove(value, engine)
        elif kind == "named bound":
            self.prove(*value)
        elif kind == "infeasible":
            self.infeasible = True
        elif kind == "size":
            self.variables, self.constraints = value
        elif kind == "failed":
            if isinstance(value, OptPipeError):
                self.refusal, value = value, f"{type(value).__name__}: {value}"
            else:
                self.refusal = OptPipeError(f"{engine}: {value}")
            self.failures[engine] = value

    def prove(self, bound_ns: int, name: str) -> None:
        """Take a proven lower bound if it beats the best bound. Costs are sums of times, so a bound
        is rounded up to the next multiple of the common divisor of all times."""
        bound_ns = -(-bound_ns // self.unit_ns) * self.unit_ns
        if bound_ns > self.bound_ns:
            self.bound_ns, self.bound_name = bound_ns, name
            self.bounds.append((self.seconds, bound_ns))
            self.notify()

    def require_best(self) -> None:
        """Require that there is an incumbent.

        Raises:
            Infeasible: if it is proven that no schedule fits. NoSolution: if none was found.
        """
        if self.best is not None:
            return
        reasons = "".join(f"; {name}: {reason}" for name, reason in self.failures.items())
        if self.infeasible:
            raise Infeasible(f"no schedule fits the limit (proven){reasons}")
        raise NoSolution(f"no schedule found in {self.seconds:.1f} s{reasons}")

    def result(self, engine: str) -> SolveResult:
        """Make the result; there must be an incumbent. `engine`: the requested engine."""
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
                "covers": covers([self.problem.profile], [self.problem.without_pairs]),
                "untried": 0 if self.optimal else self.untried,
                "published": self.published,
                "failures": self.failures,
                "compiling_s": self.compiling_s,
                "interrupted": self.interrupted,
            },
        )

    def notify(self) -> None:
        """Call `watch`."""
        if self.watch is not None:
            self.watch(self)


def run_race(
    race: Race, jobs: Sequence[tuple[str, Callable[[Report, Others], None]]], until: float
) -> None:
    """Run each job (its engine, and a function of what it reports with and asks for schedules with, see
    `solvers.reports`) in its process until all have ended, the time limit `until` (seconds of the race) is
    reached, or the gap is closed (`Race.gap`).

    The death of one process does not affect the others. Ctrl-C ends the race and keeps the incumbent.
    """
    workers = Workers()
    try:
        workers.start([partial(_run_job, job) for _, job in jobs])
        for number, (kind, value) in workers.messages(lambda: race.seconds >= until, race.notify):
            known = race.best
            race.receive(jobs[number][0], kind, value)
            if race.proven:
                break
            if race.best is not None and race.best is not known:
                workers.send_to_others(number, race.best)
    finally:
        for number, how in workers.end().items():
            race.failures[jobs[number][0]] = how


def _run_job(job: Callable[[Report, Others], None], report: Report, others: Others) -> None:
    """Run a job in its process; if it fails, the others continue and the race reports the failure."""
    try:
        job(report, others)
    except OptPipeError as error:
        report("failed", error)
    except (BrokenPipeError, EOFError):
        raise
    except Exception as error:
        # as text: not every exception can be pickled
        report("failed", f"{type(error).__name__}: {error}")
