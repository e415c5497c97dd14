"""Compiled evaluation of a plan: of all ops, or of those that a move affects.

Every wait points backwards in a program and an R counts on releases before it only, so the times are
those of the lowered program; the replay of the same schedule is never later.

After a move only those ops are evaluated again whose state or inputs have changed, device by device
in the order of time; see `state`.

All times ns, all memory bytes, int64.
"""

from __future__ import annotations

import numpy as np

from ...codes import B, C, F, O, R
from ...compiled import compiled, part, step
from ..anneal.state import (
    ANCHOR,
    ANCHOR_OP,
    FREE,
    GIVEN,
    LEVEL,
    TRIAL,
    Goal,
    begin_all,
    first_device,
    invalidate,
    log_op,
)
from ..anneal.steps import untake
from .state import FAILED, GIVE, NEVER, column, duration, last_forward
from .steps import grant, neighbours, offload, reload, send


@compiled
def evaluate(prog, length, mode, costs, t):
    """Evaluate a plan from the beginning, into `t`.

    Returns:
        (makespan, longest span, sum of ends), ``NEVER`` first if the programs deadlock or exceed
        the limit.
    """
    t.filled[0] = 0
    begin_all(prog, length, costs, t)
    goal = Goal(np.inf, 0.0, 0)
    total = update(prog, length, mode, costs, t, 0, goal, NEVER, False)
    if total == FAILED:
        return NEVER, NEVER, 0
    makespan, span = longest(prog, length, mode, costs, t)
    return makespan, span, total


@part
def last_start(prog, mode, costs, t):
    """Return when the last device begins."""
    last = 0
    for d in range(len(prog)):
        last = max(last, t.end[prog[d, 0]] - duration(prog[d, 0], mode, costs, t))
    return last


@part
def longest(prog, length, mode, costs, t):
    """Return (makespan, longest span) of programs that begin and end with compute ops."""
    makespan = span = 0
    for d in range(len(length)):
        first, last = prog[d, 0], t.end[prog[d, length[d] - 1]]
        makespan = max(makespan, last)
        span = max(span, last - t.end[first] + duration(first, mode, costs, t))
    return makespan, span


@part
def update(prog, length, mode, costs, t, total, goal, ahead, logs):
    """Evaluate the stale ops and everything that changes as a result.

    Args:
        total: the sum of the ends before, without compute ops that are gone.
        goal: give up once a lower bound on the makespan, by `t.tail`, plus ``goal.weight`` times the sum of
            ends exceeds ``goal.most``; this also ends the cycles of programs that deadlock. Its
            ``begun``: when the last device begins if spans count, else 0.
        ahead: how far, in ns, a device may run ahead of the others; its ops whose inputs turn out to
            have changed are evaluated again.
        logs: whether to log changes for `undo`.

    Returns:
        The sum of ends; ``FAILED`` if the programs deadlock, exceed the limit, or the evaluation
        gave up. Then some times are old and some new.
    """
    devices = len(length)
    while True:
        # 1. the device that is furthest behind, and when the next one follows
        d, second = first_device(devices, t)
        if d < 0:
            break
        # 2. those of its ops that may have changed
        total = _run_device(prog, length, mode, d, second, costs, t, total, goal, ahead, logs)
        if total == FAILED:
            return FAILED
    for d in range(devices):
        if t.wake[d] >= 0:
            return FAILED
    return total


