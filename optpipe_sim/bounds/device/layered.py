"""The compiled layered search over the schedules of one device: as `best_first`, with few nodes per set of counts.

All nodes with the same counts of started ops are in one *layer*, which every move leaves for a later
one. So the layers can be taken in turn. When more than ``width`` nodes with the same counts are left
that do not dominate each other, two of them are merged into one that dominates both: each time the
earlier of the two. Such a node need not belong to any schedule, but whatever can follow one of the two
can follow it no later, so that the least cost that is found bounds all schedules. The more nodes are
allowed, the fewer are merged.

All times ns, all memory bytes, int64; nothing here allocates.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...compiled import entry, packed, step
from .heap import copy
from .moves import (
    Case,
    after_move,
    distance,
    find_starts,
    hash_counts,
    is_whole,
    layer_of,
    merge,
    no_worse,
    same_counts,
)
from .node import NEVER, NONE, begin


@packed
class Layers(NamedTuple):
    """The working arrays; the last row is for the node under construction."""

    nodes: np.ndarray
    keys: np.ndarray  # a lower bound on the cost of the schedules from a node
    dead: np.ndarray  # dominated by another node, or merged with it
    following: np.ndarray  # the next node with the same hash
    first: np.ndarray  # heads of these lists, NONE throughout; its size is a power of two
    after: np.ndarray  # the next node of the same layer, or the next free one
    layer: np.ndarray  # heads of the layers, NONE throughout
    starts: np.ndarray  # per move, when it can start


def make_layers(nodes: int, width: int, moves: int, layers: int) -> Layers:
    """Make the arrays for a number of nodes, each a row of `width`."""
    after = np.arange(1, nodes + 2, dtype=np.int64)
    after[nodes - 1] = NONE
    return Layers(
        np.empty((nodes + 1, width), np.int64),
        np.empty(nodes + 1, np.int64),
        np.zeros(nodes + 1, np.bool_),
        np.full(nodes + 1, NONE, np.int64),
        np.full(1 << max(8, nodes.bit_length()), NONE, np.int64),
        after,
        np.full(layers + 1, NONE, np.int64),
        np.empty(moves, np.int64),
    )


@step
def _unlink(layers, node, hashed):
    """Remove a node from the list of its hash."""
    at, before = layers.first[hashed], np.int64(NONE)
    while at != node:
        at, before = layers.following[at], at
    if before < 0:
        layers.first[hashed] = layers.following[node]
    else:
        layers.following[before] = layers.following[node]


@step
def _compare(child, key, hashed, layers, case):
    """Compare a node with those of the same counts; remove those that it dominates.

    Returns:
        (its key, or NEVER if another node dominates it; how many nodes are left; the nearest of them).
    """
    keys = layers.keys
    at, count = layers.first[hashed], 0
    nearest, least = np.int64(NONE), np.int64(NEVER)
    while at >= 0:
        coming, other = layers.following[at], layers.nodes[at]
        if same_counts(other, child, case):
            if no_worse(other, child, case):
                keys[at] = min(keys[at], key)
                return np.int64(NEVER), count, nearest
            if no_worse(child, other, case):
                layers.dead[at] = True
                key = min(keys[at], key)
                _unlink(layers, at, hashed)
            else:
                count += 1
                far = distance(other, child, case)
                if far < least:
                    nearest, least = at, far
        at = coming
    return key, count, nearest


@entry
def search_layers(case: Case, layers: Layers, width: int, most: int) -> tuple[int, int, bool]:
    """Search layer by layer.

    Args:
        width: the most nodes with the same counts; `most`: after so many nodes in all the search stops.

    Returns:
        (bound, nodes made, whether a greater width cannot improve it: nothing was merged, or it had to stop).
    """
    nodes, keys, dead, starts = layers.nodes, layers.keys, layers.dead, layers.starts
    last, goal, size = len(keys) - 1, case.goal, len(layers.first)
    child = nodes[last]
    free, best, made, exact, full = layers.after[0], np.int64(goal), 1, True, False
    begin(nodes[0], case.earliest[0, 0, 0])
    keys[0], dead[0] = case.earliest[0, 0, 0], False
    hashed = hash_counts(nodes[0], case, size)
    layers.following[0], layers.first[hashed] = NONE, 0
    layers.after[0], layers.layer[layer_of(nodes[0], case)] = NONE, 0
    for here in range(len(layers.layer)):
        node = layers.layer[here]
        while node >= 0:
            then = layers.after[node]
            if dead[node]:
                layers.after[node], free = free, node
                node = then
                continue
            # 1. no further node has its counts
            _unlink(layers, node, hash_counts(nodes[node], case, size))
            if is_whole(nodes[node], case) or full:
                best = min(best, keys[node])
                node = then
                continue
            cut = find_starts(nodes[node], starts, case)
            for option in range(len(starts)):
                # 2. each move that no other one replaces makes a child
                key = after_move(nodes[node], keys[node], option, starts, cut, case, child)
                if key >= best:
                    continue
                # 3. it is dropped if another node dominates it, or merged with the nearest
                hashed = hash_counts(child, case, size)
                key, count, nearest = _compare(child, key, hashed, layers, case)
                if key == NEVER:
                    continue
                if count >= width or (free < 0 and count > 0):
                    merge(child, nodes[nearest], case)
                    keys[nearest] = min(keys[nearest], key)
                    exact = False
                    continue
                if free < 0 or made >= most:
                    full = True
                    best = min(best, key, keys[node])
                    continue
                at, free = free, layers.after[free]
                made += 1
                copy(child, nodes[at])
                keys[at], dead[at] = key, False
                layers.following[at], layers.first[hashed] = layers.first[hashed], at
                there = layer_of(child, case)
                layers.after[at], layers.layer[there] = layers.layer[there], at
            layers.after[node], free = free, node
            node = then
    return int(best), made, exact or full
