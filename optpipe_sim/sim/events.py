"""Compiled: the replay event by event, for what depends on times. Times are int64 ns."""

from __future__ import annotations

import numpy as np

from ..compiled import compiled

F, O, R = 0, 4, 5  # noqa: E741  as in ops.OpKind, for the compiler


@compiled
def _push(heap_time, heap_row, size, time, row):
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap_time[parent] <= time:
            break
        heap_time[at], heap_row[at] = heap_time[parent], heap_row[parent]
        at = parent
    heap_time[at], heap_row[at] = time, row
    return size + 1


@compiled
def _pop(heap_time, heap_row, size):
    """Remove the first; the caller has read it at index 0."""
    size -= 1
    time, row = heap_time[size], heap_row[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap_time[child + 1] < heap_time[child]:
            child += 1
        if heap_time[child] >= time:
            break
        heap_time[at], heap_row[at] = heap_time[child], heap_row[child]
        at = child
    heap_time[at], heap_row[at] = time, row
    return size


@compiled
def run_events(
    kinds,
    device_of,
    offsets,
    lasts,
    taken,
    given,
    need_first,
    needs,
    static,
    limits,
    shared,
    link_of,
    links,
    link_first,
    link_rows,
    serial,
    latency,
    occupancy,
):
    """Event by event, for what depends on times: memory limits, and links first come first served.

    Args:
        kinds, device_of, lasts, taken, given: per row, kind, device, ns, bytes at grant, at end.
        need_first, needs: the rows each row waits for (``needs[need_first[r]:need_first[r + 1]]``).
        static, limits: per device, bytes (limits < 0: none). `shared`: one copy engine for O and R.
        link_of: (devices, 2) link of a device's O's and R's. `links`: how many there are.
        link_first, link_rows: the given order per link (empty: first come first served).
        serial, latency, occupancy: the links between devices.

    Returns:
        starts, ends, grants per row; -1 where an op never starts (a deadlock); and per row when,
        in the sequence of all happenings, it was granted and when it ended.
    """
    size, devices = len(kinds), len(offsets) - 1
    start = np.full(size, -1, np.int64)
    end = np.full(size, -1, np.int64)
    grant = np.full(size, -1, np.int64)
    ready = np.full(size, -1, np.int64)
    granted_as = np.full(size, -1, np.int64)
    ended_as = np.full(size, -1, np.int64)
    happened = 0
    # queues: per device its compute ops, its grants (F and R), its O's (or all copies), its R's
    queue = np.empty((4, size), np.int64)
    head = np.empty((4, devices), np.int64)
    stop = np.empty((4, devices), np.int64)
    anchor = np.full(size, -1, np.int64)
    fill = np.zeros(4, np.int64)
    for device in range(devices):
        for which in range(4):
            head[which, device] = fill[which]
        last = -1
        for row in range(offsets[device], offsets[device + 1]):
            kind = kinds[row]
            if kind < O:
                queue[0, fill[0]] = row
                fill[0] += 1
                last = row
            else:
                which = 3 if kind == R and not shared else 2
                queue[which, fill[which]] = row
                fill[which] += 1
            if kind in (F, R):
                queue[1, fill[1]] = row
                fill[1] += 1
                anchor[row] = last
        for which in range(4):
            stop[which, device] = fill[which]
    # the device that waits for the message of a row
    target = np.full(size, -1, np.int64)
    for row in range(size):
        for slot in range(need_first[row], need_first[row + 1]):
            if device_of[needs[slot]] != device_of[row]:
                target[needs[slot]] = device_of[row]
    pair_free = np.zeros(devices * devices if serial else 1, np.int64)
    level = static.copy()
    computing = np.zeros(devices, np.bool_)
    copying = np.zeros((2, devices), np.bool_)
    came = np.full((2, devices), -1, np.int64)  # when the head of a copy queue came to its link
    link_busy = np.zeros(links, np.bool_)
    link_head = link_first[:-1].copy()
    link_dirty = np.zeros(links, np.bool_)
    dirty_links = np.empty(links, np.int64)
    n_dirty_links = 0
    member_first = np.zeros(links + 1, np.int64)
    members = np.empty(2 * devices, np.int64)
    at = 0
    for link in range(links):
        for device in range(devices):
            for which in range(2):
                if link_of[device, which] == link:
                    members[at] = 2 * device + which
                    at += 1
        member_first[link + 1] = at
    dirty = np.ones(devices, np.bool_)
    dirty_devices = np.arange(devices)
    n_dirty = devices
    heap_time = np.empty(2 * size + 2, np.int64)
    heap_row = np.empty(2 * size + 2, np.int64)
    waiting = 0
    now = 0
    while True:
        # 1. ends and releases, and messages that arrive (rows from `size` on)
        while waiting and heap_time[0] == now:
            row = heap_row[0]
            waiting = _pop(heap_time, heap_row, waiting)
            if row >= size:
                device = target[row - size]
            else:
                device = device_of[row]
                end[row] = now
                ended_as[row] = happened
                happened += 1
                level[device] -= given[row]
                if kinds[row] < O:
                    computing[device] = False
                    if target[row] >= 0:
                        depart = now
                        if serial:
                            pair = device * devices + target[row]
                            depart = max(now, pair_free[pair])
                            pair_free[pair] = depart + occupancy
                        ready[row] = depart + occupancy + latency
                        waiting = _push(heap_time, heap_row, waiting, ready[row], size + row)
                else:
                    which = 1 if kinds[row] == R else 0
                    copying[0 if shared else which, device] = False
                    link_busy[link_of[device, which]] = False
                    for way in range(2):
                        link = link_of[device, way]
                        if not link_dirty[link]:
                            link_dirty[link] = True
                            dirty_links[n_dirty_links] = link
                            n_dirty_links += 1
            if not dirty[device]:
                dirty[device] = True
                dirty_devices[n_dirty] = device
                n_dirty += 1
        # 2. grants and compute starts until nothing more can start
        for at in range(n_dirty):
            device = dirty_devices[at]
            dirty[device] = False
            progress = True
            while progress:
                progress = False
                while head[1, device] < stop[1, device]:
                    row = queue[1, head[1, device]]
                    if kinds[row] != R or (anchor[row] >= 0 and start[anchor[row]] < 0):
                        break
                    if limits[device] >= 0 and level[device] + taken[row] > limits[device]:
                        break
                    level[device] += taken[row]
                    grant[row] = now
                    granted_as[row] = happened
                    happened += 1
                    head[1, device] += 1
                if not computing[device] and head[0, device] < stop[0, device]:
                    row = queue[0, head[0, device]]
                    free = True
                    for slot in range(need_first[row], need_first[row + 1]):
                        needed = needs[slot]
                        if end[needed] < 0 or (device_of[needed] != device and ready[needed] > now):
                            free = False
                            break
                    if free and kinds[row] == F:
                        free = queue[1, head[1, device]] == row and (
                            limits[device] < 0 or level[device] + taken[row] <= limits[device]
                        )
                        if free:
                            level[device] += taken[row]
                            head[1, device] += 1
                    if free:
                        start[row] = now
                        grant[row] = now
                        granted_as[row] = happened
                        happened += 1
                        computing[device] = True
                        head[0, device] += 1
                        waiting = _push(heap_time, heap_row, waiting, now + lasts[row], row)
                        progress = True
            for which in range(2):
                if came[which, device] >= 0 or head[2 + which, device] == stop[2 + which, device]:
                    continue
                row = queue[2 + which, head[2 + which, device]]
                free = kinds[row] != R or grant[row] >= 0
                for slot in range(need_first[row], need_first[row + 1]):
                    if end[needs[slot]] < 0:
                        free = False
                        break
                if free:
                    came[which, device] = now
                    link = link_of[device, 1 if kinds[row] == R else 0]
                    if not link_dirty[link]:
                        link_dirty[link] = True
                        dirty_links[n_dirty_links] = link
                        n_dirty_links += 1
        n_dirty = 0
        if waiting and heap_time[0] == now:
            continue
        # 3. links are served, each once; then whatever that brings at this instant
        for at in range(n_dirty_links):
            link = dirty_links[at]
            link_dirty[link] = False
            if link_busy[link]:
                continue
            best, best_row = -1, -1
            for slot in range(member_first[link], member_first[link + 1]):
                device, way = members[slot] >> 1, members[slot] & 1
                which = 0 if shared else way
                if came[which, device] < 0:
                    continue
                row = queue[2 + which, head[2 + which, device]]
                if (kinds[row] == R) != (way == 1):
                    continue
                if link_first[link + 1] > link_first[link]:
                    if link_rows[link_head[link]] == row:
                        best, best_row = members[slot], row
                        break
                # members stand by rank, O before R: a later one must have come strictly earlier
                elif best < 0 or came[which, device] < came[0 if shared else best & 1, best >> 1]:
                    best, best_row = members[slot], row
            if best < 0:
                continue
            device = best >> 1
            which = 0 if shared else best & 1
            if copying[which, device]:
                continue
            if link_first[link + 1] > link_first[link]:
                link_head[link] += 1
            copying[which, device] = True
            link_busy[link] = True
            came[which, device] = -1
            head[2 + which, device] += 1
            start[best_row] = now
            if kinds[best_row] == O:
                grant[best_row] = now
            waiting = _push(heap_time, heap_row, waiting, now + lasts[best_row], best_row)
            if not dirty[device]:
                dirty[device] = True
                dirty_devices[n_dirty] = device
                n_dirty += 1
        n_dirty_links = 0
        if n_dirty:
            continue
        if not waiting:
            return start, end, grant, granted_as, ended_as
        now = heap_time[0]
