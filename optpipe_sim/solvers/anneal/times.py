"""Compiled evaluation of a set of programs: of all ops, or of those that a move affects.

A program is a row of op codes, ``kind << high | stage << low | microbatch``, in issue order, transfers
included, so that every wait points backwards. An R counts on releases before it in the program
only, so the times are those of the lowered program; the replay of the same program under the
ordinary rules is never later.

After a move only those ops are evaluated again whose state or inputs have changed, device by device
in the order of time; see `state`.

Compiled by numba; all times ns, all memory bytes, int64.
"""

from __future__ import annotations

import numpy as np

from ...codes import B, F, O, R
from ...compiled import compiled, part, step
from .linked import evaluate_links
from .links import NEVER as NEVER
from .state import (
    TRIAL,
    Goal,
    Memory,
    Stream,
    begin_all,
    duration,
    first_device,
    invalidate,
    log_op,
)
from .steps import (
    grant_forward,
    grant_reload,
    is_state_before,
    keep_state_before,
    offload,
    released,
    reload,
    send,
    source_of,
    state_before,
    untake,
)

FAILED = -1  # returned instead of a sum of ends


@part
def evaluate(prog, length, costs, t):
    """Compute the times of a set of programs into `t`.

    Args:
        prog, length: (devices, room) codes, and their number per device.
        costs: see `state.Costs`.

    Returns:
        (makespan, longest span, sum of ends), ``NEVER`` first if the programs deadlock or exceed
        the limit.
    """
    begin_all(prog, length, costs, t)
    total = update(prog, length, costs, t, 0, np.inf, 0.0, 0, NEVER, False)
    if total == FAILED:
        return NEVER, NEVER, 0
    makespan, span = longest(prog, length, costs, t)
    return makespan, span, total


@compiled
def measure(prog, length, costs, links, t):
    """Run `evaluate`, or `evaluate_links` if links are shared."""
    if links.number > 0:
        return evaluate_links(prog, length, costs, links, t.end, t.ready, t.cause)
    return evaluate(prog, length, costs, t)


@part
def last_start(prog, costs, t):
    """Return when the last device begins."""
    last = 0
    for d in range(len(prog)):
        code = prog[d, 0]
        last = max(last, t.end[code] - duration(code, costs))
    return last


@part
def longest(prog, length, costs, t):
    """Return (makespan, longest span) of programs that begin and end with compute ops."""
    makespan = span = 0
    for d in range(len(length)):
        first, last = prog[d, 0], t.end[prog[d, length[d] - 1]]
        began = t.end[first] - duration(first, costs)
        makespan = max(makespan, last)
        span = max(span, last - began)
    return makespan, span


@part
def update(prog, length, costs, t, total, most, weight, begun, ahead, logs):
    """Evaluate the stale ops and everything that changes as a result.

    Args:
        total: the sum of all ends before.
        most, weight: give up once a lower bound on the makespan, by `t.tail`, plus `weight` times
            the sum of ends exceeds `most`. This also ends the cycles of programs that deadlock.
        begun: when the last device begins if spans count, else 0.
        ahead: how far, in ns, a device may run ahead of the others. Ops whose inputs turn out to
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
        total = _run_device(
            prog, length, d, second, costs, t, total, Goal(most, weight, begun), ahead, logs
        )
        if total == FAILED:
            return FAILED
    for d in range(devices):
        if t.wake[d] >= 0:
            return FAILED
    return total


@step
def _run_device(prog, length, d, second, costs, t, total, goal, ahead, logs):
    """Evaluate the stale ops of a device, and later ops whose state changes as a result.

    Args:
        second: when the next device begins; it goes on at most `ahead` beyond that.

    Returns:
        As `update`.
    """
    mask, trial = (1 << costs.high) - 1, t.tally[TRIAL]
    slot = t.wake[d]
    t.wake[d] = -1
    while True:
        # 1. from the state before the next stale op
        code = prog[d, slot]
        stream, memory, copies, sends = state_before(code, t)
        while True:
            if logs:
                log_op(code, t)
            if t.stale[code] == trial:
                t.stale[code] = 0
                t.pending[d] -= 1
            kind = code >> costs.high
            # 2. when the op ends, and what this decides
            if kind == O:
                finish, why, copies = offload(code, d, slot, copies, costs, t)
            elif kind == R:
                time, why, memory = grant_reload(
                    prog, code, d, slot, stream, memory, costs, t, logs
                )
                if time == NEVER:
                    return FAILED
                finish, why, copies = reload(code, d, slot, time, why, copies, costs, t)
            else:
                source, where = source_of(code, costs)
                if source >= 0 and t.end[source] < 0:  # not yet
                    t.stale[code] = trial
                    t.pending[d] += 1
                    t.wake[d], t.key[d] = slot, NEVER
                    break
                if source >= 0 and where == d and t.slot[source] > slot:
                    return FAILED
                time, why = stream.free, stream.op
                if source >= 0 and where != d and t.ready[source] > time:
                    time, why = t.ready[source], source
                if kind == F:
                    time, why, memory = grant_forward(
                        prog, code, d, slot, time, why, stream, memory, costs, t, logs
                    )
                    if time == NEVER:
                        return FAILED
                else:
                    back = code & mask | R << costs.high
                    if kind == B and t.slot[back] >= 0 and t.end[back] > time:
                        time, why = t.end[back], back
                    level = memory.level - released(code, costs)
                    memory = Memory(level, memory.granted, memory.given)
                finish = time + costs.durations[kind, (code & mask) >> costs.low]
                stream = Stream(finish, time, code)
                total += finish - max(t.end[code], 0)
                # 3. give up if even the shortest path to the end is too long
                tail = t.tail[code] if slot > t.changed[d, 1] else -goal.begun
                if finish + tail + goal.weight * total > goal.most:
                    return FAILED
                if finish != t.end[code] and kind == F:
                    invalidate(code & mask | O << costs.high, d, slot, t)
                sends, second = send(code, d, finish, second, len(length), sends, costs, t)
            t.end[code], t.cause[code] = finish, why
            if kind in (F, R):
                untake(prog, code, d, slot, memory.given, costs, t, logs)
            # 4. continue, unless the state has not changed or this device is too far ahead
            slot += 1
            if slot == length[d]:
                break
            code = prog[d, slot]
            if t.stale[code] != trial and is_state_before(code, stream, memory, copies, sends, t):
                break
            if logs:
                log_op(code, t)
            keep_state_before(code, stream, memory, copies, sends, t)
            if stream.free > second + ahead:
                invalidate(code, d, -1, t)
                t.wake[d], t.key[d] = slot, stream.free
                break
        if t.wake[d] >= 0 or t.pending[d] == 0:
            return total
        while t.stale[code] != trial:
            slot += 1
            code = prog[d, slot]
