"""The times of a set of programs where transfers of several queues share links, compiled.

Links serve first come, first served, so what happens depends on times. The compute ops of a device
are run ahead as far as what is known allows; only what time decides, the service of a link and the
grant of a reload that waits for memory, is settled in the order of time, so that whatever
is still unknown then comes later. The times are those of `sim.events.run_events`, tick by tick.

A *key* is an instant and the round within it, ``time << shift | round``: a link is served in the round in
which a transfer comes, and the next transfer of that queue comes in the round after. Without that
the ties at one instant would not be the replay's.

For programs as codes see `times`. All times ns, all memory bytes, int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...codes import B, F, O, R
from ...compiled import compiled
from ...ops import OpKind
from ...profile import CostProfile
from ...sim.links import link_keys

NEVER = 2**61
ROUNDS = 16  # bits for rounds where transfers may last 0; else there are never more than two
RELOADED = -2  # the end of an R that is still to come
MEMORY = -2  # a device that waits for memory, or for a reload to be granted it first


def link_arrays(profile: CostProfile, bits: tuple[int, int], shared: bool) -> tuple[Any, ...]:
    """What `evaluate_links` knows about links and works in; none of it where no link is `shared`.

    Args:
        bits: where the stage and the kind begin in a code.
    """
    devices = profile.devices if shared else 0
    keys = link_keys(profile) if shared else ()
    names = sorted(set(keys))
    link_of = np.array([names.index(key) for key in keys], np.int64)
    # the queues of each link, ``2 device + (1 for R)``, by rank
    members = np.argsort(link_of, kind="stable").astype(np.int64)
    first = np.searchsorted(link_of[members], np.arange(len(names) + 1)).astype(np.int64)
    low, high = bits
    stages = len(profile.stages)
    lasts, gives = (np.zeros((len(OpKind), 1 << high - low), np.int64) for _ in range(2))
    lasts[:, :stages], gives[:, :stages] = profile.durations_ns, profile.released_bytes

    def ints(*size: int) -> np.ndarray:
        return np.zeros(size, np.int64)

    shift = ROUNDS if (profile.durations_ns[O:] == 0).any() else 1
    queues, count = 2 * devices, len(names)
    room = stages << low
    return (
        link_of, count, shift, members, first, lasts.ravel(), gives.ravel(), ints(devices),
        ints(queues), ints(queues), ints(queues), ints(queues), ints(queues), ints(queues),
        ints(devices), ints(count), ints(count), ints(count), ints(count),
        ints(devices, room), ints(devices, room), ints(devices, room), ints(devices), ints(devices),
        ints(devices, 2 * room), ints(devices), ints(devices), *(ints(devices) for _ in range(7)),
        ints(devices, room), ints(devices), ints(devices), ints(devices), ints(devices, devices),
    )  # fmt: skip


@compiled
def _after(key, lasts, shift):
    """The key `lasts` ns after a key."""
    return key if lasts == 0 else ((key >> shift) + lasts) << shift


@compiled
def _next_transfer(prog, length, queue, slot, shared, high):
    """Where a queue's next transfer stands in the program of its device, from `slot` on, or its end."""
    d = queue >> 1
    while slot < length[d]:
        kind = prog[d, slot] >> high
        if kind >= O and (shared or kind == O + (queue & 1)):
            break
        slot += 1
    return slot


