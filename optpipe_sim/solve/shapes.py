"""The best schedule where the number of chunks per device is free as well."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import NoSolution, OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from .auto import ENGINES, solve
from .portfolio import Race
from .problem import make_problem
from .result import FEASIBLE, OPTIMAL, SolveResult
from .starts import fixed_schedules

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
    save: str | os.PathLike[str] | None = None,
    **options: Any,
) -> SolveResult:
    """`solve` over several numbers of chunks and placements; never worse than a published schedule
    that fits.

    AdaOffload and the published schedules are tried on every candidate shape, then the shapes
    are solved in the order of what that gave, as long as their bound leaves hope, each for half
    of the time left. The lower bound is one for all of them: the least of theirs.

    Args: as for `solve`; the arguments not named here are handed on. `warm_start` can only be
        ``none``: with it the engines start from nothing, not from the best published schedule.

    Raises:
        OutOfMemory, NoSolution: where no shape has a schedule.
    """
    engine = options.get("engine", "auto")
    if engine not in ENGINES:
        raise OptPipeError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    if warm_start not in (None, "none"):
        raise OptPipeError("warm start: a schedule is of one shape; expected 'none' for any shape")
    began = time.monotonic()
    quick: list[tuple[SolveResult, CostProfile]] = []
    reasons: list[OptPipeError] = []
    for shaped in candidate_shapes(profile):
        try:
            problem = make_problem(shaped, microbatches, memory_limit, objective)
            race = Race(problem)
            for name, schedule in fixed_schedules(problem):
                race.offer(schedule, name)
            quick.append(
                (
                    solve(
                        shaped,
                        microbatches,
                        memory_limit,
                        "adaoffload",
                        time_limit,
                        objective,
                        warm_start=race.best,
                    ),
                    shaped,
                )
            )
        except (OutOfMemory, NoSolution) as error:
            reasons.append(error)
    if not quick:
        raise reasons[0]
    quick.sort(key=lambda entry: entry[0].objective_ns)
    best_found = quick[0][0]
    bounds = [found.lower_bound_ns for found, _ in quick]
    incumbents: list[tuple[float, int]] = []
    interrupted = False

    def improved(schedule: Schedule, cost: int) -> None:
        if not incumbents or cost < incumbents[-1][1]:
            incumbents.append((time.monotonic() - began, cost))
            if save is not None:
                schedule.save(save)
            if on_incumbent is not None:
                on_incumbent(schedule, cost)

    assert best_found.schedule is not None  # solve raises without one
    improved(best_found.schedule, best_found.objective_ns)
    for at, (start, shaped) in enumerate(quick):
        left = time_limit - (time.monotonic() - began)
        hopeless = bounds[at] * (1 + gap) >= best_found.objective_ns
        if left <= 0 or interrupted or hopeless:
            continue
        found = solve(
            shaped,
            microbatches,
            memory_limit,
            time_limit=left if at == len(quick) - 1 else left / 2,
            objective=objective,
            gap=gap,
            warm_start=warm_start or start.schedule,
            on_incumbent=improved,
            **options,
        )
        bounds[at] = max(bounds[at], found.lower_bound_ns)
        if found.objective_ns < best_found.objective_ns:
            best_found = found
        interrupted = found.info["interrupted"]
    if save is not None and best_found.schedule is not None:
        best_found.schedule.save(save)  # tidied, where that is possible
    bound = min(bounds)
    return replace(
        best_found,
        status=OPTIMAL if best_found.objective_ns <= bound else FEASIBLE,
        lower_bound_ns=bound,
        bound_name=f"{best_found.bound_name}, least over {len(quick)} shapes",
        seconds=time.monotonic() - began,
        incumbents=tuple(incumbents),
        info={**best_found.info, "interrupted": interrupted},
    )
