"""The times of an evaluated plan, op by op, and the log that reverts them.

`evaluate` says what holds for them before and after an update. All times ns, all memory bytes, int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import KINDS, B, F, O
from ...compiled import entry, packed, step
from ...ops import INPUTS
from .plans import Plan

NEVER = 2**61  # ns
FAILED = -1  # in place of a sum of ends
# The state of a device before an op, a row of `Times.before`: its compute stream is free from FREE on, its last
# compute op, ANCHOR_OP, began at ANCHOR and releases GIVE bytes at its end; LEVEL bytes above the limit are in use,
# the last grant was at GRANTED, GIVEN is the last O whose memory was reused (or -1); its copy engines are free from
# OUT and BACK on, after OUT_OP and BACK_OP. With serial links: from SENT + device on it can send to that device.
FREE, GRANTED, ANCHOR, ANCHOR_OP, OUT, BACK, OUT_OP, BACK_OP, LEVEL, GIVEN, GIVE = range(11)
SENT = ROW = 11
# What follows an op on its device: the time from the start of the next compute op, of the next
# transfers and of the next R's before a compute op to the makespan.
FOLLOWING, LATER_OUT, LATER_BACK, ASKED = range(4)
AFTER = 4
UNKNOWN = -(2**61)  # a tail
WIDE = -2  # see `Times.asker`
TRIAL, LOGGED = range(2)
LOGS = 5  # values of each op in the log, before its row


@packed
class Times(NamedTuple):
    """The evaluated values of each code (first axis) in a plan, and the working arrays."""

    end: np.ndarray  # ns; -1: not yet, or not in the plan
    ready: np.ndarray  # when its message arrives, ns
    cause: np.ndarray  # the op whose end (or start) decided its start, or -1
    slot: np.ndarray  # its slot in the program of its device, or -1
    before: np.ndarray  # (codes, row) the state of its device before it
    taker: np.ndarray  # of an O: the op that reused its memory
    # of an R: WIDE if it depends on O's whose memory it does not reuse; of an O: that R, WIDE for several
    asker: np.ndarray
    tail: np.ndarray  # least time from its end to the makespan, ns; see `tails`
    after: np.ndarray  # (codes, AFTER)
    stale: np.ndarray  # the trial in which it must be evaluated
    logged: np.ndarray  # the trial in which it was logged
    log: np.ndarray
    kept: np.ndarray  # (codes, LOGS + row) the logged values
    tally: np.ndarray  # the trial, and the number of entries logged in it
    state: np.ndarray  # (devices, row) of the device under evaluation
    wake: np.ndarray  # (devices,) the first slot to evaluate, or -1
    key: np.ndarray  # (devices,) when the device is free before that slot, ns
    pending: np.ndarray  # (devices,) number of stale ops
    changed: np.ndarray  # (devices, 2) the first and the last changed slot, or -1
    touched: np.ndarray  # (units, 2) where a move changed `Plan.mode`, and what stood there before
    filled: np.ndarray  # (1,) the number of these
    turns: np.ndarray  # (5, units) of microbatches that overtake one another; see `passing`


def make_times(codes: int, units: int, devices: int, serial: bool) -> Times:
    """Make the arrays for these numbers of codes, units and devices."""

    def ints(*size: int) -> np.ndarray:
        return np.zeros(size, np.int64)

    row = ROW + devices * serial
    return Times(
        end=ints(codes) - 1,
        ready=ints(codes),
        cause=ints(codes) - 1,
        slot=ints(codes) - 1,
        before=ints(codes, row),
        taker=ints(codes) - 1,
        asker=ints(codes) - 1,
        tail=ints(codes),
        after=ints(codes, AFTER),
        stale=ints(codes),
        logged=ints(codes),
        log=ints(codes),
        kept=ints(codes, LOGS + row),
        tally=ints(2),
        state=ints(devices, row),
        wake=ints(devices),
        key=ints(devices),
        pending=ints(devices),
        changed=ints(devices, 2) - 1,
        touched=ints(4 * units, 2),
        filled=ints(1),
        turns=ints(5, units),
    )


@step
def column(unit, plan, costs):
    """Return the column of a unit's costs; for copies the one of those that leave keys and values behind."""
    return plan.mode[unit] + costs.first[unit & ((1 << costs.low) - 1)]


