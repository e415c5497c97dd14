"""The compiled rules of `device_bound`: the moves of one device whose activations are kept, offloaded or recomputed.

Each activation has a level of recomputation; the first one is kept whole, and where nothing can be
recomputed it is the only one. A node has, after the fields of `node`, per stage the F's, backwards
and weight gradients that have started; then per stage and level how many activations wait where F left
them, on the host and reloaded; then the ends of the F's of those that wait.

All times ns, all memory bytes, int64; nothing here allocates.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...compiled import packed, step
from .heap import hashed_row
from .node import (
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
    ages_apart,
    apart,
    earliest,
    earliest_ages,
    fits_at,
    forget_ages,
    forget_past,
    forward_outlasts,
    no_later,
    no_younger,
    offload_start,
    reload_start,
    remove,
    remove_newest,
    settle,
)

# per stage, counted as they start: F's, backwards, weight gradients (or BW's)
NF, NB, NW = range(3)
COUNTS = 3
# per stage and level: waiting where F left them, on the host, reloaded
STAY, HOST, BACK = range(3)
PLACES = 3
# columns of `costs`, one row per stage and level
F, B, W, BW, C, O, R, FA, FR, BA, BR, BWA, BWR, CA, MOVED, KEPT, DELAY, AGAIN = range(18)  # noqa: E741
COLUMNS = 18
# columns of `prices`: per ns of F, B, W, BW, O, R; then per F to come, per backward to come, per
# weight gradient pending, per activation on the host
YF, YB, YW, YBW, YO, YR, PER_F, PER_B, PER_W, PER_HOST = range(10)
ONE = 1 << 20  # prices are in 1/ONE
# moves of a level: F; B and BW of the oldest that stayed; B and BW of a reloaded one; C of one that
# stayed, of a reloaded one; W (level 0 only); R; O of the newest that has ended, of the F that runs
M_F, M_B, M_BW, M_B_BACK, M_BW_BACK, M_C, M_C_BACK, M_W, M_R, M_O, M_O_NOW = range(11)
MOVES = 11
LAYERS = 12  # per stage and microbatch, see `layer_of`


@packed
class Case(NamedTuple):
    """One device."""

    # (stages * levels, COLUMNS); F below 0 where a stage does not have a level, BW below 0 where
    # fusing gains nothing
    costs: np.ndarray
    stages: int
    levels: int
    microbatches: int
    capacity: int
    shared: bool  # whether O and R take turns
    keep: int  # ends of F's distinguished per stage and level
    goal: int
    idle: int  # `LastForward.in_all`
    lost: int  # `LastForward.lost`
    releases: np.ndarray  # (stages, m): the earliest start of the n-th F
    backs: np.ndarray  # likewise of the n-th backward
    # (stages, m): the least time from the end of the n-th backward to the end of everything
    tails: np.ndarray
    follows: np.ndarray  # likewise of the n-th F
    # (ways, 3) of the last backward: its level, what it recomputes, the W's after it
    drains: np.ndarray
    after: int  # the longest total time of W's after the last backward
    # (sets, stages, 10), see `device_bound`; none if there is more than one level
    prices: np.ndarray


@step
def _place_of(case, code):
    """Return where the counts of a stage's level begin in a node."""
    return FIELDS + case.stages * COUNTS + code * PLACES


@step
def _ages_of(case, code):
    """Return where the ends of the F's of a stage's level begin in a node, after all counts."""
    return _place_of(case, case.stages * case.levels) + code * case.keep


@step
def estimate(node, case):
    """Return a lower bound on the cost of every schedule that continues from a node."""
    m, levels, costs = case.microbatches, case.levels, case.costs
    work = np.int64(0)
    again = np.int64(0)
    pending = np.int64(0)
    left = np.int64(0)
    for s in range(case.stages):
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
            here = _place_of(case, s * levels + level)
            count = node[here + STAY] + node[here + HOST] + node[here + BACK]
            again += count * costs[s * levels + level, AGAIN]
    end = node[TC] + work + again
    best = max(end, node[COST])
    if left > 0:
        # after the last backward only weight gradients are left, as many as fit beside it
        least = np.int64(NEVER)
        for k in range(len(case.drains)):
            level, extra, weights = case.drains[k]
            if level > 0:
                here = _place_of(case, level)
                if node[here + STAY] + node[here + HOST] + node[here + BACK] > 0:
                    extra = 0  # it is counted already
            least = min(least, extra - min(pending, weights))
        best = max(best, end + least + case.tails[0, m - 1])
    if node[FIELDS + NF] < m:
        best = max(best, max(end + case.idle, end - again + case.lost))
    for k in range(case.prices.shape[0]):
        best = max(best, _priced(node, case, k, min(pending, case.after), left))
    return best


