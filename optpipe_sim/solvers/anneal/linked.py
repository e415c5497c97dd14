"""Compiled evaluation of a set of programs in which transfers of several queues share links.

Links serve first come, first served, so the result depends on times. The compute ops of each device
run ahead as far as known times allow. Only decisions that depend on time (which transfer a link
serves, when a waiting reload is granted memory) are made in the order of time, so that everything
still unknown comes later. The times equal those of `sim.events.run_events` to the tick.

See `plans` for the encoding of programs, and `host_links` for links and for keys, the times used here.
"""

from __future__ import annotations

from ...codes import B, O, R
from ...compiled import compiled, step
from ...ops import INPUTS, OWN
from .host_links import MEMORY, after, come_to_links, engine_of, find_next, next_transfer, serve
from .times import NEVER, column, duration
from .waits import neighbours

RELOADED = -2  # the end of an R that is still to come


@compiled
def evaluate_links(plan, costs, links, t):
    """Evaluate a plan as `evaluate.evaluate` does, with transfers that share links; only plans whose
    activations are kept or offloaded whole."""
    devices = len(plan.length)
    _begin(plan, costs, links, t)
    depth, total, now, soonest_late = devices, 0, 0, NEVER
    while True:
        # 1. run each device ahead as far as known times allow
        while depth > 0:
            depth -= 1
            d = links.stack[depth]
            depth, total, soonest_late, possible = _run_device(
                plan, d, now, depth, total, soonest_late, costs, links, t
            )
            if not possible:
                return NEVER, NEVER, 0
        # 2. the next decision in time: which link serves next, and when
        soonest, chosen = NEVER, -1
        for link in range(links.number):
            if links.due[link] < 0:
                find_next(link, costs, links)
            if links.due[link] < soonest:
                soonest, chosen = links.due[link], link
        # 3. a grant precedes a link at the same instant
        if soonest_late <= soonest:
            soonest_late, d = NEVER, -1
            for other in range(devices):
                if links.late[other] < soonest_late:
                    soonest_late, d = links.late[other], other
            if d >= 0 and soonest_late <= soonest:
                now = soonest_late
                links.stack[0] = d
                depth = 1
                continue
        if chosen < 0:
            break
        # 4. that link serves
        now = soonest
        depth = serve(plan, chosen, now, costs, links, t)
    # 5. the makespan, unless some op never starts
    makespan = span = 0
    for d in range(devices):
        if links.at[d] < plan.length[d] or links.head[2 * d] >= 0 or links.head[2 * d + 1] >= 0:
            return NEVER, NEVER, 0
        makespan = max(makespan, links.free_at[d])
        span = max(span, (links.free_at[d] >> links.shift) - (links.begun[d] >> links.shift))
    for code in range(len(t.end)):
        t.end[code] >>= links.shift
    return makespan >> links.shift, span, total


@step
def _begin(plan, costs, links, t):
    """Set everything to time 0."""
    devices = len(plan.length)
    for code in range(len(t.end)):
        t.end[code] = t.ready[code] = -1
    for d in range(devices):
        links.at[d] = links.free_at[d] = links.granted[d] = links.anchor[d] = 0
        links.anchor_op[d] = links.granted_op[d] = links.begun[d] = links.waits[d] = -1
        links.level[d] = costs.static[d] - costs.limit[d]
        links.moved_head[d] = links.moved_tail[d] = 0
        links.asked_head[d] = links.asked_tail[d] = links.ended_tail[d] = 0
        links.stack[d] = devices - 1 - d
        links.late[d] = NEVER
        for other in range(devices if costs.serial else 0):
            links.pair[d, other] = 0
    for queue in range(2 * devices):
        links.engine[queue] = links.turn[queue] = 0
        links.engine_op[queue] = links.head[queue] = -1
        links.came[queue] = NEVER
        d = queue >> 1
        slot = 0 if engine_of(queue, costs) == queue else plan.length[d]
        slot = next_transfer(plan, queue, slot, costs.shared, costs.high)
        links.where[queue] = slot
        if slot < plan.length[d]:
            links.head[queue] = plan.prog[d, slot]
    for link in range(links.number):
        links.free[link] = 0
        links.last[link] = -1
        links.due[link] = NEVER


