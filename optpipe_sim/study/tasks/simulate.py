"""One schedule on one profile: its measures, or why it does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...errors import InvalidSchedule, NoSolution, OptPipeError, OutOfMemory
from ...names import build
from ...sim import simulate_or_report
from ...trace import Trace
from . import CostProfile, Count, Limit, Row, ScheduleName

VERSION = 1


def run(
    profile: CostProfile,
    microbatches: Count,
    schedule: ScheduleName,
    memory_limit: Limit = None,
    objective: Literal["flush", "span"] = "flush",
) -> Row:
    """Return the measures of the replay. Where the schedule does not fit, ``fits`` is False and they are
    those without the limit; where it cannot be built there are none. ``reason`` says why."""
    profile = replace(profile, memory_limit=profile.limits(memory_limit))
    try:
        built = build(schedule, profile, microbatches)
    except (InvalidSchedule, OutOfMemory, NoSolution) as error:
        return refused(error)
    trace, reason = simulate_or_report(built, profile, objective=objective)
    return {**measures(trace), "reason": reason}


_RARE = ("iteration_interval_ns", "memory_parts", "tokens_per_s", "flops_per_s")


def measures(trace: Trace) -> Row:
    """Return the columns of a replay: `Trace.measures` with a column for each cause of idle time and the
    peak of the fullest device."""
    found = trace.measures()
    idle, peaks = found.pop("idle_ns"), found.pop("peak_bytes")
    # what few profiles and executions know has a column only where they do
    more = {key: value for key in _RARE if (value := found.pop(key)) is not None}
    return {
        "fits": found.pop("fits"),
        **found,
        **more,
        "chunks": trace.schedule.shape.chunks,
        "peak_bytes": peaks and max(peaks),
        "peak_bytes_per_device": peaks,
        **{f"idle_{cause}_ns": ns for cause, ns in idle.items()},
    }


def refused(error: OptPipeError) -> Row:
    """Return the row of what cannot be built under its limit, or at all."""
    return {"fits": False, "reason": str(error)}
