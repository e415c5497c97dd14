"""Solvers for the MILP: HiGHS and Gurobi on the model's matrix, any other solver through Pyomo."""

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
    bound."""

    seconds: float
    threads: int = 0
    seed: int = 0
    gap: float = 0.0

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


# called with the column values of a better solution; returns True to stop
Improved = Callable[[np.ndarray], bool]
Raised = Callable[[float], None]  # called with better bounds, in the model's units


@dataclass(frozen=True)
class Matrix:
    """Minimize cost @ v with low <= rows @ v <= high and bounds on v, some of v integer."""

    columns: list[Any]
    cost: np.ndarray
    rows: Any
    low: np.ndarray
    high: np.ndarray
    least: np.ndarray
    most: np.ndarray
    whole: np.ndarray

    def start(self) -> np.ndarray | None:
        """Return the values of the Pyomo variables, if all have one."""
        values = [column.value for column in self.columns]
        return None if None in values else np.array(values, float)

    def excess(self, values: np.ndarray) -> float:
        """Return the largest violation of a row or a bound by these values."""
        sums = self.rows @ values
        broken = [self.low - sums, sums - self.high, self.least - values, values - self.most]
        return float(max((part.max(initial=0.0) for part in broken), default=0.0))


def matrix(model: Model) -> Matrix:
    """Make the matrix of a model, without fixed variables and rows that contain no others."""
    compiler = import_module("pyomo.repn.plugins.standard_form").LinearStandardFormCompiler()
    form = compiler.write(model.pyomo, mixed_form=True)
    kinds = np.array([bound_type for _, bound_type in form.rows], int)
    rhs = np.asarray(form.rhs, float)
    bounds = [column.bounds for column in form.columns]
    return Matrix(
        form.columns,
        np.asarray(form.c.todense(), float).ravel(),
        form.A.tocsr(),
        np.where(kinds == 1, -np.inf, rhs),
        np.where(kinds == -1, np.inf, rhs),
        np.array([-np.inf if low is None else low for low, _ in bounds], float),
        np.array([np.inf if high is None else high for _, high in bounds], float),
        np.array([not column.is_continuous() for column in form.columns], bool),
    )


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


def highs(
    form: Matrix, settings: Settings, start: np.ndarray | None, improved: Improved, raised: Raised
) -> Outcome:
    """Run HiGHS in a separate thread, so that Ctrl-C and `improved` take effect."""
    highspy = need("highspy", "highspy")
    solver = _highs_model(highspy, form, settings)
    started = False
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        solution.value_valid = True
        started = solver.setSolution(solution) == highspy.HighsStatus.kOk
    found: list[np.ndarray] = []
    bounds: list[float] = []

    def better(event: Any) -> None:
        found.append(np.array(event.data_out.mip_solution, float))

    def logged(event: Any) -> None:
        bound = float(event.data_out.mip_dual_bound)
        if np.isfinite(bound) and (not bounds or bound > bounds[-1]):
            bounds.append(bound)

    solver.HandleUserInterrupt = True
    solver.cbMipImprovingSolution += better
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
                    if improved(found[seen - 1]):
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
    info, status = solver.getInfo(), solver.getModelStatus()
    names = highspy.HighsModelStatus
    return Outcome(
        {names.kOptimal: OPTIMAL, names.kInfeasible: INFEASIBLE}.get(status, STOPPED),
        float(info.mip_dual_bound),
        interrupted,
        started,
        int(info.mip_node_count),
    )


def _highs_model(highspy: Any, form: Matrix, settings: Settings) -> Any:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(form.columns), len(form.low)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = form.cost, form.least, form.most
    lp.row_lower_, lp.row_upper_ = form.low, form.high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = form.rows.indptr
    lp.a_matrix_.index_ = form.rows.indices
    lp.a_matrix_.value_ = form.rows.data
    kinds = highspy.HighsVarType
    lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in form.whole]
    highspy.Highs.resetGlobalScheduler(True)  # else the threads of an earlier run stay
    solver = highspy.Highs()
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
    solver.passModel(lp)
    return solver


def gurobi(
    form: Matrix, settings: Settings, start: np.ndarray | None, improved: Improved, raised: Raised
) -> Outcome:
    """Run Gurobi, if it is installed and its licence admits the size."""
    gp = need("gurobipy", "gurobipy")
    try:
        with gp.Env(params={"OutputFlag": 0}) as env, gp.Model(env=env) as solver:
            kinds = np.where(form.whole, "I", "C")
            v = solver.addMVar(
                len(form.columns), lb=form.least, ub=form.most, obj=form.cost, vtype=kinds
            )
            equal = form.low == form.high
            for part, sense, side in (
                (equal, "=", form.low),
                (~equal & np.isfinite(form.low), ">", form.low),
                (~equal & np.isfinite(form.high), "<", form.high),
            ):
                solver.addMConstr(form.rows[part], v, sense, side[part])
            if start is not None:
                v.Start = start
            solver.Params.TimeLimit = settings.seconds
            solver.Params.Threads = settings.threads
            solver.Params.Seed = settings.seed % 2_000_000_000
            solver.Params.MIPGap = settings.gap_of_cost

            enough = False

            def callback(running: Any, where: int) -> None:
                nonlocal enough
                if where == gp.GRB.Callback.MIPSOL:
                    enough = improved(np.array(running.cbGetSolution(v), float))
                    if enough:
                        running.terminate()
                elif where == gp.GRB.Callback.MIP:
                    bound = running.cbGet(gp.GRB.Callback.MIP_OBJBND)
                    if np.isfinite(bound):
                        raised(bound)

            solver.optimize(callback)
            # costs are at least 0, so "infeasible or unbounded" means infeasible
            ends = {gp.GRB.OPTIMAL: OPTIMAL, gp.GRB.INFEASIBLE: INFEASIBLE}
            status = {**ends, gp.GRB.INF_OR_UNBD: INFEASIBLE}.get(solver.Status, STOPPED)
            return Outcome(
                status,
                float(solver.ObjBound) if status != INFEASIBLE else np.inf,
                solver.Status == gp.GRB.INTERRUPTED and not enough,
                start is not None,
                int(solver.NodeCount),
            )
    except gp.GurobiError as error:
        raise OptPipeError(f"gurobi: {str(error).splitlines()[0]}") from None


def other(
    name: str, model: Model, form: Matrix, settings: Settings, started: bool, improved: Improved
) -> Outcome:
    """Run any MILP solver that Pyomo knows by name; it reports only at its end."""
    factory = need("pyomo.environ", "pyomo").SolverFactory(name)
    options: dict[str, Any] = {"load_solutions": False, "timelimit": settings.seconds}
    if started and getattr(factory, "warm_start_capable", bool)():
        options["warmstart"] = True
    interrupted = False
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
        improved(np.array([column.value for column in form.columns], float))
    bound = results.problem.lower_bound
    known = isinstance(bound, int | float) and np.isfinite(bound)
    if known and status != OPTIMAL:
        bound -= FEW_DIGITS * abs(bound)
    return Outcome(status, float(bound) if known else -np.inf, interrupted, "warmstart" in options)
