"""What the search knows of a set of programs, op by op, and what becomes of it where they change.

What an op does follows from the state of its device before it and from a few ends elsewhere. Both are
kept of every op. A change of the programs is a *trial*: `mark` says which ops are stale by it,
`times.update` evaluates them and what that changes, and `undo` takes it all back.

Compiled by numba; for programs as codes see `times`. All times ns, all memory bytes, int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import B, O, R
from ...compiled import compiled, part, step

# The state of a device as a row of `Times.before`; see `Stream`, `Memory`, `Copies` and `Sends`.
FREE, GRANTED, ANCHOR, ANCHOR_OP, OUT, BACK, OUT_OP, BACK_OP, LEVEL, GIVEN, NEXT, OTHER = range(12)
STATE = 12
# What is behind an op on its device: the time from the beginning of the next compute op, of the next
# transfers and of the next R's before a compute op to the end of everything.
FOLLOWING, LATER_OUT, LATER_BACK, ASKED = range(4)
AFTER = 4
UNKNOWN = -(2**61)
TRIAL, LOGGED = range(2)


class Costs(NamedTuple):
    """What the compiled code wants to know of a problem; times ns, memory bytes, int64."""

    durations: np.ndarray  # (kinds, stages)
    act: np.ndarray  # (stages,) from F to B
    held: np.ndarray  # (stages,) of that, still held from B to W
    moved: np.ndarray  # (stages,) what an O releases and an R allocates
    place: np.ndarray  # (stages,) the device of each stage
    limit: np.ndarray  # (devices,)
    static: np.ndarray  # (devices,)
    lag: int  # from the end of an op until its message arrives
    occupancy: int  # of serial links
    serial: bool
    shared: bool  # one copy engine for both directions
    microbatches: int
    low: int  # where the stage begins in a code, in bits
    high: int  # where the kind begins


class Stream(NamedTuple):
    """The compute stream of a device, before an op."""

    free: int  # when its last compute op ended, ns
    anchor: int  # when that began, ns
    op: int  # which it was


class Memory(NamedTuple):
    """The memory of a device, before an op."""

    level: int  # bytes above the limit
    granted: int  # when it was last granted, ns
    given: int  # the last O whose memory was used again, or -1


class Copies(NamedTuple):
    """The copies of a device, before an op: when those out and back end, and the last of them."""

    out: int
    out_op: int
    back: int
    back_op: int


class Sends(NamedTuple):
    """When the links of a device are free: to the next device, and to the other one."""

    next: int
    other: int


class Goal(NamedTuple):
    """Where an evaluation gives up; see `times.update`."""

    most: float
    weight: float
    begun: int


class Times(NamedTuple):
    """What is known of each code (first axis) in a set of programs, and what evaluations work in."""

    end: np.ndarray  # ns
    ready: np.ndarray  # when its message arrives, ns
    cause: np.ndarray  # the op whose end (or start) decided its start, or -1
    slot: np.ndarray  # where it stands in the program of its device, or -1: nowhere
    before: np.ndarray  # (codes, STATE)
    taker: np.ndarray  # of an O: the F or R that its memory went to
    asker: np.ndarray  # of an O: the last R that depends on its end
    tail: np.ndarray  # from its end to the makespan at least, ns; see `tails`
    after: np.ndarray  # (codes, AFTER)
    stale: np.ndarray  # the trial in which it has to be evaluated
    logged: np.ndarray  # the trial in which it was logged
    log: np.ndarray
    kept: np.ndarray  # (codes, 5 + STATE): what was logged
    tally: np.ndarray  # the trial, and how many were logged in it
    wake: np.ndarray  # (devices,) the first slot to evaluate, or -1
    key: np.ndarray  # (devices,) and when the device is free before it, ns
    pending: np.ndarray  # (devices,) how many are stale
    changed: np.ndarray  # (devices, 2) the first and the last slot that a change changed, or -1


def make_times(codes: int, devices: int) -> Times:
    """Arrays for so many codes."""

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
    """How long an op takes, ns."""
    return costs.durations[code >> costs.high, (code & ((1 << costs.high) - 1)) >> costs.low]


@compiled
def fill_slots(prog, length, slot):
    """Fill in where each op stands."""
    for code in range(len(slot)):
        slot[code] = -1
    for d in range(len(length)):
        for at in range(length[d]):
            slot[prog[d, at]] = at


@step
def begin(t):
    """A new trial: nothing is stale, nothing logged."""
    t.tally[TRIAL] += 1
    t.tally[LOGGED] = 0
    for d in range(len(t.wake)):
        t.wake[d] = t.changed[d, 0] = t.changed[d, 1] = -1
        t.pending[d] = 0


@part
def mark(prog, length, saved, saved_length, d, t, high):
    """Mark what a change of the program of device d makes stale; returns whether it is any other
    than the `saved` one, whose times `t` has."""
    size, old = length[d], saved_length[d]
    first, least = 0, min(size, old)
    while first < least and prog[d, first] == saved[d, first]:
        first += 1
    if first == size and first == old:
        return False
    rest = 0
    while rest < least - first and prog[d, size - 1 - rest] == saved[d, old - 1 - rest]:
        rest += 1
    t.changed[d, 0], t.changed[d, 1] = first, max(first, size - rest - 1)
    code = prog[d, first]
    log_op(code, t)
    for which in range(STATE):
        t.before[code, which] = t.before[saved[d, first], which]
    for slot in range(first, t.changed[d, 1] + 1):
        t.stale[prog[d, slot]] = t.tally[TRIAL]
    t.pending[d] = t.changed[d, 1] + 1 - first
    t.wake[d], t.key[d] = first, t.before[code, FREE]
    for slot in range(first, old - rest):
        gone = saved[d, slot]
        if t.slot[gone] < 0:
            log_op(gone, t)
            t.end[gone] = -1
            if gone >> high == R:
                invalidate(gone + ((B - R) << high), d, first, t)
    # where the order of the O's is another, whoever took the memory of one may take another's
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
            was = was + 1 if was < old - rest else -1  # up to the first that has kept its place
    return True


@part
def undo(t):
    """Take back what the trial changed in the times."""
    for at in range(t.tally[LOGGED]):
        code = t.log[at]
        t.end[code], t.ready[code], t.cause[code] = t.kept[at, 0], t.kept[at, 1], t.kept[at, 2]
        t.taker[code], t.asker[code] = t.kept[at, 3], t.kept[at, 4]
        for which in range(STATE):
            t.before[code, which] = t.kept[at, 5 + which]
    t.tally[LOGGED] = 0


@step
def log_op(code, t):
    """Keep what is known of a code, once in a trial."""
    if t.logged[code] == t.tally[TRIAL]:
        return
    t.logged[code] = t.tally[TRIAL]
    at = t.tally[LOGGED]
    t.tally[LOGGED] += 1
    t.log[at] = code
    t.kept[at, 0], t.kept[at, 1], t.kept[at, 2] = t.end[code], t.ready[code], t.cause[code]
    t.kept[at, 3], t.kept[at, 4] = t.taker[code], t.asker[code]
    for which in range(STATE):
        t.kept[at, 5 + which] = t.before[code, which]


@step
def invalidate(code, d, after, t):
    """An op of device d, if it is behind slot `after`, has to be evaluated again."""
    if code >= 0 and t.slot[code] > after and t.stale[code] != t.tally[TRIAL]:
        t.stale[code] = t.tally[TRIAL]
        t.pending[d] += 1


@step
def next_out(prog, d, begin, end, high):
    """The slot of the first O from `begin` on, or -1."""
    for slot in range(begin, end):
        if prog[d, slot] >> high == O:
            return slot
    return -1
