"""Time over memory limit: of solved schedules with their bounds, and of published schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ...errors import InvalidSchedule, OptPipeError
from ...names import ENTRIES, build, parse_name
from ...profile import CostProfile as Profile
from ...schedules import PLAIN
from ...sim import simulate
from ...solvers.frontier import frontier
from ...trace import Trace
from . import CostProfile, Count, Row, ScheduleNames, Size, SolveOptions

VERSION = 1


def run(
    profile: CostProfile,
    microbatches: Count,
    limits: list[Size],
    schedules: ScheduleNames | None = None,
    chunks: Count | None = None,
    placement: Literal["loop", "vee"] = "loop",
    cores: Count = 1,
    options: SolveOptions = SolveOptions(time_limit=10.0),  # noqa: B008  (frozen)
) -> list[Row]:
    """Return a family of `schedules`, of which the fastest that fits counts at each limit, or, with
    `chunks`, what `solvers.frontier` finds and proves with so many.

    ``part`` is ``alone`` (a schedule without a limit: what it takes of memory and time), ``family``
    (the fastest under a limit; those that plan for one get it) or ``solved`` (under a limit; without
    a schedule where none exists or none was found). ``least_limit_bytes``: nothing needs less.
    """
    rows: list[Row] = []
    if schedules:
        rows += _family(
            profile,
            microbatches,
            schedules,
            sorted(set(limits)),
            options.objective or profile.objective,
        )
    if chunks is not None:
        settled = replace(
            options, workers=options.workers or cores, chunks=chunks, placement=placement
        )
        curve = frontier(profile, microbatches, limits, schedules=[PLAIN], **vars(settled))
        for point in curve.points:
            row: Row = {
                "part": "solved",
                "limit_bytes": point.limit_bytes,
                "status": point.status,
                "least_limit_bytes": curve.least_limit_bytes,
            }
            if point.result is not None and point.result.trace is not None:
                row |= {
                    **_measures(point.result.trace),
                    "lower_bound_ns": point.result.lower_bound_ns,
                    "bound": point.result.bound_name,
                }
            rows.append(row)
    return rows


def _family(
    profile: Profile,
    microbatches: int,
    names: Sequence[str],
    limits: Sequence[int],
    objective: str,
) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        if not _plans(name):
            trace = _replay(name, profile, microbatches, None, objective)
            assert trace is not None  # without a limit it runs, or its name is refused
            rows.append({"part": "alone", "schedule": name, **_measures(trace)})
    for limit in limits:
        found = {name: _replay(name, profile, microbatches, limit, objective) for name in names}
        fit = {name: trace for name, trace in found.items() if trace is not None}
        row: Row = {"part": "family", "limit_bytes": limit, "schedule": None}
        if fit:
            name = min(fit, key=lambda name: fit[name].cost_ns)
            row |= {"schedule": name, **_measures(fit[name])}
        rows.append(row)
    return rows


def _plans(name: str) -> bool:
    """Whether a schedule is made for a limit."""
    return "limit" in ENTRIES[parse_name(name)[0]].options


def _replay(
    name: str, profile: Profile, microbatches: int, limit: int | None, objective: str
) -> Trace | None:
    """Return the replay under a limit; None where it does not fit.

    Raises:
        InvalidSchedule: for what the profile does not admit.
    """
    limited = replace(profile, memory_limit=None).limits(limit)
    profile = replace(profile, memory_limit=limited)
    options = {"limit": limit} if limit is not None and _plans(name) else {}
    try:
        schedule = build(name, profile, microbatches, **options)
        return simulate(schedule, profile, objective=objective)
    except InvalidSchedule:
        raise
    except OptPipeError:
        return None


def _measures(trace: Trace) -> Row:
    return {
        "cost_ns": trace.cost_ns,
        "peak_bytes": max(trace.peak_bytes),
        "offloaded": trace.offloaded,
        "bubble_rate_flush": trace.bubble_rate_flush,
    }
