"""Compiled: graphs in topological order and their longest paths.

Times are int64 ns. A graph has nodes with a duration (an op, the grant of an R, a message on a serial link),
and edges from the start or the end of one node to the start of another, with a lag.
"""

from __future__ import annotations

import numpy as np

from ..codes import O, R
from ..compiled import compiled, step


@compiled
def program_edges(kinds, asks, sending, offsets, shared):
    """Return the edges that follow from the order of the programs, and the number of R's.

    A kind of -1 is a row that is part of the one before. Node ``len(kinds) + k`` is the grant of the
    k-th R. `asks`: per row, whether it is granted memory in program order. `sending`: per row, how long
    its message keeps the compute stream busy, ns. Returns (source, at_end, target, lag) arrays.
    """
    size = len(kinds)
    source = np.empty(4 * size, np.int64)
    at_end = np.empty(4 * size, np.int64)
    target = np.empty(4 * size, np.int64)
    lag = np.zeros(4 * size, np.int64)
    count = 0
    reloads = 0
    for device in range(len(offsets) - 1):
        compute, granted = -1, -1
        queue = np.full(2, -1, np.int64)
        for row in range(offsets[device], offsets[device + 1]):
            kind = kinds[row]
            if kind < 0:  # the backward of a pair
                continue
            if kind < O:
                if compute >= 0:
                    source[count], at_end[count], target[count] = compute, 1, row
                    lag[count] = sending[compute]
                    count += 1
                if asks[row] and granted >= 0:
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
    return source[:count], at_end[:count], target[:count], lag[:count], reloads


@compiled
def sort_graph(nodes, source, at_end, target, lag):
    """Sort a graph topologically and group its incoming edges by node.

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


@compiled
def longest_path(first, inputs, lags, durations, times):
    """Fill `times` (2, nodes in topological order: start and end, interleaved) with the earliest times."""
    for node in range(len(durations)):
        start = 0
        for edge in range(first[node], first[node + 1]):
            time = times[inputs[edge]] + lags[edge]
            if time > start:
                start = time
        times[2 * node] = start
        times[2 * node + 1] = start + durations[node]


@step  # inlined by hand: a call in the inner loop costs 7 ns per op
def _start(node, first, inputs, lags, comm, times):
    """Return the earliest start of a node, with all messages scaled by `comm`."""
    start = 0
    for edge in range(first[node], first[node + 1]):
        lag = lags[edge]
        if lag:
            lag = np.int64(lag * comm + 0.5)
        time = times[inputs[edge]] + lag
        if time > start:
            start = time
    return start


@compiled
def scenario_paths(
    first,
    inputs,
    lags,
    durations,
    unit,
    device,
    message,
    opens,
    closes,
    factors,
    drift,
    comm,
    costs,
):
    """Compute the makespan and the longest device span of one graph at many scaled durations.

    Args:
        first, inputs, lags, durations: the graph. `message`: (nodes,) True for messages.
        unit: (nodes,) the column of `factors` that is the node's own; -1: none. `device`: (nodes,).
        opens, closes: (devices,) the nodes of each device's first and last compute op.
        factors: (samples, units) of the durations of ops. `drift`: (samples, devices) of all ops of a
            device. `comm`: (samples,) of messages.
        costs: (samples, 2), filled with makespan and span.
    """
    nodes = len(durations)
    times = np.empty(2 * nodes, np.int64)
    for sample in range(len(costs)):
        makespan = 0
        for node in range(nodes):
            start = _start(node, first, inputs, lags, comm[sample], times)
            length = float(durations[node])
            if message[node]:
                length *= comm[sample]
            elif unit[node] >= 0:
                length *= drift[sample, device[node]] * factors[sample, unit[node]]
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
