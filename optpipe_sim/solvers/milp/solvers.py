"""Solvers for the MILP: HiGHS and Gurobi by Pyomo's interfaces that keep the model in the solver, any other
solver that Pyomo knows by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from ...errors import OptPipeError
from .variables import Model, need

FEW_DIGITS = 1e-5  # some solvers print bounds with six digits
OPTIMAL, INFEASIBLE, STOPPED = "optimal", "infeasible", "stopped"


@dataclass(frozen=True)
class Settings:
    """Seconds, threads (0: the solver's default), seed and relative gap of a solver run. For
    solvers the gap is a share of the cost (`gap_of_cost`), for `SolveResult` a share of the
    bound. `start`: the variables have the values of a start."""

    seconds: float
    threads: int = 0
    seed: int = 0
    gap: float = 0.0
    start: bool = False

    @property
    def gap_of_cost(self) -> float:
        return self.gap / (1 + self.gap)


@dataclass
class Outcome:
    """The outcome of a solver run: ``optimal`` (within the gap), ``infeasible`` or ``stopped``; its
    bound on the model's cost, in the model's units; whether Ctrl-C stopped it; whether it
    accepted the start."""

    status: str
    bound: float
    interrupted: bool = False
    started: bool = False
    nodes: int = 0


# called when the model's variables have the values of a better solution; returns True to stop
Improved = Callable[[], bool]
Raised = Callable[[float], None]  # called with better bounds, in the model's units


def require_solver(name: str) -> None:
    """Raise if a solver is not installed.

    Raises:
        OptPipeError: says what to install, or lists the known names.
    """
    if name == "highs":
        need("highspy", "highspy")
    elif name == "gurobi":
        need("gurobipy", "gurobipy", " (its own licence admits 2000 variables, no more)")
    else:
        factory = need("pyomo.environ", "pyomo").SolverFactory
        if name not in set(factory) or not factory(name).available(exception_flag=False):
            raise OptPipeError(
                f"solver {name!r} is not available: expected highs, gurobi, or an installed MILP"
                " solver that Pyomo knows, such as scip, cbc, glpk or cplex"
            )


def run_solver(
    name: str, model: Model, settings: Settings, improved: Improved, raised: Raised
) -> Outcome:
    """Run a solver. Of HiGHS and Gurobi solutions and bounds come while they run, of others at the end.

    Raises:
        OptPipeError: for a solver that fails.
    """
    if name == "highs":
        return _highs(model, settings, improved, raised)
    if name == "gurobi":
        return _gurobi(model, settings, improved, raised)
    return _other(name, model, settings, improved)


def _highs(model: Model, settings: Settings, improved: Improved, raised: Raised) -> Outcome:
    """Run HiGHS in a separate thread, so that Ctrl-C and `improved` take effect: Pyomo's own `solve`
    would keep solutions for itself, print on Ctrl-C, and swallow what others print meanwhile."""
    highspy = need("highspy", "highspy")
    highspy.Highs.resetGlobalScheduler(True)  # else the threads of an earlier run stay
    interface = import_module("pyomo.contrib.solver.solvers.highs").Highs()
    interface.set_instance(model.pyomo)
    solver = interface._solver_model
    columns = [interface._vars[at][0] for at in interface._pyomo_var_to_solver_var_map]
    for name, value in {
        "output_flag": True,  # otherwise nothing is logged and `cbMipLogging` is never called
        "log_to_console": False,
        "time_limit": settings.seconds,
        "threads": settings.threads,
        "random_seed": settings.seed % 2**31,
        "mip_rel_gap": settings.gap_of_cost,
        "mip_feasibility_tolerance": 1e-7,
        "primal_feasibility_tolerance": 1e-7,
    }.items():
        solver.setOptionValue(name, value)
    started = False
    if settings.start:
        solution = highspy.HighsSolution()
        solution.col_value = [column.value for column in columns]
        solution.value_valid = True
        started = solver.setSolution(solution) == highspy.HighsStatus.kOk
    found: list[Any] = []
    bounds: list[float] = []

    def logged(event: Any) -> None:
        bound = float(event.data_out.mip_dual_bound)
        if np.isfinite(bound) and (not bounds or bound > bounds[-1]):
            bounds.append(bound)

    def take(values: np.ndarray) -> bool:
        for column, value in zip(columns, values.tolist(), strict=True):
            column.set_value(value, skip_validation=True)
        return improved()

    solver.HandleUserInterrupt = True
    solver.cbMipImprovingSolution += lambda event: found.append(
        np.array(event.data_out.mip_solution, float)
    )
    solver.cbMipLogging += logged
    interrupted = done = False
    seen = passed = 0
    thread = solver.startSolve()
    try:
        while not done:
            try:
                done, _ = solver.wait(0.02)
                while seen < len(found):
                    seen += 1
                    if take(found[seen - 1]):
                        solver.cancelSolve()
                while passed < len(bounds):
                    passed += 1
                    raised(bounds[passed - 1])
            except KeyboardInterrupt:
                interrupted = True
                solver.cancelSolve()
    finally:  # also if a callback of the caller fails
        solver.cancelSolve()
        thread.join()
    info, status, names = solver.getInfo(), solver.getModelStatus(), highspy.HighsModelStatus
    ends = {names.kOptimal: OPTIMAL, names.kInfeasible: INFEASIBLE}
    return Outcome(
        ends.get(status, STOPPED),
        float(info.mip_dual_bound),
        interrupted,
        started,
        int(info.mip_node_count),
    )


def _gurobi(model: Model, settings: Settings, improved: Improved, raised: Raised) -> Outcome:
    """Run Gurobi, if it is installed and its licence admits the size."""
    gurobipy = need("gurobipy", "gurobipy")
    pyo, results = (
        import_module("pyomo.environ"),
        import_module("pyomo.contrib.solver.common.results"),
    )
    where = gurobipy.GRB.Callback
    columns = list(model.pyomo.component_data_objects(pyo.Var))
    stop = False

    def callback(_: Any, running: Any, at: int) -> None:
        nonlocal stop
        if at == where.MIPSOL:
            running.cbGetSolution(columns)
            stop = improved() or stop
            if stop:
                running._solver_model.terminate()
        elif at == where.MIP:
            bound = running._solver_model.cbGet(where.MIP_OBJBND)
            if np.isfinite(bound):
                raised(bound)

    try:
        solver = import_module("pyomo.contrib.solver.plugins").GurobiPersistent()
        solver.set_instance(model.pyomo)
        solver.set_callback(callback)
        found = solver.solve(
            model.pyomo,
            time_limit=settings.seconds,
            threads=settings.threads,
            rel_gap=settings.gap_of_cost,
            warmstart_discrete_vars=settings.start,
            load_solutions=False,
            raise_exception_on_nonoptimal_result=False,
            solver_options={"Seed": settings.seed % 2_000_000_000},
        )
    except gurobipy.GurobiError as error:
        raise OptPipeError(f"gurobi: {str(error).splitlines()[0]}") from None
    conditions = results.TerminationCondition
    # costs are at least 0, so "infeasible or unbounded" means infeasible
    impossible = (conditions.provenInfeasible, conditions.infeasibleOrUnbounded)
    how = found.termination_condition
    status = {
        conditions.convergenceCriteriaSatisfied: OPTIMAL,
        **dict.fromkeys(impossible, INFEASIBLE),
    }.get(how, STOPPED)
    return Outcome(
        status,
        float(found.objective_bound) if status != INFEASIBLE else np.inf,
        how is conditions.interrupted and not stop,
        settings.start,
        int(found.extra_info.NodeCount),
    )


def _other(name: str, model: Model, settings: Settings, improved: Improved) -> Outcome:
    """Run any MILP solver that Pyomo knows by name; it reports only at its end."""
    factory = need("pyomo.environ", "pyomo").SolverFactory(name)
    options: dict[str, Any] = {"load_solutions": False, "timelimit": settings.seconds}
    if settings.start and getattr(factory, "warm_start_capable", bool)():
        options["warmstart"] = True
    started = "warmstart" in options
    try:
        results = factory.solve(model.pyomo, **options)
    except AttributeError:
        raise OptPipeError(f"solver {name}: is not a MILP solver that Pyomo can call") from None
    except KeyboardInterrupt:
        return Outcome(STOPPED, -np.inf, True, started)
    except (ValueError, RuntimeError, OSError) as error:
        raise OptPipeError(f"solver {name}: {str(error).splitlines()[0]}") from None
    condition = results.solver.termination_condition
    status = {"optimal": OPTIMAL, "infeasible": INFEASIBLE}.get(str(condition), STOPPED)
    if len(results.solution):
        model.pyomo.solutions.load_from(results)
        improved()
    bound = results.problem.lower_bound
    known = isinstance(bound, int | float) and np.isfinite(bound)
    if known and status != OPTIMAL:
        bound -= FEW_DIGITS * abs(bound)
    return Outcome(status, float(bound) if known else -np.inf, False, started)
