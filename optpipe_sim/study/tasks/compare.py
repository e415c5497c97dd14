"""Many schedules on one profile, a row each."""

from __future__ import annotations

from typing import Literal

from ..compare import compare_all
from . import CostProfile, Count, Limit, Row, ScheduleNames, Seconds
from .simulate import measures

VERSION = 1


def run(
    profile: CostProfile,
    microbatches: Count,
    schedules: ScheduleNames,
    memory_limit: Limit = None,
    objective: Literal["flush", "span"] = "flush",
    time_limit: Seconds = 10.0,
) -> list[Row]:
    """`compare_all` as rows: measures, speedup over 1F1B, gap to the lower bound; those that the
    profile does not admit have ``fits`` False and a reason alone."""
    found = compare_all(profile, microbatches, schedules, memory_limit, objective, time_limit)
    rows: list[Row] = [
        {
            "schedule": row.schedule,
            **measures(row.trace),
            "speedup": row.speedup,
            "baseline_fits": row.baseline.fits,
            "gap": row.gap,
            "lower_bound_ns": row.bound.ns,
            "bound": row.bound.name,
            "reason": row.reason,
        }
        for row in found.rows
    ]
    refused = found.refused.items()
    rows += [{"schedule": name, "fits": False, "reason": why} for name, why in refused]
    return rows
