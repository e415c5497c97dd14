"""A heap of nodes, the least key first, of equal keys the deepest; rows copied and hashed. Compiled."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from ...compiled import step


@step
def _before(keys, depth, i, j):
    return keys[i] < keys[j] or (keys[i] == keys[j] and depth[i] > depth[j])


@step
def push(heap, size, keys, depth, node):
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if not _before(keys, depth, node, heap[up]):
            break
        heap[at] = heap[up]
        at = up
    heap[at] = node


@step
def pop(heap, size, keys, depth):
    """Remove the best node from the heap of `size` nodes; returns it."""
    top = heap[0]
    size -= 1
    last = heap[size]
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and _before(keys, depth, heap[down + 1], heap[down]):
            down += 1
        if not _before(keys, depth, heap[down], last):
            break
        heap[at] = heap[down]
        at = down
    heap[at] = last
    return top


@step
def copy(row, into):
    for k in range(len(row)):
        into[k] = row[k]


@step
def hashed_row(row, size):
    """Return a hash of a row, from 0 to size - 1; `size` is a power of two below 2^38."""
    value = np.int64(0)
    for k in range(len(row)):
        value = value * 1000003 + row[k]
    return mixed(value, size)


@step
def mixed(value, size):
    """Mix the bits of a number; returns one from 0 to size - 1."""
    value *= 7046029254386353131
    return (value >> 24) & (size - 1)
