"""Tails: the least time from the end of each op to the makespan, compiled.

They are known for the plan before a move, so that `evaluate.update` can reject a move after evaluating only the
first few ops behind it. For ops whose longest path to the end leads through the move they may be too long or too
short. Tails are updated incrementally, as the times are: after an accepted move only those ops are evaluated again
behind which something has changed, from the end to the beginning.
"""

from __future__ import annotations

from ...codes import KINDS, B, F, O, R
from ...compiled import part
from ...ops import INPUTS
from .times import (
    AFTER,
    ASKED,
    FOLLOWING,
    GIVEN,
    LATER_BACK,
    LATER_OUT,
    LOGGED,
    TRIAL,
    UNKNOWN,
    column,
    duration,
    leader,
    next_out,
    partner,
)
from .waits import neighbours


@part
def begin_tails(plan, costs, t, span_counts):
    """Make all tails stale; `renew_tails` then fills them in. With `span_counts` they lead to the
    longest span instead of the makespan, and are valid while no device begins at another time.

    Returns:
        When the last device begins if spans count, else 0.
    """
    t.tally[TRIAL] += 1
    begun = 0
    for code in range(len(t.tail)):
        t.tail[code] = UNKNOWN
    for d in range(len(plan.length)):
        for slot in range(plan.length[d]):
            t.stale[plan.prog[d, slot]] = t.tally[TRIAL]
        t.pending[d] = plan.length[d]
        first, last = plan.prog[d, 0], plan.prog[d, plan.length[d] - 1]
        t.wake[d], t.key[d] = plan.length[d] - 1, t.end[last]
        for which in range(AFTER):
            t.after[last, which] = UNKNOWN
        t.after[last, FOLLOWING] = 0
        if span_counts:
            begins = t.end[first] - duration(first, plan, costs, t)
            t.after[last, FOLLOWING] = -begins
            begun = max(begun, begins)
    return begun


@part
def mark_tails(plan, saved, costs, t):
    """Mark the tails that a move has changed, which `marks.mark_move` has marked and `evaluate.update`
    evaluated."""
    # 1. ops that are elsewhere
    _mark_moved(plan, saved, costs, t)
    # 2. ops of other durations: what waits for them keeps their tails, but not those of their inputs
    for which in range(t.filled[0]):
        unit = t.touched[which, 0] & ((1 << costs.high) - 1)
        if plan.mode[t.touched[which, 0]] == t.touched[which, 1]:
            continue
        d = costs.place[unit >> costs.low]
        for kind in range(KINDS):
            code = unit | kind << costs.high
            if t.slot[code] >= 0:
                _forget(code, d, plan, t)
        if costs.pairs is not None:
            _forget(leader(unit | B << costs.high, plan, costs, t), d, plan, t)
            if t.slot[unit] + 1 < plan.length[d]:
                _forget(plan.prog[d, t.slot[unit] + 1], d, plan, t)
    # 3. O's whose memory goes to another op
    _mark_regranted(plan, costs, t)


@part
def _forget(code, d, plan, t):
    """Mark an op of device d as stale, and what it waits for whatever its tail comes out as."""
    t.tail[code] = UNKNOWN
    _invalidate(code, d, plan.length[d], t)
    _wake(code, d, t)


@part
def _mark_moved(plan, saved, costs, t):
    """Begin a trial with the ops as stale that are elsewhere, and those that waited for ops that are gone."""
    high = costs.high
    unit_of = (1 << high) - 1
    t.tally[TRIAL] += 1
    for d in range(len(plan.length)):
        t.wake[d], t.pending[d] = -1, 0
    for d in range(len(plan.length)):
        first, last = t.changed[d, 0], t.changed[d, 1]
        if first < 0:
            continue
        was = saved.length[d] - plan.length[d] + last
        for which in range(AFTER):
            t.after[plan.prog[d, last], which] = t.after[saved.prog[d, was], which]
        _wake(plan.prog[d, last], d, t)
        for slot in range(first, last + 1):
            _invalidate(plan.prog[d, slot], d, plan.length[d], t)
            if costs.pairs is not None:  # its inputs may now be those of a pair, or no longer
                t.tail[plan.prog[d, slot]] = UNKNOWN
        for slot in range(first, was + 1):
            dropped = saved.prog[d, slot]
            if t.slot[dropped] < 0:
                t.tail[dropped] = UNKNOWN
                if dropped >> high == O:
                    _invalidate(dropped & unit_of, d, plan.length[d], t)
                    _wake(dropped & unit_of, d, t)


