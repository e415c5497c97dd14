"""Evaluate a plan: all of its ops, or only those that a move affects.

Every wait points backwards in a program and an R counts on releases before it only, so the times are those of the
lowered program; the replay of the same schedule is never later. All times ns, all memory bytes, int64.

Invariants (`Times` has the arrays; tests/solvers/anneal/test_incremental.py checks these after random moves):

1. *What decides an op.* Its end follows from its row, ``before[code]``, which is the state of its device
   as the op comes up; from its costs (`column`, for copies `copied`); and from ends: those of its F, O
   and R, of the op whose message it gets (``ready[source]`` is when that arrives), and of the O's behind
   GIVEN of its row whose bytes it needs, in the order in which they stand. ``cause`` is the op whose
   end, start or message it begins with. Of a pair (`times.partner`) the F waits for all that either half
   waits for, and is granted and releases the bytes of both; the backward ends with it, and its message
   leaves once the F's has been sent.
2. *Rows.* The row of the first op of a device is fixed, that of any other is what the op before it in the program
   leaves. An op with the same row, costs and ends as before has the same end and leaves the same row.
3. *Stale.* ``stale[code] == tally[TRIAL]`` if an op has to be evaluated again. Any code that changes
   what 1. names marks the op: `mark_move` for what a move did, `invalidate` for each end or message that
   comes out otherwise; for the backward of a pair its F (`times.leader`). ``pending[d]`` counts the
   stale ops of a device; ``wake[d]`` is the slot it goes on from (-1: it does not), no stale op lies
   before it, and ``key[d]`` is FREE of the row there.
4. *Update.* Given 3., after `update` no op is stale and every op has the end, the row and the ready that
   an evaluation from the beginning gives. It takes the device with the least key, from its wake on, op
   by op, until a row comes out as it was and no op behind it is stale; a device that runs more than
   `ahead` in front of the next one waits. An op may thus be evaluated on inputs that change later: then
   it is marked, and evaluated again. Work is done where something differs, and only the sum of ends,
   never the makespan, is kept up to date on the way.
5. *Who reuses which bytes.* Memory goes out in program order, from the releases of compute ops (in
   LEVEL) and of O's. The O's of a device are used up in program order: those up to GIVEN are taken. An
   op that needs more takes the next ones, moves GIVEN on, and notes itself as their ``taker``; `untake`
   clears the note where it needs fewer than before. An R that only waited for an O, or might have taken
   it, is its ``asker`` (WIDE: it is one of several, or looked further than its notes say; then all such
   R's behind are marked). When an O ends otherwise, or is moved, its taker and asker are marked. Notes
   may name ops that have stopped using them: that costs time, not truth.
6. *Giving up.* Behind the changed slots ``end + tail + weight * (sum of ends) > most`` ends an update.
   Tails are those before the move, so this may reject a plan that scores less, where the longest path
   leads through the move again, but never accepts one: what is left to the end is scored by its own
   times. `update` also fails where an op would wait for ever. Times are then partly new, and only `undo`
   makes them valid again: all that a trial writes is logged before (`log_op`, once per op).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import B, F, O, R
from ...compiled import compiled, step
from ...ops import INPUTS
from .times import (
    ANCHOR,
    ANCHOR_OP,
    FAILED,
    FREE,
    GIVE,
    GIVEN,
    LEVEL,
    NEVER,
    TRIAL,
    begin_all,
    column,
    duration,
    first_device,
    invalidate,
    invalidate_readers,
    is_row,
    keep_row,
    last_forward,
    log_op,
    partner,
    read_row,
)
from .waits import grant, neighbours, offload, reload, send, untake


class Goal(NamedTuple):
    """When an evaluation gives up; see `update`."""

    most: float
    weight: float
    begun: int


@compiled
def evaluate(plan, costs, t):
    """Evaluate a plan from the beginning, into `t`.

    Returns:
        (makespan, longest span, sum of ends), ``NEVER`` first if the programs deadlock or exceed
        the limit.
    """
    begin_all(plan, costs, t)
    goal = Goal(np.inf, 0.0, 0)
    total = update(plan, costs, t, 0, goal, NEVER, False)
    if total == FAILED:
        return NEVER, NEVER, 0
    makespan, span = longest(plan, costs, t)
    return makespan, span, total


@step
def longest(plan, costs, t):
    """Return (makespan, longest span) of programs that begin and end with compute ops."""
    makespan = span = 0
    for d in range(len(plan.length)):
        first, last = plan.prog[d, 0], t.end[plan.prog[d, plan.length[d] - 1]]
        makespan = max(makespan, last)
        span = max(span, last - t.end[first] + duration(first, plan, costs, t))
    return makespan, span


@step
def update(plan, costs, t, total, goal, ahead, logs):
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
    while True:
        # 1. the device that is furthest behind, and when the next one follows
        d, second = first_device(t)
        if d < 0:
            break
        # 2. those of its ops that may have changed
        total = _run_device(plan, d, second, costs, t, total, goal, ahead, logs)
        if total == FAILED:
            return FAILED
    for d in range(len(t.wake)):
        if t.wake[d] >= 0:
            return FAILED
    return total


@step
def _run_device(plan, d, second, costs, t, total, goal, ahead, logs):
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
        code = plan.prog[d, slot]
        read_row(code, t, s)
        while True:
            if logs:
                log_op(code, t)
            if t.stale[code] == trial:
                t.stale[code] = 0
                t.pending[d] -= 1
            kind, unit = code >> costs.high, code & ((1 << costs.high) - 1)
            how = column(unit, plan, costs)
            # 2. when the op ends, and what this decides
            if kind == O:
                finish, why = offload(plan, code, d, slot, how, costs, t, s)
            elif kind == R:
                finish, why = reload(plan, code, d, slot, costs, t, s, logs)
            else:
                source, where, reader, target = neighbours(code, kind, costs)
                mate = other = there = -1
                if costs.pairs is not None:
                    mate = partner(code, plan, costs, t)
                    if mate >= 0 and kind == B:
                        source = -1  # its F has waited for it
                    elif mate >= 0:
                        other, there, _, _ = neighbours(mate, B, costs)
                if (source >= 0 and t.end[source] < 0) or (other >= 0 and t.end[other] < 0):
                    # not yet
                    t.stale[code] = trial
                    t.pending[d] += 1
                    t.wake[d], t.key[d] = slot, NEVER
                    break
                if source >= 0 and where == d and t.slot[source] > slot:
                    return FAILED
                if other >= 0 and there == d and t.slot[other] > slot:
                    return FAILED
                if kind == B and mate >= 0:
                    finish, why = t.end[mate], mate
                else:
                    finish, why = _compute(
                        plan,
                        code,
                        kind,
                        how,
                        d,
                        slot,
                        source,
                        where,
                        mate,
                        other,
                        there,
                        costs,
                        t,
                        s,
                        logs,
                    )
                if finish == NEVER:
                    return FAILED
                total += finish - max(t.end[code], 0)
                # 3. give up if even the shortest path to the end is too long
                tail = t.tail[code] if slot > t.changed[d, 1] else -goal.begun
                if finish + tail + goal.weight * total > goal.most:
                    return FAILED
                if kind == F and finish != t.end[code]:
                    _mark_offloads(plan, unit, d, slot, costs, t)
                if target >= 0 and target != d:
                    second = send(plan, code, d, s[FREE], reader, target, second, costs, t, s)
                else:
                    t.ready[code] = finish
            if finish == NEVER:
                return FAILED
            t.end[code], t.cause[code] = finish, why
            if costs.asks[kind, unit >> costs.low, how]:
                untake(plan, code, d, slot, s[GIVEN], costs, t, logs)
            # 4. continue, unless the state has not changed or this device is too far ahead
            slot += 1
            if slot == plan.length[d]:
                break
            code = plan.prog[d, slot]
            if t.stale[code] != trial and is_row(code, t, s):
                break
            if logs:
                log_op(code, t)
            keep_row(code, t, s)
            if s[FREE] > second + ahead:
                invalidate(code, d, -1, t)
                t.wake[d], t.key[d] = slot, s[FREE]
                break
        if t.wake[d] >= 0 or t.pending[d] == 0:
            return total
        while t.stale[code] != trial:
            slot += 1
            code = plan.prog[d, slot]


@step
def _compute(plan, code, kind, how, d, slot, source, where, mate, other, there, costs, t, s, logs):
    """Run a compute op, or with `mate` a pair; returns (end, cause), the end ``NEVER`` if its program
    can never go on.

    Args:
        source, where: whose message it waits for, and the device of that; `other`, `there`: the same of `mate`.
        mate: the backward that runs with this F, or -1.
    """
    unit, time, why = code & ((1 << costs.high) - 1), s[FREE], s[ANCHOR_OP]
    stage = unit >> costs.low
    if source >= 0 and where != d and t.ready[source] > time:
        time, why = t.ready[source], source
    takes, takes_ns = costs.takes[kind, stage, how], costs.durations[kind, stage, how]
    gives = costs.gives[kind, stage, how]
    needs = unit  # the unit whose backward or recomputation it runs
    if costs.pairs is not None and mate >= 0:
        needs = mate & ((1 << costs.high) - 1)
        also, behind = column(needs, plan, costs), needs >> costs.low
        takes_ns = duration(code, plan, costs, t)
        takes += costs.takes[B, behind, also]
        gives += costs.gives[B, behind, also]
        if other >= 0 and there != d and t.ready[other] > time:
            time, why = t.ready[other], other
    if (kind == B or needs != unit) and t.end[needs] < 0:
        return NEVER, why
    back = needs | R << costs.high
    if (INPUTS[kind] == R or needs != unit) and t.slot[back] >= 0:
        if t.end[back] < 0:
            return NEVER, why
        if t.end[back] > time:
            time, why = t.end[back], back
    if costs.asks[kind, stage, how]:
        time, why = grant(plan, code, d, slot, takes, time, why, costs, t, s, logs)
        if time == NEVER:
            return NEVER, why
    finish = time + takes_ns
    s[GIVE] = gives
    s[LEVEL] -= s[GIVE]
    s[ANCHOR], s[ANCHOR_OP], s[FREE] = time, code, finish
    return finish, why


@step
def _mark_offloads(plan, unit, d, slot, costs, t):
    """Mark the O's that wait for an F: its own, and those of its sequence if it is the last slice."""
    invalidate_readers(plan, unit, d, slot, costs, t)
    if costs.late > 0 and last_forward(unit, costs) == unit:
        micro = unit & ((1 << costs.low) - 1)
        for earlier in range(1, micro + 1):
            if costs.last[micro - earlier] != micro:
                break
            invalidate(unit - earlier | O << costs.high, d, slot, t)
