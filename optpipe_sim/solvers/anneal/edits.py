"""Compiled changes of a plan's programs: put an op elsewhere, offload an activation, treat it differently.

All of them keep ``t.slot`` and the list of touched units up to date.
"""

from __future__ import annotations

import numpy as np

from ...codes import B, C, O, R, W
from ...compiled import entry, part
from .plans import Costs, Plan
from .times import Times, column


@part
def put(plan, t, d, at, code):
    plan.prog[d, at] = code
    t.slot[code] = at


@part
def insert(plan, t, d, at, code):
    """Insert an op into a program, before the op at slot `at`."""
    for here in range(plan.length[d], at, -1):
        put(plan, t, d, here, plan.prog[d, here - 1])
    put(plan, t, d, at, code)
    plan.length[d] += 1


@part
def remove(plan, t, d, code):
    """Remove an op from its program."""
    for here in range(t.slot[code] + 1, plan.length[d]):
        put(plan, t, d, here - 1, plan.prog[d, here])
    t.slot[code] = -1
    plan.length[d] -= 1


@part
def slide(plan, t, d, start, stop):
    """Move the op at `start` to `stop`, past whatever lies between."""
    code, step = plan.prog[d, start], 1 if stop > start else -1
    for here in range(start, stop, step):
        put(plan, t, d, here, plan.prog[d, here + step])
    put(plan, t, d, stop, code)


@part
def is_offloaded(t, unit, high):
    """Whether a unit's activation is offloaded."""
    return t.slot[unit | O << high] >= 0


@part
def _add_offload(plan, costs, t, unit, ahead):
    """Offload an activation: O after its F, R `ahead` slots before the op that needs it."""
    high, stage = costs.high, unit >> costs.low
    if (
        is_offloaded(t, unit, high)
        or costs.takes[R, stage, column(unit, plan, costs) + costs.late] == 0
    ):
        return
    d = costs.place[stage]
    forward = t.slot[unit]
    reader = t.slot[unit | C << high]
    if reader < 0:
        reader = t.slot[unit | B << high]
    insert(plan, t, d, max(forward + 1, reader - ahead), unit | R << high)
    insert(plan, t, d, forward + 1, unit | O << high)


@part
def drop_offload(plan, costs, t, unit):
    """Drop the offload of an activation."""
    if is_offloaded(t, unit, costs.high):
        d = costs.place[unit >> costs.low]
        remove(plan, t, d, unit | R << costs.high)
        remove(plan, t, d, unit | O << costs.high)


@entry
def set_offload(plan: Plan, costs: Costs, t: Times, unit: int, offloads: bool, ahead: int) -> None:
    """Offload an activation, or keep it."""
    if offloads:
        _add_offload(plan, costs, t, unit, ahead)
    else:
        drop_offload(plan, costs, t, unit)


@part
def set_mode(plan, t, unit, new):
    """Set the mode of a unit, and note which one it had."""
    t.touched[t.filled[0], 0], t.touched[t.filled[0], 1] = unit, plan.mode[unit]
    t.filled[0] += 1
    plan.mode[unit] = new


@part
def set_joins(plan, costs, t, unit, joins):
    """Set whether a unit joins, 0 or 1, and note whether it did."""
    at = unit | 1 << costs.high
    if plan.mode[at] != joins and t.filled[0] < len(t.touched):
        set_mode(plan, t, at, joins)


@part
def treat(plan, costs, t, unit, new, ahead, behind):
    """Change the mode of a unit; a new C goes `ahead` slots before its B, a new W `behind` slots after it."""
    old, high, stage = plan.mode[unit], costs.high, unit >> costs.low
    if new == old:
        return
    if t.filled[0] == len(t.touched):
        return
    d = costs.place[stage]
    set_mode(plan, t, unit, new)
    now = column(unit, plan, costs)
    if is_offloaded(t, unit, high) and costs.takes[R, stage, now + costs.late] == 0:
        drop_offload(plan, costs, t, unit)
    apart = new >= 2 and (new // 2) % 2 == 0
    recompute, gradient, backward = unit | C << high, unit | W << high, unit | B << high
    if apart and t.slot[recompute] < 0:
        first = max(t.slot[unit], t.slot[unit | R << high]) + 1
        insert(plan, t, d, max(first, t.slot[backward] - ahead), recompute)
    elif not apart and t.slot[recompute] >= 0:
        remove(plan, t, d, recompute)
    if new % 2 == 0 and t.slot[gradient] < 0:
        at = min(t.slot[backward] + 1 + behind, plan.length[d])
        insert(plan, t, d, at, gradient)
    elif new % 2 == 1 and t.slot[gradient] >= 0:
        remove(plan, t, d, gradient)


@part
def copy_treatment(plan, costs, t, source, unit, ahead, behind):
    """Copy the treatment of another unit, whose stage has the same levels."""
    treat(plan, costs, t, unit, plan.mode[source], ahead, behind)
    set_offload(plan, costs, t, unit, is_offloaded(t, source, costs.high), ahead)


@part
def draw_mode(plan, costs, unit):
    """Draw another mode for a unit, mostly one with another level."""
    stage, old = unit >> costs.low, plan.mode[unit]
    many = costs.many[stage]
    if many < 2:
        return old
    draw = np.random.random()
    if draw < 0.2:
        return old ^ 1
    if draw < 0.35 and old >= 2:  # the same level in another way
        return 2 * (((old // 2 - 1) ^ 1) + 1) + old % 2
    new = np.random.randint(many)
    if np.random.random() < 0.7:
        new = new - new % 2 + old % 2
    return new


@entry
def shift(plan: Plan, costs: Costs, t: Times, d: int, start: int, stop: int) -> int:
    """Move the op at `start` towards `stop`, as far as dependencies allow; returns its new slot."""
    here, code, low, high = start, plan.prog[d, start], costs.low, costs.high
    while here < stop and not _blocks(code, plan.prog[d, here + 1], low, high):
        put(plan, t, d, here, plan.prog[d, here + 1])
        here += 1
    while here > stop and not _blocks(plan.prog[d, here - 1], code, low, high):
        put(plan, t, d, here, plan.prog[d, here - 1])
        here -= 1
    put(plan, t, d, here, code)
    return here


@part
def _blocks(one, two, low, high):
    """Whether `one` must stay before `two`, its neighbour in a program."""
    if (one ^ two) & ((1 << high) - 1) == 0:  # ops of one microbatch and stage
        return True
    # one kind of a stage keeps its microbatches in order
    return one >> low == two >> low
