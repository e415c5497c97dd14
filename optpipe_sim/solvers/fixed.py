"""The published schedules, with which solver results are compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..errors import OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedules import REGISTRY, WHOLE, build, is_published, parse_name
from ..sim import simulate
from ..trace import Trace
from .axes import candidate_shapes, problems_of
from .options import SolveOptions
from .race.race import Race
from .race.rules import rules_of, run_rules
from .starts.variants import grouped_variants

ENOUGH_S = 5.0  # of this process, for building, if all of them are wanted


@dataclass(frozen=True)
class FixedPoint:
    """A published schedule replayed without a limit: its time and its peak memory."""

    schedule: str
    cost_ns: int
    peak_bytes: int
    iteration_ns: int


def published(
    profile: CostProfile, microbatches: int, names: Sequence[str] | None = None
) -> dict[str, Schedule]:
    """Build the published schedules that the profile admits, on any number of chunks, by name; by
    default as many as there is time for, those over slices if the profile has them, and without
    AdaOffload, which is not a fixed pattern.

    Raises:
        InvalidSchedule: for a given name that is unknown or that the profile does not admit.
    """
    began = time.process_time()
    built: dict[str, Schedule] = {}
    known = WHOLE if profile.slices == 1 else tuple(REGISTRY)
    for name in names or filter(is_published, known):
        try:
            built[name] = build(name, profile, microbatches)
        except OptPipeError:
            if names is not None:
                raise
        if names is None and time.process_time() - began > ENOUGH_S:
            break
    return built


class Best(NamedTuple):
    """The fastest published schedule that fits.

    Attributes:
        name: with its options, as `build` takes it. trace: its replay under the limit.
        untried: the rules for published schedules for which the time was too short.
    """

    name: str
    trace: Trace
    untried: int = 0


def best_rule(
    profile: CostProfile,
    microbatches: int,
    limits: Sequence[int] | None,
    objective: str | None = None,
    *,
    per_stage: bool = False,
    pairs: bool | None = None,
    families: Sequence[str] = (),
    known: Best | None = None,
    seconds: float = ENOUGH_S,
    workers: int = 1,
) -> Best | None:
    """Return the fastest published schedule that fits, with any number of chunks up to one layer per
    stage, any value of its options, and any one level of recomputation: the best rule. None where none
    that fits was found in time.

    AdaOffload is not one, as it plans for the limit. On sliced costs the schedules of whole sequences
    run slice by slice.

    Args:
        limits: bytes per device; None: no limit.
        per_stage: all activations of a stage get the same treatment. `pairs`: see `make_problem`.
        families: only these, out of ``gis, po``; none: all.
        known: a schedule that is known to fit, to be beaten.
        seconds: the time for it. `workers`: processes; with 1 the rules are always tried in the same order.
    """
    began = time.monotonic()
    options = SolveOptions(objective=objective, per_stage=per_stage, pairs=pairs)
    try:
        problems = problems_of(candidate_shapes(profile), microbatches, limits, options)
    except OutOfMemory:  # the limit is below what any of these chunks needs
        return None
    races = [Race(problem) for problem in problems]
    if known is not None:
        for race in races:
            if race.problem.shape == known.trace.schedule.shape:
                race.offer(known.trace.schedule, known.name)

    def over() -> bool:
        return time.monotonic() - began > seconds

    def best_ns() -> int:
        return min((race.cost_ns for race in races), default=0)

    untried = 0
    if families:
        for at, name, schedule in grouped_variants(problems, best_ns, over, families):
            races[at].offer(schedule, name)
    else:
        bounds = [each.lower_bound.ns for each in problems]
        rules = rules_of(problems, bounds, stretched=False, ours=False)
        untried = run_rules(races, rules, over, workers)
    first = min(races, key=lambda race: race.cost_ns, default=None)
    if first is None or first.best is None:
        return None
    trace = first.problem.replay(first.best)
    if (
        "execution" in first.problem.profile.meta
    ):  # rules are issued as what they are, not as a free plan
        free = replace(profile, memory_limit=first.problem.limits)
        trace = simulate(trace.schedule, free, objective=objective)
    return Best(with_chunks(first.engine, first.best), trace, untried)


def with_chunks(name: str, schedule: Schedule) -> str:
    """Return a rule's name with its number of chunks, where that is an option."""
    base, options = parse_name(name)
    if "chunks" not in REGISTRY[base].options or "chunks" in options:
        return name
    first, colon, rest = name.partition(":")
    return f"{first}:chunks={schedule.shape.chunks}{',' * bool(colon)}{rest}"


def best_fixed(
    built: dict[str, Schedule],
    profile: CostProfile,
    limits: Sequence[int] | None,
    objective: str | None = None,
) -> tuple[str, Trace] | None:
    """Return the fastest of some schedules that fits, and its replay; None if none fits."""
    profile = replace(profile, memory_limit=None if limits is None else tuple(limits))
    best: tuple[str, Trace] | None = None
    for name, schedule in built.items():
        try:
            trace = simulate(schedule, profile, objective=objective)
        except OptPipeError:
            continue
        if best is None or trace.cost_ns < best[1].cost_ns:
            best = name, trace
    return best


def fixed_points(
    built: dict[str, Schedule], profile: CostProfile, objective: str | None = None
) -> list[FixedPoint]:
    """Replay each of some schedules without a limit and sort them by peak memory; schedules that
    offload are left out if the profile cannot."""
    free = replace(profile, memory_limit=None)
    points = []
    for name in built:
        one = best_fixed({name: built[name]}, free, None, objective)
        if one is not None:
            trace = one[1]
            points.append(
                FixedPoint(name, trace.cost_ns, max(trace.peak_bytes), trace.iteration_ns)
            )
    return sorted(points, key=lambda point: (point.peak_bytes, point.cost_ns))
