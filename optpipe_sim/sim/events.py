"""Compiled: the replay event by event, for what depends on times. Times are int64 ns.

At every instant three things happen, in this order: what ends, releases its memory, frees its
engine and sends its message; then each device grants memory in program order and starts compute
ops until nothing more can start; then each link that has cause serves one transfer. `run_events`
is that loop, with a function per phase.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..codes import O, R
from ..compiled import compiled, step

COMPUTE, GRANTS, OUT, BACK = range(4)  # queues of a device: rows in program order


class Ops(NamedTuple):
    """What is to be replayed; arrays by row of the schedule's table unless said otherwise."""

    kind: np.ndarray
    device: np.ndarray
    offsets: np.ndarray  # (devices + 1,) where the program of each device begins
    lasts: np.ndarray  # ns
    taken: np.ndarray  # bytes allocated at the grant
    given: np.ndarray  # bytes released at the end
    asks: np.ndarray  # whether it is granted memory in program order
    need_first: np.ndarray  # row r waits for the rows needs[need_first[r]:need_first[r + 1]]
    needs: np.ndarray


class World(NamedTuple):
    """Where it is replayed."""

    static: np.ndarray  # (devices,) bytes
    limits: np.ndarray  # (devices,) bytes, below 0: none
    shared: bool  # one copy engine for O and R
    link_of: np.ndarray  # (devices, 2) the host link of a device's O's and R's
    link_first: (
        np.ndarray
    )  # (links + 1,) the given order of link l is link_rows[link_first[l]:...],
    link_rows: np.ndarray  # empty where it serves first come, first served
    serial: bool  # a directed pair of devices carries one message at a time
    latency: int  # ns, of a message
    occupancy: int
    sending: int  # how long a message keeps the compute stream of its sender busy


class State(NamedTuple):
    """Where the replay stands, and what it has found."""

    start: np.ndarray  # per row, -1: not yet
    end: np.ndarray
    grant: np.ndarray
    granted_as: np.ndarray  # when, in the sequence of all grants and ends
    ended_as: np.ndarray
    ready: np.ndarray  # when the message of a row arrives
    target: np.ndarray  # the device that its message goes to, or -1
    anchor: np.ndarray  # the compute op before an R, or -1
    queue: np.ndarray  # (4, rows)
    head: np.ndarray  # (4, devices) the next of each queue
    stop: np.ndarray  # (4, devices)
    level: np.ndarray  # (devices,) bytes held
    computing: np.ndarray  # (devices,)
    copying: np.ndarray  # (2, devices)
    came: np.ndarray  # (2, devices) when the head of a copy queue came to its link, -1: not yet
    pair_free: np.ndarray  # (devices ** 2,) when a serial link is free
    link_busy: np.ndarray  # (links,)
    link_head: np.ndarray  # (links,) the next of its given order
    dirty: np.ndarray  # (devices,) devices to look at, and in which order
    dirty_order: np.ndarray
    link_dirty: np.ndarray  # (links,) the same of links
    link_order: np.ndarray
    member_first: np.ndarray  # (links + 1,) who uses a link: 2 device + (0 for O, 1 for R)
    members: np.ndarray
    heap_time: np.ndarray  # events: an op ends (row), a message arrives (rows + row), a compute
    heap_row: np.ndarray  # stream has sent its message (2 rows + row)
    counts: np.ndarray  # HAPPENED, DIRTY, LINKS_DIRTY, WAITING


HAPPENED, DIRTY, LINKS_DIRTY, WAITING = range(4)


@step
def _push(s, time, row):
    """Add an event."""
    at = s.counts[WAITING]
    s.counts[WAITING] += 1
    while at > 0:
        parent = (at - 1) >> 1
        if s.heap_time[parent] <= time:
            break
        s.heap_time[at], s.heap_row[at] = s.heap_time[parent], s.heap_row[parent]
        at = parent
    s.heap_time[at], s.heap_row[at] = time, row


