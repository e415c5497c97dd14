"""Recomputation moved out of backwards, to ops C that run where a device would wait.

AdaOffload plans every recomputation inside its backward. A backward often waits for its gradient;
an op C of its own can run meanwhile, or in earlier idle time, but holds the whole activation from
its start on. So a C is used where the idle time and the memory for it exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import Deadlock
from ...op_costs import op_costs
from ...ops import BW, TRANSFERS, B, C, F
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim import simulate
from ...trace import Trace

ROUNDS = 4  # each starts from the idle time that the last one left


def apart_where_faster(
    schedule: Schedule, profile: CostProfile, limits: Sequence[int], objective: str
) -> Schedule:
    """Return the schedule with those recomputations as ops of their own that shorten the iteration
    under the limits; itself if none do.

    Args:
        schedule: recomputes inside backwards; `profile` has its chunks and placement.
        limits: bytes per device, static included.
    """
    best = simulate(schedule, profile, limits, objective=objective)
    for _ in range(ROUNDS):
        found = best
        for far in (True, False):
            tried = _taken_apart(best, limits, far)
            if len(tried) == len(best.schedule):
                continue
            try:
                trace = simulate(tried, profile, limits, objective=objective)
            except Deadlock:
                continue
            found = min(found, trace, key=lambda one: one.cost_ns)
        if found is best:
            break
        best = found
    return best.schedule


class _Program(NamedTuple):
    """A device's program: per op the kind, stage and microbatch (ops, 3); the idle time before it
    (ns, compute ops only); what is held once it has started, and what it allocates, in bytes."""

    table: np.ndarray
    idle_ns: np.ndarray
    held: np.ndarray
    allocated: np.ndarray


def _taken_apart(trace: Trace, limits: Sequence[int], far: bool) -> Schedule:
    """Give a C to each backward for which there are idle time and memory: right before it or, if
    `far`, at an earlier time."""
    schedule = trace.schedule
    tables = []
    for rank, limit in enumerate(limits):
        program = _program(trace, rank)
        tables.append(_with_c(program, trace, limit, far))
    offsets = np.cumsum([0, *map(len, tables)])
    return Schedule.from_table(
        schedule.shape,
        np.concatenate(tables),
        offsets,
        schedule.link_order,
        schedule.meta,
        schedule.levels,
    )


def _program(trace: Trace, rank: int) -> _Program:
    rows = slice(*trace.schedule.offsets[rank : rank + 2])
    costs = op_costs(trace.schedule, trace.profile)
    allocated, released = costs.allocated_bytes[rows], costs.released_bytes[rows]
    held = np.cumsum(allocated - released) + released + trace.profile.static_bytes[rank]
    table = trace.schedule.table[rows]
    idle = np.zeros(len(table), np.int64)
    compute = np.flatnonzero(~trace.schedule.is_transfer[rows])
    starts, ends = trace.start_ns[rows][compute], trace.end_ns[rows][compute]
    idle[compute] = starts - np.concatenate(([0], ends[:-1]))
    return _Program(table, idle, held, allocated.copy())


def _with_c(program: _Program, trace: Trace, limit: int, far: bool) -> np.ndarray:
    """Return the program's table with the C's."""
    names, levels = trace.schedule.levels
    table, idle, held, allocated = program
    done = {(s, j) for kind, s, j in table.tolist() if kind == C}
    last: dict[tuple[int, int], int] = {}  # the F or transfer that an activation's C waits for
    places, ops = [], []
    for at, (kind, s, j) in enumerate(table.tolist()):
        if kind not in (B, BW):
            if kind == F or kind in TRANSFERS:
                last[s, j] = at
            continue
        if not levels[s, j] or (s, j) in done:
            continue
        cost = trace.profile.stages[s]
        level = cost.level(names[levels[s, j] - 1])
        if level is None or level.t_ns == 0:
            continue
        size = cost.act_bytes - level.keep_bytes
        gap, most = at, int(held[at] - allocated[at])
        while most + size <= limit and gap > last[s, j]:
            if idle[gap] > 0 and (not far or idle[gap] >= level.t_ns or gap == at):
                held[gap:at] += size
                held[at] += size - allocated[at]
                allocated[at] = 0
                idle[gap] = max(0, idle[gap] - level.t_ns)
                places.append(gap)
                ops.append((C, s, j))
                break
            if not far:
                break
            gap -= 1
            most = max(most, int(held[gap]))
    if not places:
        return table
    return np.insert(table, places, np.array(ops, table.dtype), axis=0)
