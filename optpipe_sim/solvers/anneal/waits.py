"""When an op may start, and what it allocates and releases on its device, whose state is the row `s`."""

from __future__ import annotations

from ...codes import O, R
from ...compiled import part
from ...ops import MESSAGES
from .marks import mark_readers
from .times import (
    ANCHOR,
    ANCHOR_OP,
    BACK,
    BACK_OP,
    FREE,
    GIVE,
    GIVEN,
    GRANTED,
    LEVEL,
    NEVER,
    OUT,
    OUT_OP,
    SENT,
    WIDE,
    copied,
    duration,
    invalidate,
    invalidate_readers,
    last_forward,
    leader,
    log_op,
    next_out,
)


@part
def neighbours(code, kind, costs):
    """Return the op whose message a compute op waits for, its device, and the op that waits for its own
    message and its device; -1 for each that does not exist."""
    above, last = 1 << costs.low, len(costs.place) - 1
    stage = (code & ((1 << costs.high) - 1)) >> costs.low
    source = where = reader = target = -1
    step = MESSAGES[kind]
    if step != 0 and 0 <= stage + step <= last:
        source, where = code + step * above, costs.place[stage + step]
    if step != 0 and 0 <= stage - step <= last:
        reader, target = code - step * above, costs.place[stage - step]
    return source, where, reader, target


@part
def send(plan, code, d, end, reader, target, second, costs, t, s):
    """Send the message of a compute op of device d at `end` to another one, and wake that device if the message
    affects it; returns when the next device begins."""
    arrives = end
    s[FREE] = end + costs.sending
    if costs.serial:
        arrives = max(end, s[SENT + target])
        s[SENT + target] = arrives + costs.occupancy
    arrives += costs.lag
    if arrives != t.ready[code]:
        reader = leader(reader, plan, costs, t)
        begins = t.end[reader] - duration(reader, plan, costs, t)
        if t.end[reader] < 0 or t.cause[reader] == code or arrives > begins:
            invalidate(reader, target, -1, t)
            at = t.slot[reader]
            if t.wake[target] < 0 or at <= t.wake[target]:
                t.wake[target], t.key[target] = at, t.before[reader, FREE]
                second = min(second, t.key[target])
    t.ready[code] = arrives
    return second


@part
def grant(plan, code, d, slot, size, time, why, costs, t, s, logs):
    """Grant memory to a compute op that could begin at `time`; returns (time, cause), ``NEVER``
    first if there is never enough."""
    mask, given = (1 << costs.high) - 1, s[GIVEN]
    if s[GRANTED] > time:
        time, why = s[GRANTED], given if given >= 0 else s[ANCHOR_OP]
    s[LEVEL] += size
    at = t.slot[given] if given >= 0 and s[LEVEL] > 0 else -1
    while s[LEVEL] > 0:
        at = next_out(plan, d, at + 1, slot, costs.high)
        if at < 0:
            return NEVER, why
        given = plan.prog[d, at]
        freed = given & mask
        s[LEVEL] -= costs.gives[O, freed >> costs.low, copied(freed, plan, costs, t)]
        take(given, code, t, logs)
        if t.end[given] > time:
            time, why = t.end[given], given
    s[GIVEN], s[GRANTED] = given, time
    return time, why


@part
def offload(plan, code, d, slot, how, costs, t, s):
    """Run an O, whose costs stand in column `how` if it leaves keys and values behind; returns (end, cause),
    the end ``NEVER`` if its F has not ended."""
    unit = code & ((1 << costs.high) - 1)
    stage, time, why = unit >> costs.low, t.end[unit], unit
    if time < 0:
        return NEVER, why
    if s[OUT] > time:
        time, why = s[OUT], s[OUT_OP]
    if costs.late > 0:
        whole, last = copied(unit, plan, costs, t), last_forward(unit, costs)
        takes_all = costs.gives[O, stage, how] < costs.gives[O, stage, whole]
        if takes_all and t.end[last] > time:
            time, why = t.end[last], last
        how = whole
    finish = time + costs.durations[O, stage, how]
    s[OUT], s[OUT_OP] = finish, code
    if finish != t.end[code]:
        invalidate_readers(plan, code, d, slot, costs, t)
        mark_readers(plan, code, d, slot, costs, t)
    return finish, why


