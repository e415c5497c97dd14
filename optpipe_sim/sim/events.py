"""Compiled: the replay event by event, for what depends on times. Times are int64 ns.

Each instant has three phases: ops that end release their memory, free their engine and send their message;
then each device grants memory in program order and starts compute ops until none can start; then each affected
link serves one transfer. `run_events`
is that loop, with a function per phase.
"""

from __future__ import annotations

from ..codes import O, R
from ..compiled import compiled, step
from .event_state import COMPUTE, DIRTY, GRANTS, HAPPENED, LINKS_DIRTY, OUT, WAITING, begin


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
def _wake(s, device):
    """Mark a device for phase 2."""
    if not s.dirty[device]:
        s.dirty[device] = True
        s.dirty_order[s.counts[DIRTY]] = device
        s.counts[DIRTY] += 1


@step
def _wake_link(s, link):
    """Mark a link for phase 3."""
    if not s.link_dirty[link]:
        s.link_dirty[link] = True
        s.link_order[s.counts[LINKS_DIRTY]] = link
        s.counts[LINKS_DIRTY] += 1


@step
def _send(ops, world, s, row, now):
    """Send the message of a compute op, if it has one: record when it arrives; returns until when the
    stream is busy with it."""
    if s.target[row] < 0:
        return now
    depart = now
    if world.serial:
        pair = ops.device[row] * len(s.computing) + s.target[row]
        depart = max(now, s.pair_free[pair])
        s.pair_free[pair] = depart + world.occupancy
    s.ready[row] = depart + world.occupancy + world.latency
    _push(s, s.ready[row], len(ops.kind) + row)
    return now + world.sending


@step
def _record_end(ops, s, row, now):
    """Record the end of an op, and release what it gives."""
    s.end[row] = now
    s.ended_as[row] = s.counts[HAPPENED]
    s.counts[HAPPENED] += 1
    s.level[ops.device[row]] -= ops.given[row]


@step
def _finish(ops, world, s, row, now):
    """End an op: release its memory, its engine and its link, and send its message."""
    device = ops.device[row]
    _record_end(ops, s, row, now)
    if ops.kind[row] < O:
        free = _send(ops, world, s, row, now)
        if row + 1 < len(ops.kind) and ops.second[row + 1]:
            _record_end(ops, s, row + 1, now)
            free = _send(ops, world, s, row + 1, free)
        s.computing[device] = free > now
        if free > now:
            _push(s, free, 2 * len(ops.kind) + row)
        return
    which = 1 if ops.kind[row] == R else 0
    s.copying[0 if world.shared else which, device] = False
    s.link_busy[world.link_of[device, which]] = False
    # the head of its queue may have waited for this engine alone, to use another link
    for way in range(2):
        _wake_link(s, world.link_of[device, way])


@step
def _grant(s, row, now):
    """Record that a row is granted its memory now."""
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
    if row + 1 < len(ops.kind) and ops.second[row + 1]:
        s.start[row + 1] = s.grant[row + 1] = now
    s.computing[device] = True
    s.head[COMPUTE, device] += 1
    _push(s, now + ops.duration_ns[row], row)
    return True


@step
def _come_to_links(ops, world, s, device, now):
    """Let the heads of a device's copy queues join their links, if they may start."""
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
            _wake_link(s, world.link_of[device, 1 if ops.kind[row] == R else 0])


@step
def _first_in_line(ops, world, s, link):
    """Return the member of a link whose transfer is next; -1: none waits, or the one whose turn it is does not."""
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
        # members are in the order of ranks, O before R: a later one goes first only if it came strictly earlier
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
    _push(s, now + ops.duration_ns[row], row)
    _wake(s, device)


@compiled
def run_events(ops, world):
    """Replay event by event, for what depends on times: memory limits, links first come first served.

    Returns:
        starts, ends, grants per row, -1 where an op never starts (a deadlock); and per row when, in
        the sequence of all grants and ends, it was granted and when it ended.
    """
    s = begin(ops, world)
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
            _wake(s, device)
        # 2. grants and compute starts until nothing more can start; transfers join the queues of their links
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
        # 3. links are served, each once; then the events that this causes at the same instant
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