@step
def _run_device(plan, d, now, depth, total, soonest_late, costs, links, t):
    """Run a device ahead as far as known times allow.

    Returns:
        (depth of the stack of devices that can continue, sum of ends, earliest time of the next
        late grant, whether the programs may still be feasible).
    """
    mask, high = (1 << costs.high) - 1, costs.high
    while True:
        soonest_late = _grant_reloads(plan, d, now, soonest_late, costs, links, t)
        if links.at[d] == plan.length[d]:
            return depth, total, soonest_late, True
        code = plan.prog[d, links.at[d]]
        kind, unit = code >> high, code & mask
        stage, how = unit >> costs.low, column(unit, plan, costs)
        if kind == O:
            links.at[d] += 1
            continue
        if kind == R:
            if t.end[unit | B << high] >= 0:
                return depth, total, soonest_late, False
            _ask(code, d, links, t)
            continue
        # 1. what the op waits for
        time, why = links.free_at[d], links.anchor_op[d]
        if costs.asks[kind, stage, how]:
            links.waits[d] = MEMORY
            if links.asked_head[d] < links.asked_tail[d]:
                return depth, total, soonest_late, True
        if OWN[kind] >= 0 and t.end[unit | OWN[kind] << high] < 0:
            return depth, total, soonest_late, False
        source, _, _, _ = neighbours(code, kind, costs)
        if source >= 0:
            if t.ready[source] < 0:
                links.waits[d] = source
                return depth, total, soonest_late, True
            if t.ready[source] > time:
                time, why = t.ready[source], source
        if INPUTS[kind] >= 0:
            reload = unit | INPUTS[kind] << high
            if t.end[reload] == RELOADED:
                links.waits[d] = reload
                return depth, total, soonest_late, True
            if t.end[reload] > time:
                time, why = t.end[reload], reload
        if costs.asks[kind, stage, how]:
            size = costs.takes[kind, stage, how]
            time, why, fits = _grant_compute(d, size, time, why, plan, costs, links, t)
            if not fits:
                return depth, total, soonest_late, True
        # 2. when it ends, and what it releases then
        finish = after(time, duration(code, plan, costs, t), links.shift)
        if costs.gives[kind, stage, how] > 0:
            links.level[d] -= costs.gives[kind, stage, how]
            links.ended[d, links.ended_tail[d]] = code
            links.ended_tail[d] += 1
        if links.begun[d] < 0:
            links.begun[d] = time
        links.anchor[d], links.anchor_op[d], links.free_at[d] = time, code, finish
        t.end[code], t.cause[code] = finish, why
        come_to_links(d, costs, links, t)
        total += finish >> links.shift
        links.at[d] += 1
        # 3. its message, and the device that waits for it
        depth = _send(code, d, finish, depth, costs, links, t)


@step
def _ask(code, d, links, t):
    """Queue an R's request for memory, made at the start of the compute op before it."""
    t.end[code] = RELOADED
    at = links.asked_tail[d]
    links.asked[d, at] = code
    links.asked_from[d, at], links.asked_op[d, at] = links.anchor[d], links.anchor_op[d]
    links.asked_tail[d] += 1
    links.at[d] += 1


