"""The compiled best-first search of `levels`: dominance between nodes, and the loop; the moves are in
`levels_core`. Nothing here allocates."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from ...compiled import entry, step
from .core import (
    COST,
    DONE,
    FIELDS,
    FULL,
    GC,
    GO,
    GOAL_REACHED,
    KC,
    NEVER,
    NONE,
    SO,
    SR,
    TC,
    TO,
    TR,
    T,
)
from .heap import copy, hashed_row, pop, push
from .levels_core import (
    COUNTS,
    GOAL,
    KEEP,
    LEVELS,
    M_B,
    M_B_BACK,
    M_BW,
    M_C,
    M_C_BACK,
    M_W,
    MICROBATCHES,
    MOVES,
    NW,
    PLACES,
    STAY,
    W,
    estimate,
    move_to,
    place_of,
    start,
)


@step
def _same_counts(one, other, stages, keep, levels):
    for k in range(FIELDS, FIELDS + stages * COUNTS):
        if one[k] != other[k]:
            return False
    for code in range(stages * levels):
        here = place_of(stages, keep, levels, code // levels, code % levels)
        for k in range(PLACES):
            if one[here + k] != other[here + k]:
                return False
    return True


@step
def _no_worse(one, other, stages, keep, levels):
    """Whether whatever can follow `other` can follow `one` no later (their counts are the same)."""
    for k in (T, TC, TO, TR, COST):
        if one[k] > other[k]:
            return False
    now = other[T]
    if one[GO] > other[GO] and one[TO] > now:
        return False
    if one[GC] > other[GC] and one[TC] > now:
        return False
    if (one[SO] != other[SO] and one[TO] > now) or (one[SR] != other[SR] and one[TR] > now):
        return False
    for code in range(stages * levels):
        here = place_of(stages, keep, levels, code // levels, code % levels)
        for k in range(min(one[here + STAY], keep)):
            if one[here + PLACES + k] > other[here + PLACES + k]:
                return False
    return True


@step
def _dominated(child, nodes, dead, following, first, hashed, stages, keep, levels):
    """Whether a node met before is no worse; those that `child` beats are struck out."""
    at, last = first[hashed], np.int64(NONE)
    while at >= 0:
        if not dead[at] and _same_counts(nodes[at], child, stages, keep, levels):
            if _no_worse(nodes[at], child, stages, keep, levels):
                return True
            if _no_worse(child, nodes[at], stages, keep, levels):
                dead[at] = True
        if dead[at]:
            if last < 0:
                first[hashed] = following[at]
            else:
                following[last] = following[at]
        else:
            last = at
        at = following[at]
    return False


@step
def _hashed(node, stages, keep, levels, size):
    """A hash of all counts, from 0 to size - 1, a power of two."""
    value = np.int64(hashed_row(node[FIELDS : FIELDS + stages * COUNTS], size))
    for code in range(stages * levels):
        here = place_of(stages, keep, levels, code // levels, code % levels)
        for k in range(PLACES):
            value = value * 1000003 + node[here + k]
    value *= 7046029254386353131
    return (value >> 24) & (size - 1)


@step
def _starts(node, starts, stages, costs, scalars, releases, backs):
    """When each move can start; returns when the first W that may go first could have ended."""
    cut, levels = np.int64(NEVER), scalars[LEVELS]
    for code in range(stages * levels):
        s, level = code // levels, code % levels
        for move in range(MOVES):
            when = start(node, move, s, level, stages, costs, scalars, releases, backs)
            if when >= 0:
                when = max(when, node[T])
                if move == M_W and costs[code, W] > 0:
                    cut = min(cut, when + costs[code, W])
            starts[code * MOVES + move] = when
    return cut


@entry
def search_levels(
    stages: int,
    costs: np.ndarray,
    scalars: np.ndarray,
    releases: np.ndarray,
    backs: np.ndarray,
    tails: np.ndarray,
    follows: np.ndarray,
    drains: np.ndarray,
    nodes: np.ndarray,
    keys: np.ndarray,
    depth: np.ndarray,
    heap: np.ndarray,
    dead: np.ndarray,
    following: np.ndarray,
    first: np.ndarray,
    starts: np.ndarray,
) -> tuple[int, int, int]:
    """Best first, until a whole schedule, the goal or the end of the room.

    Args:
        costs: (stages * levels, COLUMNS); F below 0 where a stage does not have a level, BW below 0
            where fusing is no use.
        drains: (ways, 3) of the last backward: its level, what it recomputes, the W's that fit after it.
        starts: (stages * levels * MOVES,) room. The others: as for `core.search`.

    Returns:
        (bound, nodes made, FULL, DONE or GOAL_REACHED).
    """
    keep, levels, m = scalars[KEEP], scalars[LEVELS], scalars[MICROBATCHES]
    room, goal = len(keys) - 1, scalars[GOAL]
    child = nodes[room]  # the last row is for the node in the making
    for k in range(nodes.shape[1]):
        nodes[0, k] = 0
    for k in (T, TC, TO, TR):
        nodes[0, k] = releases[0, 0]
    for k in (KC, SO, SR):
        nodes[0, k] = NONE
    keys[0] = releases[0, 0]
    depth[0], dead[0], following[0] = 0, False, NONE
    heap[0] = 0
    made, size, best = 1, 1, keys[0]
    while size > 0:
        node = pop(heap, size, keys, depth)
        size -= 1
        if dead[node]:
            continue
        best = max(best, keys[node])
        if best >= goal:
            return goal, made, GOAL_REACHED
        whole = True
        for s in range(stages):
            whole = whole and nodes[node, FIELDS + s * COUNTS + NW] == m
        if whole:
            return best, made, DONE
        cut = _starts(nodes[node], starts, stages, costs, scalars, releases, backs)
        for option in range(stages * levels * MOVES):
            when, code, move = starts[option], option // MOVES, option % MOVES
            compute = move <= M_C_BACK or move == M_W
            if when < 0 or (compute and when >= cut):
                continue
            s, level = code // levels, code % levels
            if move in (M_B, M_BW, M_C):
                reloaded = starts[code * MOVES + (M_C_BACK if move == M_C else M_B_BACK)]
                if 0 <= reloaded <= when:
                    continue  # a reloaded one does as well
            copy(nodes[node], child)
            move_to(child, move, s, level, when, stages, costs, scalars, tails, follows)
            key = max(keys[node], estimate(child, stages, costs, scalars, tails, drains))
            if key >= goal:
                continue
            hashed = _hashed(child, stages, keep, levels, len(first))
            if _dominated(child, nodes, dead, following, first, hashed, stages, keep, levels):
                continue
            if made == room:
                return best, made, FULL
            copy(child, nodes[made])
            keys[made], depth[made], dead[made] = key, depth[node] + 1, False
            following[made] = first[hashed]
            first[hashed] = made
            push(heap, size, keys, depth, made)
            size += 1
            made += 1
    return (goal if goal < NEVER else best), made, GOAL_REACHED
