"""Compiled evaluation of a plan: of all ops, or from where a move can matter.

Every wait points backwards in a program and an R counts on releases before it only, so the times are
those of the lowered program; the replay of the same schedule is never later.

A move on a device at one slot affects other devices only later than the ops before that slot: all
devices continue from a checkpoint before which every op had ended by then.

All times ns, all memory bytes, int64.
"""

from __future__ import annotations

from ...codes import B, C, F, O, R
from ...compiled import compiled, part, step
from .state import (
    ANCHOR,
    ANCHOR_OP,
    BACK,
    BACK_OP,
    BEGAN,
    DONE,
    EVERY,
    FAILED,
    FREE,
    GIVE,
    GIVEN,
    GRANTED,
    LEVEL,
    NEVER,
    OUT,
    OUT_OP,
    SENT,
    SUM,
)


@compiled
def evaluate(prog, length, mode, costs, t):
    """Evaluate a plan from the beginning, into `t`.

    Returns:
        (makespan, longest span, sum of ends), ``NEVER`` first if the programs deadlock or exceed
        the limit.
    """
    t.end[:] = -1
    t.slot[:] = -1
    t.filled[0] = 0
    for d in range(len(length)):
        t.work[d] = 0
        t.begin[d] = 0
        for at in range(length[d]):
            code = prog[d, at]
            t.slot[code] = at
            unit = code & ((1 << costs.high) - 1)
            if code >> costs.high == F:
                t.work[d] += costs.work[unit >> costs.low, column(unit, mode, costs)]
        for which in range(t.marks.shape[2]):
            t.marks[d, 0, which] = 0
        for which in (ANCHOR_OP, OUT_OP, BACK_OP, GIVEN, BEGAN):
            t.marks[d, 0, which] = -1
        t.marks[d, 0, LEVEL] = costs.static[d] - costs.limit[d]
    total = run(prog, length, mode, costs, t, NEVER, NEVER)
    if total == FAILED:
        return NEVER, NEVER, 0
    accept(length, t)
    makespan, span = longest(length, t)
    return makespan, span, total


