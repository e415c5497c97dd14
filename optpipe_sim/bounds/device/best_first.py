"""The compiled best-first search over the schedules of one device, and what nodes have in common.

A node is a row: the state at time ``T`` after everything that has started so far. First come the fields
named here, then what `moves` counts per stage and level, with the ends of the F's whose activations wait
on the device (at most ``keep`` of them, oldest first). That module gives the loop its rules: which
moves there are, what they change, a lower bound on the cost from a node, and which of two nodes dominates the
other.

All times ns, all memory bytes, int64; nothing here allocates.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...compiled import packed, step
from .heap import copy, pop, push

# fields of a node; TC, TO, TR: until when the compute stream, the O and the R engine are busy; KC, SO, SR: with
# which op; GC, GO: bytes released at the end of the compute op, of the O
T, TC, GC, KC, TO, GO, SO, TR, SR, LEVEL, COST = range(11)
FIELDS = 11
NEVER = 1 << 60
FULL, DONE, GOAL_REACHED = range(3)
NONE = -1


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
def fits_at(node, size, capacity, earliest):
    """Return when `size` more bytes fit, given the running ops; NONE if only ops that have not started can free
    enough."""
    need = node[LEVEL] + size - capacity
    if need <= 0:
        return earliest
    by_copy, by_compute = node[GO], node[GC]
    when = np.int64(NEVER)
    if need <= by_copy:
        when = node[TO]
    if need <= by_compute and node[TC] < when:
        when = node[TC]
    if need <= by_copy + by_compute:
        when = min(when, max(node[TO], node[TC]))
    if when == NEVER:
        return np.int64(NONE)
    return max(when, earliest)


@step
def reload_start(node, code, on_host, size, capacity, shared):
    """Return the earliest start of an R of a stage's (and level's) `code`, or NONE."""
    if on_host == 0:
        return np.int64(NONE)
    when = node[TR]
    if shared or (on_host == 1 and node[SO] == code):
        when = max(when, node[TO])
    return fits_at(node, size, capacity, when)


@step
def offload_start(node, forward, waiting, at_once, shared):
    """Return the earliest start of an O, or NONE: of the F that runs, if `at_once`, or else of the newest that
    has ended; `forward` is the value of KC while an F of the stage (and level) runs."""
    if waiting == 0:
        return np.int64(NONE)
    runs = node[KC] == forward and node[TC] > node[T]
    when = max(node[T], node[TO])
    if shared:
        when = max(when, node[TR])
    if at_once:
        return max(when, node[TC]) if runs and node[TC] > when else np.int64(NONE)
    if runs and node[TC] > when and waiting == 1:
        return np.int64(NONE)
    return when


@step
def forward_outlasts(node, forward, shared):
    """Whether an F runs and will still be running when the next O can start."""
    runs = node[KC] == forward and node[TC] > max(node[T], node[TO])
    if shared and runs:
        runs = node[TC] > node[TR]
    return runs


@step
def settle(node, when):
    """Advance a node to a time: ops that have ended by then release their memory and their engine."""
    if node[TC] <= when:
        node[LEVEL] -= node[GC]
        node[GC], node[KC] = 0, NONE
    if node[TO] <= when:
        node[LEVEL] -= node[GO]
        node[GO], node[SO] = 0, NONE
    if node[TR] <= when:
        node[SR] = NONE
    node[T] = when


@step
def remove(node, stay, ages, keep, place):
    """Remove one of the ends of F's. Ends that are not stored are no earlier than the newest one that is."""
    count = node[stay]
    kept = min(count, keep)
    newest = node[ages + kept - 1]
    for k in range(place, kept - 1):
        node[ages + k] = node[ages + k + 1]
    node[ages + kept - 1] = newest if count > keep else 0
    node[stay] = count - 1


@step
def remove_newest(node, stay, ages, keep, but_one):
    """Remove the newest of the ends of F's, or the one before it."""
    if node[stay] > keep:
        node[stay] -= 1
    else:
        remove(node, stay, ages, keep, node[stay] - (2 if but_one else 1))


@step
def forget_past(node):
    """Forget since when engines are idle, which does not matter."""
    for field in (TC, TO, TR):
        node[field] = max(node[field], node[T])


@step
def forget_ages(node, stay, ages, keep, before):
    """Forget when F's ended, if that was before a time from which on it does not matter."""
    for k in range(min(node[stay], keep)):
        node[ages + k] = max(node[ages + k], before)


@step
def no_later(one, other):
    """Whether in `one` no engine is busy for longer than in `other`, nor memory released later."""
    for k in (T, TC, TO, TR, COST):
        if one[k] > other[k]:
            return False
    now = other[T]
    if one[GC] > other[GC] and one[TC] > now:
        return False
    if one[GO] > other[GO] and one[TO] > now:
        return False
    return not (
        (one[SO] != other[SO] and one[TO] > now) or (one[SR] != other[SR] and one[TR] > now)
    )


@step
def no_younger(one, other, stay, ages, keep):
    """Whether no F of those that wait ended later in `one` than in `other`."""
    for k in range(min(one[stay], keep)):  # noqa: SIM110 (compiled)
        if one[ages + k] > other[ages + k]:
            return False
    return True


@step
def _dominated(child, hashed, room, case, same_counts, no_worse):
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


@step
def _begin(room, release):
    """Make the first node: nothing has started."""
    for k in range(room.nodes.shape[1]):
        room.nodes[0, k] = 0
    for k in (T, TC, TO, TR):
        room.nodes[0, k] = release
    for k in (KC, SO, SR):
        room.nodes[0, k] = NONE
    room.keys[0] = release
    room.depth[0], room.dead[0], room.following[0] = 0, False, NONE
    room.heap[0] = 0


@step
def best_first(
    case,
    room,
    is_whole,
    find_starts,
    is_needless,
    move,
    estimate,
    hash_counts,
    same_counts,
    no_worse,
):
    """Search until a whole schedule is found, the goal is reached or the room is full.

    Args:
        case: the problem, with ``releases`` and ``goal``; the functions are handed it.
        is_whole: (node, case) -> whether all ops have started.
        find_starts: (node, starts, case) fills in when each move can start; it returns the time from which on
            compute ops need not be considered.
        is_needless: (option, starts, cut, case) -> whether another move is at least as good.
        move: (node, option, when, case) starts a move.
        estimate: (node, case) -> a lower bound on the cost of all schedules that continue from there.
        hash_counts: (node, case, size) -> a number from 0 to size - 1.
        same_counts, no_worse: (one, other, case) -> whether every continuation of `other` is one of `one`,
            and then no later.

    Returns:
        (bound, nodes made, FULL, DONE or GOAL_REACHED).
    """
    nodes, keys, starts = room.nodes, room.keys, room.starts
    last, goal = len(keys) - 1, case.goal
    child = nodes[last]
    _begin(room, case.releases[0, 0])
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
            when = starts[option]
            if when < 0 or is_needless(option, starts, cut, case):
                continue
            copy(nodes[node], child)
            move(child, option, when, case)
            # 3. the child is dropped if its estimate reaches the goal, or an earlier node dominates it
            key = max(keys[node], estimate(child, case))
            if key >= goal:
                continue
            hashed = hash_counts(child, case, len(room.first))
            if _dominated(child, hashed, room, case, same_counts, no_worse):
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
