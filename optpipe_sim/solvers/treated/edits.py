"""Compiled changes of a plan's programs: put an op elsewhere, offload an activation, treat it differently.

All of them keep ``t.slot`` and the list of touched units up to date.
"""

from __future__ import annotations

import numpy as np

from ...codes import B, C, O, R, W
from ...compiled import part, step
from .state import column


@step
def put(prog, t, d, at, code):
    prog[d, at] = code
    t.slot[code] = at


@part
def insert(prog, length, t, d, at, code):
    """Insert an op into a program, before the op at slot `at`."""
    for here in range(length[d], at, -1):
        put(prog, t, d, here, prog[d, here - 1])
    put(prog, t, d, at, code)
    length[d] += 1


@part
def remove(prog, length, t, d, code):
    """Remove an op from its program."""
    for here in range(t.slot[code] + 1, length[d]):
        put(prog, t, d, here - 1, prog[d, here])
    t.slot[code] = -1
    length[d] -= 1


@step
def slide(prog, t, d, start, stop):
    """Move the op at `start` to `stop`, past whatever lies between."""
    code, step = prog[d, start], 1 if stop > start else -1
    for here in range(start, stop, step):
        put(prog, t, d, here, prog[d, here + step])
    put(prog, t, d, stop, code)


@step
def is_offloaded(t, unit, high):
    """Whether a unit's activation is offloaded."""
    return t.slot[unit | O << high] >= 0


@part
def add_offload(prog, length, mode, costs, t, unit, ahead):
    """Offload an activation: O after its F, R `ahead` slots before the op that needs it."""
    high, stage = costs.high, unit >> costs.low
    if (
        is_offloaded(t, unit, high)
        or costs.takes[R, stage, column(unit, mode, costs) + costs.late] == 0
    ):
        return
    d = costs.place[stage]
    forward = t.slot[unit]
    reader = t.slot[unit | C << high]
    if reader < 0:
        reader = t.slot[unit | B << high]
    insert(prog, length, t, d, max(forward + 1, reader - ahead), unit | R << high)
    insert(prog, length, t, d, forward + 1, unit | O << high)


@part
def drop_offload(prog, length, costs, t, unit):
    """Drop the offload of an activation."""
    if is_offloaded(t, unit, costs.high):
        d = costs.place[unit >> costs.low]
        remove(prog, length, t, d, unit | R << costs.high)
        remove(prog, length, t, d, unit | O << costs.high)


@step
def set_mode(mode, t, unit, new):
    """Set the mode of a unit, and note which one it had."""
    t.touched[t.filled[0], 0], t.touched[t.filled[0], 1] = unit, mode[unit]
    t.filled[0] += 1
    mode[unit] = new


@part
def treat(prog, length, mode, costs, t, unit, new, ahead, behind):
    """Change the mode of a unit; a new C goes `ahead` slots before its B, a new W `behind` slots after it."""
    old, high, stage = mode[unit], costs.high, unit >> costs.low
    if new == old:
        return
    if t.filled[0] == len(t.touched):
        return
    d = costs.place[stage]
    set_mode(mode, t, unit, new)
    now = column(unit, mode, costs)
    if is_offloaded(t, unit, high) and costs.takes[R, stage, now + costs.late] == 0:
        drop_offload(prog, length, costs, t, unit)
    apart = new >= 2 and (new // 2) % 2 == 0
    recompute, gradient, backward = unit | C << high, unit | W << high, unit | B << high
    if apart and t.slot[recompute] < 0:
        first = max(t.slot[unit], t.slot[unit | R << high]) + 1
        insert(prog, length, t, d, max(first, t.slot[backward] - ahead), recompute)
    elif not apart and t.slot[recompute] >= 0:
        remove(prog, length, t, d, recompute)
    if new % 2 == 0 and t.slot[gradient] < 0:
        at = min(t.slot[backward] + 1 + behind, length[d])
        insert(prog, length, t, d, at, gradient)
    elif new % 2 == 1 and t.slot[gradient] >= 0:
        remove(prog, length, t, d, gradient)


@part
def copy_treatment(prog, length, mode, costs, t, source, unit, ahead, behind):
    """Copy the treatment of another unit, whose stage has the same levels."""
    offloaded = is_offloaded(t, source, costs.high)
    treat(prog, length, mode, costs, t, unit, mode[source], ahead, behind)
    if offloaded:
        add_offload(prog, length, mode, costs, t, unit, ahead)
    else:
        drop_offload(prog, length, costs, t, unit)


@part
def draw_mode(mode, costs, unit):
    """Draw another mode for a unit, mostly one with another level."""
    stage, old = unit >> costs.low, mode[unit]
    many = costs.many[stage]
    if many < 2:
        return old
    draw = np.random.random()
    if draw < 0.2:
        return old ^ 1
    if draw < 0.35 and old >= 2:  # the same level in another way
        return 2 * (((old // 2 - 1) ^ 1) + 1) + old % 2
    new = costs.modes[stage, np.random.randint(many)]
    if np.random.random() < 0.7:
        new = new - new % 2 + old % 2
    return new