@part
def _mark_regranted(plan, costs, t):
    """Mark as stale the O's whose memory goes to another op than before the move."""
    high = costs.high
    unit_of = (1 << high) - 1
    for at in range(t.tally[LOGGED]):
        code = t.log[at]
        if code >> high == O and t.kept[at, 3] != t.taker[code]:
            d = costs.place[(code & unit_of) >> costs.low]
            _invalidate(code, d, plan.length[d], t)
            _wake(code, d, t)


@part  # inlined it makes the loop too large for the compiler, and a quarter slower
def renew_tails(plan, costs, t):
    """Evaluate the stale tails and all that change as a result, the last first; ``t.tail`` is then the
    longest path over the ops that wait for each op, ns."""
    while True:
        # 1. the device whose next op ends last, and when that of the second one ends
        d, second = _last_device(t)
        if d < 0:
            break
        # 2. its stale ops
        _renew_device(plan, d, second, costs, t)


@part
def _last_device(t):
    """Return the device whose next op ends last, or -1, and when the next op of the second one ends."""
    d, latest, second = -1, -1, -1
    for other in range(len(t.wake)):
        if t.wake[other] >= 0:
            if t.key[other] > latest:
                d, latest, second = other, t.key[other], latest
            elif t.key[other] > second:
                second = t.key[other]
    return d, second


@part
def _renew_device(plan, d, second, costs, t):
    """Evaluate the stale ops of a device, and earlier ops whose tails change as a result, as long as they
    end no sooner than `second`."""
    high, trial, after = costs.high, t.tally[TRIAL], t.after
    slot = t.wake[d]
    t.wake[d] = -1
    code = plan.prog[d, slot]
    while True:
        # 1. from behind the next stale op
        following, asked = after[code, FOLLOWING], after[code, ASKED]
        out, back = after[code, LATER_OUT], after[code, LATER_BACK]
        while True:
            if t.stale[code] == trial:
                t.stale[code] = 0
                t.pending[d] -= 1
            # 2. the longest path over the ops that wait for this one
            kind, op_ns, old = code >> high, duration(code, plan, costs, t), t.tail[code]
            own = _from_own(code, plan, costs, t)
            if kind == O:
                tail = max(out, own)
                if _is_taken(plan, code, d, t):
                    tail = max(tail, _from_start(t.taker[code], plan, costs, t))
                out = op_ns + tail
            elif kind == R:
                if costs.shared:
                    tail = max(own, out)
                    out = op_ns + tail
                else:
                    tail = max(own, back)
                    back = op_ns + tail
                asked = max(asked, op_ns + tail)
            else:
                tail, busy = _message(code, kind, d, plan, costs, t)
                if slot == plan.length[d] - 1:
                    busy = 0
                tail = max(own, tail, following + busy)
                mate = -1
                if costs.pairs is not None:
                    mate = partner(code, plan, costs, t)
                if (
                    mate >= 0 and kind == B
                ):  # its F begins and ends with it; its message waits for the F's
                    following = tail
                    tail += _message(mate, F, d, plan, costs, t)[1]
                else:
                    tail = max(tail, asked - op_ns)
                    following, asked = op_ns + tail, UNKNOWN
            t.tail[code] = tail
            # 3. the ops that this one waits for
            if tail != old:
                second = max(second, _mark_inputs(plan, code, d, slot, costs, t))
            # 4. continue, unless nothing behind the next op has changed
            slot -= 1
            if slot < 0:
                break
            code = plan.prog[d, slot]
            if (
                t.stale[code] != trial
                and after[code, FOLLOWING] == following
                and after[code, ASKED] == asked
                and after[code, LATER_OUT] == out
                and after[code, LATER_BACK] == back
            ):
                break
            after[code, FOLLOWING], after[code, ASKED] = following, asked
            after[code, LATER_OUT], after[code, LATER_BACK] = out, back
            if t.end[code] < second:
                _invalidate(code, d, plan.length[d], t)
                t.wake[d], t.key[d] = slot, t.end[code]
                break
        if t.wake[d] >= 0 or t.pending[d] == 0:
            break
        while t.stale[code] != trial:
            slot -= 1
            code = plan.prog[d, slot]