@step
def _grant_reloads(plan, d, now, soonest_late, costs, links, t):
    """Grant memory to the waiting reloads of a device, in their order; returns the earliest time of
    the next late grant."""
    mask = (1 << costs.high) - 1
    while links.asked_head[d] < links.asked_tail[d]:
        head = links.asked_head[d]
        code = links.asked[d, head]
        unit = code & mask
        size = costs.takes[R, unit >> costs.low, column(unit, plan, costs)]
        base = max(links.asked_from[d, head], links.granted[d])
        # 1. when enough will have been released, as far as is known
        time, why, enough, out = _released_enough(
            d, base, links.asked_op[d, head], size, plan, costs, links, t
        )
        links.late[d] = NEVER
        if not enough:
            break
        if time > base and time > _sure_until(d, now, plan, costs, links, t):
            links.late[d] = time
            soonest_late = min(soonest_late, time)
            break
        # 2. grant it
        for slot in range(links.moved_head[d], out):
            links.level[d] -= _released(links.moved[d, slot], plan, costs)
        links.moved_head[d] = out
        links.level[d] += size
        links.granted[d], links.granted_op[d] = time, why
        t.ready[code], t.cause[code] = time, why
        links.asked_head[d] += 1
        come_to_links(d, costs, links, t)
    return soonest_late


@step
def _released_enough(d, base, why, size, plan, costs, links, t):
    """Find when `size` bytes have been released, from `base` on.

    Returns:
        (time, the op that released the last of them, whether enough is released at all, up to which
        place the O's in `Links.moved` are used for it).
    """
    time, need = base, links.level[d] + size
    back = links.ended_tail[d]  # later releases of compute ops do not count yet
    while back > 0 and t.end[links.ended[d, back - 1]] > base:
        back -= 1
        need += _released(links.ended[d, back], plan, costs)
    out = links.moved_head[d]
    while need > 0:
        op = -1
        if out < links.moved_tail[d]:
            op = links.moved[d, out]
        if back < links.ended_tail[d] and (op < 0 or t.end[links.ended[d, back]] < t.end[op]):
            op = links.ended[d, back]
            back += 1
        elif op >= 0:
            out += 1
        else:
            break
        need -= _released(op, plan, costs)
        if t.end[op] > time:
            time, why = t.end[op], op
    return time, why, need <= 0, out


@step
def _sure_until(d, now, plan, costs, links, t):
    """Return the time until which no unknown event can release memory of a device."""
    queue = 2 * d
    sure = max(links.free_at[d], now)
    if links.head[queue] >= 0:
        soon = max(links.engine[queue], now)
        takes = duration(links.head[queue], plan, costs, t)
        sure = min(sure, after(soon, takes, links.shift))
    return sure


@step
def _grant_compute(d, size, time, why, plan, costs, links, t):
    """Grant memory to a compute op that could begin at `time`; returns (time, cause, whether it fits)."""
    if links.granted[d] > time:
        time, why = links.granted[d], links.granted_op[d]
    while links.level[d] + size > 0 and links.moved_head[d] < links.moved_tail[d]:
        op = links.moved[d, links.moved_head[d]]
        links.moved_head[d] += 1
        links.level[d] -= _released(op, plan, costs)
        if t.end[op] > time:
            time, why = t.end[op], op
    if links.level[d] + size > 0:
        return time, why, False
    links.level[d] += size
    links.granted[d], links.granted_op[d] = time, why
    return time, why, True


@step
def _send(code, d, finish, depth, costs, links, t):
    """Record when the message of a compute op arrives, and wake the device that waits for it;
    returns the depth of the stack."""
    _, _, _, target = neighbours(code, code >> costs.high, costs)
    if target == d:
        t.ready[code] = finish
    elif target >= 0:
        if costs.serial:
            finish = max(finish, links.pair[d, target])
            links.pair[d, target] = after(finish, costs.occupancy, links.shift)
        t.ready[code] = after(finish, costs.lag, links.shift)
        if links.waits[target] == code:
            links.waits[target] = -1
            links.stack[depth] = target
            depth += 1
    return depth


@step
def _released(code, plan, costs):
    """Return the bytes that an op releases at its end."""
    unit = code & ((1 << costs.high) - 1)
    return costs.gives[code >> costs.high, unit >> costs.low, column(unit, plan, costs)]
