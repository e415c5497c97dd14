"""Compiled moves on programs: move an op (for one or for many microbatches and devices), offload or
keep an activation, let microbatches overtake one another.

All of them keep `slot`, the slot of each op, up to date. See `times` for the encoding of programs,
and `cpsat.order` for why overtaking can pay only with offloading.
"""

from __future__ import annotations

import numpy as np

from ...codes import B, F, O, R
from ...compiled import compiled, entry, part, step


@compiled
def change(prog, length, slot, costs, path, offloads, alike, passing):
    """Make a random move; most moves start from an op of `path`.

    Returns:
        (the changed device, whether others may have changed, too); device -1 if nothing changed.
    """
    devices, low, high = len(length), costs.low, costs.high
    draw = np.random.random()
    if len(path) and draw < 0.7:
        code = path[np.random.randint(len(path))]
        if slot[code] < 0:
            return -1, False
    else:
        d = np.random.randint(devices)
        code = prog[d, np.random.randint(length[d])]
    kind, unit = code >> high, code & ((1 << high) - 1)
    d = costs.place[unit >> low]
    choice = np.random.random()
    if passing > 0 and np.random.random() < passing:
        return d if let_pass(prog, length, slot, costs, kind, unit) else -1, True
    if offloads and choice < 0.15:
        toggle(prog, length, slot, d, unit, np.random.randint(1, 12), high)
    elif choice < 0.75:
        at = slot[code]
        move = np.random.randint(1, 9)
        if np.random.random() < 0.3:
            move = np.random.randint(1, 3)
        to = at - move if np.random.random() < 0.5 else at + move
        if shift(prog, slot, d, at, min(max(to, 0), length[d] - 1), low, high) == at:
            return -1, False
    elif choice < 0.97 or not alike or devices < 2:
        return d, repeat(prog, length, slot, costs, code, offloads)
    else:
        other = d + 1 if np.random.random() < 0.5 else d - 1
        if other < 0 or other >= devices:
            return -1, False
        _copy_neighbour(prog, length, slot, d, other, (d - other) << low)
    return d, False


@step
def _blocks(one, two, low, high):
    """Whether `one` must stay before `two`, its neighbour in a program."""
    if (one ^ two) & ((1 << high) - 1) == 0:  # ops of one microbatch and stage
        return True
    # one kind of a stage keeps its microbatches in order
    return one >> low == two >> low


@entry
def shift(
    prog: np.ndarray, slot: np.ndarray, d: int, start: int, stop: int, low: int, high: int
) -> int:
    """Move the op at `start` towards `stop`, as far as dependencies allow; returns its new slot."""
    here, code = start, prog[d, start]
    while here < stop and not _blocks(code, prog[d, here + 1], low, high):
        prog[d, here] = prog[d, here + 1]
        slot[prog[d, here]] = here
        here += 1
    while here > stop and not _blocks(prog[d, here - 1], code, low, high):
        prog[d, here] = prog[d, here - 1]
        slot[prog[d, here]] = here
        here -= 1
    prog[d, here] = code
    slot[code] = here
    return here


@compiled
def toggle(prog, length, slot, d, unit, ahead, high):
    """Toggle offloading: offload a resident activation, its reload `ahead` ops before its B, or
    keep an offloaded one."""
    if keep(prog, length, slot, d, unit, high) == 0:
        offload(prog, length, slot, d, unit, ahead, high)


@part
def _copy_neighbour(prog, length, slot, d, other, step):
    """Copy a neighbour's order to device d; both have one stage."""
    for at in range(length[d]):
        slot[prog[d, at]] = -1
    for at in range(length[other]):
        prog[d, at] = prog[other, at] + step
        slot[prog[d, at]] = at
    length[d] = length[other]


@entry
def repeat(prog, length, slot, costs, code, offloads):
    """Move an op alike for a run of microbatches, possibly also on nearby devices; returns whether
    other devices changed."""
    m, stages, low, high = costs.microbatches, len(costs.act), costs.low, costs.high
    kind = code >> high
    stage, micro = (code & ((1 << high) - 1)) >> low, code & ((1 << low) - 1)
    by = np.random.randint(1, 5)
    if np.random.random() < 0.5:
        by = -by
    run = np.random.randint(1, max(2, min(m, 12)))
    wide = np.random.random() < 0.4
    flip = offloads and np.random.random() < 0.25
    if not flip and np.random.random() < (0.05 if wide else 0.2):
        run = m
    ahead = np.random.randint(1, 12)
    for other in range(stages):
        if other != stage and not wide:
            continue
        if wide and abs(other - stage) > 3 and run < m:
            continue
        for step_on in range(run):
            j = micro + step_on if by < 0 else micro + run - 1 - step_on
            if j >= m:
                continue
            where = costs.place[other]
            if flip:
                toggle(prog, length, slot, where, other << low | j, ahead, high)
                continue
            at = slot[kind << high | other << low | j]
            if at >= 0:
                to = min(max(at + by, 0), length[where] - 1)
                shift(prog, slot, where, at, to, low, high)
    return wide