@step
def _run_device(prog, length, mode, d, second, costs, t, total, goal, ahead, logs):
    """Evaluate the stale ops of a device, and later ops whose state changes as a result.

    Args:
        second: when the next device begins; it goes on at most `ahead` beyond that.

    Returns:
        As `update`.
    """
    trial, s = t.tally[TRIAL], t.state[d]
    slot = t.wake[d]
    t.wake[d] = -1
    while True:
        # 1. from the state before the next stale op
        code = prog[d, slot]
        for which in range(len(s)):
            s[which] = t.before[code, which]
        while True:
            if logs:
                log_op(code, t)
            if t.stale[code] == trial:
                t.stale[code] = 0
                t.pending[d] -= 1
            kind, unit = code >> costs.high, code & ((1 << costs.high) - 1)
            how = column(unit, mode, costs)
            # 2. when the op ends, and what this decides
            if kind == O:
                finish, why = offload(prog, length, mode, code, d, slot, how, costs, t, s)
            elif kind == R:
                finish, why = reload(prog, mode, code, d, slot, costs, t, s, logs)
            else:
                source, where, reader, target = neighbours(code, kind, costs)
                if source >= 0 and t.end[source] < 0:  # not yet
                    t.stale[code] = trial
                    t.pending[d] += 1
                    t.wake[d], t.key[d] = slot, NEVER
                    break
                if source >= 0 and where == d and t.slot[source] > slot:
                    return FAILED
                finish, why = _compute(
                    prog, mode, code, kind, how, d, slot, source, where, costs, t, s, logs
                )
                if finish == NEVER:
                    return FAILED
                total += finish - max(t.end[code], 0)
                # 3. give up if even the shortest path to the end is too long
                tail = t.tail[code] if slot > t.changed[d, 1] else -goal.begun
                if finish + tail + goal.weight * total > goal.most:
                    return FAILED
                if kind == F and finish != t.end[code]:
                    _mark_offloads(unit, d, slot, costs, t)
                if target >= 0 and target != d:
                    second = send(code, d, finish, reader, target, second, mode, costs, t, s)
                else:
                    t.ready[code] = finish
            if finish == NEVER:
                return FAILED
            t.end[code], t.cause[code] = finish, why
            if costs.asks[kind, unit >> costs.low, how]:
                untake(prog, code, d, slot, s[GIVEN], costs, t, logs)
            # 4. continue, unless the state has not changed or this device is too far ahead
            slot += 1
            if slot == length[d]:
                break
            code = prog[d, slot]
            if t.stale[code] != trial and _is_before(code, s, t):
                break
            if logs:
                log_op(code, t)
            for which in range(len(s)):
                t.before[code, which] = s[which]
            if s[FREE] > second + ahead:
                invalidate(code, d, -1, t)
                t.wake[d], t.key[d] = slot, s[FREE]
                break
        if t.wake[d] >= 0 or t.pending[d] == 0:
            return total
        while t.stale[code] != trial:
            slot += 1
            code = prog[d, slot]


@step
def _is_before(code, s, t):
    """Whether the stored state before an op is this one."""
    same = True
    for which in range(len(s)):
        same = same and t.before[code, which] == s[which]
    return same


@step
def _compute(prog, mode, code, kind, how, d, slot, source, where, costs, t, s, logs):
    """Run a compute op; returns (end, cause), the end ``NEVER`` if its program can never go on."""
    unit, time, why = code & ((1 << costs.high) - 1), s[FREE], s[ANCHOR_OP]
    stage = unit >> costs.low
    if kind == B and t.end[unit] < 0:
        return NEVER, why
    if source >= 0 and where != d and t.ready[source] > time:
        time, why = t.ready[source], source
    back = unit | R << costs.high
    if kind in (B, C) and t.slot[back] >= 0:
        if t.end[back] < 0:
            return NEVER, why
        if t.end[back] > time:
            time, why = t.end[back], back
    if costs.asks[kind, stage, how]:
        size = costs.takes[kind, stage, how]
        time, why = grant(prog, mode, code, d, slot, size, time, why, costs, t, s, logs)
        if time == NEVER:
            return NEVER, why
    finish = time + costs.durations[kind, stage, how]
    s[GIVE] = costs.gives[kind, stage, how]
    s[LEVEL] -= s[GIVE]
    s[ANCHOR], s[ANCHOR_OP], s[FREE] = time, code, finish
    return finish, why


@step
def _mark_offloads(unit, d, slot, costs, t):
    """Mark the O's that wait for an F: its own, and those of its sequence if it is the last slice."""
    invalidate(unit | O << costs.high, d, slot, t)
    if costs.late > 0 and last_forward(unit, costs) == unit:
        micro = unit & ((1 << costs.low) - 1)
        for earlier in range(1, micro + 1):
            if costs.last[micro - earlier] != micro:
                break
            invalidate(unit - earlier | O << costs.high, d, slot, t)
