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
    t.tally[TRIAL] += 1
    for code in range(len(t.tail)):
        t.tail[code] = UNKNOWN
    for d in range(len(length)):
        for slot in range(length[d]):
            t.stale[prog[d, slot]] = t.tally[TRIAL]
        t.pending[d] = length[d]
        first, last = prog[d, 0], prog[d, length[d] - 1]
        t.wake[d], t.key[d] = length[d] - 1, t.end[last]
        for which in range(AFTER):
            t.after[last, which] = UNKNOWN
        t.after[last, FOLLOWING] = 0
        if span_counts:
            began = t.end[first] - duration(first, costs)
            t.after[last, FOLLOWING] = -began
    _renew(prog, length, costs, t)


@part
def renew_tails(prog, length, saved, saved_length, costs, t):
    """Bring ``t.tail`` up to date after the changes from `saved` that `times.mark` has marked
    and `times.update` evaluated."""
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
        _wake(prog[d, last], d, t)
        for slot in range(first, last + 1):
            _invalidate(prog[d, slot], d, length[d], t)
        for slot in range(first, was + 1):
            gone = saved[d, slot]
            if t.slot[gone] < 0:
                t.tail[gone] = UNKNOWN
                if gone >> high == O:
                    _invalidate(gone & unit_of, d, length[d], t)
                    _wake(gone & unit_of, d, t)
    place, low = costs.place, costs.low
    for at in range(t.tally[LOGGED]):
        code = t.log[at]
        if code >> high == O and t.kept[at, 3] != t.taker[code]:
            d = place[(code & unit_of) >> low]
            _invalidate(code, d, length[d], t)
            _wake(code, d, t)
    _renew(prog, length, costs, t)


@step
def _invalidate(code, d, before, t):
    """Mark an op of device d as stale if it is ahead of slot `before`."""
    if 0 <= t.slot[code] < before and t.stale[code] != t.tally[TRIAL]:
        t.stale[code] = t.tally[TRIAL]
        t.pending[d] += 1


@step
def _wake(code, d, t):
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
def _is_taken(code, prog, d, t):
    """Whether memory freed by offload O still goes to the same allocation after the order changed."""
    taker = t.taker[code]
    if taker < 0 or t.slot[taker] < 0:
        return False
    last = t.before[prog[d, t.slot[taker] + 1], GIVEN]
    if last < 0 or t.slot[last] < t.slot[code]:
        return False
    first = t.before[taker, GIVEN]
    return first < 0 or t.slot[first] < t.slot[code]


@part
def _renew(prog, length, costs, t):
    """Evaluate the stale ops and everything that changes as a result, the last first."""
    place, low, high = costs.place, costs.low, costs.high
    devices, last_stage = len(length), len(costs.act) - 1
    mask, above = (1 << high) - 1, 1 << low
    trial, after = t.tally[TRIAL], t.after
    while True:
        # 1. the device whose next op ends last, and when that of the second one ends
        d, latest, second = -1, -1, -1
        for other in range(devices):
            if t.wake[other] >= 0:
                if t.key[other] > latest:
                    d, latest, second = other, t.key[other], latest
                elif t.key[other] > second:
                    second = t.key[other]
        if d < 0:
            break
        slot = t.wake[d]
        t.wake[d] = -1
        code = prog[d, slot]
        while True:
            # 2. its ops, from behind the next stale one
            following, asked = after[code, FOLLOWING], after[code, ASKED]
            out, back = after[code, LATER_OUT], after[code, LATER_BACK]
            while True:
                if t.stale[code] == trial:
                    t.stale[code] = 0
                    t.pending[d] -= 1
                kind, unit = code >> high, code & mask
                stage = unit >> low
                lasting = costs.durations[kind, stage]
                old = t.tail[code]
                # 3. the longest path over the ops that wait for this one
                source = -1
                if kind == O:
                    tail = max(out, _from_start(unit | R << high, costs, t))
                    if _is_taken(code, prog, d, t):
                        tail = max(tail, _from_start(t.taker[code], costs, t))
                    out = lasting + tail
                    if tail != old:
                        _invalidate(unit, d, slot, t)
                elif kind == R:
                    tail = _from_start(unit | B << high, costs, t)
                    if costs.shared:
                        tail = max(tail, out)
                        out = lasting + tail
                    else:
                        tail = max(tail, back)
                        back = lasting + tail
                    asked = max(asked, lasting + tail)
                    if tail != old:
                        _invalidate(unit | O << high, d, slot, t)
                else:
                    tail = max(following, asked - lasting)
                    reader = -1
                    if kind == F:
                        tail = max(tail, _from_start(unit | O << high, costs, t))
                        if stage < last_stage:
                            reader, where = unit + above, place[stage + 1]
                        if stage > 0:
                            source, giver = unit - above, place[stage - 1]
                    elif kind == B:
                        if stage > 0:
                            reader, where = code - above, place[stage - 1]
                        if stage < last_stage:
                            source, giver = code + above, place[stage + 1]
                    if reader >= 0 and where != d:
                        tail = max(tail, _from_start(reader, costs, t) + costs.lag)
                    following, asked = lasting + tail, UNKNOWN
                    if kind == B and tail != old:
                        _invalidate(unit | R << high, d, slot, t)
                    if tail != old and source >= 0 and giver != d:
                        _invalidate(source, giver, length[giver], t)
                        _wake(source, giver, t)
                        second = max(second, t.key[giver])
                t.tail[code] = tail
                # 4. the O's whose memory it reuses
                if tail != old and kind in (F, R):
                    given = t.before[code, GIVEN]
                    if given != t.before[prog[d, slot + 1], GIVEN]:
                        at = t.slot[given] if given >= 0 else -1
                        at = next_out(prog, d, at + 1, slot, high)
                        while at >= 0 and t.taker[prog[d, at]] == code:
                            _invalidate(prog[d, at], d, slot, t)
                            at = next_out(prog, d, at + 1, slot, high)
                # 5. continue, unless nothing behind the next op has changed
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
                    _invalidate(code, d, length[d], t)
                    t.wake[d], t.key[d] = slot, t.end[code]
                    break
            if t.wake[d] >= 0 or t.pending[d] == 0:
                break
            while t.stale[code] != trial:
                slot -= 1
                code = prog[d, slot]
