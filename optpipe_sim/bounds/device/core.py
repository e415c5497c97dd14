"""The compiled part of `search`: best-first search over the schedules of one device.

A node is a row: what is true at a time ``T`` of everything that has started so far. First come the fields
named here, then per stage its counts (``WIDE`` of them), then per stage the ends of the F's
whose activations wait on the device (``keep`` of them, oldest first).

All times ns, all memory bytes, int64; nothing here allocates.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from ...compiled import entry, step
from .heap import copy, hashed_row, pop, push

# one per node; TC, TO, TR: until when compute, O and R engine are busy; GC, GO: what ends then gives back
T, TC, GC, KC, TO, GO, SO, TR, SR, LEVEL, COST = range(11)
FIELDS = 11
# per stage, counted as they start: F's, backwards, weight gradients (or BW's), on the host, reloaded,
# and waiting where F left them
NF, NB, NW, HOST, BACK, STAY = range(6)
WIDE = 6
# columns of `costs`, one row per stage
F, B, W, BW, O, R, ACT, KEPT, MOVED, DELAY = range(10)  # noqa: E741
# columns of `prices`: per ns of F, B, W, BW, O, R; then per F to come, per backward to come, per
# weight gradient pending, per activation on the host
YF, YB, YW, YBW, YO, YR, PER_F, PER_B, PER_W, PER_HOST = range(10)
# entries of `scalars`
MICROBATCHES, CAPACITY, SHARED, KEEP, AFTER, GOAL, LAST = range(7)
ONE = 1 << 20  # prices are in 1/ONE
NEVER = 1 << 60
FULL, DONE, GOAL_REACHED = range(3)
MOVES = 9
NONE = -1


@step
def _ages(stages, keep, s):
    """Where the ends of the F's of stage s begin in a node."""
    return FIELDS + stages * WIDE + s * keep


