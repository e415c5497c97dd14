"""The compiled part of `levels`: best-first search over the schedules of one device with recomputation.

As `core`, with an activation's level of recomputation (0: kept whole) in the state. A node is a row: the
fields of `core`, then per stage the F's, backwards and weight gradients that have started, then per stage and
level how many activations wait where F left them, on the host and reloaded, and the ends of the F's of
those that wait (``keep`` of them, oldest first).

All times ns, all memory bytes, int64; nothing here allocates.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from ...compiled import step
from .core import (
    COST,
    FIELDS,
    GC,
    GO,
    KC,
    LEVEL,
    NEVER,
    NONE,
    SO,
    SR,
    TC,
    TO,
    TR,
    T,
)  # fmt: skip
from .core import _fits_at as fits_at

# per stage, counted as they start: F's, backwards, weight gradients (or BW's)
NF, NB, NW = range(3)
COUNTS = 3
# per stage and level: waiting where F left them, on the host, reloaded
STAY, HOST, BACK = range(3)
PLACES = 3
# columns of `costs`, one row per stage and level
F, B, W, BW, C, O, R, FA, FR, BA, BR, BWA, BWR, CA, MOVED, KEPT, DELAY, AGAIN = range(18)  # noqa: E741
COLUMNS = 18
# entries of `scalars`
MICROBATCHES, CAPACITY, SHARED, KEEP, LEVELS, GOAL, IDLE, LOST = range(8)
# moves of a level: F; B and BW of the oldest that stayed; B and BW of a reloaded one; C of one that
# stayed, of a reloaded one; R; O of the newest that has ended, of the F that runs; W (level 0 only)
M_F, M_B, M_BW, M_B_BACK, M_BW_BACK, M_C, M_C_BACK, M_R, M_O, M_O_NOW, M_W = range(11)
MOVES = 11


@step
def place_of(stages, keep, levels, s, level):
    """Where the counts of a stage's level begin in a node; the ends of its F's follow them."""
    return FIELDS + stages * COUNTS + (s * levels + level) * (PLACES + keep)


@step
def estimate(node, stages, costs, scalars, tails, drains):
    """What any schedule that goes on from a node costs at least."""
    m, keep, levels = scalars[MICROBATCHES], scalars[KEEP], scalars[LEVELS]
    work = np.int64(0)
    again = np.int64(0)
    pending = np.int64(0)
    left = np.int64(0)
    for s in range(stages):
        at, cost = FIELDS + s * COUNTS, costs[s * levels]
        backs = m - node[at + NB]
        waiting = node[at + NB] - node[at + NW]
        fewest = cost[B] + cost[W]
        if 0 <= cost[BW] < fewest:
            fewest = cost[BW]
        work += (m - node[at + NF]) * cost[F] + backs * fewest + waiting * cost[W]
        pending += (backs + waiting) * cost[W]
        left += backs
        for level in range(1, levels):
            here = place_of(stages, keep, levels, s, level)
            count = node[here + STAY] + node[here + HOST] + node[here + BACK]
            again += count * costs[s * levels + level, AGAIN]
    end = node[TC] + work + again
    best = max(end, node[COST])
    if left > 0:
        # after the last backward only weight gradients are left, as many as fit beside it
        least = np.int64(NEVER)
        for k in range(len(drains)):
            level, extra, weights = drains[k]
            if level > 0:
                here = place_of(stages, keep, levels, 0, level)
                if node[here + STAY] + node[here + HOST] + node[here + BACK] > 0:
                    extra = 0  # it is counted already
            least = min(least, extra - min(pending, weights))
        best = max(best, end + least + tails[0, m - 1])
    if node[FIELDS + NF] < m:
        best = max(best, max(end + scalars[IDLE], end - again + scalars[LOST]))
    return best


@step
def start(node, move, s, level, stages, costs, scalars, releases, backs):
    """When a move of a stage and level can start at the earliest, or NONE."""
    m, keep, levels = scalars[MICROBATCHES], scalars[KEEP], scalars[LEVELS]
    at, here = FIELDS + s * COUNTS, place_of(stages, keep, levels, s, level)
    cost, code = costs[s * levels + level], s * levels + level
    if cost[F] < 0:
        return np.int64(NONE)  # the stage does not have this level
    if move == M_F:
        n = node[at + NF]
        if n == m or (s > 0 and node[at - COUNTS + NF] <= n):
            return np.int64(NONE)
        return fits_at(node, cost[FA], scalars[CAPACITY], max(node[TC], releases[s, n]))
    if move == M_W:
        if level > 0 or node[at + NW] >= node[at + NB]:
            return np.int64(NONE)
        return np.int64(node[TC])
    if move <= M_C_BACK:
        stayed = move in (M_B, M_BW, M_C)
        if node[here + (STAY if stayed else BACK)] == 0:
            return np.int64(NONE)
        when = node[TC]
        if not stayed and node[here + BACK] == 1 and node[SR] == code:
            when = max(when, node[TR])
        if move in (M_C, M_C_BACK):
            if level == 0:
                return np.int64(NONE)
            return fits_at(node, cost[CA], scalars[CAPACITY], when)
        fused = move in (M_BW, M_BW_BACK)
        n = node[at + NB]
        if n == m or (s + 1 < stages and node[at + COUNTS + NB] <= n) or (fused and cost[BW] < 0):
            return np.int64(NONE)
        when = max(when, backs[s, n])
        if stayed:
            when = max(when, node[here + PLACES] + cost[DELAY])
        if level == 0:
            return np.int64(when)
        return fits_at(node, cost[BWA] if fused else cost[BA], scalars[CAPACITY], when)
    if move == M_R:
        if node[here + HOST] == 0:
            return np.int64(NONE)
        when = node[TR]
        if scalars[SHARED] or (node[here + HOST] == 1 and node[SO] == code):
            when = max(when, node[TO])
        return fits_at(node, cost[MOVED], scalars[CAPACITY], when)
    if cost[MOVED] == 0 or node[here + STAY] == 0:
        return np.int64(NONE)
    runs = node[KC] == code and node[TC] > node[T]
    when = max(node[T], node[TO])
    if scalars[SHARED]:
        when = max(when, node[TR])
    if move == M_O_NOW:
        return max(when, node[TC]) if runs and node[TC] > when else np.int64(NONE)
    if runs and node[TC] > when and node[here + STAY] == 1:
        return np.int64(NONE)
    return when


@step
def _remove(node, here, keep, place):
    """Take one of the ends of F's out; of those not kept none ended before the newest that is."""
    count = node[here + STAY]
    kept = min(count, keep)
    ages = here + PLACES
    newest = node[ages + kept - 1]
    for k in range(place, kept - 1):
        node[ages + k] = node[ages + k + 1]
    node[ages + kept - 1] = newest if count > keep else 0
    node[here + STAY] = count - 1