@part
def accept(length, t):
    """Make the checkpoints of the last evaluation permanent."""
    for d in range(len(length)):
        for at in range(t.begin[d] // EVERY, (length[d] - 1) // EVERY + 1):
            for which in range(t.marks.shape[2]):
                t.marks[d, at, which] = t.fresh[d, at, which]


@part
def longest(length, t):
    """Return (makespan, longest span) of the last evaluation."""
    makespan = span = 0
    for d in range(len(length)):
        last = t.end[t.state[d, ANCHOR_OP]]
        makespan = max(makespan, last)
        span = max(span, last - t.state[d, BEGAN])
    return makespan, span


@part
def rewind(length, t, first, saved_length):
    """Find where the devices restart, into ``t.begin``, if device d changes from slot ``first[d]``
    on (-1: nowhere)."""
    soonest = NEVER
    for d in range(len(length)):
        if first[d] >= 0:
            mark = min(first[d], saved_length[d] - 1) // EVERY
            soonest = min(soonest, t.marks[d, mark, FREE])
    for d in range(len(length)):
        mark = (saved_length[d] - 1) // EVERY
        if first[d] >= 0:
            mark = min(mark, first[d] // EVERY)
        while mark > 0 and t.marks[d, mark, FREE] > soonest:
            mark -= 1
        t.begin[d] = mark * EVERY


@step
def column(unit, mode, costs):
    """Return the column of a unit's costs; for copies the one of those that leave keys and values behind."""
    return mode[unit] + costs.first[unit & ((1 << costs.low) - 1)]


@step
def copied(unit, mode, costs, t):
    """Return the column of a unit's copies: these take keys and values along if the O stands behind the F
    of the last slice."""
    how = column(unit, mode, costs)
    if costs.late > 0 and t.slot[unit | O << costs.high] > t.slot[last_forward(unit, costs)]:
        how += costs.late
    return how


@step
def last_forward(unit, costs):
    """Return the F of the last slice of the same sequence."""
    micro = unit & ((1 << costs.low) - 1)
    return unit - micro + costs.last[micro]


@step
def next_out(prog, d, begin, end, high):
    """Return the slot of the first O from `begin` on, or -1."""
    for slot in range(begin, end):
        if prog[d, slot] >> high == O:
            return slot
    return -1


@part
def run(prog, length, mode, costs, t, most, most_span):
    """Evaluate all devices from ``t.begin`` on.

    Args:
        most, most_span: give up once the makespan, or the longest span, must exceed these.

    Returns:
        The sum of ends; ``FAILED`` if the programs deadlock, exceed the limit, or the evaluation
        gave up.
    """
    devices, high = len(length), costs.high
    mask, end = (1 << high) - 1, t.end
    # 1. every device from its checkpoint on
    size = _restart(prog, length, t)
    # 2. one device after the other, until it waits for a message; its copies
    while size > 0:
        size -= 1
        d = t.stack[size]
        s = t.state[d]
        at = t.at[d]
        while at < length[d]:
            code = prog[d, at]
            kind, unit = code >> high, code & mask
            stage, how = unit >> costs.low, column(unit, mode, costs)
            if at % EVERY == 0:
                for which in range(len(s)):
                    t.fresh[d, at // EVERY, which] = s[which]
            if kind == O:
                finish, why = _offload(mode, code, stage, how, costs, t, s)
                if finish == NEVER:
                    return FAILED
            elif kind == R:
                finish, why = _reload(prog, mode, d, at, code, stage, costs, t, s)
                if finish == NEVER:
                    return FAILED
            else:
                # 3. a compute op: what it waits for, and the memory it takes
                if kind == B and end[unit] < 0:
                    return FAILED
                time, why = s[FREE], s[ANCHOR_OP]
                source, where, target = _neighbours(code, kind, stage, costs)
                if source >= 0:
                    if end[source] < 0:
                        if where == d:
                            return FAILED
                        t.waits[d] = source
                        break
                    if where != d and t.ready[source] > time:
                        time, why = t.ready[source], source
                if kind in (B, C):
                    reload = unit | R << high
                    if t.slot[reload] >= 0:
                        if end[reload] < 0:
                            return FAILED
                        if end[reload] > time:
                            time, why = end[reload], reload
                if costs.asks[kind, stage, how]:
                    time, why = _grant(
                        prog, mode, d, at, costs.takes[kind, stage, how], time, why, costs, t, s
                    )
                    if time == NEVER:
                        return FAILED
                if s[BEGAN] < 0:
                    s[BEGAN] = time
                # 4. when it ends, and what it releases then
                duration = costs.durations[kind, stage, how]
                finish = time + duration
                s[GIVE] = costs.gives[kind, stage, how]
                s[LEVEL] -= s[GIVE]
                s[ANCHOR], s[ANCHOR_OP], s[FREE] = time, code, finish
                s[DONE] += duration
                s[SUM] += finish
                # 5. give up if the rest takes too long
                left = finish + t.work[d] - s[DONE]
                if left > most or left - s[BEGAN] > most_span:
                    return FAILED
                if kind <= B and finish + costs.behind[kind, stage] > most:
                    return FAILED
                # 6. its message, and the device that waits for it
                t.ready[code] = finish
                if target >= 0 and target != d:
                    t.ready[code] = _send(target, finish, costs, s)
                    if t.waits[target] == code:
                        t.waits[target] = -1
                        t.stack[size] = target
                        size += 1
            end[code], t.cause[code] = finish, why
            at += 1
        t.at[d] = at
    # 7. the sum of ends, unless a device still waits
    total = 0
    for d in range(devices):
        if t.waits[d] >= 0:
            return FAILED
        total += t.state[d, SUM]
    return total


@step
def _restart(prog, length, t):
    """Put every device back to its checkpoint, and on the stack; returns the depth of the stack."""
    size = 0
    for d in range(len(length) - 1, -1, -1):
        begin = t.begin[d]
        for at in range(begin, length[d]):
            t.end[prog[d, at]] = -1
        for which in range(t.marks.shape[2]):
            t.state[d, which] = t.marks[d, begin // EVERY, which]
        t.at[d] = begin
        t.waits[d] = -1
        t.stack[size] = d
        size += 1
    return size


@step
def _neighbours(code, kind, stage, costs):
    """Return the op whose message a compute op waits for, its device, and the receiver of its own
    message; -1 for each that does not exist."""
    above, last = 1 << costs.low, len(costs.place) - 1
    source, where, target = -1, -1, -1
    if kind == F:
        if stage > 0:
            source, where = code - above, costs.place[stage - 1]
        if stage < last:
            target = costs.place[stage + 1]
    elif kind == B:
        if stage < last:
            source, where = code + above, costs.place[stage + 1]
        if stage > 0:
            target = costs.place[stage - 1]
    return source, where, target


@step
def _send(target, end, costs, s):
    """Send the message of a compute op to another device; returns when it arrives."""
    arrives = end
    s[FREE] = end + costs.sending
    if costs.serial:
        arrives = max(end, s[SENT + target])
        s[SENT + target] = arrives + costs.occupancy
    return arrives + costs.lag


@step
def _grant(prog, mode, d, at, size, time, why, costs, t, s):
    """Grant memory to a compute op that could begin at `time`; returns (time, cause), ``NEVER``
    first if there is never enough."""
    mask = (1 << costs.high) - 1
    if s[GRANTED] > time:
        time, why = s[GRANTED], s[BACK_OP]
    s[LEVEL] += size
    given = s[GIVEN]
    while s[LEVEL] > 0:
        given = next_out(prog, d, given + 1, at, costs.high)
        if given < 0:
            return NEVER, why
        out = prog[d, given]
        freed = out & mask
        s[LEVEL] -= costs.gives[O, freed >> costs.low, copied(freed, mode, costs, t)]
        s[GIVEN] = given
        if t.end[out] > time:
            time, why = t.end[out], out
    s[GRANTED] = time
    return time, why


@step
def _offload(mode, code, stage, how, costs, t, s):
    """Run an O, whose costs stand in column `how` if it leaves keys and values behind; returns (end, cause),
    the end ``NEVER`` if its F has not ended."""
    unit = code & ((1 << costs.high) - 1)
    time, why = t.end[unit], unit
    if time < 0:
        return NEVER, why
    if s[OUT] > time:
        time, why = s[OUT], s[OUT_OP]
    if costs.late > 0:
        whole, last = copied(unit, mode, costs, t), last_forward(unit, costs)
        takes_all = costs.gives[O, stage, how] < costs.gives[O, stage, whole]
        if takes_all and t.end[last] > time:
            time, why = t.end[last], last
        how = whole
    finish = time + costs.durations[O, stage, how]
    s[OUT], s[OUT_OP] = finish, code
    return finish, why


@step
def _reload(prog, mode, d, at, code, stage, costs, t, s):
    """Run an R; returns (end, cause), the end ``NEVER`` if memory can never be granted."""
    low, high, end = costs.low, costs.high, t.end
    mask = (1 << high) - 1
    how = copied(code & mask, mode, costs, t)
    wants = costs.takes[R, stage, how]
    # the anchor's release counts from its end on; O's alone may suffice
    give = s[GIVE] if s[ANCHOR_OP] >= 0 else 0
    base = max(s[ANCHOR], s[GRANTED])
    best, best_given, best_why, best_freed = NEVER, s[GIVEN], s[ANCHOR_OP], 0
    for use in range(2 if give > 0 else 1):
        need = s[LEVEL] + wants + (give if use == 0 else 0)
        time, why, given, freed_all = base, s[ANCHOR_OP], s[GIVEN], 0
        if use == 1 and s[ANCHOR_OP] >= 0:
            time = max(base, end[s[ANCHOR_OP]])
        while need > 0:
            following = next_out(prog, d, given + 1, at, high)
            if following < 0:
                break
            given = following
            out = prog[d, given]
            unit = out & mask
            freed = costs.gives[O, unit >> low, copied(unit, mode, costs, t)]
            need -= freed
            freed_all += freed
            if end[out] > time:
                time, why = end[out], out
        if need <= 0 and time < best:
            best, best_given, best_why, best_freed = time, given, why, freed_all
    if best == NEVER:
        return NEVER, best_why
    s[LEVEL] += wants - best_freed
    s[GIVEN], s[GRANTED] = best_given, best
    time, why = best, best_why
    source = (code & mask) | O << high
    if end[source] < 0:
        return NEVER, best_why
    if end[source] > time:
        time, why = end[source], source
    engine, engine_op = (OUT, OUT_OP) if costs.shared else (BACK, BACK_OP)
    if s[engine] > time:
        time, why = s[engine], s[engine_op]
    finish = time + costs.durations[R, stage, how]
    s[engine], s[engine_op] = finish, code
    return finish, why
