"""Plain problems equivalent to a problem with one level of recomputation per stage.

If all activations of a stage are treated alike, recomputation inside the backward amounts to a
longer backward, smaller activations and a lower limit (less the memory held only while an op runs).
So every method for problems without levels (AdaOffload, waves, the search of plain problems)
finds schedules for such a choice; `realise` converts them to schedules of the problem itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from ...bounds.bounds import naive
from ...errors import OptPipeError
from ...op_table import KEEP, inside
from ...ops import BW, B, O, OpKind, R, W
from ...profile import CostProfile
from ...schedule import Schedule
from ...schedules import ADAOFFLOAD
from ...schedules.adaoffload.adaoffload import adaoffload
from ...stage_cost import StageCost
from ..anneal.offloading import offload_everything
from ..problem import Problem
from ..treatments import named_levels
from .sliced import few_in_flight, one_at_a_time
from .waves import KNOWN, wave_search

IN_FLIGHT = (1.0, 1.5, 2.0)  # shares of 1F1B's activations in flight that have to fit
MOST = 4  # choices of levels to start from


@dataclass(frozen=True)
class Choice:
    """The level of each stage (from 1; 0: kept whole), and whether its backward is one op."""

    levels: tuple[int, ...]
    fused: tuple[bool, ...]


@dataclass(frozen=True)
class Fixed:
    """A choice of levels and its plain problem."""

    choice: Choice
    problem: Problem


class Start(NamedTuple):
    """A schedule of a plain problem, and the same as a schedule of the problem itself."""

    cost_ns: int
    fixed: Fixed
    plain: Schedule
    schedule: Schedule


def first_starts(
    problem: Problem,
    offer: Callable[[Schedule, str], object] = lambda schedule, name: None,
    over: Callable[[], bool] = lambda: False,
    best_ns: Callable[[], float] = lambda: float("inf"),
) -> list[Start]:
    """Find the best schedules of the best few choices of levels, by AdaOffload and simple patterns.
    The published schedules with levels are in `starts.plain_schedules`.

    Args:
        offer: called with each schedule and its name. `over`: called regularly; tells whether to
            stop. `best_ns`: choices of levels whose work alone reaches this cost are skipped.
    """
    found: list[Start] = []
    if problem.shape.slices > 1:
        for name, schedule in chain(one_at_a_time(problem), few_in_flight(problem)):
            offer(schedule, name)
            if over():
                break
        return []

    def take(fixed: Fixed, plain: Schedule, name: str) -> None:
        start = start_of(problem, fixed, plain)
        if start is not None:
            found.append(start)
            offer(start.schedule, name)

    for fixed in choices(problem):
        plain = fixed.problem
        if found and naive(plain.profile, plain.microbatches) >= best_ns():
            continue
        with suppress(OptPipeError):
            take(
                fixed,
                adaoffload(
                    plain.profile,
                    plain.microbatches,
                    plain.limits,
                    None,
                    plain.objective,
                    over=over,
                ),
                ADAOFFLOAD,
            )
        if found and over():
            break
        if plain.shape.chunks > 1:
            for schedule in wave_search(plain, over, runs=len(KNOWN), keep=1):
                take(fixed, schedule, "waves")
        if plain.may_offload:
            for depth in (1, 2, plain.shape.stages):
                if found and over():
                    break
                take(fixed, offload_everything(plain, depth), "offload everything")
        if over():
            break
    return _different(found)


def start_of(problem: Problem, fixed: Fixed, plain: Schedule) -> Start | None:
    """Return a schedule of the plain problem as a start; None if it does not fit the problem itself."""
    schedule = realise(problem, fixed.choice, plain)
    try:
        return Start(problem.replay(schedule).cost_ns, fixed, plain, schedule)
    except OptPipeError:
        return None


def _different(found: list[Start]) -> list[Start]:
    """Return the best start of each of several choices of levels, the best first."""
    chosen: list[Start] = []
    for entry in sorted(found, key=lambda entry: entry.cost_ns):
        if len(chosen) < MOST and all(entry.fixed.choice != other.fixed.choice for other in chosen):
            chosen.append(entry)
    return chosen


def choices(problem: Problem) -> Iterator[Fixed]:
    """Yield the plain problems worth trying: all stages at one level; then, per device, the
    cheapest levels that leave room for a share of 1F1B's activations. Both with the backward in
    one op and in two."""
    stages = problem.profile.stages
    most = max(len(cost.recompute) for cost in stages)
    seen: set[Choice] = set()
    tables = [
        tuple(min(level, len(cost.recompute)) for cost in stages) for level in range(most + 1)
    ]
    if problem.may_recompute:
        tables += [_cheapest(problem, part) for part in IN_FLIGHT]
    else:
        tables = tables[:1]
    for levels in tables:
        for fuses in (False, True):
            fused = tuple(
                fuses and (level > 0 or _saves(cost))
                for level, cost in zip(levels, stages, strict=True)
            )
            choice = Choice(levels, fused)
            if choice in seen:
                continue
            seen.add(choice)
            plain = plain_problem(problem, choice)
            if plain is not None:
                yield Fixed(choice, plain)


def _saves(cost: StageCost) -> bool:
    """Whether one op is cheaper than B and W."""
    return cost.fused_ns < cost.t_b_ns + cost.t_w_ns


def plain_problem(problem: Problem, choice: Choice) -> Problem | None:
    """Make the plain problem of a choice; None if no schedule of it fits."""
    profile = problem.profile
    stages, transient = [], [0] * profile.devices
    for stage, (cost, level, fused) in enumerate(
        zip(profile.stages, choice.levels, choice.fused, strict=True)
    ):
        plain, extra = _plain_stage(profile, stage, cost, level, fused)
        stages.append(plain)
        device = profile.placement[stage]
        transient[device] = max(transient[device], extra)
    plain_profile = replace(profile, stages=tuple(stages), memory_limit=None, pair_hidden=0)
    if problem.limits is None:
        return replace(problem, profile=plain_profile)
    limits = tuple(limit - extra for limit, extra in zip(problem.limits, transient, strict=True))
    if any(limit < least for limit, least in zip(limits, plain_profile.least_limits, strict=True)):
        return None
    return replace(problem, profile=plain_profile, limits=limits)


def _plain_stage(
    profile: CostProfile, stage: int, cost: StageCost, level: int, fused: bool
) -> tuple[StageCost, int]:
    """Return the costs of a stage at a level (0: none), and the extra bytes that it holds while an
    op runs."""
    treatment = inside(level) if level else KEEP
    durations, takes, gives, _ = (array[:, stage, treatment] for array in profile.op_table)
    held = int(takes[OpKind.F] - gives[OpKind.F])
    w = 0 if fused else int(gives[W])
    act = max(held, w)
    backward = BW if fused else B
    extra = max(int(takes[OpKind.F]), held + int(takes[backward])) - act
    plain = replace(
        cost,
        t_b_ns=int(durations[backward]),
        t_w_ns=0 if fused else cost.t_w_ns,
        t_bw_ns=None,
        act_bytes=act,
        w_bytes=w,
        offload_bytes=int(gives[O]),
        t_offload_ns=None if cost.t_offload_ns is None else int(durations[O]),
        t_reload_ns=None if cost.t_reload_ns is None else int(durations[R]),
        recompute=(),
        overhead_ns=0,
    )
    return plain, max(0, extra)


def _cheapest(problem: Problem, part: float) -> tuple[int, ...]:
    """Choose levels per device greedily, always raising the level that frees the most bytes per
    time, until `part` of the activations that 1F1B holds at once fit."""
    assert problem.limits is not None
    levels = [0] * problem.shape.stages
    for device, limit in enumerate(problem.limits):
        mine = problem.shape.stages_of(device)
        room = limit - problem.profile.static_bytes[device]
        at_once = {
            stage: min(problem.microbatches, max(1.0, part * (len(levels) - stage) / len(mine)))
            for stage in mine
        }
        while _needs(problem, levels, at_once) > room:
            steps = [
                (
                    (_time(problem, stage, level) - _time(problem, stage, levels[stage])) / freed,
                    stage,
                    level,
                )
                for stage in mine
                for level in range(
                    levels[stage] + 1, len(problem.profile.stages[stage].recompute) + 1
                )
                if (
                    freed := at_once[stage]
                    * (_kept(problem, stage, levels[stage]) - _kept(problem, stage, level))
                )
                > 0
            ]
            if not steps:
                break
            _, stage, level = min(steps)
            levels[stage] = level
    return tuple(levels)


def _kept(problem: Problem, stage: int, level: int) -> int:
    cost = problem.profile.stages[stage]
    return cost.recompute[level - 1].keep_bytes if level else cost.act_bytes


def _time(problem: Problem, stage: int, level: int) -> int:
    return problem.profile.stages[stage].recompute[level - 1].t_ns if level else 0


def _needs(problem: Problem, levels: Sequence[int], at_once: Mapping[int, float]) -> float:
    """Return the bytes of `at_once` activations of each stage, and the most extra bytes of one op."""
    profile = problem.profile
    waiting = sum(count * _kept(problem, stage, levels[stage]) for stage, count in at_once.items())
    return waiting + max(
        _plain_stage(profile, stage, profile.stages[stage], levels[stage], False)[1]
        for stage in at_once
    )


def realise(problem: Problem, choice: Choice, schedule: Schedule) -> Schedule:
    """Convert a schedule of a choice's plain problem to one of the problem itself."""
    numbers = np.repeat(np.array(choice.levels)[:, None], problem.microbatches, axis=1)
    levels = named_levels(problem.profile, numbers)
    return schedule.fused(np.array(choice.fused)[schedule.table[:, 1]], recompute=levels)
