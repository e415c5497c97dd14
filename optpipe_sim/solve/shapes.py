"""The best schedule where the number of chunks per device is free as well."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ..analyse.bounds import Bound, lower_bound
from ..analyse.device_core import NEVER
from ..errors import Infeasible, NoSolution, OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import counted
from .auto import check_settings, solve
from .compiling import compile_engines
from .first import run_adaoffload, run_published
from .portfolio import Race, nobody
from .problem import Problem, make_problem
from .result import SolveResult, within

QUICK_SHARE = 0.5  # of the time, at most, for AdaOffload and the published schedules of all shapes

# (chunks, placement) of the published schedules
SHAPES = ((1, "loop"), (2, "loop"), (2, "vee"))


def candidate_shapes(profile: CostProfile) -> list[CostProfile]:
    """The profile as it is, and with the chunks and placements of the published schedules."""
    found = [profile]
    for chunks, placement in SHAPES:
        try:
            other = profile.rechunk(chunks, placement)
        except OptPipeError:  # too short a stage to divide
            continue
        if other not in found:
            found.append(other)
    return found


def _problems(
    profile: CostProfile,
    microbatches: int,
    memory_limit: int | Sequence[int] | None,
    objective: str,
) -> tuple[list[Problem], list[tuple[int, OptPipeError]]]:
    """The problem of each shape that the limit admits, and why not the others, with the least
    limit they need."""
    problems: list[Problem] = []
    reasons: list[tuple[int, OptPipeError]] = []
    for shaped in candidate_shapes(profile):
        try:
            problems.append(make_problem(shaped, microbatches, memory_limit, objective))
        except OutOfMemory as error:
            reasons.append((max(shaped.least_limits), error))
    return problems, reasons


class _Common:
    """What the shapes have reached together.

    Attributes:
        race: stands for all of them: the best schedule and its problem, the least of their bounds.
        costs, bounds, starts: per shape what is known of it.
        reasons: why a shape has no schedule, in one line.
    """

    def __init__(self, problems: Sequence[Problem], race: Race) -> None:
        self.problems, self.race = problems, race
        self.costs = [float("inf")] * len(problems)
        self.starts: list[Schedule | None] = [None] * len(problems)
        self.reasons: list[str] = []
        self.bounds = [
            lower_bound(each.profile, each.microbatches, each.objective, each.limits)
            for each in problems
        ]
        self.prove(0, 0, "none")

    def hopeless(self, at: int) -> bool:
        """Whether nothing that counts can be better in this shape than the best of all."""
        return within(self.race.cost_ns, self.bounds[at].ns, self.race.gap)

    def watcher(self, at: int) -> Callable[[Race], None]:
        """What watches the race of a shape."""

        def watch(race: Race) -> None:
            if race.best is not None:
                self.take(at, race.best, race.cost_ns, race.engine)
            self.prove(at, race.bound_ns, race.bound_name)
            self.race.look()

        return watch

    def take(self, at: int, schedule: Schedule, cost_ns: int, engine: str) -> None:
        """Take the best schedule of a shape."""
        if cost_ns < self.costs[at]:
            self.costs[at], self.starts[at] = cost_ns, schedule
        if cost_ns < self.race.cost_ns:
            self.race.problem = self.problems[at]
            self.race.variables = self.race.constraints = 0  # until its `solve` hands them in
            self.race.take(schedule, cost_ns, engine)

    def prove(self, at: int, bound_ns: int, name: str) -> None:
        """Take a bound of one shape."""
        if bound_ns > self.bounds[at].ns:
            self.bounds[at] = Bound(bound_ns, name)
        least = min(self.bounds, key=lambda bound: bound.ns)
        if least.ns > self.race.bound_ns:  # not rounded up by `Race.prove`: units differ by shape
            self.race.bound_ns, self.race.bound_name = least
            self.race.bounds.append((self.race.seconds, least.ns))

    def quick(self, at: int, until: float) -> None:
        """AdaOffload and the published schedules of a shape, as long as there is time."""
        own = Race(self.problems[at], self.race.gap, watch=self.watcher(at))
        own.prove(*self.bounds[at])
        run_adaoffload(own, until - self.race.seconds)
        run_published(own, own.seconds + until - self.race.seconds)
        self.reasons += own.failures.values()

    def solved(self, at: int, found: SolveResult) -> None:
        """Take the result of a shape: its schedule may have lost what gains nothing."""
        assert found.schedule is not None
        self.take(at, found.schedule, found.objective_ns, found.info["found_by"])
        self.prove(at, found.lower_bound_ns, found.bound_name)
        self.race.failures |= found.info["failures"]
        self.race.interrupted |= found.info["interrupted"]
        if self.race.problem is self.problems[at] and found.objective_ns <= self.race.cost_ns:
            self.race.best = found.schedule
            self.race.variables, self.race.constraints = found.variables, found.constraints

    def without(self, at: int, error: OptPipeError) -> None:
        """Note that a shape has no result, and why."""
        chunks = counted(self.problems[at].shape.chunks, "chunk")
        self.reasons.append(f"{chunks}: {error}")
        if not isinstance(error, NoSolution):
            self.race.failures[chunks] = str(error)
        if isinstance(error, Infeasible):
            self.prove(at, NEVER, "infeasible")

    def result(self, engine: str) -> SolveResult:
        """The best of all, and what bounds all; `engine`: which was asked for.

        Raises:
            NoSolution: where no shape has a schedule.
        """
        whole = self.race
        if whole.best is None:
            kind = Infeasible if min(bound.ns for bound in self.bounds) >= NEVER else NoSolution
            raise kind("; ".join(self.reasons))
        whole.keep()
        whole.bound_name += f", least over {len(self.problems)} shapes"
        return whole.result(engine)


def solve_any(
    profile: CostProfile,
    microbatches: int,
    memory_limit: int | Sequence[int] | None = None,
    *,
    engine: str = "auto",
    time_limit: float = 60.0,
    objective: str = "flush",
    gap: float = 0.0,
    warm_start: str | None = None,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    watch: Callable[[Race], None] | None = None,
    on_wait: Callable[[], None] = nobody,
    evaluations: int | None = None,
    solver: str = "highs",
    force: bool = False,
    save: str | os.PathLike[str] | None = None,
    **options: Any,
) -> SolveResult:
    """`solve` over several numbers of chunks and placements; never worse than a published schedule
    that fits, as long as half of the time is enough to build them.

    AdaOffload and the published schedules are tried on every candidate shape, then the shapes
    are solved in the order of what that gave, as long as their bound leaves hope, each for half
    of the time left. The lower bound is one for all of them: the least of theirs.

    Args: as for `solve`; the arguments not named here are handed on. `warm_start` can only be
        ``none``: with it the engines start from nothing, not from the best published schedule.
        `watch` is called with a race that stands for those of all shapes. `evaluations` do not
        count here: the shapes share the time.

    Raises:
        OutOfMemory, NoSolution: where no shape has a schedule; for the shape that needs least.
        OptPipeError: for settings that make no sense.
    """
    check_settings(engine, time_limit, gap, evaluations, solver, force)
    if engine == "milp":
        from .milp_solvers import require_solver

        require_solver(solver)
    if evaluations is not None:
        raise OptPipeError("evaluations: not over several shapes, which share the time")
    if warm_start not in (None, "none"):
        raise OptPipeError("warm start: a schedule is of one shape; expected 'none' for any shape")
    problems, reasons = _problems(profile, microbatches, memory_limit, objective)
    if not problems:
        raise min(reasons, key=lambda reason: reason[0])[1]
    for problem in problems:
        compile_engines(problem, on_wait)
    whole = Race(problems[0], gap, save=save, on_incumbent=on_incumbent, watch=watch)
    common = _Common(problems, whole)
    try:
        for at in range(len(problems)):
            if whole.best is not None and whole.seconds > QUICK_SHARE * time_limit:
                break
            common.quick(at, QUICK_SHARE * time_limit)
        order = sorted(range(len(problems)), key=lambda at: common.costs[at])
        for place, at in enumerate(order):
            left = time_limit - whole.seconds
            if left <= 0 or whole.interrupted or common.hopeless(at):
                continue
            hopeful = any(not common.hopeless(later) for later in order[place + 1 :])
            try:
                found = solve(
                    problems[at].profile,
                    microbatches,
                    memory_limit,
                    engine,
                    time_limit=left / 2 if hopeful else left,
                    objective=objective,
                    gap=gap,
                    warm_start=warm_start or common.starts[at],
                    watch=common.watcher(at),
                    solver=solver,
                    force=force,
                    **options,
                )
            except OptPipeError as error:  # a MILP too large for one shape may do for another
                common.without(at, error)
            else:
                common.solved(at, found)
    except KeyboardInterrupt:
        whole.interrupted = True
        if whole.best is None:
            raise
    return common.result(engine)


def door_for(
    profile: CostProfile, chunks: int | str, placement: str | None
) -> tuple[Callable[..., SolveResult], CostProfile]:
    """Who solves for chunks as they are asked for, and with which profile.

    Args:
        chunks: ``own`` (as the profile has them), a number, or ``any`` (`solve_any`).
        placement: ``loop`` or ``vee``; None: the profile's own, ``loop`` where chunks are given.

    Raises:
        OptPipeError: for any chunks with a placement, which would not count.
    """
    if chunks == "any":
        if placement is not None:
            raise OptPipeError(
                f"placement: any chunks have placements of their own, not {placement}"
            )
        return solve_any, profile
    if isinstance(chunks, int) or placement is not None:
        count = chunks if isinstance(chunks, int) else profile.chunks
        profile = profile.rechunk(count, placement or "loop")
    return solve, profile
