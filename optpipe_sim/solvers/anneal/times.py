"""The times of a set of programs, compiled: what the search evaluates, all of it or what a change
of the programs changes.

A program is a row of op codes, ``kind << high | stage << low | microbatch``, in issue order, transfers
included, so that every wait points backwards. An R counts on releases before it in the program
only, so the times are those of the lowered program; the replay of the same program under the
ordinary rules is never later.

After a change of the programs only those ops are evaluated again whose state or whose inputs have
changed, device by device in the order of time; see `state`.

Compiled by numba; all times ns, all memory bytes, int64.
"""

from __future__ import annotations

import numpy as np

from ...codes import B, F, O, R, W
from ...compiled import compiled, part, step
from .links import NEVER as NEVER
from .links import evaluate_links
from .state import (
    ANCHOR,
    ANCHOR_OP,
    BACK,
    BACK_OP,
    FREE,
    GIVEN,
    GRANTED,
    LEVEL,
    NEXT,
    OTHER,
    OUT,
    OUT_OP,
    STATE,
    TRIAL,
    fill_slots,
    invalidate,
    log_op,
    next_out,
)

FAILED = -1  # in place of a sum of ends


@part
def evaluate(prog, length, costs, t):
    """The times of a set of programs, into `t`.

    Args:
        prog, length: (devices, room) codes and how many of them count.
        costs: see `engine.compiled_costs`.

    Returns:
        (makespan, longest span, sum of ends), ``NEVER`` first where it cannot go on or exceeds
        the limit.
    """
    limit, static = costs[5], costs[6]
    t.tally[TRIAL] += 1
    for code in range(len(t.end)):
        t.end[code] = t.ready[code] = t.taker[code] = t.asker[code] = -1
    fill_slots(prog, length, t.slot)
    for d in range(len(length)):
        t.wake[d] = t.key[d] = 0
        t.pending[d] = length[d]
        for slot in range(length[d]):
            t.stale[prog[d, slot]] = t.tally[TRIAL]
        first = prog[d, 0]
        for which in range(STATE):
            t.before[first, which] = 0
        for which in (ANCHOR_OP, OUT_OP, BACK_OP, GIVEN):
            t.before[first, which] = -1
        t.before[first, LEVEL] = static[d] - limit[d]
    total = update(prog, length, costs, t, 0, np.inf, 0.0, 0, NEVER, False)
    if total == FAILED:
        return NEVER, NEVER, 0
    makespan, span = longest(prog, length, costs, t)
    return makespan, span, total


@compiled
def measure(prog, length, costs, links, t):
    """`evaluate`, or `evaluate_links` where there are links that are shared."""
    if links[1] > 0:
        return evaluate_links(prog, length, costs, links, t.end, t.ready, t.cause)
    return evaluate(prog, length, costs, t)


@part
def last_start(prog, costs, t):
    """When the last device begins."""
    lasts, low, high = costs[0], costs[12], costs[13]
    last = 0
    for d in range(len(prog)):
        code = prog[d, 0]
        last = max(last, t.end[code] - lasts[code >> high, (code & ((1 << high) - 1)) >> low])
    return last


@part
def longest(prog, length, costs, t):
    """(makespan, longest span) of programs that begin and end with compute ops."""
    lasts, low, high = costs[0], costs[12], costs[13]
    makespan = span = 0
    for d in range(len(length)):
        first, last = prog[d, 0], t.end[prog[d, length[d] - 1]]
        began = t.end[first] - lasts[first >> high, (first & ((1 << high) - 1)) >> low]
        makespan = max(makespan, last)
        span = max(span, last - began)
    return makespan, span


