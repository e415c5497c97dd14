"""Compiled moves by which microbatches overtake one another."""

from __future__ import annotations

from ...codes import KINDS, B, C, F, O, R, W
from ...compiled import part
from ..anneal.moves import order_of
from .edits import drop_offload, put, set_mode, slide


@part
def overtake(prog, length, mode, costs, t, code, far, ahead):
    """Move the microbatch of op `code`, an F or a B, `far` places later (below 0: earlier) from this op on.

    A microbatch passes the forwards of all stages, then the backwards in reverse. It exchanges places with the
    microbatches that it overtakes, or that overtake it, in all ops from this one on, on all devices. At stages with the old
    order for F and the new one for B the treatments stay with the microbatches, but for whether the backward is one op, which
    belongs to its place; what comes in the wrong order there is moved (see `_mend`).

    Returns:
        Whether there was a microbatch to overtake.
    """
    low, high = costs.low, costs.high
    kind, stage = code >> high, (code & ((1 << high) - 1)) >> low
    d = costs.place[stage]
    # 1. the places of this kind of op at this stage, and which microbatch takes which of them
    order, old, becomes, slots, modes = t.turns[0], t.turns[1], t.turns[2], t.turns[3], t.turns[4]
    at, count = order_of(prog, d, length[d], code, low, order)
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
            if not whole and what not in (B, W):
                continue
            for turn in range(moved):
                one = what << high | here << low | old[turn]
                slots[turn] = t.slot[one]
                t.slot[one] = -1
            for turn in range(moved):
                if slots[turn] >= 0:
                    put(prog, t, d, slots[turn], what << high | here << low | becomes[turn])
        for turn in range(moved):
            modes[turn] = mode[here << low | old[turn]]
        for turn in range(moved):
            unit = here << low | becomes[turn]
            new = modes[turn] if whole else mode[unit] - mode[unit] % 2 + modes[turn] % 2
            if new != mode[unit]:
                set_mode(mode, t, unit, new)
        if not whole:
            for turn in range(moved):
                _mend(prog, length, costs, t, d, here << low | becomes[turn], ahead)
    return True


@part
def _mend(prog, length, costs, t, d, unit, ahead):
    """Restore a valid order of the ops of one activation whose B and W were exchanged: an F behind its B moves ahead of
    it, as does a C; a reload moves to `ahead` slots before what needs it, or the offload is dropped."""
    high = costs.high
    backward, recompute, back = unit | B << high, unit | C << high, unit | R << high
    if t.slot[backward] < t.slot[unit]:
        slide(prog, t, d, t.slot[unit], t.slot[backward])
    if t.slot[recompute] > t.slot[backward]:
        slide(prog, t, d, t.slot[recompute], t.slot[backward])
    if t.slot[back] < 0:
        return
    reader = t.slot[recompute] if t.slot[recompute] >= 0 else t.slot[backward]
    first = max(t.slot[unit], t.slot[unit | O << high]) + 1
    if first > reader:
        drop_offload(prog, length, costs, t, unit)
    elif t.slot[back] > reader:
        slide(prog, t, d, t.slot[back], max(first, reader - ahead))
    elif reader - 1 - ahead > t.slot[back]:
        slide(prog, t, d, t.slot[back], reader - 1 - ahead)