@step
def _pop(s):
    """Take the first event; returns its row."""
    first = s.heap_row[0]
    s.counts[WAITING] -= 1
    size = s.counts[WAITING]
    time, row = s.heap_time[size], s.heap_row[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and s.heap_time[child + 1] < s.heap_time[child]:
            child += 1
        if s.heap_time[child] >= time:
            break
        s.heap_time[at], s.heap_row[at] = s.heap_time[child], s.heap_row[child]
        at = child
    s.heap_time[at], s.heap_row[at] = time, row
    return first


@step
def _look_at(s, device):
    """Have a device looked at in phase 2."""
    if not s.dirty[device]:
        s.dirty[device] = True
        s.dirty_order[s.counts[DIRTY]] = device
        s.counts[DIRTY] += 1


@step
def _look_at_link(s, link):
    """Have a link looked at in phase 3."""
    if not s.link_dirty[link]:
        s.link_dirty[link] = True
        s.link_order[s.counts[LINKS_DIRTY]] = link
        s.counts[LINKS_DIRTY] += 1


@compiled
def _begin(ops, world):
    """The state at time 0."""
    size, devices, links = len(ops.kind), len(ops.offsets) - 1, len(world.link_first) - 1
    queue = np.empty((4, size), np.int64)
    head = np.empty((4, devices), np.int64)
    stop = np.empty((4, devices), np.int64)
    anchor = np.full(size, -1, np.int64)
    fill = np.zeros(4, np.int64)
    for device in range(devices):
        head[:, device] = fill
        last = -1
        for row in range(ops.offsets[device], ops.offsets[device + 1]):
            kind = ops.kind[row]
            which = COMPUTE if kind < O else BACK if kind == R and not world.shared else OUT
            queue[which, fill[which]] = row
            fill[which] += 1
            if kind < O:
                last = row
            if ops.asks[row]:
                queue[GRANTS, fill[GRANTS]] = row
                fill[GRANTS] += 1
                anchor[row] = last
        stop[:, device] = fill
    target = np.full(size, -1, np.int64)
    for row in range(size):
        for slot in range(ops.need_first[row], ops.need_first[row + 1]):
            if ops.device[ops.needs[slot]] != ops.device[row]:
                target[ops.needs[slot]] = ops.device[row]
    member_first = np.zeros(links + 1, np.int64)
    members = np.empty(2 * devices, np.int64)
    at = 0
    for link in range(links):
        for device in range(devices):
            for which in range(2):
                if world.link_of[device, which] == link:
                    members[at] = 2 * device + which
                    at += 1
        member_first[link + 1] = at
    counts = np.zeros(4, np.int64)
    counts[DIRTY] = devices
    return State(
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        target,
        anchor,
        queue,
        head,
        stop,
        world.static.copy(),
        np.zeros(devices, np.bool_),
        np.zeros((2, devices), np.bool_),
        np.full((2, devices), -1, np.int64),
        np.zeros(devices * devices if world.serial else 1, np.int64),
        np.zeros(links, np.bool_),
        world.link_first[:-1].copy(),
        np.ones(devices, np.bool_),
        np.arange(devices),
        np.zeros(links, np.bool_),
        np.empty(links, np.int64),
        member_first,
        members,
        np.empty(3 * size + 2, np.int64),
        np.empty(3 * size + 2, np.int64),
        counts,
    )


@step
def _send(ops, world, s, row, now):
    """The message of a compute op that has ended: when it arrives, and when its stream is free."""
    device = ops.device[row]
    depart = now
    if world.serial:
        pair = device * len(s.computing) + s.target[row]
        depart = max(now, s.pair_free[pair])
        s.pair_free[pair] = depart + world.occupancy
    if world.sending:
        s.computing[device] = True
        _push(s, now + world.sending, 2 * len(ops.kind) + row)
    s.ready[row] = depart + world.occupancy + world.latency
    _push(s, s.ready[row], len(ops.kind) + row)


@step
def _finish(ops, world, s, row, now):
    """An op ends: its memory, its engine, its link, its message."""
    device = ops.device[row]
    s.end[row] = now
    s.ended_as[row] = s.counts[HAPPENED]
    s.counts[HAPPENED] += 1
    s.level[device] -= ops.given[row]
    if ops.kind[row] < O:
        s.computing[device] = False
        if s.target[row] >= 0:
            _send(ops, world, s, row, now)
        return
    which = 1 if ops.kind[row] == R else 0
    s.copying[0 if world.shared else which, device] = False
    s.link_busy[world.link_of[device, which]] = False
    # the freed engine may have been what the head of its queue lacked on another link
    for way in range(2):
        _look_at_link(s, world.link_of[device, way])


@step
def _grant(s, row, now):
    """Note that a row is granted its memory now."""
    s.grant[row] = now
    s.granted_as[row] = s.counts[HAPPENED]
    s.counts[HAPPENED] += 1


@step
def _fits(ops, world, s, row, device):
    """Whether what a row allocates fits now."""
    return world.limits[device] < 0 or s.level[device] + ops.taken[row] <= world.limits[device]


@step
def _grant_reloads(ops, world, s, device, now):
    """Grant the R's at the head of the queue of grants, each from the start of its anchor on."""
    while s.head[GRANTS, device] < s.stop[GRANTS, device]:
        row = s.queue[GRANTS, s.head[GRANTS, device]]
        if ops.kind[row] != R or (s.anchor[row] >= 0 and s.start[s.anchor[row]] < 0):
            return
        if not _fits(ops, world, s, row, device):
            return
        s.level[device] += ops.taken[row]
        _grant(s, row, now)
        s.head[GRANTS, device] += 1


@step
def _start_compute(ops, world, s, device, now):
    """Start the next compute op of a device, if it can; returns whether it did."""
    if s.computing[device] or s.head[COMPUTE, device] == s.stop[COMPUTE, device]:
        return False
    row = s.queue[COMPUTE, s.head[COMPUTE, device]]
    for slot in range(ops.need_first[row], ops.need_first[row + 1]):
        needed = ops.needs[slot]
        if s.end[needed] < 0 or (ops.device[needed] != device and s.ready[needed] > now):
            return False
    if ops.asks[row]:
        turn = s.queue[GRANTS, s.head[GRANTS, device]] == row
        if not (turn and _fits(ops, world, s, row, device)):
            return False
        s.level[device] += ops.taken[row]
        s.head[GRANTS, device] += 1
    s.start[row] = now
    _grant(s, row, now)
    s.computing[device] = True
    s.head[COMPUTE, device] += 1
    _push(s, now + ops.lasts[row], row)
    return True


@step
def _come_to_links(ops, world, s, device, now):
    """The heads of the copy queues of a device come to their links, if they may go."""
    for which in range(2):
        queue = OUT + which
        if s.came[which, device] >= 0 or s.head[queue, device] == s.stop[queue, device]:
            continue
        row = s.queue[queue, s.head[queue, device]]
        free = ops.kind[row] != R or s.grant[row] >= 0
        for slot in range(ops.need_first[row], ops.need_first[row + 1]):
            free = free and s.end[ops.needs[slot]] >= 0
        if free:
            s.came[which, device] = now
            _look_at_link(s, world.link_of[device, 1 if ops.kind[row] == R else 0])


@step
def _first_in_line(ops, world, s, link):
    """The member of a link whose transfer is next, -1: none has come, or not the one whose turn it is."""
    ordered = world.link_first[link + 1] > world.link_first[link]
    best, best_came = -1, 0
    for slot in range(s.member_first[link], s.member_first[link + 1]):
        device, way = s.members[slot] >> 1, s.members[slot] & 1
        which = 0 if world.shared else way
        came = s.came[which, device]
        if came < 0:
            continue
        row = s.queue[OUT + which, s.head[OUT + which, device]]
        if (ops.kind[row] == R) != (way == 1):
            continue
        if ordered:
            if world.link_rows[s.link_head[link]] == row:
                return s.members[slot]
        # members stand by rank, O before R: a later one must have come strictly earlier
        elif best < 0 or came < best_came:
            best, best_came = s.members[slot], came
    return best


@step
def _serve(ops, world, s, link, now):
    """Start the transfer that is first in the line of a link, if link and engine are free."""
    if s.link_busy[link]:
        return
    member = _first_in_line(ops, world, s, link)
    if member < 0:
        return
    device = member >> 1
    which = 0 if world.shared else member & 1
    if s.copying[which, device]:
        return
    row = s.queue[OUT + which, s.head[OUT + which, device]]
    if world.link_first[link + 1] > world.link_first[link]:
        s.link_head[link] += 1
    s.copying[which, device] = True
    s.link_busy[link] = True
    s.came[which, device] = -1
    s.head[OUT + which, device] += 1
    s.start[row] = now
    if ops.kind[row] == O:
        s.grant[row] = now
    _push(s, now + ops.lasts[row], row)
    _look_at(s, device)


@compiled
def run_events(ops, world):
    """Replay event by event, for what depends on times: memory limits, links first come first served.

    Returns:
        starts, ends, grants per row, -1 where an op never starts (a deadlock); and per row when, in
        the sequence of all grants and ends, it was granted and when it ended.
    """
    s = _begin(ops, world)
    size = len(ops.kind)
    now = 0
    while True:
        # 1. ends and releases, messages that arrive, streams that have sent theirs
        while s.counts[WAITING] and s.heap_time[0] == now:
            event = _pop(s)
            if event < size:
                device = ops.device[event]
                _finish(ops, world, s, event, now)
            elif event < 2 * size:
                device = s.target[event - size]
            else:
                device = ops.device[event - 2 * size]
                s.computing[device] = False
            _look_at(s, device)
        # 2. grants and compute starts until nothing more can start; transfers come to their links
        for at in range(s.counts[DIRTY]):
            device = s.dirty_order[at]
            s.dirty[device] = False
            _grant_reloads(ops, world, s, device, now)
            while _start_compute(ops, world, s, device, now):
                _grant_reloads(ops, world, s, device, now)
            _come_to_links(ops, world, s, device, now)
        s.counts[DIRTY] = 0
        if s.counts[WAITING] and s.heap_time[0] == now:
            continue  # ops of no length
        # 3. links are served, each once; then whatever that brings at this instant
        for at in range(s.counts[LINKS_DIRTY]):
            link = s.link_order[at]
            s.link_dirty[link] = False
            _serve(ops, world, s, link, now)
        s.counts[LINKS_DIRTY] = 0
        if s.counts[DIRTY]:
            continue
        if not s.counts[WAITING]:
            return s.start, s.end, s.grant, s.granted_as, s.ended_as
        now = s.heap_time[0]
