"""Solve the reconstructed MILP with HiGHS, Gurobi or any MILP solver that Pyomo knows.

The model is that of arXiv 2510.05186, stated in `model`, with its accelerations as switches
(`MilpOptions`): activations are kept or offloaded, nothing else (`require_milp`). The model is exact
for schedules on latency links; elsewhere it is a relaxation, so that its bound holds:

- if BW is cheaper than B + W, B and W together only take as long as BW (`sets.Sets.durations`);
- on serial links messages do not queue, and on blocking links the sender is not kept busy;
- for the objective ``span`` with offloads (or a placement that does not begin with one stage on each
  device) a device may delay its first op, which a replay never does;
- reloads of zero duration that start together with an F may be missed when memory is counted.

Each solution is timed again: only its binaries determine the schedule, and the replay gives its
cost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...bounds.bounds import lower_bound
from ...errors import InvalidSchedule, NoSolution, OptPipeError
from ...files import write_bytes
from ...schedule import Schedule
from ...schedules.adaoffload.adaoffload import adaoffload
from ...trace import Trace
from ..problem import Problem
from ..reports import Job, Others, Report, no_report
from ..result import SolveResult, make_result, report_result
from .model import build_model, model_size
from .options import MilpOptions
from .sets import Sets
from .solvers import INFEASIBLE, Outcome, Settings, require_solver, run_solver
from .values import earliest, plan, scheduled, set_values
from .variables import Model
from .windows import serial_ns

MOST_ROWS = 300_000  # Pyomo takes about a minute and 2 GiB to build that many
ABSOLUTE, RELATIVE = 1e-6, 1e-7  # tolerance of a solver's bound, in the model's units


def solve_milp(
    problem: Problem,
    time_limit: float,
    *,
    warm_start: Schedule | None = None,
    solver: str = "highs",
    seed: int = 0,
    threads: int = 0,
    gap: float = 0.0,
    options: MilpOptions | None = None,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    force: bool = False,
) -> SolveResult:
    """Find the best schedule with a MILP solver, and the bound that it proves.

    Args:
        time_limit: total seconds, including the time to build the model.
        warm_start: a schedule to start from; ignored if it breaks the limits.
        solver: ``highs``, ``gurobi``, or the name of a MILP solver that Pyomo knows.
        seed, threads: for HiGHS and Gurobi (0 threads: their default).
        gap: the relative gap at which they may stop.
        options: the accelerations; by default all are on.
        on_incumbent: called with each better schedule and its cost in ns. `on_bound`: with each
            better bound in ns, if the solver reports bounds while it runs. force: build the model
            however large it is.

    Returns:
        The better of the warm start and the solver's solution. ``info`` has: ``from_warm_start``
        (nothing better was found), ``solver_status``, ``started`` (whether the solver had a start),
        ``nodes``, ``reduced`` (columns and rows that are left after the time windows have fixed
        some), ``interrupted`` (by Ctrl-C), ``restricted_bound_ns`` (only with `MilpOptions.fifo`: a
        bound on such schedules) and ``rejected`` (number of solutions whose replay breaks a limit).

    Raises:
        OptPipeError: for a time limit that is not above 0, a solver that is not installed, a model
            that is too large to build, or a warm start of another shape.
    """
    begun = time.perf_counter()
    options = options or MilpOptions()
    if not time_limit > 0:
        raise OptPipeError(f"time limit: must be above 0 seconds, got {time_limit}")
    require_milp(problem, solver, options, force)
    run = _Run(problem, options, begun, on_incumbent, on_bound)
    run.warm(warm_start)
    model = build_model(run.sets, run.upper_ns, run.proven_ns)
    starts = plan(run.sets, run.best[1]) if run.best else None
    if starts is not None:
        set_values(model, starts, run.upper_ns)
    left = max(0.1, begun + time_limit - time.perf_counter())
    settings = Settings(left, threads, seed, gap, starts is not None)
    outcome = run_solver(
        solver,
        model,
        settings,
        lambda: run.improve(model),
        lambda bound: run.raised(_safe_ns(model, bound)),
    )
    return run.result(model, outcome, solver)


def run(job: Job, report: Report, others: Others = no_report) -> None:
    """Run the reconstructed MILP as an engine of the race; it ignores the schedules of other engines."""
    options = job.options
    # without a start also means without AdaOffload
    accelerations = MilpOptions(adaoffload=job.start is not None)
    report("size", model_size(job.problem, accelerations))  # first, as a proof may end the race
    found = solve_milp(
        job.problem,
        options.time_limit,
        warm_start=job.start,
        solver=options.solver,
        seed=options.seed,
        threads=options.workers or 1,
        options=accelerations,
        gap=options.gap,
        force=options.force,
        on_incumbent=lambda schedule, *_: report("incumbent", (schedule, "milp")),
        on_bound=lambda bound: report("bound", bound),
    )
    report_result(report, found, "milp")


def write_model(
    problem: Problem,
    path: str | os.PathLike[str],
    *,
    warm_start: Schedule | None = None,
    options: MilpOptions | None = None,
    force: bool = False,
) -> float:
    """Write the MILP of a problem as `solve_milp` states it, for another solver.

    Args:
        path: ``.lp`` or ``.mps``. The others: as for `solve_milp`; the cost of the warm start or of
            AdaOffload is the model's upper bound.

    Returns:
        The unit of its times, in ns: an objective of 5 means a cost of 5 units.

    Raises:
        OptPipeError: for another file extension, a file that cannot be written, a model that is too
            large to build, or a warm start of another shape.
    """
    kind = Path(path).suffix
    if kind not in (".lp", ".mps"):
        raise OptPipeError(f"{path}: the model is written as .lp or .mps")
    options = options or MilpOptions()
    require_milp(problem, options=options, force=force)
    run = _Run(problem, options, time.perf_counter())
    run.warm(warm_start)
    model = build_model(run.sets, run.upper_ns, run.proven_ns)
    try:
        with TemporaryDirectory(prefix="optpipe-model-") as folder:
            made = Path(folder) / f"model{kind}"
            model.pyomo.write(str(made), io_options={"symbolic_solver_labels": True})
            write_bytes(path, made.read_bytes())
    except OSError as error:
        raise OptPipeError(f"{path}: cannot be written: {error.strerror}") from None
    return model.unit_ns


def require_milp(
    problem: Problem,
    solver: str = "highs",
    options: MilpOptions | None = None,
    force: bool = False,
) -> None:
    """Check that the paper's program can state a problem, that the solver is installed and that
    the model is not too large.

    Raises:
        OptPipeError: for a problem that the program has no words for, a solver that is not
            installed, or a model that is too large to build (unless `force`).
    """
    others = "or the engine auto, search or cpsat"
    if problem.shape.slices > 1:
        raise OptPipeError(f"engine: milp orders whole sequences: give slices=1, {others}")
    if not problem.profile.alike:
        raise OptPipeError(
            "engine: milp is the paper's program, whose microbatches are alike: take the engine auto, search or cpsat"
        )
    if problem.may_pair:
        raise OptPipeError(f"engine: milp has no pairs: give pairs=no, {others}")
    if problem.may_recompute:
        raise OptPipeError(
            "engine: milp is the paper's program, which keeps or offloads activations: give"
            f" treatments=keep,offload, {others}"
        )
    require_solver(solver)
    if force:
        return
    variables, constraints = model_size(problem, options)
    if constraints > MOST_ROWS:
        raise OptPipeError(
            f"the MILP would have {variables} variables and {constraints} constraints, more than the"
            f" {MOST_ROWS} constraints that are still worth a try; take another engine, or force it"
        )


class _Run:
    """The incumbent and the bound, and how they came about."""

    def __init__(
        self,
        problem: Problem,
        options: MilpOptions,
        begun: float,
        on_incumbent: Callable[[Schedule, int], None] | None = None,
        on_bound: Callable[[int], None] | None = None,
    ) -> None:
        self.problem, self.options, self.begun = problem, options, begun
        self.on_incumbent, self.on_bound = on_incumbent, on_bound
        self.sets = Sets(problem, options)
        self.best: tuple[Schedule, Trace] | None = None
        self.from_warm_start = True
        self.incumbents: list[tuple[float, int]] = []
        self.bounds: list[tuple[float, int]] = []  # of the solver
        self.rejected = 0
        self.proven_ns, self.name = 0, "none"
        if options.bounds:
            self.proven_ns, self.name = lower_bound(
                problem.profile, problem.microbatches, problem.objective, problem.limits
            )

    def offer(self, schedule: Schedule, trace: Trace) -> bool:
        """Keep a schedule if it beats the incumbent."""
        if self.best is not None and trace.cost_ns >= self.best[1].cost_ns:
            return False
        self.best = schedule, trace
        self.incumbents.append((time.perf_counter() - self.begun, trace.cost_ns))
        if self.on_incumbent is not None:
            self.on_incumbent(schedule, trace.cost_ns)
        return True

    def warm(self, warm_start: Schedule | None) -> None:
        """Offer the warm start, and AdaOffload's schedule."""
        problem = self.problem
        starts = [] if warm_start is None else [warm_start]
        if warm_start is not None and warm_start.shape != problem.shape:
            raise OptPipeError(f"warm start: {warm_start!r} has another shape than the problem")
        if self.options.adaoffload:
            with suppress(NoSolution):
                starts.append(
                    adaoffload(
                        problem.profile,
                        problem.microbatches,
                        limit=problem.limits,
                        objective=problem.objective,
                    )
                )
        for schedule in starts:
            with suppress(InvalidSchedule):  # its activations are not treated alike per stage
                trace = problem.keeps(schedule)
                if trace is not None:
                    self.offer(schedule, trace)

    @property
    def restricted(self) -> bool:
        """Whether `fifo` excludes schedules, so that the solver's bound does not cover all of them."""
        return self.options.in_order and self.options.fifo and not self.sets.exact_order

    @property
    def upper_ns(self) -> int:
        """An upper bound on the cost of an optimal schedule."""
        return self.best[1].cost_ns if self.best else serial_ns(self.sets)

    def improve(self, model: Model) -> bool:
        """Take the solution in the model's variables; returns whether it cannot be beaten."""
        starts = earliest(model)
        found = None if starts is None else scheduled(self.problem, starts)
        if found is None:
            self.rejected += 1
        elif self.offer(*found):
            self.from_warm_start = False
        return self.best is not None and self.best[1].cost_ns <= self.proven_ns

    def raised(self, bound_ns: int) -> None:
        """Take a bound of the solver."""
        if self.restricted or (self.bounds and bound_ns <= self.bounds[-1][1]):
            return
        self.bounds.append((time.perf_counter() - self.begun, bound_ns))
        if self.on_bound is not None:
            self.on_bound(bound_ns)

    def result(self, model: Model, outcome: Outcome, solver: str) -> SolveResult:
        """Make the result. The solver's bound counts unless `fifo` restricted it."""
        bound = _safe_ns(model, outcome.bound)
        info: dict[str, Any] = {
            "solver": solver,
            "solver_status": outcome.status,
            "from_warm_start": self.best is not None and self.from_warm_start,
            "started": outcome.started,
            "interrupted": outcome.interrupted,
            "nodes": outcome.nodes,
            "reduced": model.reduced,
            "rejected": self.rejected,
        }
        proven, name = self.proven_ns, self.name
        if self.restricted:
            info["restricted_bound_ns"] = bound
        elif bound > proven and outcome.status != INFEASIBLE:
            proven, name = bound, solver
        variables, constraints = model.size
        more: dict[str, Any] = {}
        if self.best is None and outcome.status == INFEASIBLE and not self.restricted:
            more["status"] = "infeasible"
        return make_result(
            self.problem,
            "milp",
            self.best[0] if self.best else None,
            proven,
            name,
            time.perf_counter() - self.begun,
            variables=variables,
            constraints=constraints,
            incumbents=tuple(self.incumbents),
            bounds=tuple(self.bounds),
            info=info,
            **more,
        )


def _safe_ns(model: Model, bound: float) -> int:
    """Convert a solver's bound to ns: less its tolerance, then rounded up to the next tick, as
    every left-shifted timing costs a whole number of ticks."""
    if not isfinite(bound):
        return 0
    least = (bound - ABSOLUTE - RELATIVE * abs(bound)) * model.unit_ns
    return max(0, ceil(least / model.tick_ns) * model.tick_ns)
