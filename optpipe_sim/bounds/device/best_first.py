"""The compiled best-first search over the schedules of one device, by the rules of `moves`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...compiled import entry, packed, step
from .heap import copy, pop, push
from .moves import (
    Case,
    after_move,
    find_starts,
    hash_counts,
    is_whole,
    no_worse,
    same_counts,
)
from .node import NEVER, NONE, begin

FULL, DONE, GOAL_REACHED = range(3)


@packed
class Room(NamedTuple):
    """The working arrays of a search, one row per node; the last row is for the node under construction."""

    nodes: np.ndarray
    keys: np.ndarray  # a lower bound on the cost of the schedules from a node
    depth: np.ndarray  # ops that have started
    heap: np.ndarray
    dead: np.ndarray  # dominated by another node
    following: np.ndarray  # the next node with the same hash
    first: np.ndarray  # heads of these lists, NONE throughout; its size is a power of two
    starts: np.ndarray  # per move, when it can start


def make_room(nodes: int, width: int, moves: int) -> Room:
    """Make the arrays for a number of nodes, each a row of `width`."""
    return Room(
        np.empty((nodes + 1, width), np.int64),
        np.empty(nodes + 1, np.int64),
        np.empty(nodes + 1, np.int32),
        np.empty(nodes + 1, np.int64),
        np.empty(nodes + 1, np.bool_),
        np.empty(nodes + 1, np.int64),
        np.full(1 << max(8, nodes.bit_length()), NONE, np.int64),
        np.empty(moves, np.int64),
    )


@step
def _dominated(child, hashed, room, case):
    """Whether an earlier node dominates `child`; mark the earlier nodes that `child` dominates as dead."""
    at, last = room.first[hashed], np.int64(NONE)
    while at >= 0:
        if not room.dead[at] and same_counts(room.nodes[at], child, case):
            if no_worse(room.nodes[at], child, case):
                return True
            if no_worse(child, room.nodes[at], case):
                room.dead[at] = True
        if room.dead[at]:
            if last < 0:
                room.first[hashed] = room.following[at]
            else:
                room.following[last] = room.following[at]
        else:
            last = at
        at = room.following[at]
    return False


@entry
def search(case: Case, room: Room) -> tuple[int, int, int]:
    """Search until a whole schedule is found, the goal is reached or the room is full.

    Returns:
        (bound, nodes made, FULL, DONE or GOAL_REACHED).
    """
    nodes, keys, starts = room.nodes, room.keys, room.starts
    last, goal = len(keys) - 1, case.goal
    child = nodes[last]
    begin(nodes[0], case.earliest[0, 0, 0])
    keys[0] = case.earliest[0, 0, 0]
    room.depth[0], room.dead[0], room.following[0], room.heap[0] = 0, False, NONE, 0
    made, size, best = 1, 1, keys[0]
    while size > 0:
        # 1. the least estimate of a node bounds all schedules that are left
        node = pop(room.heap, size, keys, room.depth)
        size -= 1
        if room.dead[node]:
            continue
        best = max(best, keys[node])
        if best >= goal:
            return goal, made, GOAL_REACHED
        if is_whole(nodes[node], case):
            return best, made, DONE
        cut = find_starts(nodes[node], starts, case)
        for option in range(len(starts)):
            # 2. each move that no other one replaces makes a child
            key = after_move(nodes[node], keys[node], option, starts, cut, case, child)
            # 3. the child is dropped if its estimate reaches the goal, or an earlier node dominates it
            if key >= goal:
                continue
            hashed = hash_counts(child, case, len(room.first))
            if _dominated(child, hashed, room, case):
                continue
            if made == last:
                return best, made, FULL
            # 4. otherwise it is kept
            copy(child, nodes[made])
            keys[made], room.depth[made], room.dead[made] = key, room.depth[node] + 1, False
            room.following[made] = room.first[hashed]
            room.first[hashed] = made
            push(room.heap, size, keys, room.depth, made)
            size += 1
            made += 1
    return (goal if goal < NEVER else best), made, GOAL_REACHED
