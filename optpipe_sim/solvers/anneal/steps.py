"""Compiled steps of the evaluation: when an op may start, and what it allocates and releases on its
device.

See `times` for the encoding of programs, and `state` for the state of an evaluation.
"""

from __future__ import annotations

from ...codes import B, F, O, R, W
from ...compiled import step
from .links import NEVER
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
    Copies,
    Memory,
    Sends,
    Stream,
    invalidate,
    log_op,
    next_out,
)


@step
def state_before(code, t):
    """Return the state of the device before an op."""
    before = t.before
    return (
        Stream(before[code, FREE], before[code, ANCHOR], before[code, ANCHOR_OP]),
        Memory(before[code, LEVEL], before[code, GRANTED], before[code, GIVEN]),
        Copies(before[code, OUT], before[code, OUT_OP], before[code, BACK], before[code, BACK_OP]),
        Sends(before[code, NEXT], before[code, OTHER]),
    )


@step
def is_state_before(code, stream, memory, copies, sends, t):
    """Whether the stored state before an op equals this one."""
    before = t.before
    return (
        before[code, FREE] == stream.free
        and before[code, GRANTED] == memory.granted
        and before[code, ANCHOR] == stream.anchor
        and before[code, ANCHOR_OP] == stream.op
        and before[code, OUT] == copies.out
        and before[code, BACK] == copies.back
        and before[code, OUT_OP] == copies.out_op
        and before[code, BACK_OP] == copies.back_op
        and before[code, LEVEL] == memory.level
        and before[code, GIVEN] == memory.given
        and before[code, NEXT] == sends.next
        and before[code, OTHER] == sends.other
    )


@step
def keep_state_before(code, stream, memory, copies, sends, t):
    """Store the state before an op."""
    before = t.before
    before[code, FREE], before[code, ANCHOR] = stream.free, stream.anchor
    before[code, ANCHOR_OP] = stream.op
    before[code, LEVEL], before[code, GRANTED] = memory.level, memory.granted
    before[code, GIVEN] = memory.given
    before[code, OUT], before[code, OUT_OP] = copies.out, copies.out_op
    before[code, BACK], before[code, BACK_OP] = copies.back, copies.back_op
    before[code, NEXT], before[code, OTHER] = sends.next, sends.other


@step
def offload(code, d, slot, copies, costs, t):
    """Run an O, which begins once its F has ended and the engine is free; returns (end, cause, copies)."""
    unit = code & ((1 << costs.high) - 1)
    time, why = t.end[unit], unit
    if copies.out > time:
        time, why = copies.out, copies.out_op
    finish = time + costs.durations[O, unit >> costs.low]
    if finish != t.end[code]:
        invalidate(unit | R << costs.high, d, slot, t)
        invalidate(t.taker[code], d, slot, t)
        invalidate(t.asker[code], d, slot, t)
    return finish, why, Copies(finish, code, copies.back, copies.back_op)


@step
def grant_reload(prog, code, d, slot, stream, memory, costs, t, logs):
    """Grant memory to an R at the start of the compute op before it, its anchor, or once enough has
    been released since; returns (time, cause, memory), with ``NEVER`` first if that never
    happens."""
    mask, given, moved = (1 << costs.high) - 1, memory.given, costs.moved
    size = moved[(code & mask) >> costs.low]
    # 1. the anchor's release counts from its end on; O's alone may suffice
    give = released(stream.op, costs) if stream.op >= 0 else 0
    base = max(stream.anchor, memory.granted)
    best, best_given, best_why = NEVER, given, stream.op
    for use in range(2 if give > 0 else 1):
        need = memory.level + size + (give if use == 0 else 0)
        time, why, last = base if use == 0 else max(base, stream.free), stream.op, given
        at = t.slot[given] if given >= 0 else -1
        while need > 0:
            at = next_out(prog, d, at + 1, slot, costs.high)
            if at < 0:
                break
            last = prog[d, at]
            if t.asker[last] != code:
                if logs:
                    log_op(last, t)
                t.asker[last] = code
            need -= moved[(last & mask) >> costs.low]
            if t.end[last] > time:
                time, why = t.end[last], last
        if need <= 0 and time < best:
            best, best_given, best_why = time, last, why
    if best == NEVER:
        return best, best_why, memory
    # 2. it takes the memory of these O's
    level = memory.level
    at = t.slot[given] if given >= 0 else -1
    while given != best_given:
        at = next_out(prog, d, at + 1, slot, costs.high)
        given = prog[d, at]
        level -= moved[(given & mask) >> costs.low]
        take(given, code, t, logs)
    return best, best_why, Memory(level + size, best, given)


