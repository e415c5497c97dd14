"""Compiled loops of the fast replay: graphs in topological order, longest paths, and events.

Times are int64 ns. A graph has nodes (an op, the grant of an R, a message on a serial link) that
last a while, and edges from the start or the end of one node to the start of another, with a lag.
"""

from __future__ import annotations

import numpy as np
from numba import njit

F, B, W, BW, O, R = range(6)  # noqa: E741  as in ops.OpKind, for the compiler


@njit(cache=True)
def program_edges(kinds, offsets, shared):
    """Edges that follow from the order of the programs, and how many R's there are.

    Node ``len(kinds) + k`` is the grant of the k-th R. Returns (source, at_end, target) arrays.
    """
    size = len(kinds)
    source = np.empty(4 * size, np.int64)
    at_end = np.empty(4 * size, np.int64)
    target = np.empty(4 * size, np.int64)
    count = 0
    reloads = 0
    for device in range(len(offsets) - 1):
        compute, granted = -1, -1
        queue = np.full(2, -1, np.int64)
        for row in range(offsets[device], offsets[device + 1]):
            kind = kinds[row]
            if kind < O:
                if compute >= 0:
                    source[count], at_end[count], target[count] = compute, 1, row
                    count += 1
                if kind == F and granted >= 0:
                    source[count], at_end[count], target[count] = granted, 0, row
                    count += 1
                    granted = -1
                compute = row
                continue
            which = 1 if kind == R and not shared else 0
            if queue[which] >= 0:
                source[count], at_end[count], target[count] = queue[which], 1, row
                count += 1
            queue[which] = row
            if kind == R:
                grant = size + reloads
                reloads += 1
                if compute >= 0:
                    source[count], at_end[count], target[count] = compute, 0, grant
                    count += 1
                if granted >= 0:
                    source[count], at_end[count], target[count] = granted, 0, grant
                    count += 1
                source[count], at_end[count], target[count] = grant, 0, row
                count += 1
                granted = grant
    return source[:count], at_end[:count], target[:count], reloads


@njit(cache=True)
def sort_graph(nodes, source, at_end, target, lag):
    """The graph in topological order, its incoming edges grouped by node.

    Returns:
        order: the nodes in that order (shorter than `nodes` where there is a circle).
        first: ``first[k]:first[k + 1]`` are the incoming edges of the k-th node in the order.
        inputs: per edge ``2 * position + at_end`` of its source. `lags`: per edge.
    """
    edges = len(source)
    out_first = np.zeros(nodes + 1, np.int64)
    missing = np.zeros(nodes, np.int64)
    for edge in range(edges):
        out_first[source[edge] + 1] += 1
        missing[target[edge]] += 1
    for node in range(nodes):
        out_first[node + 1] += out_first[node]
    fill = out_first[:-1].copy()
    out = np.empty(edges, np.int64)
    for edge in range(edges):
        out[fill[source[edge]]] = edge
        fill[source[edge]] += 1
    order = np.empty(nodes, np.int64)
    position = np.full(nodes, -1, np.int64)
    first = np.zeros(nodes + 1, np.int64)
    total = 0
    done = 0
    for node in range(nodes):
        if missing[node] == 0:
            order[done] = node
            done += 1
    degree = np.zeros(nodes, np.int64)
    for edge in range(edges):
        degree[target[edge]] += 1
    at = 0
    while at < done:
        node = order[at]
        position[node] = at
        total += degree[node]
        first[at + 1] = total
        at += 1
        for slot in range(out_first[node], out_first[node + 1]):
            after = target[out[slot]]
            missing[after] -= 1
            if missing[after] == 0:
                order[done] = after
                done += 1
    inputs = np.empty(edges, np.int64)
    lags = np.empty(edges, np.int64)
    if done == nodes:
        fill = first[:-1].copy()
        for edge in range(edges):
            slot = position[target[edge]]
            inputs[fill[slot]] = 2 * position[source[edge]] + at_end[edge]
            lags[fill[slot]] = lag[edge]
            fill[slot] += 1
    return order[:done], first, inputs, lags