@part
def update(prog, length, costs, t, total, most, weight, begun, ahead, logs):
    """Evaluate what is stale, and all that this changes.

    Args:
        total: the sum of all ends before.
        most, weight: give up where the makespan at least, by `t.tail`, and `weight` times the sum of
            ends come to more than `most`, which ends the circles of programs that cannot go on, too.
        begun: when the last device begins where spans count, else 0.
        ahead: how far, in ns, a device may go ahead of the others. What it finds later to have been
            different is evaluated again.
        logs: whether `undo` is to be possible.

    Returns:
        The sum of ends; ``FAILED`` where the programs cannot go on or exceed the limit, or where it
        gave up. Then some times are old and some new.
    """
    (lasts, act, held, moved, place, _, _, lag, occupancy, serial, shared, _, low, high) = costs
    devices, last_stage = len(length), len(act) - 1
    mask, above = (1 << high) - 1, 1 << low
    trial, before = t.tally[TRIAL], t.before
    while True:
        d, soonest, second = -1, NEVER, NEVER
        for other in range(devices):
            if t.wake[other] >= 0:
                if t.key[other] < soonest:
                    d, soonest, second = other, t.key[other], soonest
                elif t.key[other] < second:
                    second = t.key[other]
        if d < 0:
            break
        slot = t.wake[d]
        t.wake[d] = -1
        code = prog[d, slot]
        while True:  # the ops of this device, from the state before the next stale one
            free, granted = before[code, FREE], before[code, GRANTED]
            anchor, anchor_op = before[code, ANCHOR], before[code, ANCHOR_OP]
            out, out_op = before[code, OUT], before[code, OUT_OP]
            back, back_op = before[code, BACK], before[code, BACK_OP]
            level, given = before[code, LEVEL], before[code, GIVEN]
            sent, sent_other = before[code, NEXT], before[code, OTHER]
            while True:  # op by op, until the state is what it was
                if logs:
                    log_op(code, t)
                if t.stale[code] == trial:
                    t.stale[code] = 0
                    t.pending[d] -= 1
                kind, unit = code >> high, code & mask
                stage = unit >> low
                if kind == O:
                    time, why = t.end[unit], unit
                    if out > time:
                        time, why = out, out_op
                    finish = time + lasts[O, stage]
                    out, out_op = finish, code
                    if finish != t.end[code]:
                        invalidate(unit | R << high, d, slot, t)
                        invalidate(t.taker[code], d, slot, t)
                        invalidate(t.asker[code], d, slot, t)
                elif kind == R:
                    # the anchor's release counts from its end on; alternatively O's alone may do
                    give = 0
                    if anchor_op >= 0:
                        give = _given(anchor_op, low, high, act, held)
                    base = max(anchor, granted)
                    best, best_given, best_why = NEVER, given, anchor_op
                    for use in range(2 if give > 0 else 1):
                        need = level + moved[stage] + (give if use == 0 else 0)
                        time, why, last = base if use == 0 else max(base, free), anchor_op, given
                        at = t.slot[given] if given >= 0 else -1
                        while need > 0:
                            at = next_out(prog, d, at + 1, slot, high)
                            if at < 0:
                                break
                            last = prog[d, at]
                            if t.asker[last] != code:
                                if logs:
                                    log_op(last, t)
                                t.asker[last] = code
                            need -= moved[(last & mask) >> low]
                            if t.end[last] > time:
                                time, why = t.end[last], last
                        if need <= 0 and time < best:
                            best, best_given, best_why = time, last, why
                    if best == NEVER:
                        return FAILED
                    at = t.slot[given] if given >= 0 else -1
                    while given != best_given:
                        at = next_out(prog, d, at + 1, slot, high)
                        given = prog[d, at]
                        level -= moved[(given & mask) >> low]
                        if t.taker[given] != code:
                            if logs:
                                log_op(given, t)
                            t.taker[given] = code
                    level += moved[stage]
                    granted = time = best
                    why = best_why
                    source = unit | O << high
                    if t.end[source] > time:
                        time, why = t.end[source], source
                    if shared:
                        if out > time:
                            time, why = out, out_op
                        finish = time + lasts[R, stage]
                        out, out_op = finish, code
                    else:
                        if back > time:
                            time, why = back, back_op
                        finish = time + lasts[R, stage]
                        back, back_op = finish, code
                    if finish != t.end[code]:
                        invalidate(unit | B << high, d, slot, t)
                else:
                    time, why = free, anchor_op
                    source = where = target = reader = -1
                    if kind == F:
                        if stage > 0:
                            source = unit - above
                            where = place[stage - 1]
                        if stage < last_stage:
                            target, reader = place[stage + 1], unit + above
                    elif kind == B:
                        if stage < last_stage:
                            source = code + above
                            where = place[stage + 1]
                        if stage > 0:
                            target, reader = place[stage - 1], code - above
                    if source >= 0:
                        if t.end[source] < 0:  # not yet
                            t.stale[code] = trial
                            t.pending[d] += 1
                            t.wake[d], t.key[d] = slot, NEVER
                            break
                        if where == d:
                            if t.slot[source] > slot:
                                return FAILED
                        elif t.ready[source] > time:
                            time, why = t.ready[source], source
                    if kind == F:
                        if granted > time:
                            time, why = granted, given if given >= 0 else anchor_op
                        need = level + act[stage]
                        at = t.slot[given] if given >= 0 and need > 0 else -1
                        while need > 0:
                            at = next_out(prog, d, at + 1, slot, high)
                            if at < 0:
                                return FAILED
                            given = prog[d, at]
                            if t.taker[given] != code:
                                if logs:
                                    log_op(given, t)
                                t.taker[given] = code
                            need -= moved[(given & mask) >> low]
                            level -= moved[(given & mask) >> low]
                            if t.end[given] > time:
                                time, why = t.end[given], given
                        level += act[stage]
                        granted = time
                    elif kind == B:
                        reload = unit | R << high
                        if t.slot[reload] >= 0 and t.end[reload] > time:
                            time, why = t.end[reload], reload
                        level -= act[stage] - held[stage]
                    else:
                        level -= held[stage]
                    finish = time + lasts[kind, stage]
                    anchor, anchor_op, free = time, code, finish
                    old = t.end[code]
                    total += finish - max(old, 0)
                    tail = t.tail[code] if slot > t.changed[d, 1] else -begun
                    if finish + tail + weight * total > most:
                        return FAILED
                    if finish != old and kind == F:
                        invalidate(unit | O << high, d, slot, t)
                    arrives = finish
                    if target >= 0 and target != d:
                        if serial:
                            if target == (d + 1) % devices:
                                sent = max(finish, sent)
                                arrives, sent = sent, sent + occupancy
                            else:
                                sent_other = max(finish, sent_other)
                                arrives, sent_other = sent_other, sent_other + occupancy
                        arrives += lag
                        if arrives != t.ready[code]:
                            # does it concern the one that waits for it?
                            begins = (
                                t.end[reader] - lasts[kind, stage + 1 if kind == F else stage - 1]
                            )
                            if t.end[reader] < 0 or t.cause[reader] == code or arrives > begins:
                                invalidate(reader, target, -1, t)
                                at = t.slot[reader]
                                if t.wake[target] < 0 or at <= t.wake[target]:
                                    t.wake[target] = at
                                    t.key[target] = t.before[reader, FREE]
                                    second = min(second, t.key[target])
                    t.ready[code] = arrives
                t.end[code], t.cause[code] = finish, why
                if kind in (F, R):  # what it took before and takes no longer
                    at = t.slot[given] if given >= 0 else -1
                    at = next_out(prog, d, at + 1, slot, high)
                    while at >= 0 and t.taker[prog[d, at]] == code:
                        if logs:
                            log_op(prog[d, at], t)
                        t.taker[prog[d, at]] = -1
                        at = next_out(prog, d, at + 1, slot, high)
                slot += 1
                if slot == length[d]:
                    break
                code = prog[d, slot]
                if (
                    t.stale[code] != trial
                    and before[code, FREE] == free and before[code, GRANTED] == granted and before[code, ANCHOR] == anchor
                    and before[code, ANCHOR_OP] == anchor_op and before[code, OUT] == out and before[code, BACK] == back
                    and before[code, OUT_OP] == out_op and before[code, BACK_OP] == back_op
                    and before[code, LEVEL] == level and before[code, GIVEN] == given
                    and before[code, NEXT] == sent and before[code, OTHER] == sent_other
                ):  # fmt: skip
                    break
                if logs:
                    log_op(code, t)
                before[code, FREE], before[code, GRANTED] = free, granted
                before[code, ANCHOR], before[code, ANCHOR_OP] = anchor, anchor_op
                before[code, OUT], before[code, OUT_OP] = out, out_op
                before[code, BACK], before[code, BACK_OP] = back, back_op
                before[code, LEVEL], before[code, GIVEN] = level, given
                before[code, NEXT], before[code, OTHER] = sent, sent_other
                if free > second + ahead:
                    invalidate(code, d, -1, t)
                    t.wake[d], t.key[d] = slot, free
                    break
            if t.wake[d] >= 0 or t.pending[d] == 0:
                break
            while t.stale[code] != trial:
                slot += 1
                code = prog[d, slot]
    for d in range(devices):
        if t.wake[d] >= 0:
            return FAILED
    return total


@step
def _given(code, low, high, act, held):
    """What a compute op gives back at its end."""
    kind = code >> high
    stage = (code & ((1 << high) - 1)) >> low
    if kind == B:
        return act[stage] - held[stage]
    if kind == W:
        return held[stage]
    return 0