@compiled
def let_pass(prog, length, slot, costs, kind, unit):
    """Let the microbatch of an op overtake others, or be overtaken: see `overtake`."""
    m, low, high = costs.microbatches, costs.low, costs.high
    code = unit if kind in (F, O) else unit | B << high
    if code >> low == 0:
        return False  # from the very first F on this only renames microbatches
    far = np.random.randint(1, 3 if np.random.random() < 0.7 else m + 1)
    if np.random.random() < 0.5:
        far = -far
    stays, parks = np.random.random() < 0.5, np.random.random() < 0.5
    return overtake(prog, length, slot, costs, code, far, stays, parks, np.random.randint(1, 12))


@part
def offload(prog, length, slot, d, unit, ahead, high):
    """Offload a resident activation: O after its F, R `ahead` ops before its B."""
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
    """Remove the O and the R of an activation, if present; returns how many were."""
    out, back = unit | O << high, unit | R << high
    begin = slot[out] if slot[out] >= 0 else slot[back]
    if begin < 0:
        return 0
    if slot[back] >= 0:
        begin = min(begin, slot[back])
    removed = 0
    for at in range(begin, length[d]):
        code = prog[d, at]
        if code in (out, back):
            removed += 1
            slot[code] = -1
        else:
            _put(prog, slot, d, at - removed, code)
    length[d] -= removed
    return removed


@step
def _put(prog, slot, d, at, code):
    prog[d, at] = code
    slot[code] = at


@step
def order_of(prog, d, size, code, low, order):
    """Fill `order` with the microbatches of all ops of the kind and stage of `code` in a program of `size` ops.

    Returns:
        (the place of `code` among them, or -1; their number).
    """
    at, count, ones = -1, 0, (1 << low) - 1
    for there in range(size):
        other = prog[d, there]
        if other >> low == code >> low:
            if other == code:
                at = count
            order[count] = other & ones
            count += 1
    return at, count


@compiled
def overtake(prog, length, slot, costs, code, far, stays, parks, ahead):
    """Move the microbatch of op `code`, an F or a B, `far` places later (or earlier) from this op
    on.

    A microbatch passes the forwards of all stages, then the backwards in reverse. It exchanges
    places with the microbatches that it overtakes, or that overtake it, in all ops from this one
    on, on all devices. Stages with the old order for F and the new one for B are repaired (see
    `_mend`).

    Args:
        far: places in the order of this kind of op at this stage; below 0: earlier.
        stays: offloads stay with their microbatch; else they stay at their place and move to
            another microbatch. `parks`: offload the activations that are overtaken.
        ahead: how many ops before its B a new or repaired R is put.

    Returns:
        Whether there was a microbatch to overtake.
    """
    place, m, low, high = costs.place, costs.microbatches, costs.low, costs.high
    kind, stage = code >> high, (code & ((1 << high) - 1)) >> low
    ones = (1 << low) - 1
    order = np.empty(m, np.int64)
    at, count = order_of(prog, place[stage], length[place[stage]], code, low, order)
    to = min(max(at + far, 0), count - 1)
    if at < 0 or to == at:
        return False
    # which microbatch takes which place from here on
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
                if slot[old] == there:  # else another op already has this name
                    slot[old] = -1
                _put(prog, slot, d, there, old - micro + becomes[micro])
    for here in range(stage if kind == F else stage + 1):
        d = place[here]
        for turn in range(at, to + step, step):
            passed = turn == at if step > 0 else turn != at
            parked = parks and passed and costs.moved[here] > 0
            _mend(prog, length, slot, d, here << low | order[turn], stays, parked, ahead, high)
    return True


@part
def _mend(prog, length, slot, d, unit, stays, parks, ahead, high):
    """Restore a valid order of the ops of one activation after its B and R were exchanged. An F
    behind its B is moved ahead of it. A single O or R is completed or removed; a pair in the
    wrong order is removed."""
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
