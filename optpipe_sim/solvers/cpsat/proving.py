"""One run of the CP-SAT engine: phases in turn, the incumbent, the bound, and stopping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import isfinite
from typing import Any

from ortools.sat.python import cp_model

from ...bounds.windows import Pipeline, Windows
from ...errors import OptPipeError
from ...schedule import Schedule
from ...trace import Trace
from ..problem import Problem
from ..reports import Others, no_report
from ..result import INFEASIBLE, UNKNOWN, SolveResult, make_result
from . import constraints, order
from .hints import hint
from .model import Model, horizon_ns, time_unit
from .order import FIFO, RANKS, WINDOWS
from .phases import FEW, CpsatOptions, Phase, phases

ENGINE = "cpsat"
NARROWING = 0.5  # largest share of the time of a phase for finding windows
OnIncumbent = Callable[[float, int, Schedule], None]
OnBound = Callable[[float, int], None]
OnModel = Callable[[int, int], None]

# Proofs come from conflicts here: linear relaxations of a schedule are very weak and cost most of
# the time, and so does probing (measured: factors of 2 to 20).
# CP-SAT's handler of Ctrl-C would replace Python's, and a second Ctrl-C would kill the process.
PARAMETERS = {
    "linearization_level": 0,
    "cp_model_probing_level": 0,
    "catch_sigint_signal": False,
}
SUBSOLVERS = ("no_lp", "quick_restart_no_lp")  # with two and more workers; CP-SAT adds others


class Search:
    """The state of a run: the incumbent, the bound, and how they came about.

    Raises:
        OptPipeError: for a time limit of 0 or less, or a quantum above the shortest F or B.
    """

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        options: CpsatOptions | None = None,
        *,
        seed: int = 0,
        workers: int = 2,
        lower_bound_ns: int = 0,
        stop: threading.Event | None = None,
        on_incumbent: OnIncumbent | None = None,
        on_bound: OnBound | None = None,
        on_model: OnModel | None = None,
        others: Others = no_report,
    ) -> None:
        if not time_limit > 0:
            raise OptPipeError(f"time limit: must be above 0 seconds, got {time_limit}")
        self.options = options or CpsatOptions()
        exact = time_unit(problem)
        least = min(
            min(part.t_f_ns, part.t_b_ns, part.fused_ns)
            for cost in problem.profile.stages
            for part in cost.slices or (cost,)
        )
        self.unit_ns = self.options.quantum_ns or exact
        if not 1 <= self.unit_ns <= least:
            raise OptPipeError(
                f"quantum: must be from 1 to {least} ns, the shortest F or B; got {self.unit_ns}"
            )
        # rounding both ends of a span to units can lose up to one unit
        self.lost = 1 if exact % self.unit_ns and problem.objective == "span" else 0
        self.problem, self.seed, self.workers, self.stop = problem, seed, workers, stop
        self.on_incumbent, self.on_bound, self.on_model = on_incumbent, on_bound, on_model
        self.others = others
        self.began, self.time_limit = time.monotonic(), time_limit
        self.best: Trace | None = None
        self.lock = threading.Lock()
        self.lower_ns, self.proven, self.status = lower_bound_ns, "given", UNKNOWN
        self.ended: str | None = None
        self.incumbents: list[tuple[float, int]] = []
        self.bounds: list[tuple[float, int]] = []
        self.sizes: list[tuple[int, int]] = []
        self.log: list[dict[str, Any]] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def done(self) -> bool:
        """Whether nothing is left to find or to prove."""
        good = self.best is not None and self.best.cost_ns <= self.lower_ns
        return good or self.status == INFEASIBLE

    def offer(self, schedule: Schedule) -> None:
        """Take a schedule if it beats the incumbent; one that cannot be replayed is ignored."""
        trace = self.problem.keeps(schedule)
        if trace is None:
            return
        with self.lock:  # the solver calls back from another thread
            if self.best is not None and trace.cost_ns >= self.best.cost_ns:
                return
            self.best = trace
            self.incumbents.append((self.seconds, trace.cost_ns))
            if self.on_incumbent is not None:
                self.on_incumbent(self.seconds, trace.cost_ns, schedule)

    def listen(self) -> None:
        """Take the best schedule of other engines."""
        schedule = self.others()
        if schedule is not None:
            self.offer(schedule)

    def prove(self, bound_ns: int | None) -> None:
        """Record that every schedule costs at least `bound_ns` (None: that no schedule exists)."""
        if bound_ns is None:
            self.status = INFEASIBLE
        elif bound_ns > self.lower_ns:
            self.lower_ns, self.proven = bound_ns, ENGINE
            self.bounds.append((self.seconds, bound_ns))
            if self.on_bound is not None:
                self.on_bound(*self.bounds[-1])

    def run(self) -> SolveResult:
        """Run the phases while there is something to gain and time left."""
        for phase in phases(self.problem, self.options):
            left = self.time_limit - self.seconds
            self.listen()
            if self.done or self.ended or left <= 0:
                break
            bound = self.solve(phase, left * phase.share)
            if phase.covers:
                self.prove(bound)
        return self.result()

    def solve(self, phase: Phase, seconds: float) -> int | None:
        """Run one phase; returns the least cost in ns that it does not exclude, None if it excludes all."""
        upper = None if self.best is None else self.best.cost_ns - phase.strict
        until, windows = time.monotonic() + seconds, None
        if phase.order == WINDOWS and upper is not None:
            windows = self.narrow(upper, NARROWING * seconds)
            if windows is None:
                return upper + 1
            seconds = until - time.monotonic()
            if seconds <= 0:  # the windows used up the time
                return self.lower_ns
        model = self.build(phase, upper, windows)
        if self.best is not None and not phase.strict:
            hint(model, self.best)
        size = len(model.cp.proto.variables), len(model.cp.proto.constraints)
        self.sizes.append(size)
        if self.on_model is not None:
            self.on_model(*size)
        call = Call(self, model, phase, seconds, self.seed + len(self.log))
        status, solver = call.run(), call.solver
        if status == cp_model.MODEL_INVALID:
            raise OptPipeError(f"CP-SAT refuses the model: {model.cp.validate()}")
        bound: int | None = self.to_ns(round(solver.best_objective_bound))
        if status == cp_model.INFEASIBLE:
            bound = None if upper is None else upper + 1
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

    def build(self, phase: Phase, upper_ns: int | None, windows: Windows | None) -> Model:
        """Build the model of a phase, for costs of at most `upper_ns`."""
        problem, unit = self.problem, self.unit_ns
        horizon = horizon_ns(problem, upper_ns) // unit
        most = horizon if upper_ns is None else min(horizon, upper_ns // unit + self.lost)
        least = min(most, max(0, self.lower_ns // unit - self.lost))
        model = Model(problem, unit, horizon)
        constraints.treatments(model)
        constraints.partners(model)
        constraints.ops(model)
        constraints.pairs(model)
        if phase.order == RANKS:
            constraints.data_flow(model)
            order.ranked_copies(model)
            order.memory_in_order(model, paired=False)
        else:
            constraints.copies(model)
            constraints.data_flow(model)
            constraints.host_memory(model)
            if phase.order == FIFO and problem.microbatches <= FEW and not problem.decides:
                order.memory_in_order(model, paired=True)
            else:
                constraints.device_memory(model)
        constraints.engines(model)
        if phase.order in (FIFO, RANKS):
            order.in_order(model)
        else:
            order.by_number(model)
        if windows is not None:
            order.in_windows(model, windows)
        if phase.prompt:
            constraints.first_ops_at_once(model)
        constraints.cost(model, least, most)
        return model

    def narrow(self, upper_ns: int, seconds: float) -> Windows | None:
        """Compute the windows of all schedules of at most `upper_ns`; None: there are no such schedules."""
        costs, limits = self.problem.profile, self.problem.limits
        assert (
            limits is not None
        )  # else nothing is offloaded, and first in, first out loses nothing
        pipeline = Pipeline(costs, self.problem.microbatches, limits)
        return pipeline.narrow(upper_ns + 1, time.monotonic() + seconds)

    def to_ns(self, units: int) -> int:
        """Convert a cost in units to the least cost in ns that it stands for."""
        return max(0, (units - 1) * self.unit_ns + 1) if self.lost else units * self.unit_ns

    def result(self) -> SolveResult:
        more: dict[str, Any] = {}
        if self.best is None:
            more["status"] = self.status
        variables, constraints = max(self.sizes, default=(0, 0))
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
            info={"phases": self.log, "ended": self.ended or "by itself"},
            **more,
        )


class Call(cp_model.CpSolverSolutionCallback):
    """One call of the solver, in a separate thread so that Ctrl-C and `stop` take effect."""

    def __init__(
        self, search: Search, model: Model, phase: Phase, seconds: float, seed: int
    ) -> None:
        super().__init__()
        self.search, self.model, self.phase = search, model, phase
        self.solver = cp_model.CpSolver()
        parameters: dict[str, Any] = {
            **PARAMETERS,
            "max_time_in_seconds": seconds,
            "num_workers": search.workers,
            "random_seed": seed,
            "interleave_search": search.options.deterministic,
            **({"subsolvers": SUBSOLVERS} if search.workers > 1 else {}),
            **search.options.parameters,
        }
        for name, value in parameters.items():
            if not hasattr(self.solver.parameters, name):
                raise OptPipeError(f"parameters: CP-SAT has no parameter {name!r}")
            if isinstance(value, (list, tuple)):
                getattr(self.solver.parameters, name).extend(value)
            else:
                setattr(self.solver.parameters, name, value)
        self.solver.best_bound_callback = self.on_bound
        self.error: BaseException | None = None
        self.status: Any = None
        self.over = (
            threading.Event()
        )  # a join that Ctrl-C interrupts would regard the thread as ended

    def run(self) -> Any:
        """Solve; returns CP-SAT's status.

        Raises:
            Exception: whatever a callback raised.
        """
        threading.Thread(target=self._solve, daemon=True).start()
        while not self.over.is_set():
            try:
                self.over.wait(0.02)
                self.search.listen()
                if self.search.stop is not None and self.search.stop.is_set():
                    self.search.ended = "stopped"
                if self.search.done or self.search.ended:
                    self.solver.stop_search()  # repeatedly: the solver ignores it before it has begun
            except KeyboardInterrupt:
                self.search.ended = "interrupted"
        if self.error is not None:
            raise self.error
        return self.status

    def _solve(self) -> None:
        try:
            self.status = self.solver.solve(self.model.cp, self)
        except BaseException as error:
            self.error = error  # `run` raises it in the caller's thread
        finally:
            self.over.set()

    def on_solution_callback(self) -> None:
        """Replay the order of a solution, keep it if it is better, and stop if it is good enough."""
        try:
            if self.phase.order != RANKS:  # ranks do not give schedules
                self.search.offer(self.model.schedule(self.value))
            if self.search.done:
                self.stop_search()
        except BaseException as error:
            self.error = error  # exceptions must not pass through the solver
            self.stop_search()

    def on_bound(self, bound: float) -> None:
        try:
            if self.phase.covers and isfinite(bound):
                self.search.prove(self.search.to_ns(round(bound)))
        except BaseException as error:
            self.error = error  # as above
            self.solver.stop_search()
