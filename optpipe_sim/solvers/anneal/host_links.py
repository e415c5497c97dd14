"""Compiled model of links that several queues share: which transfer is served next, and its
effects.

A *key* is an instant and the round within it, ``time << shift | round``: a link is served in the
round in which a transfer arrives, and the next transfer of that queue arrives in the following
round. This breaks ties at one instant as the replay does.

See `plans` for the encoding of programs, and `linked` for everything except links. All memory
bytes, int64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...codes import O, R
from ...compiled import packed, step
from ...ops import INPUTS
from ...profile import CostProfile
from ...sim.host_links import link_keys
from .times import NEVER, duration

ROUNDS = 16  # bits for rounds if transfers may take no time; else there are at most two rounds
MEMORY = -2  # a device that waits for memory, or for a reload to be granted it first


@packed
class Links(NamedTuple):
    """The links and the working arrays of `evaluate_links`; all times are keys.

    A queue has the number ``2 device + (1 for R)``; all of a shared copy engine is in the even one.
    """

    # the links
    number: int  # number of links
    shift: int  # bit at which the time begins in a key
    link_of: np.ndarray  # (queues,)
    members: np.ndarray  # the queues of each link, by rank
    first: np.ndarray  # (links + 1,) where the queues of a link begin
    free: np.ndarray  # (links,)
    last: np.ndarray  # (links,) the last transfer served, or -1
    due: np.ndarray  # (links,) when it serves next; -1: unknown yet
    pick: np.ndarray  # (links,) and which queue
    # the queues of transfers
    head: np.ndarray  # (queues,) the next transfer, or -1
    where: np.ndarray  # (queues,) the slot it stands in
    came: np.ndarray  # (queues,) when it arrived at its link; `NEVER`: not yet
    turn: np.ndarray  # (queues,) the earliest time at which it may arrive
    engine: np.ndarray  # (queues,) when the copy engine is free
    engine_op: np.ndarray  # (queues,) and its last transfer
    # the devices
    at: np.ndarray  # (devices,) the next slot
    waits: np.ndarray  # (devices,) the op it waits for, `MEMORY`, or -1
    begun: np.ndarray  # (devices,) when the first compute op began
    free_at: np.ndarray  # (devices,) when the last compute op ends
    anchor: np.ndarray  # (devices,) when that op began
    anchor_op: np.ndarray  # (devices,) which op that is
    level: np.ndarray  # (devices,) bytes above the limit
    granted: np.ndarray  # (devices,) when memory was last granted
    granted_op: np.ndarray  # (devices,) the op that the grant waited for
    late: np.ndarray  # (devices,) when a reload is granted unless an unknown event precedes it
    asked: np.ndarray  # (devices, room) reloads that wait for memory,
    asked_from: np.ndarray  # from when on,
    asked_op: np.ndarray  # after the start of which op;
    asked_head: np.ndarray  # (devices,) the first one without a grant
    asked_tail: np.ndarray
    ended: np.ndarray  # (devices, 2 room) compute ops that release memory, as they end
    ended_tail: np.ndarray
    moved: np.ndarray  # (devices, room) O's whose memory is free, as they end
    moved_head: np.ndarray  # (devices,) the first whose memory is not reused
    moved_tail: np.ndarray
    pair: np.ndarray  # (devices, devices) when a serial link between devices is free
    stack: np.ndarray  # (devices,) stack of devices that can continue


def make_links(profile: CostProfile, room: int) -> Links:
    """Make the links of a profile and the working arrays for programs with up to `room` activations."""
    devices, keys = profile.devices, link_keys(profile)
    names = sorted(set(keys))
    link_of = np.array([names.index(key) for key in keys], np.int64)
    members = np.argsort(link_of, kind="stable").astype(np.int64)
    first = np.searchsorted(link_of[members], np.arange(len(names) + 1)).astype(np.int64)
    queues, count = 2 * devices, len(names)
    size = {
        **dict.fromkeys(("free", "last", "due", "pick"), (count,)),
        **dict.fromkeys(("head", "where", "came", "turn", "engine", "engine_op"), (queues,)),
        **dict.fromkeys(("asked", "asked_from", "asked_op", "moved"), (devices, room)),
        "ended": (devices, 2 * room),
        "pair": (devices, devices),
    }
    given: dict[str, Any] = {
        "number": count,
        "shift": ROUNDS if (profile.durations_ns[O:] == 0).any() else 1,
        "link_of": link_of,
        "members": members,
        "first": first,
    }
    arrays: dict[str, Any] = {
        name: np.zeros(size.get(name, (devices,)), np.int64)
        for name in Links._fields
        if name not in given
    }
    return Links(**given, **arrays)


@step
def after(key, duration, shift):
    """Return the key `duration` ns after a key."""
    return key if duration == 0 else ((key >> shift) + duration) << shift


@step
def next_transfer(plan, queue, slot, shared, high):
    """Return the slot of a queue's next transfer in the program of its device, from `slot` on, or
    the program's end."""
    d = queue >> 1
    while slot < plan.length[d]:
        kind = plan.prog[d, slot] >> high
        if kind >= O and (shared or kind == O + (queue & 1)):
            break
        slot += 1
    return slot