@njit(cache=True)
def longest_path(first, inputs, lags, lasts, times):
    """Fill `times` (2, nodes in topological order: start and end, interleaved) as early as can be."""
    for node in range(len(lasts)):
        start = 0
        for edge in range(first[node], first[node + 1]):
            time = times[inputs[edge]] + lags[edge]
            if time > start:
                start = time
        times[2 * node] = start
        times[2 * node + 1] = start + lasts[node]


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
def find_waits(kinds, offsets, taken, given, static, limits, granted_as, ended_as):
    """The releases each F and R has to wait for, so that its device keeps its limit whatever
    the ops last.

    Of the releases that came before a grant in one feasible run it takes the fewest, in the order
    they came; those before it on its own stream, and those an earlier grant waits for, are free.

    Returns:
        (rows that wait, rows whose end they wait for), -1 in the latter where even all releases
        before the grant do not do (an infeasible run).
    """
    size = len(kinds)
    waiting = np.empty(2 * size, np.int64)
    needed = np.empty(2 * size, np.int64)
    count = 0
    for device in range(len(offsets) - 1):
        if limits[device] < 0:
            continue
        begin, stop = offsets[device], offsets[device + 1]
        compute = np.empty(stop - begin, np.int64)
        copies = np.empty(stop - begin, np.int64)
        n_compute, n_copies = 0, 0
        for row in range(begin, stop):
            if kinds[row] < O:
                compute[n_compute] = row
                n_compute += 1
            elif kinds[row] == O:
                copies[n_copies] = row
                n_copies += 1
        need = static[device] - limits[device]
        ahead = 0  # compute ops before this point of the program
        done, out = 0, 0  # compute ops and O's that have surely ended
        freed, moved = 0, 0  # bytes they gave back
        for row in range(begin, stop):
            kind = kinds[row]
            if kind in (F, R):
                need += taken[row]
                surely = ahead if kind == F else max(ahead - 1, 0)
                while done < surely:
                    freed += given[compute[done]]
                    done += 1
                done_before, out_before = done, out
                freed_before, moved_before = freed, moved
                while freed + moved < need:
                    next_done = done < n_compute and 0 <= ended_as[compute[done]] < granted_as[row]
                    next_out = out < n_copies and 0 <= ended_as[copies[out]] < granted_as[row]
                    if next_done and (
                        not next_out or ended_as[compute[done]] < ended_as[copies[out]]
                    ):
                        freed += given[compute[done]]
                        done += 1
                    elif next_out:
                        moved += given[copies[out]]
                        out += 1
                    else:
                        waiting[0], needed[0] = row, -1
                        return waiting[:1], needed[:1]
                # whichever stream alone would do spares a wait; and none waits for more than it must
                if freed_before + moved >= need:
                    done, freed = done_before, freed_before
                if freed + moved_before >= need:
                    out, moved = out_before, moved_before
                while out > out_before and freed + moved - given[copies[out - 1]] >= need:
                    out -= 1
                    moved -= given[copies[out]]
                while done > done_before and freed + moved - given[compute[done - 1]] >= need:
                    done -= 1
                    freed -= given[compute[done]]
                if done > done_before:
                    waiting[count], needed[count] = row, compute[done - 1]
                    count += 1
                if out > out_before:
                    waiting[count], needed[count] = row, copies[out - 1]
                    count += 1
            if kind < O:
                ahead += 1
    return waiting[:count], needed[:count]


@njit(cache=True)
def noisy_paths(
    first, inputs, lags, lasts, spread, device, message, opens, closes, drift, hop, random, costs
):
    """Makespan and longest device span of many noisy copies of one graph.

    Args:
        first, inputs, lags, lasts: the graph. `message`: (nodes,) True for messages.
        spread: (nodes,) sigma of the node's own log-normal factor. `device`: (nodes,).
        opens, closes: (devices,) the nodes of each device's first and last compute op.
        drift: (samples, devices) a factor for all ops of a device. `hop`: (samples,) for messages.
        random: a numpy Generator. `costs`: (samples, 2), filled with makespan and span.
    """
    nodes = len(lasts)
    times = np.empty(2 * nodes, np.int64)
    for sample in range(len(costs)):
        makespan = 0
        for node in range(nodes):
            start = 0
            for edge in range(first[node], first[node + 1]):
                lag = lags[edge]
                if lag:
                    lag = np.int64(lag * hop[sample] + 0.5)
                time = times[inputs[edge]] + lag
                if time > start:
                    start = time
            length = float(lasts[node])
            if message[node]:
                length *= hop[sample]
            else:
                length *= drift[sample, device[node]]
                sigma = spread[node]
                if sigma > 0:
                    length *= np.exp(sigma * random.standard_normal() - 0.5 * sigma * sigma)
            end = start + np.int64(length + 0.5)
            times[2 * node] = start
            times[2 * node + 1] = end
            if end > makespan:
                makespan = end
        span = 0
        for at in range(len(opens)):
            span = max(span, times[2 * closes[at] + 1] - times[2 * opens[at]])
        costs[sample, 0] = makespan
        costs[sample, 1] = span
