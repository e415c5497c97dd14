"""Compiled changes of programs that concern whole microbatches: offload one, or let some pass another.

All of them keep `slot`, where each op stands, up to date. For programs as codes see `search_times`; why
passing can pay where something is offloaded, and only there, see `cpsat_order`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..schedules.compiled import part, step
from .search_state import B, F, O, R


@part
def offload(prog, length, slot, d, unit, ahead, high):
    """Offload an activation that stays: O behind its F, R `ahead` ops before its B."""
    forward, backward = slot[unit], slot[unit | B << high]
    where = max(forward + 1, backward - ahead)
    for at in range(length[d] - 1, where - 1, -1):
        _put(prog, slot, d, at + 2, prog[d, at])
    for at in range(where - 1, forward, -1):
        _put(prog, slot, d, at + 1, prog[d, at])
    _put(prog, slot, d, forward + 1, unit | O << high)
    _put(prog, slot, d, where + 1, unit | R << high)
    length[d] += 2


@part
def keep(prog, length, slot, d, unit, high):
    """Drop the O and the R of an activation, as far as they are there; returns how many were."""
    out, back = unit | O << high, unit | R << high
    begin = slot[out] if slot[out] >= 0 else slot[back]
    if begin < 0:
        return 0
    if slot[back] >= 0:
        begin = min(begin, slot[back])
    gone = 0
    for at in range(begin, length[d]):
        code = prog[d, at]
        if code in (out, back):
            gone += 1
            slot[code] = -1
        else:
            _put(prog, slot, d, at - gone, code)
    length[d] -= gone
    return gone


@step
def _put(prog, slot, d, at, code):
    prog[d, at] = code
    slot[code] = at


@njit(cache=True)
def overtake(prog, length, slot, costs, code, far, stays, parks, ahead):
    """Give the microbatch of op `code`, an F or a B, a place `far` later from this op on, or earlier.

    Its way leads through the forwards of all stages, then back through the backwards. It and those
    that it passes, or that pass it, exchange places in all ops from this one on, on all devices
    alike. What that tears at the stages where they have the old order for F and the new one for B
    is mended (see `_mend`).

    Args:
        far: places in the order of this kind of op at this stage; below 0: earlier.
        stays: an activation that was offloaded still is; else it is offloaded where it was, for
            another microbatch. `parks`: offload those that are passed.
        ahead: how many ops before its B an R goes that has to go anywhere.

    Returns:
        Whether there was anybody to pass.
    """
    place, m, low, high = costs[4], costs[11], costs[12], costs[13]
    kind, stage = code >> high, (code & ((1 << high) - 1)) >> low
    ones = (1 << low) - 1
    order = np.empty(m, np.int64)
    count, at = 0, -1
    for there in range(length[place[stage]]):
        other = prog[place[stage], there]
        if other >> low == code >> low:
            if other == code:
                at = count
            order[count] = other & ones
            count += 1
    to = min(max(at + far, 0), count - 1)
    if at < 0 or to == at:
        return False
    # whose place is whose from here on
    becomes = np.arange(m)
    step = 1 if to > at else -1
    for turn in range(at, to, step):
        becomes[order[turn]] = order[turn + step]
    becomes[order[to]] = order[at]
    for d in range(len(length)):
        for there in range(length[d]):
            old = prog[d, there]
            micro = old & ones
            if becomes[micro] == micro:
                continue
            here, what = (old & ((1 << high) - 1)) >> low, old >> high
            returns = what not in (F, O)
            if (kind == F and here >= stage) or (returns and (kind == F or here <= stage)):
                if slot[old] == there:  # else another op has its name already
                    slot[old] = -1
                _put(prog, slot, d, there, old - micro + becomes[micro])
    for here in range(stage if kind == F else stage + 1):
        d = place[here]
        for turn in range(at, to + step, step):
            passed = turn == at if step > 0 else turn != at
            parked = parks and passed and costs[3][here] > 0
            _mend(prog, length, slot, d, here << low | order[turn], stays, parked, ahead, high)
    return True


@part
def _mend(prog, length, slot, d, unit, stays, parks, ahead, high):
    """Bring the ops of one activation into an order that can be, after its B and R were exchanged.

    An F behind its B goes ahead of it. If of O and R one is there, both are or neither; if both are
    there and one is on the wrong side of the other, neither.
    """
    forward, backward = slot[unit], slot[unit | B << high]
    for at in range(forward, backward, -1):
        _put(prog, slot, d, at, prog[d, at - 1])
    if backward < forward:
        _put(prog, slot, d, backward, unit)
        forward, backward = backward, backward + 1
    went, came = slot[unit | O << high], slot[unit | R << high]
    if forward < went < came < backward:
        return
    keep(prog, length, slot, d, unit, high)
    torn = (went < 0) != (came < 0)
    if parks or (torn and (went >= 0) == stays):
        offload(prog, length, slot, d, unit, ahead, high)