@compiled
def evaluate_links(prog, length, costs, links, end, ready, cause):
    """As `times.evaluate`, for transfers that share links; `links`: see `link_arrays`."""
    (_, act, _, moved, place, limit, static, lag, occupancy, serial, shared, _, low, high) = costs
    (link_of, count, shift, members, first, lasts, gives, waits, head, where, came, turn, engine, engine_op,
     late, due, pick, link_free, link_op, asked, asked_from, asked_op, a_head, a_tail, gave, g_tail,
     granted_op, at, free, granted, anchor, anchor_op, stack, level, queued, q_head, q_tail, began,
     pair) = links  # fmt: skip
    devices, last_stage = len(length), len(act) - 1
    mask, above = (1 << high) - 1, 1 << low
    outs, backs = O << high, R << high
    # a queue by its number ``2 device + (1 for R)``; all of a shared engine is in the even one
    one = -2 if shared else -1
    for code in range(len(end)):
        end[code] = ready[code] = -1
    for d in range(devices):
        at[d] = free[d] = granted[d] = anchor[d] = 0
        anchor_op[d] = granted_op[d] = began[d] = waits[d] = -1
        level[d] = static[d] - limit[d]  # above 0: over the limit
        q_head[d] = q_tail[d] = a_head[d] = a_tail[d] = g_tail[d] = 0
        stack[d] = devices - 1 - d
        late[d] = NEVER
        for other in range(devices if serial else 0):
            pair[d, other] = 0
    for queue in range(2 * devices):
        engine[queue] = turn[queue] = 0
        engine_op[queue] = head[queue] = -1
        came[queue] = NEVER
        d = queue >> 1
        slot = 0 if queue & one == queue else length[d]
        where[queue] = _next_transfer(prog, length, queue, slot, shared, high)
        if where[queue] < length[d]:
            head[queue] = prog[d, where[queue]]
    for link in range(count):
        link_free[link] = 0
        link_op[link] = -1
        due[link] = NEVER
    depth = devices
    now = total = 0
    soonest_late = NEVER
    while True:
        # run the devices on as far as it is known how they go on
        while depth > 0:
            depth -= 1
            d = stack[depth]
            out_queue, back_queue = 2 * d, 2 * d + 1 & one
            while True:
                # memory for the reloads that have asked for it, in their order
                while a_head[d] < a_tail[d]:
                    code = asked[d, a_head[d]]
                    base = max(asked_from[d, a_head[d]], granted[d])
                    time, why = base, asked_op[d, a_head[d]]
                    need = level[d] + moved[(code & mask) >> low]
                    back = g_tail[
                        d
                    ]  # what compute ops give back later than that does not count yet
                    while back > 0 and end[gave[d, back - 1]] > base:
                        back -= 1
                        need += gives[gave[d, back] >> low]
                    out = q_head[d]
                    while need > 0:
                        op = -1
                        if out < q_tail[d]:
                            op = queued[d, out]
                        if back < g_tail[d] and (op < 0 or end[gave[d, back]] < end[op]):
                            op = gave[d, back]
                            back += 1
                        elif op >= 0:
                            out += 1
                        else:
                            break
                        need -= gives[op >> low]
                        if end[op] > time:
                            time, why = end[op], op
                    late[d] = NEVER
                    if need > 0:
                        break
                    if time > base:
                        # may something still unknown give as much before?
                        sure = max(free[d], now)
                        if head[out_queue] >= 0:
                            soon = max(engine[out_queue], now)
                            sure = min(sure, _after(soon, lasts[head[out_queue] >> low], shift))
                        if time > sure:
                            late[d] = time
                            soonest_late = min(soonest_late, time)
                            break
                    for slot in range(q_head[d], out):
                        level[d] -= gives[queued[d, slot] >> low]
                    q_head[d] = out
                    level[d] += moved[(code & mask) >> low]
                    granted[d], granted_op[d] = time, why
                    ready[code], cause[code] = time, why
                    a_head[d] += 1
                    op = end[code & mask | outs]
                    if head[back_queue] == code and op >= 0:
                        came[2 * d + 1] = max(turn[back_queue], max(op, time))
                        due[link_of[2 * d + 1]] = -1
                # the next op
                if at[d] == length[d]:
                    break
                code = prog[d, at[d]]
                kind = code >> high
                unit = code & mask
                stage = unit >> low
                if kind == O:
                    at[d] += 1
                    continue
                if kind == R:
                    if end[unit | B << high] >= 0:
                        return NEVER, NEVER, 0
                    end[code] = RELOADED
                    asked[d, a_tail[d]] = code
                    asked_from[d, a_tail[d]], asked_op[d, a_tail[d]] = anchor[d], anchor_op[d]
                    a_tail[d] += 1
                    at[d] += 1
                    continue
                time, why = free[d], anchor_op[d]
                target = -1
                if kind == F:
                    waits[d] = MEMORY
                    if a_head[d] < a_tail[d]:
                        break
                    if stage > 0:
                        op = unit - above
                        if ready[op] < 0:
                            waits[d] = op
                            break
                        if ready[op] > time:
                            time, why = ready[op], op
                    if granted[d] > time:
                        time, why = granted[d], granted_op[d]
                    while level[d] + act[stage] > 0 and q_head[d] < q_tail[d]:
                        op = queued[d, q_head[d]]
                        q_head[d] += 1
                        level[d] -= gives[op >> low]
                        if end[op] > time:
                            time, why = end[op], op
                    if level[d] + act[stage] > 0:
                        break
                    level[d] += act[stage]
                    granted[d], granted_op[d] = time, why
                    finish = _after(time, lasts[code >> low], shift)
                    if head[out_queue] == unit | outs:
                        came[out_queue] = max(turn[out_queue], finish)
                        due[link_of[out_queue]] = -1
                    if stage < last_stage:
                        target = place[stage + 1]
                else:
                    if kind == B:
                        if end[unit] < 0:
                            return NEVER, NEVER, 0
                        if stage < last_stage:
                            op = code + above
                            if ready[op] < 0:
                                waits[d] = op
                                break
                            if ready[op] > time:
                                time, why = ready[op], op
                        op = unit | backs
                        if end[op] == RELOADED:
                            waits[d] = op
                            break
                        if end[op] > time:
                            time, why = end[op], op
                        if stage > 0:
                            target = place[stage - 1]
                    elif end[unit | B << high] < 0:
                        return NEVER, NEVER, 0
                    finish = _after(time, lasts[code >> low], shift)
                    level[d] -= gives[code >> low]
                    gave[d, g_tail[d]] = code
                    g_tail[d] += 1
                if began[d] < 0:
                    began[d] = time
                anchor[d], anchor_op[d], free[d] = time, code, finish
                end[code], cause[code] = finish, why
                total += finish >> shift
                at[d] += 1
                if target == d:
                    ready[code] = finish
                elif target >= 0:
                    if serial:
                        finish = max(finish, pair[d, target])
                        pair[d, target] = _after(finish, occupancy, shift)
                    ready[code] = _after(finish, lag, shift)
                    if waits[target] == code:
                        waits[target] = -1
                        stack[depth] = target
                        depth += 1
        # what time decides next: a grant, before a link at the same instant
        soonest, chosen = NEVER, -1
        for link in range(count):
            if due[link] < 0:  # something is new there: which queue does it serve, and when?
                time, tie, best = NEVER, False, -1
                for other in range(first[link], first[link + 1]):
                    then = came[members[other]]
                    if then < time:
                        tie = then >> shift == time >> shift
                        time, best = then, members[other]
                    elif then > time and then >> shift == time >> shift:
                        tie = True
                if best >= 0:
                    time = max(time, link_free[link])
                    while tie or engine[best & one] > time:
                        # the first to come, ties by rank; it waits for its engine, and the link with
                        # it, unless one that comes in a later round has the lower rank
                        then, op = NEVER, NEVER
                        for other in range(first[link], first[link + 1]):
                            queue = members[other]
                            if came[queue] > time:
                                then = min(then, came[queue])
                            elif came[queue] >> shift < op:
                                best, op = queue, came[queue] >> shift
                        tie = engine[best & one] > time
                        if tie:
                            time = min(engine[best & one], then)
                due[link], pick[link] = time, best
            if due[link] < soonest:
                soonest, chosen = due[link], link
        if soonest_late <= soonest:
            soonest_late, d = NEVER, -1
            for other in range(devices):
                if late[other] < soonest_late:
                    soonest_late, d = late[other], other
            if d >= 0 and soonest_late <= soonest:
                now = soonest_late
                stack[0] = d
                depth = 1
                continue
        if chosen < 0:
            break
        now = soonest
        link = chosen
        queue = pick[link] & one
        d = queue >> 1
        code = head[queue]
        unit = code & mask
        op = unit if code < backs else unit | outs
        if now > max(end[op], ready[code]):
            cause[code] = link_op[link] if link_free[link] == now else engine_op[queue]
        elif end[op] > ready[code]:
            cause[code] = op  # else what it was granted memory by
        finish = now + 1 if lasts[code >> low] == 0 else _after(now, lasts[code >> low], shift)
        end[code] = link_free[link] = engine[queue] = finish
        link_op[link] = engine_op[queue] = code
        came[pick[link]] = NEVER
        due[link] = -1
        # the next one of this queue comes in the round after
        turn[queue] = now + 1
        head[queue] = -1
        slot = where[queue] + 1
        where[queue] = _next_transfer(prog, length, queue, slot, shared, high)
        if where[queue] < length[d]:
            head[queue] = prog[d, where[queue]]
        for other in range(2 * d, 2 * d + 2):
            op = head[other]
            if op >= 0 and came[2 * d + ((op >> high) - O)] == NEVER:
                then = end[op & mask]
                if op >= backs:
                    then = -1 if ready[op] < 0 else end[op & mask | outs]
                    if then >= 0:
                        then = max(then, ready[op])
                if then >= 0:
                    came[2 * d + ((op >> high) - O)] = max(turn[other], then)
                    due[link_of[2 * d + ((op >> high) - O)]] = -1
        if code < backs:
            queued[d, q_tail[d]] = code
            q_tail[d] += 1
        if waits[d] == code or (code < backs and (waits[d] == MEMORY or a_head[d] < a_tail[d])):
            waits[d] = -1
            stack[0] = d
            depth = 1
    makespan = span = 0
    for d in range(devices):
        if at[d] < length[d] or head[2 * d] >= 0 or head[2 * d + 1] >= 0:
            return NEVER, NEVER, 0
        makespan = max(makespan, free[d])
        span = max(span, (free[d] >> shift) - (began[d] >> shift))
    for code in range(len(end)):
        end[code] >>= shift
    return makespan >> shift, span, total
