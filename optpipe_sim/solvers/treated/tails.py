"""Tails: the least time from the end of each op to the makespan, compiled; see `anneal.tails`.

They are known for the plan before a move, so that `times.update` can reject a move after evaluating only
the first few ops behind it. For ops whose longest path to the end leads through the move they may
be too long or too short.
"""

from __future__ import annotations

from ...codes import B, C, F, O, R, W
from ...compiled import part, step
from ..anneal.state import (
    ASKED,
    FOLLOWING,
    LATER_BACK,
    LATER_OUT,
    TRIAL,
    UNKNOWN,
)
from ..anneal.tails import (
    begin_tails,
    invalidate,
    is_taken,
    last_device,
    mark_moved,
    mark_regranted,
    mark_reused,
    mark_source,
    wake,
)
from .state import column, duration
from .steps import neighbours


@part
def find_tails(prog, length, mode, costs, t, span_counts):
    """Fill in ``t.tail``: the longest path over the ops that wait for each op, ns. With
    `span_counts` it leads to the longest span instead of the makespan; valid while no device
    begins at another time."""
    begin_tails(prog, length, t)
    if span_counts:
        for d in range(len(length)):
            first, last = prog[d, 0], prog[d, length[d] - 1]
            t.after[last, FOLLOWING] = duration(first, mode, costs, t) - t.end[first]
    _renew(prog, length, mode, costs, t)


@part
def renew_tails(prog, length, mode, saved, saved_length, costs, t):
    """Bring ``t.tail`` up to date after a move that `state.mark_move` has marked and `times.update`
    evaluated."""
    high = costs.high
    # 1. ops that are elsewhere
    mark_moved(prog, length, saved, saved_length, costs, t)
    # 2. ops of other durations: what waits for them keeps their tails, but not those of their inputs
    for which in range(t.filled[0]):
        unit = t.touched[which, 0]
        if mode[unit] == t.touched[which, 1]:
            continue
        d = costs.place[unit >> costs.low]
        for kind in (F, O, R, C, B, W):
            code = unit | kind << high
            if t.slot[code] >= 0:
                t.tail[code] = UNKNOWN
                invalidate(code, d, length[d], t)
                wake(code, d, t)
    # 3. O's whose memory goes to another op
    mark_regranted(length, costs, t)
    _renew(prog, length, mode, costs, t)


@part
def _renew(prog, length, mode, costs, t):
    """Evaluate the stale ops and everything that changes as a result, the last first."""
    while True:
        # 1. the device whose next op ends last, and when that of the second one ends
        d, second = last_device(len(length), t)
        if d < 0:
            break
        # 2. its stale ops
        _renew_device(prog, length, mode, d, second, costs, t)


@step
def _from_start(code, mode, costs, t):
    """Return the tail of an op plus its duration; ``UNKNOWN`` if the tail is unknown or the op is absent."""
    if t.slot[code] < 0 or t.tail[code] == UNKNOWN:
        return UNKNOWN
    return t.tail[code] + duration(code, mode, costs, t)


@step
def _renew_device(prog, length, mode, d, second, costs, t):
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
            op_ns, old = duration(code, mode, costs, t), t.tail[code]
            if kind == O:
                tail = max(out, _from_start(unit | R << high, mode, costs, t))
                if is_taken(code, prog, d, length[d], t):
                    tail = max(tail, _from_start(t.taker[code], mode, costs, t))
                out = op_ns + tail
            elif kind == R:
                tail = _from_start(unit | B << high, mode, costs, t)
                tail = max(tail, _from_start(unit | C << high, mode, costs, t))
                if costs.shared:
                    tail = max(tail, out)
                    out = op_ns + tail
                else:
                    tail = max(tail, back)
                    back = op_ns + tail
                asked = max(asked, op_ns + tail)
            else:
                tail = max(asked - op_ns, _from_readers(code, d, mode, costs, t))
                _, _, _, target = neighbours(code, kind, costs)
                busy = costs.sending if target >= 0 and target != d and slot < length[d] - 1 else 0
                tail = max(tail, following + busy)
                following, asked = op_ns + tail, UNKNOWN
            t.tail[code] = tail
            # 3. the ops that this one waits for
            if tail != old:
                second = max(second, _mark_inputs(prog, length, mode, code, d, slot, costs, t))
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
def _from_readers(code, d, mode, costs, t):
    """Return the tail of a compute op of device d over its offload and the op that waits for its message."""
    kind, tail = code >> costs.high, UNKNOWN
    if kind == F:
        tail = _from_start(code | O << costs.high, mode, costs, t)
    _, _, reader, target = neighbours(code, kind, costs)
    if target >= 0 and target != d:
        tail = max(tail, _from_start(reader, mode, costs, t) + costs.lag)
    return tail


@step
def _mark_inputs(prog, length, mode, code, d, slot, costs, t):
    """Mark as stale what an op of device d waits for; returns when the op ends that the device of its
    input continues with, or -1."""
    high = costs.high
    kind, unit = code >> high, code & ((1 << high) - 1)
    # 1. ops of the same activation, and the op whose message it gets
    if kind == O:
        invalidate(unit, d, slot, t)
    elif kind == R:
        invalidate(unit | O << high, d, slot, t)
    elif kind in (B, C):
        invalidate(unit | R << high, d, slot, t)
    source, giver, _, _ = neighbours(code, kind, costs)
    # 2. the O's whose memory it reuses
    if costs.asks[kind, unit >> costs.low, column(unit, mode, costs)]:
        mark_reused(prog, code, d, slot, length[d], costs, t)
    # 3. the other device continues from there
    return mark_source(source, giver, d, length, t)