@step
def _estimate(node, costs, prices, scalars, tails):
    """What any schedule that goes on from a node costs at least."""
    m, stages = scalars[MICROBATCHES], costs.shape[0]
    work = np.int64(0)
    pending = np.int64(0)
    left = np.int64(0)
    for s in range(stages):
        at = FIELDS + s * WIDE
        backs = m - node[at + NB]
        fewest = costs[s, B] + costs[s, W]
        if 0 <= costs[s, BW] < fewest:
            fewest = costs[s, BW]
        waiting = node[at + NB] - node[at + NW]
        work += (m - node[at + NF]) * costs[s, F] + backs * fewest + waiting * costs[s, W]
        pending += (backs + waiting) * costs[s, W]
        left += backs
    end = node[TC] + work
    cost = max(end, node[COST])
    if left > 0:
        # after the last backward of the device only weight gradients are left, as many as fit
        cost = max(cost, end - min(pending, scalars[AFTER]) + tails[0, m - 1])
    if node[FIELDS + NF] < m:
        cost = max(cost, end + scalars[LAST])  # idle time after the forward that is still to come
    for k in range(prices.shape[0]):
        value = np.int64(0)
        dearest = np.int64(0)
        for s in range(stages):
            dearest = max(dearest, prices[k, s, YW])
            at = FIELDS + s * WIDE
            value += (m - node[at + NF]) * prices[k, s, PER_F]
            value += (m - node[at + NB]) * prices[k, s, PER_B]
            value += (node[at + NB] - node[at + NW]) * prices[k, s, PER_W]
            value += node[at + HOST] * prices[k, s, PER_HOST]
        if node[KC] >= 0:
            value += prices[k, node[KC] >> 2, node[KC] & 3] * (node[TC] - node[T])
        if node[SO] >= 0:
            value += prices[k, node[SO], YO] * (node[TO] - node[T])
        if node[SR] >= 0:
            value += prices[k, node[SR], YR] * (node[TR] - node[T])
        cost = max(cost, node[T] + (value + ONE - 1) // ONE)
        if left > 0:
            value -= dearest * min(pending, scalars[AFTER])
            cost = max(cost, node[T] + (value + ONE - 1) // ONE + tails[0, m - 1])
    return cost


@step
def _fits_at(node, size, capacity, earliest):
    """When `size` more bytes fit, given what runs; NONE if only what has not started can help."""
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
def _start(node, move, s, costs, scalars, releases, backs):
    """When a move of stage s can start at the earliest, or NONE.

    Moves: 0 F; 1 B and 2 BW of the oldest that stayed; 3 B and 4 BW of a reloaded one; 5 W; 6 R;
    7 O of the newest that has ended; 8 O of the F that runs.
    """
    m, stages, keep = scalars[MICROBATCHES], costs.shape[0], scalars[KEEP]
    at = FIELDS + s * WIDE
    ages = _ages(stages, keep, s)
    now = node[T]
    if move == 0:
        n = node[at + NF]
        if n == m or (s > 0 and node[at - WIDE + NF] <= n):
            return np.int64(NONE)
        return _fits_at(node, costs[s, ACT], scalars[CAPACITY], max(node[TC], releases[s, n]))
    if move <= 4:
        n = node[at + NB]
        if n == m or (s + 1 < stages and node[at + WIDE + NB] <= n):
            return np.int64(NONE)
        if move in (2, 4) and costs[s, BW] < 0:
            return np.int64(NONE)
        when = max(node[TC], backs[s, n])
        if move <= 2:
            if node[at + STAY] == 0:
                return np.int64(NONE)
            return max(when, node[ages] + costs[s, DELAY])
        if node[at + BACK] == 0:
            return np.int64(NONE)
        if node[at + BACK] == 1 and node[SR] == s:
            when = max(when, node[TR])
        return when
    if move == 5:
        return node[TC] if node[at + NW] < node[at + NB] else np.int64(NONE)
    if move == 6:
        if node[at + HOST] == 0:
            return np.int64(NONE)
        when = node[TR]
        if scalars[SHARED] or (node[at + HOST] == 1 and node[SO] == s):
            when = max(when, node[TO])
        return _fits_at(node, costs[s, MOVED], scalars[CAPACITY], when)
    if costs[s, MOVED] == 0 or node[at + STAY] == 0:
        return np.int64(NONE)
    runs = node[KC] == 4 * s and node[TC] > now
    when = max(now, node[TO])
    if scalars[SHARED]:
        when = max(when, node[TR])
    if move == 8:
        return max(when, node[TC]) if runs and node[TC] > when else np.int64(NONE)
    if runs and node[TC] > when and node[at + STAY] == 1:
        return np.int64(NONE)
    return when


@step
def _starts(node, starts, costs, scalars, releases, backs):
    """When each move can start; returns when the first B or W that may go first could have ended."""
    cut = np.int64(NEVER)
    for s in range(costs.shape[0]):
        for move in range(MOVES):
            when = _start(node, move, s, costs, scalars, releases, backs)
            if when >= 0:
                when = max(when, node[T])
                duration = costs[s, W] if move == 5 else max(costs[s, B], costs[s, BW])
                early = move in (3, 5) or (move == 1 and node[FIELDS + s * WIDE + BACK] == 0)
                if early and duration > 0:
                    cut = min(cut, when + duration)
            starts[s * MOVES + move] = when
    return cut


@step
def _remove(node, at, ages, keep, place):
    """Take one of the ends of F's out; of those not kept none ended before the newest that is."""
    count = node[at + STAY]
    kept = min(count, keep)
    newest = node[ages + kept - 1]
    for k in range(place, kept - 1):
        node[ages + k] = node[ages + k + 1]
    node[ages + kept - 1] = newest if count > keep else 0
    node[at + STAY] = count - 1


@step
def _move(node, move, s, when, costs, scalars, tails, follows):
    """Start a move of stage s at a time."""
    stages, keep = costs.shape[0], scalars[KEEP]
    at = FIELDS + s * WIDE
    ages = _ages(stages, keep, s)
    runs = node[KC] == 4 * s and node[TC] > max(node[T], node[TO])
    if scalars[SHARED] and runs:
        runs = node[TC] > node[TR]
    if node[TC] <= when:
        node[LEVEL] -= node[GC]
        node[GC], node[KC] = 0, NONE
    if node[TO] <= when:
        node[LEVEL] -= node[GO]
        node[GO], node[SO] = 0, NONE
    if node[TR] <= when:
        node[SR] = NONE
    node[T] = when
    if move == 0:
        node[TC], node[KC] = when + costs[s, F], 4 * s
        node[LEVEL] += costs[s, ACT]
        node[COST] = max(node[COST], node[TC] + follows[s, node[at + NF]])
        if node[at + STAY] < keep:
            node[ages + node[at + STAY]] = node[TC]
        node[at + STAY] += 1
        node[at + NF] += 1
    elif move <= 4:
        fused = move in (2, 4)
        node[TC] = when + (costs[s, BW] if fused else costs[s, B])
        node[KC] = 4 * s + (3 if fused else 1)
        node[GC] = costs[s, ACT] - (0 if fused else costs[s, KEPT])
        node[COST] = max(node[COST], node[TC] + tails[s, node[at + NB]])
        node[at + NB] += 1
        node[at + NW] += 1 if fused else 0
        if move <= 2:
            _remove(node, at, ages, keep, 0)
        else:
            node[at + BACK] -= 1
    elif move == 5:
        node[TC], node[KC], node[GC] = when + costs[s, W], 4 * s + 2, costs[s, KEPT]
        node[at + NW] += 1
    elif move == 6:
        node[TR], node[SR] = when + costs[s, R], s
        node[LEVEL] += costs[s, MOVED]
        node[at + HOST] -= 1
        node[at + BACK] += 1
    else:
        node[TO], node[SO], node[GO] = when + costs[s, O], s, costs[s, MOVED]
        place = min(node[at + STAY], keep) - 1
        if move == 7 and runs and node[at + STAY] <= keep:
            place -= 1
        if node[at + STAY] > keep:
            node[at + STAY] -= 1
        else:
            _remove(node, at, ages, keep, place)
        node[at + HOST] += 1
    _normalise(node, costs, keep)


@step
def _normalise(node, costs, keep):
    """What is over no longer tells nodes apart."""
    now, stages = node[T], costs.shape[0]
    for field in (TC, TO, TR):
        node[field] = max(node[field], now)
    for s in range(stages):
        ages = _ages(stages, keep, s)
        for k in range(min(node[FIELDS + s * WIDE + STAY], keep)):
            node[ages + k] = max(node[ages + k], now - costs[s, DELAY])


@step
def _same_counts(one, other, stages):
    differ = 0
    for k in range(FIELDS, FIELDS + stages * WIDE):
        differ += one[k] != other[k]
    return differ == 0


@step
def _no_worse(one, other, stages, keep):
    """Whether whatever can follow `other` can follow `one` no later (their counts are the same)."""
    for k in (T, TC, TO, TR, COST):
        if one[k] > other[k]:
            return False
    now = other[T]
    if one[GC] > other[GC] and one[TC] > now:
        return False
    if one[GO] > other[GO] and one[TO] > now:
        return False
    if one[SO] != other[SO] and one[TO] > now:
        return False
    if one[SR] != other[SR] and one[TR] > now:
        return False
    for s in range(stages):
        ages = _ages(stages, keep, s)
        for k in range(min(one[FIELDS + s * WIDE + STAY], keep)):
            if one[ages + k] > other[ages + k]:
                return False
    return True


@step
def _dominated(child, nodes, dead, following, first, hashed, stages, keep):
    """Whether a node met before is no worse; those that `child` beats are struck out."""
    at, last = first[hashed], np.int64(NONE)
    while at >= 0:
        if not dead[at] and _same_counts(nodes[at], child, stages):
            if _no_worse(nodes[at], child, stages, keep):
                return True
            if _no_worse(child, nodes[at], stages, keep):
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


@entry
def search(
    costs: np.ndarray,
    scalars: np.ndarray,
    releases: np.ndarray,
    backs: np.ndarray,
    tails: np.ndarray,
    follows: np.ndarray,
    prices: np.ndarray,
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
        costs: (stages, 10); BW below 0 where fusing is no use. `scalars`: see above.
        releases, backs: (stages, m) the earliest start of the n-th F and backward.
        tails, follows: (stages, m) what follows the end of the n-th backward, of the n-th F, at least.
        prices: (sets, stages, 10), see `search`.
        nodes, keys, depth, heap, dead, following: room, one row each per node.
        first: heads of the lists of nodes by hash, NONE throughout; its size is a power of two.
        starts: (stages * MOVES,) room.

    Returns:
        (bound, nodes made, FULL, DONE or GOAL_REACHED).
    """
    stages, keep = costs.shape[0], scalars[KEEP]
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
            whole = whole and nodes[node, FIELDS + s * WIDE + NW] == scalars[MICROBATCHES]
        if whole:
            return best, made, DONE
        cut = _starts(nodes[node], starts, costs, scalars, releases, backs)
        for option in range(stages * MOVES):
            when, s, move = starts[option], option // MOVES, option % MOVES
            if when < 0 or (move <= 5 and when >= cut):
                continue
            if move in (1, 2) and 0 <= starts[s * MOVES + 3] <= when:
                continue  # a reloaded one does as well
            copy(nodes[node], child)
            _move(child, move, s, when, costs, scalars, tails, follows)
            key = max(keys[node], _estimate(child, costs, prices, scalars, tails))
            if key >= goal:
                continue
            hashed = hashed_row(child[FIELDS : FIELDS + stages * WIDE], len(first))
            if _dominated(child, nodes, dead, following, first, hashed, stages, keep):
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