@step
def reload(code, d, slot, time, why, copies, costs, t):
    """Run an R with granted memory, which begins once its O has ended and the engine is free;
    returns (end, cause, copies)."""
    unit = code & ((1 << costs.high) - 1)
    source = unit | O << costs.high
    if t.end[source] > time:
        time, why = t.end[source], source
    free, free_op = (copies.out, copies.out_op) if costs.shared else (copies.back, copies.back_op)
    if free > time:
        time, why = free, free_op
    finish = time + costs.durations[R, unit >> costs.low]
    if finish != t.end[code]:
        invalidate(unit | B << costs.high, d, slot, t)
    if costs.shared:
        return finish, why, Copies(finish, code, copies.back, copies.back_op)
    return finish, why, Copies(copies.out, copies.out_op, finish, code)


@step
def grant_forward(prog, code, d, slot, time, why, stream, memory, costs, t, logs):
    """Grant memory to an F that could begin at `time`; returns as `grant_reload`."""
    mask, given, level = (1 << costs.high) - 1, memory.given, memory.level
    if memory.granted > time:
        time, why = memory.granted, given if given >= 0 else stream.op
    size = costs.act[(code & mask) >> costs.low]
    need = level + size
    at = t.slot[given] if given >= 0 and need > 0 else -1
    while need > 0:
        at = next_out(prog, d, at + 1, slot, costs.high)
        if at < 0:
            return NEVER, why, memory
        given = prog[d, at]
        take(given, code, t, logs)
        need -= costs.moved[(given & mask) >> costs.low]
        level -= costs.moved[(given & mask) >> costs.low]
        if t.end[given] > time:
            time, why = t.end[given], given
    return time, why, Memory(level + size, time, given)


@step
def take(given, code, t, logs):
    """Record that an op reuses the memory of an O."""
    if t.taker[given] != code:
        if logs:
            log_op(given, t)
        t.taker[given] = code


@step
def untake(prog, code, d, slot, given, costs, t, logs):
    """Remove the records of O's behind `given` whose memory an op no longer reuses."""
    at = t.slot[given] if given >= 0 else -1
    at = next_out(prog, d, at + 1, slot, costs.high)
    while at >= 0 and t.taker[prog[d, at]] == code:
        if logs:
            log_op(prog[d, at], t)
        t.taker[prog[d, at]] = -1
        at = next_out(prog, d, at + 1, slot, costs.high)


@step
def source_of(code, costs):
    """Return the op whose message a compute op waits for, and its device; -1 for both if there is none."""
    kind, above = code >> costs.high, 1 << costs.low
    stage = (code & ((1 << costs.high) - 1)) >> costs.low
    if kind == F and stage > 0:
        return code - above, costs.place[stage - 1]
    if kind == B and stage < len(costs.act) - 1:
        return code + above, costs.place[stage + 1]
    return -1, -1


@step
def send(code, d, finish, second, devices, sends, costs, t):
    """Record when the message of a compute op arrives, and wake the receiving device if the message
    affects it; returns the links of the sender, and when the next device begins."""
    kind, above = code >> costs.high, 1 << costs.low
    stage = (code & ((1 << costs.high) - 1)) >> costs.low
    target, reader, behind = -1, -1, stage
    if kind == F and stage < len(costs.act) - 1:
        target, reader, behind = costs.place[stage + 1], code + above, stage + 1
    elif kind == B and stage > 0:
        target, reader, behind = costs.place[stage - 1], code - above, stage - 1
    if target < 0 or target == d:
        t.ready[code] = finish
        return sends, second
    arrives, next, other = finish, sends.next, sends.other
    if costs.serial and target == (d + 1) % devices:
        arrives = max(finish, next)
        next = arrives + costs.occupancy
    elif costs.serial:
        arrives = max(finish, other)
        other = arrives + costs.occupancy
    arrives += costs.lag
    if arrives != t.ready[code]:
        # does it affect the op that waits for it?
        begins = t.end[reader] - costs.durations[kind, behind]
        if t.end[reader] < 0 or t.cause[reader] == code or arrives > begins:
            invalidate(reader, target, -1, t)
            at = t.slot[reader]
            if t.wake[target] < 0 or at <= t.wake[target]:
                t.wake[target] = at
                t.key[target] = t.before[reader, FREE]
                second = min(second, t.key[target])
    t.ready[code] = arrives
    return Sends(next, other), second


@step
def released(code, costs):
    """Return the bytes that a compute op releases at its end."""
    kind = code >> costs.high
    stage = (code & ((1 << costs.high) - 1)) >> costs.low
    if kind == B:
        return costs.act[stage] - costs.held[stage]
    if kind == W:
        return costs.held[stage]
    return 0