@step
def _insert(node, here, keep, age):
    """Add one whose F ended at a time."""
    ages = here + PLACES
    place = min(node[here + STAY], keep)
    node[here + STAY] += 1
    if place == keep:
        if node[ages + keep - 1] <= age:
            return
        place -= 1
    while place > 0 and node[ages + place - 1] > age:
        node[ages + place] = node[ages + place - 1]
        place -= 1
    node[ages + place] = age


@step
def _settle(node, when):
    """What has ended by a time gives back its memory."""
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
def _compute(node, when, lasts, allocated, released):
    node[TC], node[KC], node[GC] = when + lasts, NONE, released
    node[LEVEL] += allocated


@step
def move_to(node, move, s, level, when, stages, costs, scalars, tails, follows):
    """Start a move at a time."""
    keep, levels = scalars[KEEP], scalars[LEVELS]
    at, here = FIELDS + s * COUNTS, place_of(stages, keep, levels, s, level)
    cost, code = costs[s * levels + level], s * levels + level
    runs = node[KC] == code and node[TC] > max(node[T], node[TO])
    if scalars[SHARED] and runs:
        runs = node[TC] > node[TR]
    _settle(node, when)
    if move == M_F:
        _compute(node, when, cost[F], cost[FA], cost[FR])
        node[KC] = code
        node[COST] = max(node[COST], node[TC] + follows[s, node[at + NF]])
        _insert(node, here, keep, node[TC])
        node[at + NF] += 1
    elif move == M_W:
        _compute(node, when, cost[W], 0, cost[KEPT])
        node[at + NW] += 1
    elif move in (M_C, M_C_BACK):
        _compute(node, when, cost[C], cost[CA], 0)
        whole = place_of(stages, keep, levels, s, 0)
        if move == M_C_BACK:
            node[here + BACK] -= 1
            node[whole + BACK] += 1
        else:  # as if it were the oldest, and the newest that no longer waits for it
            _insert(node, whole, keep, node[here + PLACES])
            _remove(node, here, keep, min(node[here + STAY], keep) - 1)
    elif move <= M_BW_BACK:
        fused = move in (M_BW, M_BW_BACK)
        if fused:
            _compute(node, when, cost[BW], cost[BWA], cost[BWR])
        else:
            _compute(node, when, cost[B], cost[BA], cost[BR])
        node[COST] = max(node[COST], node[TC] + tails[s, node[at + NB]])
        node[at + NB] += 1
        node[at + NW] += 1 if fused else 0
        if move <= M_BW:
            _remove(node, here, keep, 0)
        else:
            node[here + BACK] -= 1
    elif move == M_R:
        node[TR], node[SR] = when + cost[R], code
        node[LEVEL] += cost[MOVED]
        node[here + HOST] -= 1
        node[here + BACK] += 1
    else:
        node[TO], node[SO], node[GO] = when + cost[O], code, cost[MOVED]
        place = min(node[here + STAY], keep) - 1
        if move == M_O and runs and node[here + STAY] <= keep:
            place -= 1
        if node[here + STAY] > keep:
            node[here + STAY] -= 1
        else:
            _remove(node, here, keep, place)
        node[here + HOST] += 1
    _normalise(node, stages, costs, keep, levels)


@step
def _normalise(node, stages, costs, keep, levels):
    """What is over no longer tells nodes apart."""
    now = node[T]
    for field in (TC, TO, TR):
        node[field] = max(node[field], now)
    for code in range(stages * levels):
        here = place_of(stages, keep, levels, code // levels, code % levels)
        for k in range(min(node[here + STAY], keep)):
            node[here + PLACES + k] = max(node[here + PLACES + k], now - costs[code, DELAY])
