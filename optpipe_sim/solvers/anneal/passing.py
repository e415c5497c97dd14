"""Moves by which microbatches overtake one another. At tight limits reloads have to keep their places in
the program: of six seeds from `offload_everything`, p 4, m 8, room for two and slow copies, five then
find 303 ns, else none."""

from __future__ import annotations

from ...codes import KINDS, B, C, F, O, R, W
from ...compiled import part
from .edits import put, remove, set_joins, set_mode, set_offload, slide


@part
def overtake(plan, costs, t, code, far, ahead, stays, parks):
    """Move the microbatch of op `code`, an F or a B, `far` places later (below 0: earlier) from this op on.

    A microbatch passes the forwards of all stages, then the backwards in reverse. It exchanges places
    with the microbatches that it overtakes, or that overtake it, in all ops from this one on, on all
    devices. At stages with the old order for F and the new one for B the treatments stay with the
    microbatches, but for whether the backward is one op; reloads keep their places. What is then torn or
    in the wrong order is mended: an offload stays with its microbatch, or without `stays` with its
    place; with `parks` those that wait longer there are offloaded. A new R is put `ahead` slots before
    the op that needs it.

    Returns:
        Whether there was a microbatch to overtake.
    """
    low, high = costs.low, costs.high
    kind, stage = code >> high, (code & ((1 << high) - 1)) >> low
    d = costs.place[stage]
    # 1. the places of this kind of op at this stage, and which microbatch takes which of them
    order, old, becomes = t.turns[0], t.turns[1], t.turns[2]
    slots, modes = t.turns[3], t.turns[4]
    at, count = _order_of(plan, d, code, low, order)
    to = min(max(at + far, 0), count - 1)
    moved = 1 + abs(to - at)
    if at < 0 or to == at or t.filled[0] + moved * len(costs.place) > len(t.touched):
        return False
    step = 1 if to > at else -1
    for turn in range(moved):
        old[turn] = order[at + step * turn]
        becomes[turn] = order[at + step * ((turn + 1) % moved)]
    # 2. all of a stage changes hands, or only its backwards
    for here in range(len(costs.place)):
        whole = kind == F and here >= stage
        if kind != F and here > stage:
            continue
        d = costs.place[here]
        for what in range(KINDS):
            if not whole and what not in (B, W, R):  # F, O and C are still in the old order
                continue
            for turn in range(moved):
                one = what << high | here << low | old[turn]
                slots[turn] = t.slot[one]
                t.slot[one] = -1
            for turn in range(moved):
                if slots[turn] >= 0:
                    put(plan, t, d, slots[turn], what << high | here << low | becomes[turn])
        for turn in range(moved):
            modes[turn] = plan.mode[here << low | old[turn]]
        for turn in range(moved):
            unit = here << low | becomes[turn]
            new = modes[turn]
            if not whole:
                new = plan.mode[unit] - plan.mode[unit] % 2 + modes[turn] % 2
            if new != plan.mode[unit]:
                set_mode(plan, t, unit, new)
        if costs.pairs is not None and whole:
            for turn in range(moved):
                modes[turn] = plan.mode[1 << high | here << low | old[turn]]
            for turn in range(moved):
                set_joins(plan, costs, t, here << low | becomes[turn], modes[turn])
        for turn in range(0 if whole else moved):
            waits_longer = (turn == moved - 1) == (step > 0)
            unit = here << low | becomes[turn]
            _mend(plan, costs, t, d, unit, ahead, stays, parks and waits_longer)
    return True


@part
def _mend(plan, costs, t, d, unit, ahead, stays, parks):
    """Restore a valid order of the ops of one activation whose B, W and R were exchanged: an F behind
    its B moves ahead of it, as does a C. A single O or R is completed or removed; copies in another
    order are put anew."""
    high = costs.high
    backward, recompute = unit | B << high, unit | C << high
    if t.slot[backward] < t.slot[unit]:
        slide(plan, t, d, t.slot[unit], t.slot[backward])
    if t.slot[recompute] > t.slot[backward]:
        slide(plan, t, d, t.slot[recompute], t.slot[backward])
    out, back = t.slot[unit | O << high], t.slot[unit | R << high]
    reader = t.slot[recompute] if t.slot[recompute] >= 0 else t.slot[backward]
    if t.slot[unit] < out < back < reader:
        return
    offloads = (out >= 0 and back >= 0) or parks
    if out >= 0:
        remove(plan, t, d, unit | O << high)
        offloads = offloads or stays
    if back >= 0:
        remove(plan, t, d, unit | R << high)
        offloads = offloads or not stays
    if offloads:
        set_offload(plan, costs, t, unit, True, ahead)


@part
def _order_of(plan, d, code, low, order):
    """Fill `order` with the microbatches of all ops of the kind and stage of `code` in a program.

    Returns:
        (the place of `code` among them, or -1; their number).
    """
    at, count, ones = -1, 0, (1 << low) - 1
    for there in range(plan.length[d]):
        other = plan.prog[d, there]
        if other >> low == code >> low:
            if other == code:
                at = count
            order[count] = other & ones
            count += 1
    return at, count
