"""Tails: the least time from the end of each op to the makespan, compiled.

They are known for the programs before a move, so that `times.update` can reject a move after
evaluating only the first few ops behind it. For ops whose longest path to the end leads through the
move they may be too long or too short. Tails are updated incrementally, as the times are: after an
accepted move only those ops are evaluated again behind which something has changed, from the end to
the beginning.
"""

from __future__ import annotations

from ...codes import B, F, O, R
from ...compiled import part, step
from .state import (
    AFTER,
    ASKED,
    FOLLOWING,
    GIVEN,
    LATER_BACK,
    LATER_OUT,
    LOGGED,
    TRIAL,
    UNKNOWN,
    duration,
    next_out,
)


@part
def find_tails(prog, length, costs, t, span_counts):
    """Fill in ``t.tail``: the longest path over the ops that wait for each op, ns. With
    `span_counts` it leads to the longest span instead of the makespan; valid while no device
    begins at another time."""
    begin_tails(prog, length, t)
    if span_counts:
        for d in range(len(length)):
            first, last = prog[d, 0], prog[d, length[d] - 1]
            t.after[last, FOLLOWING] = duration(first, costs) - t.end[first]
    _renew(prog, length, costs, t)


@part
def begin_tails(prog, length, t):
    """Make all ops stale; nothing follows the last one of each device."""
    t.tally[TRIAL] += 1
    for code in range(len(t.tail)):
        t.tail[code] = UNKNOWN
    for d in range(len(length)):
        for slot in range(length[d]):
            t.stale[prog[d, slot]] = t.tally[TRIAL]
        t.pending[d] = length[d]
        last = prog[d, length[d] - 1]
        t.wake[d], t.key[d] = length[d] - 1, t.end[last]
        for which in range(AFTER):
            t.after[last, which] = UNKNOWN
        t.after[last, FOLLOWING] = 0


@part
def renew_tails(prog, length, saved, saved_length, costs, t):
    """Bring ``t.tail`` up to date after the changes from `saved` that `times.mark` has marked
    and `times.update` evaluated."""
    mark_moved(prog, length, saved, saved_length, costs, t)
    mark_regranted(length, costs, t)
    _renew(prog, length, costs, t)


@part
def mark_moved(prog, length, saved, saved_length, costs, t):
    """Begin a trial with the ops as stale that are elsewhere, and those that waited for ops that are gone."""
    high = costs.high
    unit_of = (1 << high) - 1
    t.tally[TRIAL] += 1
    for d in range(len(length)):
        t.wake[d], t.pending[d] = -1, 0
    for d in range(len(length)):
        first, last = t.changed[d, 0], t.changed[d, 1]
        if first < 0:
            continue
        was = saved_length[d] - length[d] + last
        for which in range(AFTER):
            t.after[prog[d, last], which] = t.after[saved[d, was], which]
        wake(prog[d, last], d, t)
        for slot in range(first, last + 1):
            invalidate(prog[d, slot], d, length[d], t)
        for slot in range(first, was + 1):
            dropped = saved[d, slot]
            if t.slot[dropped] < 0:
                t.tail[dropped] = UNKNOWN
                if dropped >> high == O:
                    invalidate(dropped & unit_of, d, length[d], t)
                    wake(dropped & unit_of, d, t)


@part
def mark_regranted(length, costs, t):
    """Mark as stale the O's whose memory goes to another op than before the move."""
    high = costs.high
    unit_of = (1 << high) - 1
    for at in range(t.tally[LOGGED]):
        code = t.log[at]
        if code >> high == O and t.kept[at, 3] != t.taker[code]:
            d = costs.place[(code & unit_of) >> costs.low]
            invalidate(code, d, length[d], t)
            wake(code, d, t)


@step
def invalidate(code, d, before, t):
    """Mark an op of device d as stale if it is ahead of slot `before`."""
    if 0 <= t.slot[code] < before and t.stale[code] != t.tally[TRIAL]:
        t.stale[code] = t.tally[TRIAL]
        t.pending[d] += 1


@step
def wake(code, d, t):
    """Wake the device of an op from this op on, unless an op behind it has woken it already."""
    if t.slot[code] > t.wake[d]:
        t.wake[d], t.key[d] = t.slot[code], t.end[code]


@step
def _from_start(code, costs, t):
    """Return the tail of an op plus its duration; ``UNKNOWN`` if the tail is unknown or the op is absent."""
    if t.slot[code] < 0 or t.tail[code] == UNKNOWN:
        return UNKNOWN
    return t.tail[code] + duration(code, costs)


@step
def is_taken(code, prog, d, size, t):
    """Whether memory freed by offload O still goes to the same op after the order changed."""
    taker = t.taker[code]
    if taker < 0 or t.slot[taker] < 0:
        return False
    behind = t.slot[taker] + 1
    if behind < size:
        last = t.before[prog[d, behind], GIVEN]
        if last < 0 or t.slot[last] < t.slot[code]:
            return False
    first = t.before[taker, GIVEN]
    return first < 0 or t.slot[first] < t.slot[code]


@part
def _renew(prog, length, costs, t):
    """Evaluate the stale ops and everything that changes as a result, the last first."""
    while True:
        # 1. the device whose next op ends last, and when that of the second one ends
        d, second = last_device(len(length), t)
        if d < 0:
            break
        # 2. its stale ops
        _renew_device(prog, length, d, second, costs, t)


