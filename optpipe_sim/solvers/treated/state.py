"""The values of an evaluated plan, op by op, and what a move makes stale.

The timing of an op follows from the state of its device before it, from the treatment of its activation,
and from the ends of a few ops on other devices. Trials, their log and `undo` are those of `anneal.state`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import B, C, F, O, R, W
from ...compiled import part, step
from ..anneal.links import NEVER as NEVER
from ..anneal.state import AFTER, FREE, LOGGED, STATE, invalidate, mark, next_out

# The state of a device as a row of `Room.before`: as in `anneal.state` up to the last O whose memory was
# reused; then what the last compute op releases at its end, bytes; then, for serial links, when each is free.
GIVE, SENT = STATE - 2, STATE - 1
WIDE = -2  # see `Room.asker`
FAILED = -1


class Room(NamedTuple):
    """The evaluated values of each code (first axis) in a plan, and the working arrays."""

    end: np.ndarray  # ns; -1: not yet, or not in the plan
    ready: np.ndarray  # when its message arrives, ns
    cause: np.ndarray  # the op that decided its start, or -1
    slot: np.ndarray  # its slot in the program of its device, or -1
    before: np.ndarray  # (codes, state) the state of its device before it
    taker: np.ndarray  # of an O: the op that reused its memory
    # of an R: WIDE if it depends on O's whose memory it does not reuse; of an O: that R, WIDE for several
    asker: np.ndarray
    tail: np.ndarray  # least time from its end to the makespan, ns; see `tails`
    after: np.ndarray  # (codes, AFTER)
    stale: np.ndarray  # the trial in which it must be evaluated
    logged: np.ndarray  # the trial in which it was logged
    log: np.ndarray
    kept: np.ndarray  # (codes, 5 + state) the logged values
    tally: np.ndarray  # the trial, and the number of entries logged in it
    state: np.ndarray  # (devices, state) of the device under evaluation
    wake: np.ndarray  # (devices,) the first slot to evaluate, or -1
    key: np.ndarray  # (devices,) when the device is free before that slot, ns
    pending: np.ndarray  # (devices,) number of stale ops
    changed: np.ndarray  # (devices, 2) the first and the last changed slot, or -1
    touched: np.ndarray  # (units, 2) units whose mode a move changed, and the mode before
    filled: np.ndarray  # (1,) the number of these
    turns: np.ndarray  # (5, units) of microbatches that overtake one another; see `passing`


def make_room(codes: int, units: int, devices: int, serial: bool) -> Room:
    """Make the arrays for these numbers of codes, units and devices."""

    def ints(*size: int) -> np.ndarray:
        return np.zeros(size, np.int64)

    width = SENT + devices * serial
    return Room(
        end=ints(codes) - 1, ready=ints(codes), cause=ints(codes) - 1, slot=ints(codes) - 1,
        before=ints(codes, width), taker=ints(codes) - 1, asker=ints(codes) - 1,
        tail=ints(codes), after=ints(codes, AFTER),
        stale=ints(codes), logged=ints(codes), log=ints(codes), kept=ints(codes, 5 + width), tally=ints(2),
        state=ints(devices, width), wake=ints(devices), key=ints(devices), pending=ints(devices),
        changed=ints(devices, 2) - 1, touched=ints(4 * units, 2), filled=ints(1),
        turns=ints(5, units),
    )  # fmt: skip


@step
def column(unit, mode, costs):
    """Return the column of a unit's costs; for copies the one of those that leave keys and values behind."""
    return mode[unit] + costs.first[unit & ((1 << costs.low) - 1)]


@step
def copied(unit, mode, costs, t):
    """Return the column of a unit's copies: these take keys and values along if the O stands behind the F
    of the last slice."""
    how = column(unit, mode, costs)
    if costs.late > 0 and t.slot[unit | O << costs.high] > t.slot[last_forward(unit, costs)]:
        how += costs.late
    return how