@part
def reload(plan, code, d, slot, costs, t, s, logs):
    """Run an R; returns (end, cause), the end ``NEVER`` if memory can never be granted."""
    unit = code & ((1 << costs.high) - 1)
    how = copied(unit, plan, costs, t)
    time, why = _grant_reload(
        plan, code, d, slot, costs.takes[R, unit >> costs.low, how], costs, t, s, logs
    )
    if time == NEVER:
        return NEVER, why
    source = unit | O << costs.high
    if t.end[source] < 0:
        return NEVER, why
    if t.end[source] > time:
        time, why = t.end[source], source
    engine, engine_op = (OUT, OUT_OP) if costs.shared else (BACK, BACK_OP)
    if s[engine] > time:
        time, why = s[engine], s[engine_op]
    finish = time + costs.durations[R, unit >> costs.low, how]
    s[engine], s[engine_op] = finish, code
    if finish != t.end[code]:
        invalidate_readers(plan, code, d, slot, costs, t)
    return finish, why


@part
def _grant_reload(plan, code, d, slot, size, costs, t, s, logs):
    """Grant memory to an R at the start of the compute op before it, its anchor, or once enough has
    been released since; returns as `grant`."""
    mask, given, anchor = (1 << costs.high) - 1, s[GIVEN], s[ANCHOR_OP]
    # 1. the anchor's release counts from its end on; O's alone may suffice
    give = s[GIVE] if anchor >= 0 else 0
    base = max(s[ANCHOR], s[GRANTED])
    best, best_given, best_why, furthest, short = NEVER, given, anchor, given, False
    for use in range(2 if give > 0 else 1):
        need = s[LEVEL] + size + (give if use == 0 else 0)
        time, why, last = base, anchor, given
        if use == 1:
            time = max(base, t.end[anchor])
        at = t.slot[given] if given >= 0 else -1
        while need > 0:
            at = next_out(plan, d, at + 1, slot, costs.high)
            if at < 0:
                short = True
                break
            last = plan.prog[d, at]
            freed = last & mask
            need -= costs.gives[O, freed >> costs.low, copied(freed, plan, costs, t)]
            if t.end[last] > time:
                time, why = t.end[last], last
        if use == 0:
            furthest = last
        if need <= 0 and time < best:
            best, best_given, best_why = time, last, why
    if best == NEVER:
        return NEVER, best_why
    # 2. it takes the memory of some O's, and depends on others
    at, taken = t.slot[given] if given >= 0 else -1, given == best_given
    t.asker[code] = WIDE if short or furthest != best_given else -1
    while given != furthest:
        at = next_out(plan, d, at + 1, slot, costs.high)
        given = plan.prog[d, at]
        if taken:
            _ask(given, code, t, logs)
        else:
            freed = given & mask
            s[LEVEL] -= costs.gives[O, freed >> costs.low, copied(freed, plan, costs, t)]
            take(given, code, t, logs)
            taken = given == best_given
    s[LEVEL] += size
    s[GIVEN], s[GRANTED] = best_given, best
    return best, best_why


@part
def _ask(out, code, t, logs):
    """Record that an R depends on an O whose memory it does not reuse."""
    asker = t.asker[out]
    if asker in (code, WIDE):
        return
    if logs:
        log_op(out, t)
    t.asker[out] = WIDE if asker >= 0 and t.slot[asker] >= 0 and t.asker[asker] == WIDE else code


@part
def take(given, code, t, logs):
    """Record that an op reuses the memory of an O."""
    if t.taker[given] != code:
        if logs:
            log_op(given, t)
        t.taker[given] = code


@part
def untake(plan, code, d, slot, given, costs, t, logs):
    """Remove the records of O's behind `given` whose memory an op no longer reuses."""
    at = t.slot[given] if given >= 0 else -1
    at = next_out(plan, d, at + 1, slot, costs.high)
    while at >= 0 and t.taker[plan.prog[d, at]] == code:
        if logs:
            log_op(plan.prog[d, at], t)
        t.taker[plan.prog[d, at]] = -1
        at = next_out(plan, d, at + 1, slot, costs.high)
