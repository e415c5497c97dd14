"""Links that transfers of several queues share, compiled: who is served next, and what becomes of it.

A *key* is an instant and the round within it, ``time << shift | round``: a link is served in the round in
which a transfer comes, and the next transfer of that queue comes in the round after. Without that
the ties at one instant would not be the replay's.

For programs as codes see `times`, for what happens beside the links `linked`. All memory bytes, int64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...codes import O, R
from ...compiled import step
from ...ops import OpKind
from ...profile import CostProfile
from ...sim.links import link_keys

NEVER = 2**61
ROUNDS = 16  # bits for rounds where transfers may last 0; else there are never more than two
MEMORY = -2  # a device that waits for memory, or for a reload to be granted it first


class Links(NamedTuple):
    """What `evaluate_links` knows about links, and what it works in; all times keys.

    A queue has the number ``2 device + (1 for R)``; all of a shared copy engine is in the even one.
    """

    # the links
    number: int  # of links; 0 where none is shared
    shift: int  # where the time begins in a key, in bits
    link_of: np.ndarray  # (queues,)
    members: np.ndarray  # the queues of each link, by rank
    first: np.ndarray  # (links + 1,) where those of a link begin
    free: np.ndarray  # (links,)
    last: np.ndarray  # (links,) the last transfer served, or -1
    due: np.ndarray  # (links,) when it serves next; -1: not known yet
    pick: np.ndarray  # (links,) and which queue
    # ops
    durations: np.ndarray  # (codes >> low,) ns
    released: np.ndarray  # (codes >> low,) bytes
    # the queues of transfers
    head: np.ndarray  # (queues,) the next transfer, or -1
    where: np.ndarray  # (queues,) the slot it stands in
    came: np.ndarray  # (queues,) when it came to its link, `NEVER`: not yet
    turn: np.ndarray  # (queues,) from when on it may come
    engine: np.ndarray  # (queues,) when the copy engine is free
    engine_op: np.ndarray  # (queues,) and the transfer it had last
    # the devices
    at: np.ndarray  # (devices,) the next slot
    waits: np.ndarray  # (devices,) the op it waits for, `MEMORY`, or -1
    begun: np.ndarray  # (devices,) when the first compute op began
    free_at: np.ndarray  # (devices,) when the last compute op ends
    anchor: np.ndarray  # (devices,) when that began
    anchor_op: np.ndarray  # (devices,) which it is
    level: np.ndarray  # (devices,) bytes above the limit
    granted: np.ndarray  # (devices,) when memory was last granted
    granted_op: np.ndarray  # (devices,) what that waited for
    late: np.ndarray  # (devices,) when a reload is granted if nothing unknown comes first
    asked: np.ndarray  # (devices, room) reloads that have asked for memory,
    asked_from: np.ndarray  # from when on,
    asked_op: np.ndarray  # because of which op;
    asked_head: np.ndarray  # (devices,) the first that has none yet
    asked_tail: np.ndarray
    ended: np.ndarray  # (devices, 2 room) compute ops that release memory, as they end
    ended_tail: np.ndarray
    moved: np.ndarray  # (devices, room) O's whose memory is free, as they end
    moved_head: np.ndarray  # (devices,) the first whose memory is not used again
    moved_tail: np.ndarray
    pair: np.ndarray  # (devices, devices) when a serial link between devices is free
    stack: np.ndarray  # (devices,) devices that may go on


def make_links(profile: CostProfile, bits: tuple[int, int], shared: bool) -> Links:
    """The links of a profile, and room to work in; none of it where no link is `shared`.

    Args:
        bits: where the stage and the kind begin in a code.
    """
    devices = profile.devices if shared else 0
    keys = link_keys(profile) if shared else ()
    names = sorted(set(keys))
    link_of = np.array([names.index(key) for key in keys], np.int64)
    members = np.argsort(link_of, kind="stable").astype(np.int64)
    first = np.searchsorted(link_of[members], np.arange(len(names) + 1)).astype(np.int64)
    low, high = bits
    stages = len(profile.stages)
    durations, released = (np.zeros((len(OpKind), 1 << high - low), np.int64) for _ in range(2))
    durations[:, :stages], released[:, :stages] = profile.durations_ns, profile.released_bytes
    queues, count, room = 2 * devices, len(names), stages << low
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
        "durations": durations.ravel(),
        "released": released.ravel(),
    }
    arrays: dict[str, Any] = {
        name: np.zeros(size.get(name, (devices,)), np.int64)
        for name in Links._fields
        if name not in given
    }
    return Links(**given, **arrays)


@step
def after(key, duration, shift):
    """The key `duration` ns after a key."""
    return key if duration == 0 else ((key >> shift) + duration) << shift


@step
def next_transfer(prog, length, queue, slot, shared, high):
    """Where a queue's next transfer stands in the program of its device, from `slot` on, or its end."""
    d = queue >> 1
    while slot < length[d]:
        kind = prog[d, slot] >> high
        if kind >= O and (shared or kind == O + (queue & 1)):
            break
        slot += 1
    return slot


@step
def engine_of(queue, costs):
    """The queue that a copy engine is known by."""
    return queue & -2 if costs.shared else queue


@step
def find_next(link, costs, links):
    """Find out which queue a link serves next, and when."""
    shift, first, stop = links.shift, links.first[link], links.first[link + 1]
    # 1. the first to come
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
        # 2. ties by rank; it waits for its engine, and the link with it, unless one that comes in a
        # later round has the lower rank
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
def serve(prog, length, link, now, costs, links, end, ready, cause):
    """A link serves the transfer it has picked; returns the depth of the stack of devices that may go
    on."""
    mask, outs, backs = (1 << costs.high) - 1, O << costs.high, R << costs.high
    queue = engine_of(links.pick[link], costs)
    d = queue >> 1
    code = links.head[queue]
    # 1. what decided when, and when it ends
    unit = code & mask
    source = unit if code < backs else unit | outs
    if now > max(end[source], ready[code]):
        cause[code] = links.last[link] if links.free[link] == now else links.engine_op[queue]
    elif end[source] > ready[code]:
        cause[code] = source  # else what it was granted memory by
    duration = links.durations[code >> costs.low]
    finish = now + 1 if duration == 0 else after(now, duration, links.shift)
    end[code] = links.free[link] = links.engine[queue] = finish
    links.last[link] = links.engine_op[queue] = code
    links.came[links.pick[link]] = NEVER
    links.due[link] = -1
    # 2. the next one of this queue comes in the round after
    links.turn[queue] = now + 1
    links.head[queue] = -1
    slot = next_transfer(prog, length, queue, links.where[queue] + 1, costs.shared, costs.high)
    links.where[queue] = slot
    if slot < length[d]:
        links.head[queue] = prog[d, slot]
    for other in range(2 * d, 2 * d + 2):
        op = links.head[other]
        own = 2 * d + ((op >> costs.high) - O)
        if op < 0 or links.came[own] != NEVER:
            continue
        came = end[op & mask]
        if op >= backs:
            came = -1 if ready[op] < 0 else end[op & mask | outs]
            if came >= 0:
                came = max(came, ready[op])
        if came >= 0:
            links.came[own] = max(links.turn[other], came)
            links.due[links.link_of[own]] = -1
    # 3. memory for those that wait for it
    if code < backs:
        links.moved[d, links.moved_tail[d]] = code
        links.moved_tail[d] += 1
    asks = links.waits[d] == MEMORY or links.asked_head[d] < links.asked_tail[d]
    if links.waits[d] == code or (code < backs and asks):
        links.waits[d] = -1
        links.stack[0] = d
        return 1
    return 0
