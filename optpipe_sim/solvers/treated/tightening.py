"""A compiled move that tightens the trip of one microbatch: its ops wait less, past whatever others stand between."""

from __future__ import annotations

import numpy as np

from ...codes import B, O, W
from ...compiled import part, step
from .edits import drop_offload, slide, treat
from .state import duration

NEARBY = 4  # a trip is tightened from at most so many stages behind that of the op, less one
LATE = 4  # an F may end a 1 / LATE of its duration later than just in time


@part
def tighten(prog, length, mode, costs, t, unit, new, offloads):
    """Tighten the trip of a unit's microbatch over a run of stages, by the times of the last evaluation.

    Its F's move later, until just in time for the next stage, its B's earlier, until the message of
    the next stage arrives, or both. Its activations may get the mode `new` there, and stay on the device.

    Returns:
        (first device that may have changed, last one).
    """
    low, high, stages = costs.low, costs.high, len(costs.place)
    stage, micro = unit >> low, unit & ((1 << low) - 1)
    top = min(stages - 1, stage + np.random.randint(0, NEARBY))
    base = max(0, top - np.random.randint(0, stages))
    sides = np.random.randint(3)
    treats, stays = np.random.random() < 0.6, offloads and np.random.random() < 0.5
    # 1. by when the last F has to end, and from when on the first B can begin
    if top == stages - 1:
        backward = B << high | top << low | micro
        until = t.end[backward] - duration(backward, mode, costs, t)
        since = t.end[top << low | micro]
    else:
        after = (top + 1) << low | micro
        until = t.end[after] - duration(after, mode, costs, t) - costs.lag
        since = t.end[after | B << high] + costs.lag
    # 2. stage by stage back from there
    first, last = len(length), -1
    for here in range(top, base - 1, -1):
        d, one = costs.place[here], here << low | micro
        first, last = min(first, d), max(last, d)
        if treats and new < costs.many[here]:
            treat(prog, length, mode, costs, t, one, new, 1, 0)
        if stays:
            drop_offload(prog, length, costs, t, one)
        if sides != 1:
            until = _later(prog, length, mode, costs, t, d, one, until)
        if sides != 0:
            since = _earlier(prog, mode, costs, t, d, one, since)
    return first, last


@step
def _later(prog, length, mode, costs, t, d, unit, until):
    """Move an F past ops that end before `until`; returns by when the F before it has to end."""
    mask, takes = (1 << costs.high) - 1, duration(unit, mode, costs, t)
    at = to = t.slot[unit]
    while to + 1 < length[d]:
        other = prog[d, to + 1]
        if other & mask == unit or t.end[other] > until - takes + takes // LATE:
            break
        to += 1
    slide(prog, t, d, at, to)
    return until - takes - _hop(costs, unit >> costs.low)


@step
def _earlier(prog, mode, costs, t, d, unit, since):
    """Move a B past ops that begin after `since`, its W right behind it; returns from when on the B
    after it can begin."""
    mask, high = (1 << costs.high) - 1, costs.high
    backward, gradient = unit | B << high, t.slot[unit | W << high]
    at = to = t.slot[backward]
    while to > 0:
        other = prog[d, to - 1]
        begins = t.end[other] - duration(other, mode, costs, t)
        if other & mask == unit or (other >> high < O and begins < since):
            break
        to -= 1
    slide(prog, t, d, at, to)
    if gradient > to + 1:
        slide(prog, t, d, gradient, to + 1)
    return since + duration(backward, mode, costs, t) + _hop(costs, unit >> costs.low)


@step
def _hop(costs, stage):
    """Return the time of a message between a stage and the one before it, ns."""
    if stage > 0 and costs.place[stage - 1] != costs.place[stage]:
        return costs.lag
    return 0