@step
def engine_of(queue, costs):
    """Return the queue that identifies a copy engine."""
    return queue & -2 if costs.shared else queue


@step
def find_next(link, costs, links):
    """Find out which queue a link serves next, and when."""
    shift, first, stop = links.shift, links.first[link], links.first[link + 1]
    # 1. the first to arrive
    time, tie, best = NEVER, False, -1
    for other in range(first, stop):
        came = links.came[links.members[other]]
        if came < time:
            tie = came >> shift == time >> shift
            time, best = came, links.members[other]
        elif came > time and came >> shift == time >> shift:
            tie = True
    if best >= 0:
        time = max(time, links.free[link])
        # 2. ties by rank; it waits for its engine, and the link waits with it, unless one
        # that arrives in a later round has the lower rank
        while tie or links.engine[engine_of(best, costs)] > time:
            later, least = NEVER, NEVER
            for other in range(first, stop):
                queue = links.members[other]
                if links.came[queue] > time:
                    later = min(later, links.came[queue])
                elif links.came[queue] >> shift < least:
                    best, least = queue, links.came[queue] >> shift
            free = links.engine[engine_of(best, costs)]
            tie = free > time
            if tie:
                time = min(free, later)
    links.due[link], links.pick[link] = time, best


@step
def _input_of(code, costs):
    """Return the op that a transfer waits for."""
    return code & ((1 << costs.high) - 1) | INPUTS[code >> costs.high] << costs.high


@step
def come_to_links(d, costs, links, t):
    """Let the heads of the queues of a device join their links, from when on they may start: what they wait for has
    ended, and an R has been granted memory."""
    for queue in range(2 * d, 2 * d + 2):
        code = links.head[queue]
        own = 2 * d + ((code >> costs.high) - O)
        if code < 0 or links.came[own] != NEVER:
            continue
        came = t.end[_input_of(code, costs)]
        if came >= 0 and (code >> costs.high != R or t.ready[code] >= 0):
            links.came[own] = max(links.turn[queue], came, t.ready[code])
            links.due[links.link_of[own]] = -1


@step
def serve(plan, link, now, costs, links, t):
    """Serve the transfer that a link has picked; returns the depth of the stack of devices that can
    continue."""
    queue = engine_of(links.pick[link], costs)
    d = queue >> 1
    code = links.head[queue]
    # 1. its cause, and when it ends
    source = _input_of(code, costs)
    if now > max(t.end[source], t.ready[code]):
        t.cause[code] = links.last[link] if links.free[link] == now else links.engine_op[queue]
    elif t.end[source] > t.ready[code]:
        t.cause[code] = source  # else the op whose release granted it memory
    takes = duration(code, plan, costs, t)
    finish = now + 1 if takes == 0 else after(now, takes, links.shift)
    t.end[code] = links.free[link] = links.engine[queue] = finish
    links.last[link] = links.engine_op[queue] = code
    links.came[links.pick[link]] = NEVER
    links.due[link] = -1
    # 2. the next transfer of this queue arrives in the following round
    links.turn[queue] = now + 1
    links.head[queue] = -1
    slot = next_transfer(plan, queue, links.where[queue] + 1, costs.shared, costs.high)
    links.where[queue] = slot
    if slot < plan.length[d]:
        links.head[queue] = plan.prog[d, slot]
    come_to_links(d, costs, links, t)
    # 3. memory for the ops that wait for it
    releases = code >> costs.high == O
    if releases:
        links.moved[d, links.moved_tail[d]] = code
        links.moved_tail[d] += 1
    asks = links.waits[d] == MEMORY or links.asked_head[d] < links.asked_tail[d]
    if links.waits[d] == code or (releases and asks):
        links.waits[d] = -1
        links.stack[0] = d
        return 1
    return 0
