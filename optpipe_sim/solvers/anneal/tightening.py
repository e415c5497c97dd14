"""A compiled move that tightens the trip of one microbatch: its ops wait less, past whatever others
stand between."""

from __future__ import annotations

from ...codes import B, O, W
from ...compiled import part
from .edits import drop_offload, slide, treat
from .times import duration

LATE = 4  # an F may end a 1 / LATE of its duration later than just in time


@part
def tighten(plan, costs, t, micro, base, top, new, keeps, forwards, backwards):
    """Tighten the trip of a microbatch through stages `base` to `top`, by the times of the last evaluation.

    Args:
        new: the mode its activations get there, where the stage has it; -1 for the one they have.
        keeps: whether they are no longer offloaded. `forwards`: whether its F's move later, until just
            in time for the next stage. `backwards`: whether its B's move earlier, until the message of
            the next stage arrives, each with its W behind it.

    Returns:
        (first device that may have changed, last one).
    """
    low, high = costs.low, costs.high
    # 1. by when the last F has to end, and from when on the first B can begin
    if top == len(costs.place) - 1:
        backward = B << high | top << low | micro
        until = t.end[backward] - duration(backward, plan, costs, t)
        since = t.end[top << low | micro]
    else:
        after = (top + 1) << low | micro
        until = t.end[after] - duration(after, plan, costs, t) - _message(costs, top + 1)
        since = t.end[after | B << high] + _message(costs, top + 1)
    # 2. stage by stage back from there
    first, last = len(plan.length), -1
    for stage in range(top, base - 1, -1):
        d, unit = costs.place[stage], stage << low | micro
        first, last = min(first, d), max(last, d)
        if 0 <= new < costs.many[stage]:
            treat(plan, costs, t, unit, new, 1, 0)
        if keeps:
            drop_offload(plan, costs, t, unit)
        if forwards:
            until = _later(plan, costs, t, d, unit, until)
        if backwards:
            since = _earlier(plan, costs, t, d, unit, since)
    return first, last


@part
def _later(plan, costs, t, d, unit, until):
    """Move an F past ops that end before `until`; returns by when the F of the stage before has to end, ns."""
    mask, takes = (1 << costs.high) - 1, duration(unit, plan, costs, t)
    at = to = t.slot[unit]
    while to + 1 < plan.length[d]:
        other = plan.prog[d, to + 1]
        if other & mask == unit or t.end[other] > until - takes + takes // LATE:
            break
        to += 1
    slide(plan, t, d, at, to)
    return until - takes - _message(costs, unit >> costs.low)


@part
def _earlier(plan, costs, t, d, unit, since):
    """Move a B past ops that begin after `since`, its W right behind it; returns from when on the B of the
    stage before can begin, ns."""
    mask, high = (1 << costs.high) - 1, costs.high
    backward, gradient_slot = unit | B << high, t.slot[unit | W << high]
    at = to = t.slot[backward]
    while to > 0:
        other = plan.prog[d, to - 1]
        begins = t.end[other] - duration(other, plan, costs, t)
        if other & mask == unit or (other >> high < O and begins < since):
            break
        to -= 1
    slide(plan, t, d, at, to)
    if gradient_slot > to + 1:
        slide(plan, t, d, gradient_slot, to + 1)
    return since + duration(backward, plan, costs, t) + _message(costs, unit >> costs.low)


@part
def _message(costs, stage):
    """Return the time of a message between a stage and the one before it, ns."""
    if stage > 0 and costs.place[stage - 1] != costs.place[stage]:
        return costs.lag
    return 0
