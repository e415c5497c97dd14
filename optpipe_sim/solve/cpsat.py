"""Solve with CP-SAT: good schedules and proofs at small and middle sizes.

The search runs in phases, each a model of its own (`cpsat_model`): first in, first out, where good
schedules are; then what such an order leaves out (`cpsat_order`), with nothing allowed but a better
cost. The bound is the weaker of the two phases' bounds, so it holds for every schedule.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ortools.sat.python import cp_model

from ..errors import Deadlock, OptPipeError, OutOfMemory
from ..schedule import Schedule
from ..trace import Trace
from . import cpsat_memory, cpsat_model
from .cpsat_hints import hint
from .cpsat_model import Model
from .cpsat_order import FIFO, FREE, PASSING, RANKS, order, ranked_transfers
from .problem import Problem, schedule_from_times
from .result import FEASIBLE, INFEASIBLE, UNKNOWN, SolveResult, make_result

ENGINE = "cpsat"
OnIncumbent = Callable[[float, int, Schedule], None]


@dataclass(frozen=True)
class CpsatOptions:
    """How to set CP-SAT to work.

    Attributes:
        order: ``auto`` (first in, first out, then the proof for the rest), ``fifo`` (the search
            alone; with offloading its bound says nothing of other orders) or ``free`` (one model
            with no order of microbatches: simple and slow).
        memory: ``auto``, ``cumulative`` or ``order``; see `cpsat_memory.memory`.
        quantum_ns: round times down to multiples of it; the bound stays one, optimal schedules may
            be missed. None: exact.
        deterministic: with several workers, let them take turns in a fixed order.
        first_share: of the time limit, for the first phase where there are more.
        parameters: further parameters of CP-SAT, by name.
    """

    order: str = "auto"
    memory: str = "auto"
    quantum_ns: int | None = None
    deterministic: bool = False
    first_share: float = 0.6
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in (
            ("order", ("auto", FIFO, FREE)),
            ("memory", ("auto", "cumulative", "order")),
        ):
            if getattr(self, name) not in known:
                raise OptPipeError(
                    f"{name}: expected {', '.join(known)}, got {getattr(self, name)!r}"
                )


@dataclass(frozen=True)
class _Phase:
    """One model: an order of microbatches; the share of the time left that it may take; whether
    devices start as in a replay (`heads`, for ``span``); whether only better costs count (`strict`);
    what its bound holds for: ``all`` schedules, those ``sorted``, those ``passing``, or ``none``."""

    order: str
    share: float = 1.0
    heads: bool = False
    strict: bool = False
    covers: str = "all"


def solve_cpsat(
    problem: Problem,
    time_limit: float,
    *,
    warm_start: Schedule | None = None,
    seed: int = 0,
    workers: int = 2,
    lower_bound_ns: int = 0,
    on_incumbent: OnIncumbent | None = None,
    stop: threading.Event | None = None,
    options: CpsatOptions | None = None,
) -> SolveResult:
    """The best schedule that CP-SAT finds in `time_limit` seconds, and how far it proves it.

    Ctrl-C, and `stop` once it is set, end the search and keep what was found.

    Args:
        warm_start: a schedule to start from; left aside where it does not fit the limit.
        seed: two runs with the same one and one worker (or ``deterministic``) that end before the
            time limit give the same.
        lower_bound_ns: a proven bound on the cost; the search stops where it is reached.
        on_incumbent: called with seconds, cost and schedule at each better one.

    Raises:
        OptPipeError: for a time limit of 0 or less, or options that make no sense.
    """
    search = _Search(problem, time_limit, seed, workers, stop, options or CpsatOptions())
    search.on_incumbent = on_incumbent
    search.lower_ns = lower_bound_ns
    if warm_start is not None:
        search.offer(warm_start)
    search.run(_phases(problem, search.options, strict=False))
    return search.result()


def prove(
    problem: Problem,
    schedule: Schedule,
    time_limit: float,
    *,
    seed: int = 0,
    workers: int = 2,
    lower_bound_ns: int = 0,
    stop: threading.Event | None = None,
    options: CpsatOptions | None = None,
) -> SolveResult:
    """Try to prove that nothing costs less than `schedule`, by asking only for what does.

    The result is ``optimal`` with the schedule given where that is proven; with a better one where
    there is one and none better than that.

    Raises:
        Deadlock, OutOfMemory: where the schedule does not run under the limit.
        OptPipeError: for a time limit of 0 or less.
    """
    problem.replay(schedule)
    search = _Search(problem, time_limit, seed, workers, stop, options or CpsatOptions())
    search.lower_ns = lower_bound_ns
    search.offer(schedule)
    search.run(_phases(problem, search.options, strict=True))
    return search.result()


def feasible(
    problem: Problem, time_limit: float, *, seed: int = 0, workers: int = 2
) -> SolveResult:
    """Any schedule under the limits, pinned host memory included, or the proof that there is none.

    The status is ``feasible`` (or ``optimal``, by chance), ``infeasible`` or ``unknown``.
    """
    search = _Search(problem, time_limit, seed, workers, None, CpsatOptions())
    search.first_will_do = True
    search.run(_phases(problem, search.options, strict=False))
    return search.result()


def _phases(problem: Problem, options: CpsatOptions, strict: bool) -> list[_Phase]:
    """What to solve, in turn."""
    if options.order == FREE:
        return [_Phase(FREE, strict=strict)]
    moves = any(cpsat_model.may_move(problem, s) for s in range(problem.shape.stages))
    share, covers = (options.first_share, "sorted") if moves else (1.0, "all")
    phases = [_Phase(FIFO, share, strict=strict, covers=covers)]
    if problem.objective == "span":
        # first what a replay can do; the proof must cover starts that are delayed
        search = _Phase(FIFO, options.first_share, heads=True, strict=strict, covers="none")
        phases = [search, replace(phases[0], strict=True)]
    if moves and options.order == "auto":
        phases += [
            _Phase(RANKS, options.first_share, strict=True),
            _Phase(PASSING, strict=True, covers="passing"),
        ]
    return phases


class _Search:
    """The state of a run: the best schedule, the bound, and how they came to be."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        seed: int,
        workers: int,
        stop: threading.Event | None,
        options: CpsatOptions,
    ) -> None:
        if not time_limit > 0:
            raise OptPipeError(f"time limit: must be above 0 seconds, got {time_limit}")
        exact = cpsat_model.time_unit(problem)
        least = min(min(cost.t_f_ns, cost.t_b_ns, cost.fused_ns) for cost in problem.profile.stages)
        self.unit_ns = options.quantum_ns or exact
        if not 1 <= self.unit_ns <= least:
            raise OptPipeError(
                f"quantum: must be from 1 to {least} ns, the shortest F or B; got {self.unit_ns}"
            )
        self.rounded = exact % self.unit_ns != 0
        self.problem, self.options = problem, options
        self.seed, self.workers, self.stop = seed, workers, stop
        self.on_incumbent: OnIncumbent | None = None
        self.began, self.time_limit = time.monotonic(), time_limit
        self.best: Trace | None = None
        self.lower_ns = 0
        self.proven = "given"
        self.first_will_do = False
        self.halted: str | None = None
        self.incumbents: list[tuple[float, int]] = []
        self.bounds: list[tuple[float, int]] = []
        self.sizes: list[tuple[int, int]] = []
        self.log: list[dict[str, Any]] = []
        self.status = UNKNOWN

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.time_limit - self.seconds

    @property
    def done(self) -> bool:
        """Whether the best schedule needs no further search."""
        return self.best is not None and (self.first_will_do or self.best.cost_ns <= self.lower_ns)

    def offer(self, schedule: Schedule) -> None:
        """Take a schedule where it is better than the best; one that does not run is left aside."""
        try:
            trace = self.problem.replay(schedule)
        except (Deadlock, OutOfMemory):
            return
        offload = self.problem.profile.offload
        pinned = offload.host_limit_bytes if offload is not None else None
        if pinned is not None and trace.host_peak_bytes > pinned:
            return
        if self.best is None or trace.cost_ns < self.best.cost_ns:
            self.best = trace
            self.incumbents.append((self.seconds, trace.cost_ns))
            if self.on_incumbent is not None:
                self.on_incumbent(self.seconds, trace.cost_ns, schedule)

    # -- phases -----------------------------------------------------------------------------------

    def run(self, phases: list[_Phase]) -> None:
        """Each phase in turn, as long as there is something to gain and time left."""
        parts: dict[str, int | None] = {}
        for phase in phases:
            if self.done or self.halted or self.left <= 0 or self.status == INFEASIBLE:
                break
            bound = self.solve(phase, self.left * phase.share)
            if phase.covers == "all":
                self.prove(bound)
            elif phase.covers != "none":
                parts[phase.covers] = bound
            if len(parts) == 2:  # sorted and passing: together all there is
                known = [bound for bound in parts.values() if bound is not None]
                self.prove(min(known) if known else None)

    def prove(self, bound_ns: int | None) -> None:
        """Take note that every schedule costs at least `bound_ns` (None: that there is none)."""
        if bound_ns is None:
            self.status = INFEASIBLE
        elif bound_ns > self.lower_ns:
            self.lower_ns, self.proven = bound_ns, ENGINE
            self.bounds.append((self.seconds, bound_ns))

    def solve(self, phase: _Phase, seconds: float) -> int | None:
        """Run one phase; returns the least cost in ns that it leaves possible, None for none."""
        upper = None if self.best is None else self.best.cost_ns - (1 if phase.strict else 0)
        model = self.build(phase, upper)
        if self.best is not None and not phase.strict:
            hint(model, self.best)
        run = _Run(self, model, phase, seconds)
        status = run.go()
        proto, solver = model.cp.proto, run.solver
        self.sizes.append((len(proto.variables), len(proto.constraints)))
        if status == cp_model.MODEL_INVALID:
            raise OptPipeError(f"CP-SAT refuses the model: {model.cp.validate()}")
        bound: int | None = self.to_ns(round(solver.best_objective_bound))
        if status == cp_model.INFEASIBLE:
            bound = None if upper is None else upper + 1
        if self.first_will_do and bound is not None:
            bound = 0
        self.log.append(
            {
                "order": phase.order,
                "covers": phase.covers,
                "status": solver.status_name(status),
                "bound_ns": bound,
                "seconds": solver.wall_time,
            }
        )
        return bound

    def build(self, phase: _Phase, upper_ns: int | None) -> Model:
        """The model of a phase, for costs of at most `upper_ns`."""
        problem, unit = self.problem, self.unit_ns
        # a span loses up to a unit where both its ends are rounded down
        lost = 1 if self.rounded and problem.objective == "span" else 0
        horizon = cpsat_model.horizon_ns(problem, upper_ns) // unit
        most = horizon if upper_ns is None else min(horizon, upper_ns // unit + lost)
        least = min(most, max(0, self.lower_ns // unit - lost))
        model = Model(problem, unit, horizon)
        cpsat_model.compute(model)
        cpsat_model.flow(model)
        (ranked_transfers if phase.order == RANKS else cpsat_model.transfers)(model)
        cpsat_model.engines(model)
        order(model, phase.order)
        way = self.options.memory
        if way == "auto":
            way = "order" if problem.microbatches <= 12 else "cumulative"
        cpsat_memory.memory(model, way, phase.order)
        cpsat_memory.host_memory(model)
        if phase.heads:
            cpsat_model.head(model)
        cpsat_model.objective(model, least, most)
        if not self.first_will_do:
            model.cp.minimize(model.cost)
        return model

    def to_ns(self, units: int) -> int:
        """The cost in ns that a cost in units stands for, at least."""
        if self.rounded and self.problem.objective == "span":
            return max(0, (units - 1) * self.unit_ns + 1)
        return units * self.unit_ns

    def result(self) -> SolveResult:
        more: dict[str, Any] = {}
        if self.best is None:
            more["status"] = self.status
        elif self.first_will_do and self.best.cost_ns > self.lower_ns:
            more["status"] = FEASIBLE
        variables, constraints = self.sizes[0] if self.sizes else (0, 0)
        return make_result(
            self.problem,
            ENGINE,
            self.best.schedule if self.best is not None else None,
            self.lower_ns,
            self.proven,
            self.seconds,
            variables=variables,
            constraints=constraints,
            incumbents=tuple(self.incumbents),
            bounds=tuple(self.bounds),
            info={"phases": self.log, "ended": self.halted or "by itself"},
            **more,
        )


class _Run(cp_model.CpSolverSolutionCallback):
    """One call of the solver, in a thread of its own so that Ctrl-C and `stop` get through."""

    def __init__(self, search: _Search, model: Model, phase: _Phase, seconds: float) -> None:
        super().__init__()
        self.search, self.model, self.phase = search, model, phase
        self.solver = cp_model.CpSolver()
        parameters = self.solver.parameters
        parameters.max_time_in_seconds = seconds
        parameters.num_workers = search.workers
        parameters.random_seed = search.seed
        parameters.interleave_search = search.options.deterministic
        parameters.catch_sigint_signal = False
        for name, value in search.options.parameters.items():
            if not hasattr(parameters, name):
                raise OptPipeError(f"parameters: CP-SAT has no parameter {name!r}")
            setattr(parameters, name, value)
        self.solver.best_bound_callback = self.on_bound
        self.error: BaseException | None = None
        self.status: Any = None

    def go(self) -> Any:
        """Solve; returns CP-SAT's status.

        Raises:
            Exception: whatever a callback raised.
        """
        thread = threading.Thread(target=self._solve, daemon=True)
        thread.start()
        while thread.is_alive():
            try:
                thread.join(0.02)
                if self.search.stop is not None and self.search.stop.is_set():
                    self.search.halted = "stopped"
                    self.solver.stop_search()
            except KeyboardInterrupt:
                self.search.halted = "interrupted"
                self.solver.stop_search()
        if self.error is not None:
            raise self.error
        return self.status

    def _solve(self) -> None:
        try:
            self.status = self.solver.solve(self.model.cp, self)
        except BaseException as error:
            self.error = error

    def on_solution_callback(self) -> None:
        """A solution: replay its order, keep it where it is better, stop where that is enough."""
        try:
            if self.phase.order != RANKS:
                starts = self.model.starts_ns(self.value)
                self.search.offer(schedule_from_times(self.search.problem, starts))
            if self.search.done:
                self.stop_search()
        except BaseException as error:
            self.error = error
            self.stop_search()

    def on_bound(self, bound: float) -> None:
        if self.phase.covers == "all":
            self.search.prove(self.search.to_ns(round(bound)))