@part
def _from_start(code, plan, costs, t):
    """Return the tail of an op, or of the pair that it is the backward of, plus its duration;
    ``UNKNOWN`` if the tail is unknown or the op is absent."""
    if costs.pairs is not None:
        code = leader(code, plan, costs, t)
    if t.slot[code] < 0 or t.tail[code] == UNKNOWN:
        return UNKNOWN
    return t.tail[code] + duration(code, plan, costs, t)


@part
def _from_own(code, plan, costs, t):
    """Return the tail of an op over those of its activation that wait for it in another engine."""
    kind, unit, tail = code >> costs.high, code & ((1 << costs.high) - 1), UNKNOWN
    for reader in range(KINDS):
        if INPUTS[reader] == kind:
            tail = max(tail, _from_start(unit | reader << costs.high, plan, costs, t))
    return tail


@part
def _message(code, kind, d, plan, costs, t):
    """Return the tail of a compute op of device d over the op that waits for its message, and how long this keeps
    the device busy, ns."""
    _, _, reader, target = neighbours(code, kind, costs)
    if target < 0 or target == d:
        return UNKNOWN, 0
    return _from_start(reader, plan, costs, t) + costs.lag, costs.sending


@part
def _is_taken(plan, code, d, t):
    """Whether memory freed by offload O still goes to the same op after the order changed."""
    taker = t.taker[code]
    if taker < 0 or t.slot[taker] < 0:
        return False
    behind = t.slot[taker] + 1
    if behind < plan.length[d]:
        last = t.before[plan.prog[d, behind], GIVEN]
        if last < 0 or t.slot[last] < t.slot[code]:
            return False
    first = t.before[taker, GIVEN]
    return first < 0 or t.slot[first] < t.slot[code]


@part
def _mark_inputs(plan, code, d, slot, costs, t):
    """Mark as stale what an op of device d waits for; returns when the op ends that the device of its
    input continues with, or -1."""
    high = costs.high
    kind, unit = code >> high, code & ((1 << high) - 1)
    mate = -1
    if costs.pairs is not None:
        mate = partner(code, plan, costs, t)
        if mate >= 0 and kind == B:
            return -1  # its F waits for it all
    # 1. ops of the same activation, and the op whose message it gets
    if INPUTS[kind] >= 0:
        _invalidate(unit | INPUTS[kind] << high, d, slot, t)
    source, giver, _, _ = neighbours(code, kind, costs)
    # 2. the O's whose memory it reuses
    if costs.asks[kind, unit >> costs.low, column(unit, plan, costs)]:
        _mark_reused(plan, code, d, slot, costs, t)
    # 3. the other device continues from there
    ends = _mark_source(source, giver, d, plan, t)
    if costs.pairs is not None and mate >= 0:
        _invalidate(mate + ((R - B) << high), d, slot, t)
        source, giver, _, _ = neighbours(mate, B, costs)
        ends = max(ends, _mark_source(source, giver, d, plan, t))
    return ends


@part
def _mark_reused(plan, code, d, slot, costs, t):
    """Mark as stale the O's whose memory an op of device d reuses."""
    given = t.before[code, GIVEN]
    if slot + 1 == plan.length[d] or given != t.before[plan.prog[d, slot + 1], GIVEN]:
        at = t.slot[given] if given >= 0 else -1
        at = next_out(plan, d, at + 1, slot, costs.high)
        while at >= 0 and t.taker[plan.prog[d, at]] == code:
            _invalidate(plan.prog[d, at], d, slot, t)
            at = next_out(plan, d, at + 1, slot, costs.high)


@part
def _mark_source(source, giver, d, plan, t):
    """Mark as stale the op whose message an op of device d waits for, if another device sends it; returns when
    the op ends that this device continues with, or -1."""
    if source < 0 or giver == d:
        return -1
    _invalidate(source, giver, plan.length[giver], t)
    _wake(source, giver, t)
    return t.key[giver]


@part
def _invalidate(code, d, before, t):
    """Mark an op of device d as stale if it is ahead of slot `before`."""
    if 0 <= t.slot[code] < before and t.stale[code] != t.tally[TRIAL]:
        t.stale[code] = t.tally[TRIAL]
        t.pending[d] += 1


@part
def _wake(code, d, t):
    """Wake the device of an op from this op on, unless an op behind it has woken it already."""
    if t.slot[code] > t.wake[d]:
        t.wake[d], t.key[d] = t.slot[code], t.end[code]
