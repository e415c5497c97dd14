"""Idle time of the device right before each op, by cause."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..op_costs import edges
from ..ops import R

# the causes of idle time
MEANINGS = {
    "fill": "before a device's first op",
    "neighbour": "for an op of another device",
    "communication": "for a message",
    "reload": "for a reload",
    "memory": "for memory",
    "drain": "after a device's last op",
}
WAITS = ("fill", "neighbour", "communication", "reload", "memory")  # before an op


def waits_before_ops(trace: Any) -> dict[str, np.ndarray]:
    """See `Trace.waits_ns`."""
    size = len(trace.schedule)
    sent, arrived, reloaded, before = (np.zeros(size, np.int64) for _ in range(4))
    messages = trace.messages
    np.maximum.at(sent, messages.consumer, trace.end_ns[messages.producer])
    np.maximum.at(arrived, messages.consumer, messages.arrive_ns)
    waiting, needed = edges(trace.schedule, trace.profile)
    reload = trace.schedule.table[needed, 0] == R
    reloaded[waiting[reload]] = trace.end_ns[needed[reload]]
    waits = {cause: np.zeros(size, np.int64) for cause in WAITS}
    for rows in trace.compute_rows:
        before[rows[1:]] = trace.end_ns[rows[:-1]]
        waits["fill"][rows[0]] = before[rows[0]] = trace.start_ns[rows[0]]
    rows = np.concatenate(trace.compute_rows)
    mark, start = before[rows], trace.start_ns[rows]
    if trace.profile.sending_ns:
        sends = np.zeros(size, np.int64)
        sends[messages.producer] = 1
        sends[:-1] += (sends * trace.schedule.second)[1:]  # of a pair, in the row of its F
        for own in trace.compute_rows:
            free = trace.end_ns[own[:-1]] + sends[own[:-1]] * trace.profile.sending_ns
            waits["communication"][own[1:]] = free - before[own[1:]]
            before[own[1:]] = free
        mark = before[rows]
    for cause, until in (
        ("neighbour", sent[rows]),
        ("communication", arrived[rows]),
        ("reload", reloaded[rows]),
        ("memory", start),
    ):
        reach = np.maximum(mark, np.minimum(until, start))
        waits[cause][rows] += reach - mark
        mark = reach
    return waits
