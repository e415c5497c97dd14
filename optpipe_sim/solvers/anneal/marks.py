"""What a move makes stale: ops that are elsewhere or gone, ops of other durations, and what depends on
the order of the O's before them."""

from __future__ import annotations

from ...codes import KINDS, B, O, R
from ...compiled import part
from .times import (
    FREE,
    LOGGED,
    NEVER,
    TRIAL,
    WIDE,
    column,
    copy_before,
    invalidate,
    invalidate_readers,
    leader,
    log_op,
    next_out,
    partner,
)


@part
def mark_move(plan, saved, first, last, costs, t):
    """Mark the ops that a move on devices `first` to `last` makes stale; `saved` is the plan before it,
    whose times are in `t`.

    Returns:
        (when the first device begins that has stale ops, `NEVER` if nothing has changed; the sum of ends of the
        compute ops that are gone; the most by which new treatments shorten a path, ns).
    """
    gone, shorter = 0, 0
    # 1. ops that are elsewhere, or gone
    for d in range(first, last + 1):
        if _mark_program(plan, saved, d, costs, t):
            _mark_behind(plan, saved, d, costs, t)
    for at in range(t.tally[LOGGED]):
        if t.slot[t.log[at]] < 0 and t.log[at] >> costs.high < O:
            gone += t.kept[at, 0]
    # 2. ops of units whose treatment has changed
    for which in range(t.filled[0]):
        at, old = t.touched[which, 0], t.touched[which, 1]
        if plan.mode[at] == old:
            continue
        unit = at & ((1 << costs.high) - 1)
        _mark_unit(plan, unit, costs, t)
        stage, now = unit >> costs.low, column(unit, plan, costs)
        if at == unit:
            shorter += max(
                0, costs.work[stage, now - plan.mode[unit] + old] - costs.work[stage, now]
            )
        if costs.pairs is not None:
            mate = partner(unit, plan, costs, t)
            if mate >= 0:
                shorter += costs.hidden[stage, (mate & ((1 << costs.high) - 1)) >> costs.low]
    soonest = NEVER
    for d in range(len(t.wake)):
        if t.wake[d] >= 0:
            soonest = min(soonest, t.key[d])
    return soonest, gone, shorter


@part
def _mark_program(plan, saved, d, costs, t):
    """Mark the ops that a change of the program of device d makes stale; returns whether there is one."""
    high, size, old = costs.high, plan.length[d], saved.length[d]
    # 1. the first and the last slot that differ
    first, least = 0, min(size, old)
    while first < least and plan.prog[d, first] == saved.prog[d, first]:
        first += 1
    if first == size and first == old:
        return False
    first = min(first, least - 1)  # what follows the last op has no state before it
    rest = 0
    while rest < least - first and plan.prog[d, size - 1 - rest] == saved.prog[d, old - 1 - rest]:
        rest += 1
    if (
        costs.pairs is not None
    ):  # an op beside them may have had, or have now, another one to run with
        first, rest = max(0, first - 1), max(0, rest - 1)
    t.changed[d, 0], t.changed[d, 1] = first, max(first, size - rest - 1)
    # 2. all between them are stale, from the state that was before the first of them
    code = plan.prog[d, first]
    log_op(code, t)
    copy_before(code, saved.prog[d, first], t)
    for slot in range(first, t.changed[d, 1] + 1):
        t.stale[plan.prog[d, slot]] = t.tally[TRIAL]
    t.pending[d] = t.changed[d, 1] + 1 - first
    t.wake[d], t.key[d] = first, t.before[code, FREE]
    # 3. so is what waited for an op that is gone
    for slot in range(first, old - rest):
        dropped = saved.prog[d, slot]
        if t.slot[dropped] < 0:
            log_op(dropped, t)
            t.end[dropped] = -1
            invalidate_readers(plan, dropped, d, first, costs, t)
    # 4. if the order of the O's changed, allocations may reuse the memory of another O
    at = was = first
    while True:
        at = next_out(plan, d, at, size - rest, high)
        was = next_out(saved, d, was, old - rest, high)
        if at < 0 and was < 0:
            return True
        if at < 0 or was < 0 or plan.prog[d, at] != saved.prog[d, was]:
            break
        at, was = at + 1, was + 1
    was = first
    while was >= 0 and was < old:
        was = next_out(saved, d, was, old, high)
        if was >= 0:
            invalidate(t.taker[saved.prog[d, was]], d, first, t)
            invalidate(t.asker[saved.prog[d, was]], d, first, t)
            was = was + 1 if was < old - rest else -1  # up to the first one that has kept its place
    return True


@part
def _mark_behind(plan, saved, d, costs, t):
    """Mark what depends on the order of ops between the first and the last changed slot of device d."""
    first, last = t.changed[d, 0], t.changed[d, 1]
    if costs.late > 0:  # the costs of copies depend on where they stand
        for slot in range(first + 1, plan.length[d]):
            invalidate(plan.prog[d, slot], d, first, t)
        t.changed[d, 1] = plan.length[d] - 1
        return
    was = min(saved.length[d] - plan.length[d] + last, saved.length[d] - 1)
    if (
        next_out(plan, d, first, last + 1, costs.high) >= 0
        or next_out(saved, d, first, was + 1, costs.high) >= 0
    ):
        _mark_wide(plan, d, first, costs, t)


@part
def _mark_wide(plan, d, after, costs, t):
    """Mark the R's of device d behind a slot that depend on O's whose memory they do not reuse."""
    for slot in range(after + 1, plan.length[d]):
        code = plan.prog[d, slot]
        if code >> costs.high == R and t.asker[code] == WIDE:
            invalidate(code, d, after, t)


@part
def _mark_unit(plan, unit, costs, t):
    """Mark the ops of a unit, and those that depend on how much its O releases."""
    high, d = costs.high, costs.place[unit >> costs.low]
    for kind in range(KINDS):
        invalidate(unit | kind << high, d, -1, t)
    if costs.pairs is not None:
        invalidate(leader(unit | B << high, plan, costs, t), d, -1, t)
        if t.slot[unit] + 1 < plan.length[d]:
            invalidate(plan.prog[d, t.slot[unit] + 1], d, -1, t)
    if t.wake[d] < 0 or t.slot[unit] < t.wake[d]:
        t.wake[d], t.key[d] = t.slot[unit], t.before[unit, FREE]
    out = unit | O << high
    if t.slot[out] >= 0:
        mark_readers(plan, out, d, t.slot[out], costs, t)
        _mark_wide(plan, d, t.slot[out], costs, t)


@part
def mark_readers(plan, out, d, after, costs, t):
    """Mark the ops of device d behind a slot whose memory is granted at the end of an O."""
    invalidate(t.taker[out], d, after, t)
    invalidate(t.asker[out], d, after, t)
    if t.asker[out] == WIDE:
        _mark_wide(plan, d, max(after, t.slot[out]), costs, t)
