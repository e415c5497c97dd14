"""The state of an evaluated set of programs, op by op, and its incremental update.

The timing of an op follows from the state of its device before it and from the ends of a few ops on
other devices. Both are stored for every op. A change of the programs is a *trial*: `mark` marks the
ops that it makes stale, `times.update` evaluates them and everything that changes as a result, and
`undo` reverts it.

Compiled by numba; see `times` for the encoding of programs. All times ns, all memory bytes, int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import B, C, O, R
from ...compiled import compiled, part, step
from .links import NEVER

# The state of a device as a row of `Times.before`; see `Stream`, `Memory`, `Copies` and `Sends`.
FREE, GRANTED, ANCHOR, ANCHOR_OP, OUT, BACK, OUT_OP, BACK_OP, LEVEL, GIVEN, NEXT, OTHER = range(12)
STATE = 12
# What follows an op on its device: the time from the start of the next compute op, of the next
# transfers and of the next R's before a compute op to the makespan.
FOLLOWING, LATER_OUT, LATER_BACK, ASKED = range(4)
AFTER = 4
UNKNOWN = -(2**61)
TRIAL, LOGGED = range(2)


class Costs(NamedTuple):
    """The costs of a problem for the compiled code; times ns, memory bytes, int64."""

    durations: np.ndarray  # (kinds, stages)
    act: np.ndarray  # (stages,) from F to B
    held: np.ndarray  # (stages,) the part of it still held from B to W
    moved: np.ndarray  # (stages,) what an O releases and an R allocates
    place: np.ndarray  # (stages,) the device of each stage
    limit: np.ndarray  # (devices,)
    static: np.ndarray  # (devices,)
    lag: int  # from the end of an op until its message arrives
    occupancy: int  # of serial links
    serial: bool
    shared: bool  # one copy engine for both directions
    microbatches: int
    low: int  # bit at which the stage begins in a code
    high: int  # bit at which the kind begins


class Stream(NamedTuple):
    """The compute stream of a device, before an op."""

    free: int  # when its last compute op ended, ns
    anchor: int  # when that op began, ns
    op: int  # which op it was


class Memory(NamedTuple):
    """The memory of a device, before an op."""

    level: int  # bytes above the limit
    granted: int  # when it was last granted, ns
    given: int  # the last O whose memory was reused, or -1


class Copies(NamedTuple):
    """The copy engines of a device, before an op: when offloads and reloads end, and the last of each."""

    out: int
    out_op: int
    back: int
    back_op: int


class Sends(NamedTuple):
    """When the links of a device are free: to the next device, and to the other one."""

    next: int
    other: int


class Goal(NamedTuple):
    """The limits at which an evaluation gives up; see `times.update`."""

    most: float
    weight: float
    begun: int


class Times(NamedTuple):
    """The evaluated values of each code (first axis) in a set of programs, and the working arrays."""

    end: np.ndarray  # ns
    ready: np.ndarray  # when its message arrives, ns
    cause: np.ndarray  # the op whose end (or start) decided its start, or -1
    slot: np.ndarray  # its slot in the program of its device, or -1
    before: np.ndarray  # (codes, STATE)
    taker: np.ndarray  # of an O: the F or R that reused its memory
    asker: np.ndarray  # of an O: the last R that depends on its end
    tail: np.ndarray  # least time from its end to the makespan, ns; see `tails`
    after: np.ndarray  # (codes, AFTER)
    stale: np.ndarray  # the trial in which it must be evaluated
    logged: np.ndarray  # the trial in which it was logged
    log: np.ndarray
    kept: np.ndarray  # (codes, 5 + STATE) the logged values
    tally: np.ndarray  # the trial, and the number of entries logged in it
    wake: np.ndarray  # (devices,) the first slot to evaluate, or -1
    key: np.ndarray  # (devices,) when the device is free before that slot, ns
    pending: np.ndarray  # (devices,) number of stale ops
    changed: np.ndarray  # (devices, 2) the first and the last changed slot, or -1


def make_times(codes: int, devices: int) -> Times:
    """Make the arrays for `codes` codes."""

    def ints(*size: int) -> np.ndarray:
        return np.zeros(size, np.int64)

    return Times(
        end=ints(codes), ready=ints(codes), cause=ints(codes), slot=ints(codes),
        before=ints(codes, STATE), taker=ints(codes), asker=ints(codes),
        tail=ints(codes), after=ints(codes, AFTER),
        stale=ints(codes), logged=ints(codes), log=ints(codes), kept=ints(codes, 5 + STATE), tally=ints(2),
        wake=ints(devices), key=ints(devices), pending=ints(devices), changed=ints(devices, 2) - 1,
    )  # fmt: skip


@step
def duration(code, costs):
    """Return the duration of an op, ns."""
    return costs.durations[code >> costs.high, (code & ((1 << costs.high) - 1)) >> costs.low]


@compiled
def fill_slots(prog, length, slot):
    """Fill in the slot of each op."""
    for code in range(len(slot)):
        slot[code] = -1
    for d in range(len(length)):
        for at in range(length[d]):
            slot[prog[d, at]] = at


@step
def begin(t):
    """Begin a trial: nothing is stale, nothing is logged."""
    t.tally[TRIAL] += 1
    t.tally[LOGGED] = 0
    for d in range(len(t.wake)):
        t.wake[d] = t.changed[d, 0] = t.changed[d, 1] = -1
        t.pending[d] = 0


@part
def mark(prog, length, saved, saved_length, d, t, high):
    """Mark the ops that a change of the program of device d makes stale; returns whether it differs
    from the `saved` program, whose times are in `t`."""
    size, old = length[d], saved_length[d]
    first, least = 0, min(size, old)
    while first < least and prog[d, first] == saved[d, first]:
        first += 1
    if first == size and first == old:
        return False
    first = min(first, least - 1)  # what follows the last op has no state before it
    rest = 0
    while rest < least - first and prog[d, size - 1 - rest] == saved[d, old - 1 - rest]:
        rest += 1
    t.changed[d, 0], t.changed[d, 1] = first, max(first, size - rest - 1)
    code = prog[d, first]
    log_op(code, t)
    for which in range(t.before.shape[1]):
        t.before[code, which] = t.before[saved[d, first], which]
    for slot in range(first, t.changed[d, 1] + 1):
        t.stale[prog[d, slot]] = t.tally[TRIAL]
    t.pending[d] = t.changed[d, 1] + 1 - first
    t.wake[d], t.key[d] = first, t.before[code, FREE]
    for slot in range(first, old - rest):
        dropped = saved[d, slot]
        if t.slot[dropped] < 0:
            log_op(dropped, t)
            t.end[dropped] = -1
            if dropped >> high == R:
                invalidate(dropped + ((B - R) << high), d, first, t)
                invalidate(dropped + ((C - R) << high), d, first, t)
    # if the order of the O's changed, allocations may reuse the memory of another O
    at = was = first
    while True:
        at = next_out(prog, d, at, size - rest, high)
        was = next_out(saved, d, was, old - rest, high)
        if at < 0 and was < 0:
            return True
        if at < 0 or was < 0 or prog[d, at] != saved[d, was]:
            break
        at, was = at + 1, was + 1
    was = first
    while was >= 0 and was < old:
        was = next_out(saved, d, was, old, high)
        if was >= 0:
            invalidate(t.taker[saved[d, was]], d, first, t)
            invalidate(t.asker[saved[d, was]], d, first, t)
            was = was + 1 if was < old - rest else -1  # up to the first one that has kept its place
    return True


@part
def undo(t):
    """Revert the times to those before the trial."""
    for at in range(t.tally[LOGGED]):
        code = t.log[at]
        t.end[code], t.ready[code], t.cause[code] = t.kept[at, 0], t.kept[at, 1], t.kept[at, 2]
        t.taker[code], t.asker[code] = t.kept[at, 3], t.kept[at, 4]
        for which in range(t.before.shape[1]):
            t.before[code, which] = t.kept[at, 5 + which]
    t.tally[LOGGED] = 0


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
    for which in range(t.before.shape[1]):
        t.kept[at, 5 + which] = t.before[code, which]


@step
def invalidate(code, d, after, t):
    """Mark an op of device d as stale if it is behind slot `after`."""
    if code >= 0 and t.slot[code] > after and t.stale[code] != t.tally[TRIAL]:
        t.stale[code] = t.tally[TRIAL]
        t.pending[d] += 1


@step
def next_out(prog, d, begin, end, high):
    """Return the slot of the first O from `begin` on, or -1."""
    for slot in range(begin, end):
        if prog[d, slot] >> high == O:
            return slot
    return -1


@part
def begin_all(prog, length, costs, t):
    """Make all ops of some programs stale, and the state of each device that before its first op."""
    t.tally[TRIAL] += 1
    for code in range(len(t.end)):
        t.end[code] = t.ready[code] = t.taker[code] = t.asker[code] = -1
    fill_slots(prog, length, t.slot)
    for d in range(len(length)):
        t.wake[d] = t.key[d] = 0
        t.pending[d] = length[d]
        for slot in range(length[d]):
            t.stale[prog[d, slot]] = t.tally[TRIAL]
        first = prog[d, 0]
        for which in range(t.before.shape[1]):
            t.before[first, which] = 0
        for which in (ANCHOR_OP, OUT_OP, BACK_OP, GIVEN):
            t.before[first, which] = -1
        t.before[first, LEVEL] = costs.static[d] - costs.limit[d]


@step
def first_device(devices, t):
    """Return the device whose next op begins first, or -1, and when the next op of the second one begins."""
    d, soonest, second = -1, NEVER, NEVER
    for other in range(devices):
        if t.wake[other] >= 0:
            if t.key[other] < soonest:
                d, soonest, second = other, t.key[other], soonest
            elif t.key[other] < second:
                second = t.key[other]
    return d, second