@step
def copied(unit, plan, costs, t):
    """Return the column of a unit's copies: these take keys and values along if the O stands behind the F
    of the last slice."""
    how = column(unit, plan, costs)
    if costs.late > 0 and t.slot[unit | O << costs.high] > t.slot[last_forward(unit, costs)]:
        how += costs.late
    return how


@step
def last_forward(unit, costs):
    """Return the F of the last slice of the same sequence."""
    micro = unit & ((1 << costs.low) - 1)
    return unit - micro + costs.last[micro]


@step
def joins(unit, plan, costs):
    """Whether a unit joins; see `plans`."""
    return plan.mode[unit | 1 << costs.high] == 1


@step
def partner(code, plan, costs, t):
    """Return the other half of the pair that an F or a B is in, or -1."""
    if costs.pairs is None:
        return -1
    if code >> costs.high not in (F, B) or t.slot[code] < 0:
        return -1
    unit = code & ((1 << costs.high) - 1)
    d = costs.place[unit >> costs.low]
    if code >> costs.high == F:
        at = t.slot[code] + 1
        if not joins(unit, plan, costs) or at == plan.length[d]:
            return -1
        other = plan.prog[d, at]
        return other if other >> costs.high == B and other - (B << costs.high) != unit else -1
    at = t.slot[code] - 1
    if at < 0:
        return -1
    other = plan.prog[d, at]
    return other if other >> costs.high == F and other != unit and joins(other, plan, costs) else -1


@step
def leader(code, plan, costs, t):
    """Return the op that a code waits as: the F of its pair for a backward, else the code itself."""
    if costs.pairs is None:
        return code
    other = partner(code, plan, costs, t) if code >> costs.high == B else -1
    return other if other >= 0 else code


@step
def duration(code, plan, costs, t):
    """Return the duration of an op, ns; of a pair that of its F, while its backward takes no time behind it."""
    kind, unit = code >> costs.high, code & ((1 << costs.high) - 1)
    how = copied(unit, plan, costs, t) if kind >= O else column(unit, plan, costs)
    own = costs.durations[kind, unit >> costs.low, how]
    if costs.pairs is None:
        return own
    other = partner(code, plan, costs, t)
    if other < 0:
        return own
    return _of_pair(unit, other, own, plan, costs) if kind == F else 0


@step
def _of_pair(forward, back, forward_ns, plan, costs):
    """Return the duration of the pair of an F of `forward_ns` and a backward, ns."""
    unit = back & ((1 << costs.high) - 1)
    back_ns = costs.durations[B, unit >> costs.low, column(unit, plan, costs)]
    most = costs.hidden[forward >> costs.low, unit >> costs.low]
    return forward_ns + back_ns - min(most, forward_ns, back_ns)


@step
def next_out(plan, d, begin, end, high):
    """Return the slot of the first O from `begin` on, or -1."""
    for slot in range(begin, end):
        if plan.prog[d, slot] >> high == O:
            return slot
    return -1


@step
def begin(t):
    """Begin a trial: nothing is stale, nothing is logged."""
    t.tally[TRIAL] += 1
    t.tally[LOGGED] = 0
    for d in range(len(t.wake)):
        t.wake[d] = t.changed[d, 0] = t.changed[d, 1] = -1
        t.pending[d] = 0


@step
def log_op(code, t):
    """Log the values of a code, once per trial."""
    if t.logged[code] == t.tally[TRIAL]:
        return
    t.logged[code] = t.tally[TRIAL]
    at = t.tally[LOGGED]
    t.tally[LOGGED] += 1
    t.log[at] = code
    t.kept[at, 0], t.kept[at, 1], t.kept[at, 2] = t.end[code], t.ready[code], t.cause[code]
    t.kept[at, 3], t.kept[at, 4] = t.taker[code], t.asker[code]
    _copy_row(t.kept, at, LOGS, t.before, code, 0)