@step
def _priced(node, case, k, weights, left):
    """Return a lower bound: the prices of all that is still to run. Compute ops' codes say their kind."""
    m, prices = case.microbatches, case.prices
    value = np.int64(0)
    highest = np.int64(0)
    for s in range(case.stages):
        highest = max(highest, prices[k, s, YW])
        at = FIELDS + s * COUNTS
        value += (m - node[at + NF]) * prices[k, s, PER_F]
        value += (m - node[at + NB]) * prices[k, s, PER_B]
        value += (node[at + NB] - node[at + NW]) * prices[k, s, PER_W]
        value += node[_place_of(case, s) + HOST] * prices[k, s, PER_HOST]
    if node[KC] >= 0:
        value += prices[k, node[KC] >> 2, node[KC] & 3] * (node[TC] - node[T])
    if node[SO] >= 0:
        value += prices[k, node[SO], YO] * (node[TO] - node[T])
    if node[SR] >= 0:
        value += prices[k, node[SR], YR] * (node[TR] - node[T])
    least = node[T] + (value + ONE - 1) // ONE
    if left > 0:
        value -= highest * weights
        least = max(least, node[T] + (value + ONE - 1) // ONE + case.tails[0, m - 1])
    return least


@step
def _start(node, move, s, level, case):
    """Return the earliest start of a move of a stage and level, or NONE."""
    m, code = case.microbatches, s * case.levels + level
    at, here = FIELDS + s * COUNTS, _place_of(case, code)
    cost = case.costs[code]
    if cost[F] < 0:
        return np.int64(NONE)  # the stage does not have this level
    if move == M_F:
        n = node[at + NF]
        if n == m or (s > 0 and node[at - COUNTS + NF] <= n):
            return np.int64(NONE)
        return fits_at(node, cost[FA], case.capacity, max(node[TC], case.releases[s, n]))
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
            return fits_at(node, cost[CA], case.capacity, when)
        fused = move in (M_BW, M_BW_BACK)
        n = node[at + NB]
        if n == m or (s + 1 < case.stages and node[at + COUNTS + NB] <= n):
            return np.int64(NONE)
        if fused and cost[BW] < 0:
            return np.int64(NONE)
        when = max(when, case.backs[s, n])
        if stayed:
            when = max(when, node[_ages_of(case, code)] + cost[DELAY])
        if level == 0:
            return np.int64(when)
        return fits_at(node, cost[BWA] if fused else cost[BA], case.capacity, when)
    if move == M_R:
        return reload_start(node, code, node[here + HOST], cost[MOVED], case.capacity, case.shared)
    if cost[MOVED] == 0:
        return np.int64(NONE)
    return offload_start(node, 4 * code, node[here + STAY], move == M_O_NOW, case.shared)


@step
def _insert(node, stay, ages, keep, age):
    """Add an activation that waits, whose F ended at `age`."""
    place = min(node[stay], keep)
    node[stay] += 1
    if place == keep:
        if node[ages + keep - 1] <= age:
            return
        place -= 1
    while place > 0 and node[ages + place - 1] > age:
        node[ages + place] = node[ages + place - 1]
        place -= 1
    node[ages + place] = age


@step
def _compute(node, code, when, duration, allocated, released):
    node[TC], node[KC], node[GC] = when + duration, code, released
    node[LEVEL] += allocated


@step
def start_move(node, option, when, case):
    """Start a move at a time."""
    code, move = option // MOVES, option % MOVES
    s, keep = code // case.levels, case.keep
    at, here = FIELDS + s * COUNTS, _place_of(case, code)
    stay, ages, cost = here + STAY, _ages_of(case, code), case.costs[code]
    runs = forward_outlasts(node, 4 * code, case.shared)
    settle(node, when)
    if move == M_F:
        _compute(node, 4 * code, when, cost[F], cost[FA], cost[FR])
        node[COST] = max(node[COST], node[TC] + case.follows[s, node[at + NF]])
        _insert(node, stay, ages, keep, node[TC])
        node[at + NF] += 1
    elif move == M_W:
        _compute(node, 4 * code + 2, when, cost[W], 0, cost[KEPT])
        node[at + NW] += 1
    elif move in (M_C, M_C_BACK):
        _compute(node, NONE, when, cost[C], cost[CA], 0)
        whole = _place_of(case, s * case.levels)
        if move == M_C_BACK:
            node[here + BACK] -= 1
            node[whole + BACK] += 1
        else:  # as if it were the oldest, and the newest that no longer waits for it
            first = _ages_of(case, s * case.levels)
            _insert(node, whole + STAY, first, keep, node[ages])
            remove(node, stay, ages, keep, min(node[stay], keep) - 1)
    elif move <= M_BW_BACK:
        fused = move in (M_BW, M_BW_BACK)
        if fused:
            _compute(node, 4 * code + 3, when, cost[BW], cost[BWA], cost[BWR])
        else:
            _compute(node, 4 * code + 1, when, cost[B], cost[BA], cost[BR])
        node[COST] = max(node[COST], node[TC] + case.tails[s, node[at + NB]])
        node[at + NB] += 1
        node[at + NW] += 1 if fused else 0
        if move <= M_BW:
            remove(node, stay, ages, keep, 0)
        else:
            node[here + BACK] -= 1
    elif move == M_R:
        node[TR], node[SR] = when + cost[R], code
        node[LEVEL] += cost[MOVED]
        node[here + HOST] -= 1
        node[here + BACK] += 1
    else:
        node[TO], node[SO], node[GO] = when + cost[O], code, cost[MOVED]
        remove_newest(node, stay, ages, keep, move == M_O and runs)
        node[here + HOST] += 1
    _normalise(node, case)


@step
def _normalise(node, case):
    """Make nodes equal that differ only in the past."""
    forget_past(node)
    for code in range(case.stages * case.levels):
        here = _place_of(case, code)
        s = code // case.levels
        backs = node[FIELDS + s * COUNTS + NB]
        # no backward of the stage starts earlier than this
        soonest = max(node[TC], case.backs[s, min(backs, case.microbatches - 1)])
        before = soonest - case.costs[code, DELAY]
        forget_ages(node, here + STAY, _ages_of(case, code), case.keep, before)


@step
def same_counts(one, other, case):
    differ = 0
    for k in range(FIELDS, _ages_of(case, 0)):
        differ += one[k] != other[k]
    return differ == 0


@step
def no_worse(one, other, case):
    """Whether whatever can follow `other` can follow `one` no later (their counts are the same)."""
    if not no_later(one, other):
        return False
    for code in range(case.stages * case.levels):
        here = _place_of(case, code)
        if not no_younger(one, other, here + STAY, _ages_of(case, code), case.keep):
            return False
    return True


@step
def hash_counts(node, case, size):
    return hashed_row(node[FIELDS : _ages_of(case, 0)], size)


@step
def is_whole(node, case):
    whole = True
    for s in range(case.stages):
        whole = whole and node[FIELDS + s * COUNTS + NW] == case.microbatches
    return whole


@step
def find_starts(node, starts, case):
    """Fill in when each move can start; returns when the first one that may go first could have ended: a
    W or, where that takes and releases the same whichever activation it is of, a backward."""
    cut = np.int64(NEVER)
    for code in range(case.stages * case.levels):
        s, level = code // case.levels, code % case.levels
        cost, back = case.costs[code], node[_place_of(case, code) + BACK]
        for move in range(MOVES):
            when = _start(node, move, s, level, case)
            if when >= 0:
                when = max(when, node[T])
                duration = cost[W] if move == M_W else max(cost[B], cost[BW])
                early = move == M_B_BACK or (move == M_B and back == 0)
                early = move == M_W or (early and case.levels == 1)
                if early and duration > 0:
                    cut = min(cut, when + duration)
            starts[code * MOVES + move] = when
    return cut


@step
def is_needless(option, starts, cut, case):
    """Whether a W or backward may go first instead, or a reloaded activation is at least as good."""
    code, move, when = option // MOVES, option % MOVES, starts[option]
    if move <= M_W and when >= cut:
        return True
    if move in (M_B, M_BW, M_C):
        return 0 <= starts[code * MOVES + (M_C_BACK if move == M_C else M_B_BACK)] <= when
    return False


@step
def layer_of(node, case):
    """Return a number that the counts determine and every move increases."""
    layer = np.int64(0)
    for s in range(case.stages):
        for k in range(COUNTS):
            layer += 4 * node[FIELDS + s * COUNTS + k]
    for code in range(case.stages * case.levels):
        here = _place_of(case, code)
        layer += node[here + HOST] + 2 * node[here + BACK]
        if code % case.levels == 0:  # a C brings activations here
            layer += node[here + STAY] + node[here + HOST] + node[here + BACK]
    return layer


@step
def distance(one, other, case):
    far = apart(one, other)
    for code in range(case.stages * case.levels):
        here = _place_of(case, code)
        far += ages_apart(one, other, here + STAY, _ages_of(case, code), case.keep)
    return far


@step
def merge(one, into, case):
    earliest(one, into)
    for code in range(case.stages * case.levels):
        here = _place_of(case, code)
        earliest_ages(one, into, here + STAY, _ages_of(case, code), case.keep)
