"""What a solver returns: a schedule, its cost, and its optimality gap."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from ..errors import Infeasible, NoSolution, OptPipeError, OutOfMemory
from ..execution import family_of
from ..schedule import Schedule
from ..trace import Trace
from ..units import format_time, html_table
from .problem import Problem
from .reports import Report

OPTIMAL, FEASIBLE, INFEASIBLE, UNKNOWN = "optimal", "feasible", "infeasible", "unknown"


def within(cost_ns: float, bound_ns: float, gap: float) -> bool:
    """Whether a cost is at most `gap` (a share of the bound) above a bound."""
    return cost_ns <= bound_ns * (1 + gap)


def status_of(error: OptPipeError) -> str:
    """Map an error that left a problem without a result to its status."""
    return INFEASIBLE if isinstance(error, OutOfMemory | Infeasible) else UNKNOWN


@dataclass(frozen=True)
class SolveResult:
    """The best schedule that was found, and the proven lower bound.

    Attributes:
        status: ``optimal`` (proven), ``feasible``, ``infeasible`` (proven) or ``unknown``.
        engine: the requested engine; with ``auto`` the method that found it.
        schedule, trace: the schedule and its replay under the limit; None if none was found.
        lower_bound_ns, bound_name: the proven lower bound on the cost of any schedule of this
            problem, and the name of its proof.
        seconds: wall time. `variables`, `constraints`: size of the model, if there is one.
        incumbents: (seconds, objective in ns) of each incumbent.
        bounds: (seconds, ns) of each improvement of the bound.
        info: further results of the engine, as plain data. ``found_by``: the method that found the
            schedule (an engine has several), or the published schedule that it is. ``compiling_s``: what
            compiling the engines took, once, before the clock started. ``published``: the name of
            the fastest published schedule that was tried, and the schedule; None where one that is none was faster
            at that time. ``untried``: how many rules of published schedules that could be faster there was no time for; 0: no published
            schedule that fits is faster.
    """

    status: str
    engine: str
    schedule: Schedule | None
    trace: Trace | None
    lower_bound_ns: int
    bound_name: str
    seconds: float
    variables: int = 0
    constraints: int = 0
    incumbents: tuple[tuple[float, int], ...] = ()
    bounds: tuple[tuple[float, int], ...] = ()
    info: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        if self.trace is None:
            return f"<SolveResult {self.status}, {self.seconds:.1f} s>"
        return (
            f"<SolveResult {self.status}: pipeline {format_time(self.objective_ns)} by {self.engine}, bound"
            f" {format_time(self.lower_bound_ns)} (gap {self.gap:.2%}), {self.seconds:.1f} s>"
        )

    def _repr_html_(self) -> str:
        """Return a small table with a picture, for notebooks."""
        rows: dict[str, object] = {"status": self.status, "engine": self.engine}
        if self.trace is None:
            return html_table({**rows, "seconds": f"{self.seconds:.1f}"})
        rows |= {
            "pipeline time": format_time(self.objective_ns),
            "proven bound": f"{format_time(self.lower_bound_ns)} ({self.bound_name})",
            "gap": f"{self.gap:.2%}",
            "seconds": f"{self.seconds:.1f}",
        }
        return html_table(rows) + self.trace._repr_html_()

    @property
    def objective_ns(self) -> int:
        """The cost of the schedule.

        Raises:
            NoSolution: if there is no schedule.
        """
        if self.trace is None:
            raise NoSolution(f"{self.engine} found no schedule ({self.status})")
        return self.trace.cost_ns

    @property
    def gap(self) -> float:
        """(objective - lower bound) / lower bound; infinite if there is no schedule."""
        if self.trace is None:
            return float("inf")
        return (self.objective_ns - self.lower_bound_ns) / max(1, self.lower_bound_ns)

    def measures(self) -> dict[str, Any]:
        """Return the result as plain data; the keys are those of ``solve --json``."""
        found = self.trace is not None
        return {
            "status": self.status,
            "engine": self.engine,
            "objective_ns": self.objective_ns if found else None,
            "lower_bound_ns": self.lower_bound_ns,
            "bound": self.bound_name,
            "bound_covers": self.info.get("covers"),
            "gap": self.gap if found else None,
            "seconds": self.seconds,
            "compiling_s": self.info.get("compiling_s", 0.0),
            "untried": self.info.get("untried", 0),
            "variables": self.variables,
            "constraints": self.constraints,
            "incumbents": [list(entry) for entry in self.incumbents],
            **({"margin": self.info["margin"]} if "margin" in self.info else {}),
            **(self.trace.measures() if self.trace is not None else {}),
        }


def make_result(
    problem: Problem,
    engine: str,
    schedule: Schedule | None,
    lower_bound_ns: int,
    bound_name: str,
    seconds: float,
    **more: Any,
) -> SolveResult:
    """Make a result from a schedule, whose cost is taken from its replay under the limit. The
    status is ``optimal`` if the bound equals the cost, ``feasible`` otherwise, and ``unknown``
    without a schedule (unless `more` gives a ``status``)."""
    trace = None
    status = UNKNOWN
    if schedule is not None:
        trace = problem.replay(schedule)
        schedule = trace.schedule
        if "execution" in problem.profile.meta:  # the plan was free to split backwards
            schedule.meta["issued"] = family_of(problem.profile.chunks, True)
        status = OPTIMAL if trace.cost_ns <= lower_bound_ns else FEASIBLE
    more.setdefault("status", status)
    return SolveResult(
        engine=engine,
        schedule=schedule,
        trace=trace,
        lower_bound_ns=lower_bound_ns,
        bound_name=bound_name,
        seconds=seconds,
        **more,
    )


def save_last(schedule: Schedule, path: str | os.PathLike[str], failures: dict[str, str]) -> None:
    """Save the schedule of a result; a failure goes into `failures` and ends nothing."""
    try:
        schedule.save(path)
        failures.pop("save", None)
    except OptPipeError as error:
        failures["save"] = str(error)


def report_result(report: Report, found: SolveResult, method: str) -> None:
    """Report the result of an exact engine to the race."""
    report("size", (found.variables, found.constraints))
    if found.status == INFEASIBLE:
        report("infeasible", None)
    if found.schedule is not None:
        report("incumbent", (found.schedule, method))
    report("bound", found.lower_bound_ns)
