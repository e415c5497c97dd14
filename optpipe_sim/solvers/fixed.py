"""The published schedules, with which solver results are compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..errors import OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedules import REGISTRY, WHOLE, build
from ..sim import simulate
from ..trace import Trace
from .covers import candidate_shapes
from .problem import make_problem
from .variants import grouped_variants

ENOUGH_S = 5.0  # of this process, for building, if all of them are wanted


@dataclass(frozen=True)
class FixedPoint:
    """A published schedule replayed without a limit: its time and its peak memory."""

    schedule: str
    cost_ns: int
    peak_bytes: int


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
    for name in names or (name for name in known if not name.startswith("adaoffload")):
        try:
            built[name] = build(name, profile, microbatches)
        except OptPipeError:
            if names is not None:
                raise
        if names is None and time.process_time() - began > ENOUGH_S:
            break
    return built


def best_fixed(
    built: dict[str, Schedule],
    profile: CostProfile,
    limits: Sequence[int] | None,
    objective: str = "flush",
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


def best_tuned(
    family: str,
    profile: CostProfile,
    microbatches: int,
    limits: Sequence[int] | None,
    objective: str = "flush",
    seconds: float = ENOUGH_S,
) -> tuple[str, Trace] | None:
    """Return the fastest of ``gis`` or ``po`` that fits, with any number of chunks up to one layer per
    stage, any group size and any number of offloaded chunks. Returns its name with these options
    and its replay, or None if nothing that fits is found within `seconds`."""
    until = time.monotonic() + seconds
    problems = []
    for shape in candidate_shapes(profile.with_slices(1)):
        with suppress(OutOfMemory):  # the limit is below what these chunks need
            problems.append(make_problem(shape, microbatches, limits, objective))
    best: tuple[str, Trace] | None = None

    def best_ns() -> float:
        return float("inf") if best is None else best[1].cost_ns

    def over() -> bool:
        return time.monotonic() > until

    for at, name, schedule in grouped_variants(problems, best_ns, over, (family,)):
        trace = problems[at].keeps(schedule)
        if trace is not None and trace.cost_ns < best_ns():
            best = name, trace
    return best


def fixed_points(
    built: dict[str, Schedule], profile: CostProfile, objective: str = "flush"
) -> list[FixedPoint]:
    """Replay each of some schedules without a limit and sort them by peak memory; schedules that
    offload are left out if the profile cannot."""
    free = replace(profile, memory_limit=None)
    points = []
    for name in built:
        one = best_fixed({name: built[name]}, free, None, objective)
        if one is not None:
            points.append(FixedPoint(name, one[1].cost_ns, max(one[1].peak_bytes)))
    return sorted(points, key=lambda point: (point.peak_bytes, point.cost_ns))