@step
def last_device(devices, t):
    """Return the device whose next op ends last, or -1, and when the next op of the second one ends."""
    d, latest, second = -1, -1, -1
    for other in range(devices):
        if t.wake[other] >= 0:
            if t.key[other] > latest:
                d, latest, second = other, t.key[other], latest
            elif t.key[other] > second:
                second = t.key[other]
    return d, second


@step
def _renew_device(prog, length, d, second, costs, t):
    """Evaluate the stale ops of a device, and earlier ops whose tails change as a result, as long as they
    end no sooner than `second`."""
    high, mask = costs.high, (1 << costs.high) - 1
    trial, after = t.tally[TRIAL], t.after
    slot = t.wake[d]
    t.wake[d] = -1
    code = prog[d, slot]
    while True:
        # 1. from behind the next stale op
        following, asked = after[code, FOLLOWING], after[code, ASKED]
        out, back = after[code, LATER_OUT], after[code, LATER_BACK]
        while True:
            if t.stale[code] == trial:
                t.stale[code] = 0
                t.pending[d] -= 1
            # 2. the longest path over the ops that wait for this one
            kind, unit = code >> high, code & mask
            op_ns, old = duration(code, costs), t.tail[code]
            if kind == O:
                tail = max(out, _from_start(unit | R << high, costs, t))
                if is_taken(code, prog, d, length[d], t):
                    tail = max(tail, _from_start(t.taker[code], costs, t))
                out = op_ns + tail
            elif kind == R:
                tail = _from_start(unit | B << high, costs, t)
                if costs.shared:
                    tail = max(tail, out)
                    out = op_ns + tail
                else:
                    tail = max(tail, back)
                    back = op_ns + tail
                asked = max(asked, op_ns + tail)
            else:
                tail = max(following, asked - op_ns)
                tail = max(tail, _from_readers(code, d, costs, t))
                following, asked = op_ns + tail, UNKNOWN
            t.tail[code] = tail
            # 3. the ops that this one waits for
            if tail != old:
                second = max(second, _invalidate_inputs(prog, length, code, d, slot, costs, t))
            # 4. continue, unless nothing behind the next op has changed
            slot -= 1
            if slot < 0:
                break
            code = prog[d, slot]
            if (
                t.stale[code] != trial
                and after[code, FOLLOWING] == following and after[code, ASKED] == asked
                and after[code, LATER_OUT] == out and after[code, LATER_BACK] == back
            ):  # fmt: skip
                break
            after[code, FOLLOWING], after[code, ASKED] = following, asked
            after[code, LATER_OUT], after[code, LATER_BACK] = out, back
            if t.end[code] < second:
                invalidate(code, d, length[d], t)
                t.wake[d], t.key[d] = slot, t.end[code]
                break
        if t.wake[d] >= 0 or t.pending[d] == 0:
            break
        while t.stale[code] != trial:
            slot -= 1
            code = prog[d, slot]


@step
def _from_readers(code, d, costs, t):
    """Return the tail of a compute op of device d over its offload and the op that waits for its message."""
    kind, unit = code >> costs.high, code & ((1 << costs.high) - 1)
    stage, above = unit >> costs.low, 1 << costs.low
    tail = UNKNOWN
    if kind == F:
        tail = _from_start(unit | O << costs.high, costs, t)
        if stage < len(costs.place) - 1 and costs.place[stage + 1] != d:
            tail = max(tail, _from_start(unit + above, costs, t) + costs.lag)
    elif kind == B and stage > 0 and costs.place[stage - 1] != d:
        tail = _from_start(code - above, costs, t) + costs.lag
    return tail


@step
def _invalidate_inputs(prog, length, code, d, slot, costs, t):
    """Mark as stale what an op of device d waits for; returns when the op ends that the device of its
    input continues with, or -1."""
    low, high = costs.low, costs.high
    kind, unit = code >> high, code & ((1 << high) - 1)
    stage, above = unit >> low, 1 << low
    source, giver = -1, d
    # 1. ops of the same activation, and the op whose message it gets
    if kind == O:
        invalidate(unit, d, slot, t)
    elif kind == R:
        invalidate(unit | O << high, d, slot, t)
    elif kind == F:
        if stage > 0:
            source, giver = unit - above, costs.place[stage - 1]
    elif kind == B:
        invalidate(unit | R << high, d, slot, t)
        if stage < len(costs.place) - 1:
            source, giver = code + above, costs.place[stage + 1]
    # 2. the O's whose memory it reuses
    if kind in (F, R):
        mark_reused(prog, code, d, slot, length[d], costs, t)
    # 3. the other device continues from there
    return mark_source(source, giver, d, length, t)


@step
def mark_reused(prog, code, d, slot, size, costs, t):
    """Mark as stale the O's whose memory an op of device d reuses."""
    given = t.before[code, GIVEN]
    if slot + 1 == size or given != t.before[prog[d, slot + 1], GIVEN]:
        at = t.slot[given] if given >= 0 else -1
        at = next_out(prog, d, at + 1, slot, costs.high)
        while at >= 0 and t.taker[prog[d, at]] == code:
            invalidate(prog[d, at], d, slot, t)
            at = next_out(prog, d, at + 1, slot, costs.high)


@step
def mark_source(source, giver, d, length, t):
    """Mark as stale the op whose message an op of device d waits for, if another device sends it; returns when
    the op ends that this device continues with, or -1."""
    if source < 0 or giver == d:
        return -1
    invalidate(source, giver, length[giver], t)
    wake(source, giver, t)
    return t.key[giver]