@step
def last_forward(unit, costs):
    """Return the F of the last slice of the same sequence."""
    micro = unit & ((1 << costs.low) - 1)
    return unit - micro + costs.last[micro]


@step
def duration(code, mode, costs, t):
    """Return the duration of an op, ns."""
    kind, unit = code >> costs.high, code & ((1 << costs.high) - 1)
    how = copied(unit, mode, costs, t) if kind >= O else column(unit, mode, costs)
    return costs.durations[kind, unit >> costs.low, how]


@part
def mark_move(prog, length, mode, saved, saved_length, begin, stop, costs, t):
    """Mark the ops that a move on devices `begin` to `stop` makes stale.

    Returns:
        (whether anything has changed, the sum of ends of the compute ops that are gone, the most by which
        new treatments shorten a path, ns).
    """
    high, some, gone, shorter = costs.high, False, 0, 0
    # 1. ops that are elsewhere, or gone
    for d in range(begin, stop + 1):
        if mark(prog, length, saved, saved_length, d, t, high):
            some = True
            _mark_behind(prog, length, saved, saved_length, d, costs, t)
    for at in range(t.tally[LOGGED]):
        if t.slot[t.log[at]] < 0 and t.log[at] >> high < O:
            gone += t.kept[at, 0]
    # 2. ops of units whose treatment has changed
    for which in range(t.filled[0]):
        unit, old = t.touched[which, 0], t.touched[which, 1]
        if mode[unit] == old:
            continue
        some = True
        _mark_unit(prog, length, unit, costs, t)
        stage, now = unit >> costs.low, column(unit, mode, costs)
        shorter += max(0, costs.work[stage, now - mode[unit] + old] - costs.work[stage, now])
    return some, gone, shorter


@step
def _mark_behind(prog, length, saved, saved_length, d, costs, t):
    """Mark what depends on the order of ops between the first and the last changed slot of device d."""
    first, last = t.changed[d, 0], t.changed[d, 1]
    if costs.late > 0:  # the costs of copies depend on where they stand
        for slot in range(first + 1, length[d]):
            invalidate(prog[d, slot], d, first, t)
        t.changed[d, 1] = length[d] - 1
        return
    was = min(saved_length[d] - length[d] + last, saved_length[d] - 1)
    if (
        next_out(prog, d, first, last + 1, costs.high) >= 0
        or next_out(saved, d, first, was + 1, costs.high) >= 0
    ):
        _mark_wide(prog, length, d, first, costs, t)


@step
def _mark_wide(prog, length, d, after, costs, t):
    """Mark the R's of device d behind a slot that depend on O's whose memory they do not reuse."""
    for slot in range(after + 1, length[d]):
        if prog[d, slot] >> costs.high == R and t.asker[prog[d, slot]] == WIDE:
            invalidate(prog[d, slot], d, after, t)


@step
def _mark_unit(prog, length, unit, costs, t):
    """Mark the ops of a unit, and those that depend on how much its O releases."""
    high, d = costs.high, costs.place[unit >> costs.low]
    for kind in (F, O, R, C, B, W):
        invalidate(unit | kind << high, d, -1, t)
    if t.wake[d] < 0 or t.slot[unit] < t.wake[d]:
        t.wake[d], t.key[d] = t.slot[unit], t.before[unit, FREE]
    out = unit | O << high
    if t.slot[out] >= 0:
        mark_readers(prog, length, out, d, t.slot[out], costs, t)
        _mark_wide(prog, length, d, t.slot[out], costs, t)


@step
def mark_readers(prog, length, out, d, after, costs, t):
    """Mark the ops of device d behind a slot whose memory is granted at the end of an O."""
    invalidate(t.taker[out], d, after, t)
    invalidate(t.asker[out], d, after, t)
    if t.asker[out] == WIDE:
        _mark_wide(prog, length, d, max(after, t.slot[out]), costs, t)
