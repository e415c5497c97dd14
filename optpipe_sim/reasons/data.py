"""Reasons as plain data: the content of `explain` for programs. Times in ns."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops import Op
from ..trace import Trace
from .explain import Gap, gaps, path_parts
from .hints import diagnoses, hints
from .reasons import Reasons, critical_path

MOST_GAPS = 100  # number of listed gaps; the sums by cause include all of them


def explain_data(trace: Trace, most_gaps: int = MOST_GAPS) -> dict[str, Any]:
    """Break down the time of an iteration.

    Returns:
        `iteration_ns` with its interval, `makespan_ns` (of its pipeline), both bubble rates; `devices`: per device
        `busy_ns`, `idle_ns` by cause, `recompute_ns`; `gaps`: the longest, each with its cause, the op
        that waits and the one it waits for; `critical_path`: its `steps`, and its `parts_ns`, which add
        up to the makespan;
        `imbalance`, `bubble`: the two parts of idle time, as shares; `hints`: alternatives that
        were replayed, the largest gain first; `diagnoses`: likewise, if messages, copies or memory cost less.
    """
    devices = range(trace.schedule.shape.devices)
    found, interval = gaps(trace), trace.iteration_interval_ns
    return {
        "iteration_ns": trace.iteration_ns,
        "iteration_interval_ns": interval and list(interval),
        "makespan_ns": trace.makespan_ns,
        "bubble_rate": trace.bubble_rate,
        "bubble_rate_flush": trace.bubble_rate_flush,
        "busiest_device": int(np.argmax(trace.busy_ns)),
        "devices": [
            {
                "busy_ns": int(trace.busy_ns[device]),
                "recompute_ns": int(trace.recompute_ns[device]),
                "idle_ns": {key: int(ns) for key, ns in trace.idle_by_device_ns[device].items()},
            }
            for device in devices
        ],
        "gaps": [_gap(gap) for gap in found[:most_gaps]],
        "gaps_in_all": len(found),
        "critical_path": {
            "parts_ns": {part: int(time) for part, time in path_parts(trace).items()},
            "steps": [
                {
                    "op": str(step.op),
                    "device": int(step.device),
                    "start_ns": int(step.start_ns),
                    "until_ns": int(step.until_ns),
                    "cause": step.cause,
                    "by": _name(step.by),
                    "lag_ns": int(step.lag_ns),
                }
                for step in critical_path(trace)
            ],
        },
        "imbalance": trace.imbalance,
        "bubble": trace.bubble,
        "hints": [hint.to_json() for hint in hints(trace)],
        "diagnoses": [hint.to_json() for hint in diagnoses(trace)],
    }


def why_data(trace: Trace, op: Op) -> dict[str, Any]:
    """Return everything that kept `op` from starting earlier, the last to end first (see
    `reasons.Reason`).

    Raises:
        OptPipeError: if the op is not in the schedule.
    """
    trace.schedule.require(op)
    reasons = Reasons(trace)
    return {
        "op": str(op),
        "device": int(reasons.device[op]),
        "start_ns": int(reasons.start[op]),
        "end_ns": int(reasons.end[op]),
        "reasons": [
            {
                "cause": reason.cause,
                "by": _name(reason.by),
                "by_device": None if reason.by is None else int(reasons.device[reason.by]),
                "until_ns": int(reason.until_ns),
                "lag_ns": int(reason.lag_ns),
            }
            for reason in reasons.of_start(op)
        ],
    }


def _gap(gap: Gap) -> dict[str, Any]:
    return {
        "device": int(gap.device),
        "start_ns": int(gap.start_ns),
        "end_ns": int(gap.end_ns),
        "cause": gap.cause,
        "op": _name(gap.op),
        "by": _name(gap.by),
        "text": gap.text,
    }


def _name(op: Op | None) -> str | None:
    return None if op is None else str(op)