@step
def undo(t):
    """Revert the times to those before the trial."""
    for at in range(t.tally[LOGGED]):
        code = t.log[at]
        t.end[code], t.ready[code], t.cause[code] = t.kept[at, 0], t.kept[at, 1], t.kept[at, 2]
        t.taker[code], t.asker[code] = t.kept[at, 3], t.kept[at, 4]
        _copy_row(t.before, code, 0, t.kept, at, LOGS)
    t.tally[LOGGED] = 0


@step
def read_row(code, t, s):
    """Read the state of the device before an op into `s`."""
    for which in range(ROW):
        s[which] = t.before[code, which]
    for which in range(ROW, len(s)):
        s[which] = t.before[code, which]


@step
def keep_row(code, t, s):
    """Store `s` as the state of the device before an op."""
    for which in range(ROW):
        t.before[code, which] = s[which]
    for which in range(ROW, len(s)):
        t.before[code, which] = s[which]


@step
def is_row(code, t, s):
    """Whether `s` is the stored state before an op."""
    same = True
    for which in range(ROW):
        same = same and t.before[code, which] == s[which]
    for which in range(ROW, len(s)):
        same = same and t.before[code, which] == s[which]
    return same


@step
def copy_before(code, source, t):
    """Copy the state before one op to before another."""
    _copy_row(t.before, code, 0, t.before, source, 0)


@step
def _copy_row(into, at, begin, source, row, first):
    # a loop of constant length is unrolled
    for which in range(ROW):
        into[at, begin + which] = source[row, first + which]
    for which in range(ROW, into.shape[1] - begin):
        into[at, begin + which] = source[row, first + which]


@step
def invalidate(code, d, after, t):
    """Mark an op of device d as stale if it is behind slot `after`."""
    if code >= 0 and t.slot[code] > after and t.stale[code] != t.tally[TRIAL]:
        t.stale[code] = t.tally[TRIAL]
        t.pending[d] += 1


@step
def invalidate_readers(plan, code, d, after, costs, t):
    """Mark the ops of the same activation that wait for an op in another engine, if they are behind slot `after` of
    device d; for the backward of a pair its F."""
    kind, unit = code >> costs.high, code & ((1 << costs.high) - 1)
    for reader in range(KINDS):
        if INPUTS[reader] == kind:
            invalidate(leader(unit | reader << costs.high, plan, costs, t), d, after, t)


@entry
def fill_slots(plan: Plan, t: Times) -> None:
    """Fill in the slot of each op."""
    for code in range(len(t.slot)):
        t.slot[code] = -1
    for d in range(len(plan.length)):
        for at in range(plan.length[d]):
            t.slot[plan.prog[d, at]] = at


@step
def begin_all(plan, costs, t):
    """Make all ops of a plan stale, and the state of each device that before its first op."""
    t.tally[TRIAL] += 1
    t.filled[0] = 0
    for code in range(len(t.end)):
        t.end[code] = t.ready[code] = t.taker[code] = t.asker[code] = -1
    fill_slots(plan, t)
    for d in range(len(plan.length)):
        t.wake[d] = t.key[d] = 0
        t.pending[d] = plan.length[d]
        for slot in range(plan.length[d]):
            t.stale[plan.prog[d, slot]] = t.tally[TRIAL]
        first = plan.prog[d, 0]
        for which in range(t.before.shape[1]):
            t.before[first, which] = 0
        for which in (ANCHOR_OP, OUT_OP, BACK_OP, GIVEN):
            t.before[first, which] = -1
        t.before[first, LEVEL] = costs.static[d] - costs.limit[d]


@step
def first_device(t):
    """Return the device whose next op begins first, or -1, and when the next op of the second one begins."""
    d, soonest, second = -1, NEVER, NEVER
    for other in range(len(t.wake)):
        if t.wake[other] >= 0:
            if t.key[other] < soonest:
                d, soonest, second = other, t.key[other], soonest
            elif t.key[other] < second:
                second = t.key[other]
    return d, second
