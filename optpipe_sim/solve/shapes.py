"""The best schedule where the number of chunks per device is free as well."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import NoSolution, OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from .auto import ENGINES, solve
from .portfolio import Race
from .problem import Problem, make_problem
from .result import SolveResult, make_result
from .starts import fixed_schedules

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
        race: stands for all of them: the best schedule, the least of their bounds.
        costs, bounds, starts: per shape what is known of it.
        found: the result whose schedule is the best, where a `solve` has handed in one.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        gap: float,
        on_incumbent: Callable[[Schedule, int], None] | None,
        watch: Callable[[Race], None] | None,
        save: str | os.PathLike[str] | None,
    ) -> None:
        self.problems, self.save = problems, save
        self.race = Race(problems[0], gap, on_incumbent=on_incumbent, watch=watch)
        self.costs = [float("inf")] * len(problems)
        self.bounds = [0] * len(problems)
        self.starts: list[Schedule | None] = [None] * len(problems)
        self.shape = 0
        self.found: SolveResult | None = None

    def hopeless(self, at: int) -> bool:
        """Whether nothing that counts can be better in this shape than the best of all."""
        return self.race.cost_ns <= self.bounds[at] * (1 + self.race.gap)

    def watcher(self, at: int) -> Callable[[Race], None]:
        """What watches the race of a shape."""

        def watch(race: Race) -> None:
            if race.best is not None:
                self.offer(at, race.best, race.cost_ns, race.engine)
            self.prove(at, race.bound_ns, race.bound_name)
            self.race.look()

        return watch

    def offer(self, at: int, schedule: Schedule, cost_ns: int, engine: str) -> None:
        """Take the best schedule of a shape."""
        if cost_ns < self.costs[at]:
            self.costs[at], self.starts[at] = cost_ns, schedule
        whole = self.race
        if cost_ns >= whole.cost_ns:
            return
        whole.best, whole.cost_ns, whole.engine, self.shape = schedule, cost_ns, engine, at
        whole.incumbents.append((whole.seconds, cost_ns))
        self.keep(schedule)
        if whole.on_incumbent is not None:
            whole.on_incumbent(schedule, cost_ns)

    def prove(self, at: int, bound_ns: int, name: str) -> None:
        """Take a bound of one shape."""
        self.bounds[at] = max(self.bounds[at], bound_ns)
        least = min(self.bounds)
        if least > self.race.bound_ns:
            self.race.bound_ns, self.race.bound_name = least, name
            self.race.bounds.append((self.race.seconds, least))

    def quick(self, at: int, problem: Problem, until: float) -> None:
        """AdaOffload and the published schedules of a shape, as long as there is time."""
        limits, m = problem.limits, problem.microbatches
        own = Race(problem, watch=self.watcher(at))
        found = solve(
            problem.profile, m, limits, "adaoffload", until, problem.objective, watch=own.watch
        )
        self.take(at, found)
        if found.info["interrupted"]:
            raise KeyboardInterrupt
        for name, schedule in fixed_schedules(problem):
            own.offer(schedule, name)
            if self.race.seconds > until:
                break

    def take(self, at: int, found: SolveResult) -> None:
        """Take the result of a shape: its schedule may have lost what gains nothing."""
        assert found.schedule is not None
        self.offer(at, found.schedule, found.objective_ns, found.info["found_by"])
        self.prove(at, found.lower_bound_ns, found.bound_name)
        self.race.failures |= found.info["failures"]
        if self.shape == at and found.objective_ns <= self.race.cost_ns:
            self.found, self.race.best = found, found.schedule

    def keep(self, schedule: Schedule) -> None:
        if self.save is not None:
            schedule.save(self.save)

    def result(self) -> SolveResult:
        """The best of all, and what bounds all."""
        whole, problem = self.race, self.problems[self.shape]
        assert whole.best is not None
        self.keep(whole.best)
        sizes = {} if self.found is None else {
            "variables": self.found.variables, "constraints": self.found.constraints
        }  # fmt: skip
        return make_result(
            problem,
            whole.engine,
            whole.best,
            whole.bound_ns,
            f"{whole.bound_name}, least over {len(self.problems)} shapes",
            whole.seconds,
            incumbents=tuple(whole.incumbents),
            bounds=tuple(whole.bounds),
            info={
                "found_by": whole.engine,
                "failures": whole.failures,
                "interrupted": whole.interrupted,
            },
            **sizes,
        )


def solve_any(
    profile: CostProfile,
    microbatches: int,
    memory_limit: int | Sequence[int] | None = None,
    *,
    time_limit: float = 60.0,
    objective: str = "flush",
    gap: float = 0.0,
    warm_start: str | None = None,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    watch: Callable[[Race], None] | None = None,
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
        `watch` is called with a race that stands for those of all shapes.

    Raises:
        OutOfMemory, NoSolution: where no shape has a schedule; for the shape that needs least.
    """
    engine = options.get("engine", "auto")
    if engine not in ENGINES:
        raise OptPipeError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    if warm_start not in (None, "none"):
        raise OptPipeError("warm start: a schedule is of one shape; expected 'none' for any shape")
    problems, reasons = _problems(profile, microbatches, memory_limit, objective)
    if not problems:
        raise min(reasons, key=lambda reason: reason[0])[1]
    common = _Common(problems, gap, on_incumbent, watch, save)
    whole = common.race
    try:
        for at, problem in enumerate(problems):
            if whole.best is not None and whole.seconds > QUICK_SHARE * time_limit:
                break
            common.quick(at, problem, QUICK_SHARE * time_limit)
        order = sorted(range(len(problems)), key=lambda at: common.costs[at])
        for place, at in enumerate(order):
            left = time_limit - whole.seconds
            if left <= 0 or common.hopeless(at):
                continue
            found = solve(
                problems[at].profile,
                microbatches,
                memory_limit,
                time_limit=left if place == len(order) - 1 else left / 2,
                objective=objective,
                gap=gap,
                warm_start=warm_start or common.starts[at],
                watch=common.watcher(at),
                **options,
            )
            common.take(at, found)
            if found.info["interrupted"]:
                whole.interrupted = True
                break
    except KeyboardInterrupt:
        whole.interrupted = True
        if whole.best is None:
            raise
    except (OutOfMemory, NoSolution) as error:
        if whole.best is None:
            raise
        whole.failures["shapes"] = str(error)
    return common.result()
