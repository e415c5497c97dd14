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

from ...codes import BW, B, C, F, O, R, W
from ...compiled import packed, step
from ...ops import MESSAGES
from .heap import copy, hashed_row
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
# columns of `prices`: per ns of F, B, W, BW, O, R; then per F to come, per backward to come, per
# weight gradient pending, per activation on the host
YF, YB, YW, YBW, YO, YR, PER_F, PER_B, PER_W, PER_HOST = range(10)
ONE = 1 << 20  # prices are in 1/ONE
# Moves of a level: the kind of op; where its activation waits before; and which move of a reloaded activation is at
# least as good. The last one is the O of the F that runs, the one before it that of the newest activation whose F has ended.
_MOVES = (
    (F, NONE, NONE),
    (B, STAY, 3),
    (BW, STAY, 3),
    (B, BACK, NONE),
    (BW, BACK, NONE),
    (C, STAY, 6),
    (C, BACK, NONE),
    (W, NONE, NONE),
    (R, HOST, NONE),
    (O, STAY, NONE),
    (O, STAY, NONE),
)
KIND, PLACE, BETTER = zip(*_MOVES, strict=True)
MOVES = len(_MOVES)
AT_ONCE = MOVES - 1
LAYERS = 12  # per stage and microbatch, see `layer_of`


@packed
class Case(NamedTuple):
    """One device."""

    # (stages * levels, kinds): of each op, below 0 where there is none: a stage may not have a level, or
    # nothing to move; W's are at level 0, C's are not; fusing may gain nothing
    duration: np.ndarray
    takes: np.ndarray  # likewise, bytes at its start
    gives: np.ndarray  # and at its end
    again: np.ndarray  # (stages * levels,) what recomputing at a level takes at least
    delay: np.ndarray  # (stages,) from the end of an F to the start of its backward, at least
    stages: int
    levels: int
    microbatches: int
    capacity: int
    shared: bool  # whether O and R take turns
    keep: int  # ends of F's distinguished per stage and level
    goal: int
    idle: int  # `LastForward.in_all`
    lost: int  # `LastForward.lost`
    # (2, stages, m) of the n-th F and of the n-th backward: the earliest start, the least time from its end to that of all
    earliest: np.ndarray
    later: np.ndarray
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
    m, levels = case.microbatches, case.levels
    work = np.int64(0)
    again = np.int64(0)
    pending = np.int64(0)
    left = np.int64(0)
    for s in range(case.stages):
        at, cost = FIELDS + s * COUNTS, case.duration[s * levels]
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
            again += count * case.again[s * levels + level]
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
        best = max(best, end + least + case.later[NB, 0, m - 1])
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
        least = max(least, node[T] + (value + ONE - 1) // ONE + case.later[NB, 0, m - 1])
    return least


@step
def _counted(kind):
    """Return which count of a stage an F or a backward is in."""
    return NF if kind == F else NB


@step
def _start(node, move, s, level, case):
    """Return the earliest start of a move of a stage and level, or NONE."""
    code, kind, place = s * case.levels + level, KIND[move], PLACE[move]
    at, here = FIELDS + s * COUNTS, _place_of(case, code)
    if case.duration[code, kind] < 0 or (place >= 0 and node[here + place] == 0):
        return np.int64(NONE)
    size, when = case.takes[code, kind], node[TC]
    # 1. copies
    if kind == R:
        return reload_start(node, code, node[here + HOST], size, case.capacity, case.shared)
    if kind == O:
        return offload_start(node, 4 * code, node[here + STAY], move == AT_ONCE, case.shared)
    # 2. the op before it of its activation, on the device
    if kind == W and node[at + NW] >= node[at + NB]:
        return np.int64(NONE)
    if place == BACK and node[here + BACK] == 1 and node[SR] == code:
        when = max(when, node[TR])
    if place == STAY and kind != C:
        when = max(when, node[_ages_of(case, code)] + case.delay[s])
    # 3. what other stages send, on this device and on others
    if kind in (F, B, BW):
        which, other = _counted(kind), s + MESSAGES[kind]
        n = node[at + which]
        if n == case.microbatches:
            return np.int64(NONE)
        if 0 <= other < case.stages and node[FIELDS + other * COUNTS + which] <= n:
            return np.int64(NONE)
        when = max(when, case.earliest[which, s, n])
    return fits_at(node, size, case.capacity, when)


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
def start_move(node, option, when, case):
    """Start a move at a time."""
    code, move = option // MOVES, option % MOVES
    kind, place = KIND[move], PLACE[move]
    s, keep = code // case.levels, case.keep
    at, here, whole = FIELDS + s * COUNTS, _place_of(case, code), _place_of(case, s * case.levels)
    stay, ages = here + STAY, _ages_of(case, code)
    runs = forward_outlasts(node, 4 * code, case.shared)
    settle(node, when)
    # 1. its engine, and memory
    ends, size = when + case.duration[code, kind], case.gives[code, kind]
    node[LEVEL] += case.takes[code, kind]
    if kind == R:
        node[TR], node[SR] = ends, code
    elif kind == O:
        node[TO], node[SO], node[GO] = ends, code, size
    else:
        node[TC], node[KC], node[GC] = ends, 4 * code + kind if kind < C else NONE, size
    # 2. how many have started
    if kind in (F, B, BW):
        which = _counted(kind)
        node[COST] = max(node[COST], ends + case.later[which, s, node[at + which]])
        node[at + which] += 1
    if kind in (W, BW):
        node[at + NW] += 1
    # 3. where its activation waits, before and from now on
    first = node[ages]
    if kind == O:
        remove_newest(node, stay, ages, keep, move != AT_ONCE and runs)
    elif (
        place == STAY
    ):  # C is taken to be of the oldest, and then of the newest that no longer waits for it
        remove(node, stay, ages, keep, min(node[stay], keep) - 1 if kind == C else 0)
    elif place >= 0:
        node[here + place] -= 1
    if kind == F:
        _insert(node, stay, ages, keep, ends)
    elif kind == C and place == STAY:
        _insert(node, whole + STAY, _ages_of(case, s * case.levels), keep, first)
    elif kind == C:
        node[whole + BACK] += 1
    elif kind == R:
        node[here + BACK] += 1
    elif kind == O:
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
        soonest = max(node[TC], case.earliest[NB, s, min(backs, case.microbatches - 1)])
        before = soonest - case.delay[s]
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
        cost, back = case.duration[code], node[_place_of(case, code) + BACK]
        for move in range(MOVES):
            when = _start(node, move, s, level, case)
            if when >= 0:
                when = max(when, node[T])
                duration = cost[W] if KIND[move] == W else max(cost[B], cost[BW])
                early = KIND[move] == B and (PLACE[move] == BACK or back == 0)
                early = KIND[move] == W or (early and case.levels == 1)
                if early and duration > 0:
                    cut = min(cut, when + duration)
            starts[code * MOVES + move] = when
    return cut


@step
def is_needless(option, starts, cut, case):
    """Whether a W or backward may go first instead, or a reloaded activation is at least as good."""
    code, move, when = option // MOVES, option % MOVES, starts[option]
    if KIND[move] < O and when >= cut:
        return True
    return BETTER[move] >= 0 and 0 <= starts[code * MOVES + BETTER[move]] <= when


@step
def after_move(node, key, option, starts, cut, case, child):
    """Let `child` be what is after an option of a node with this key; returns its key, or NEVER where another move
    replaces this one."""
    when = starts[option]
    if when < 0 or is_needless(option, starts, cut, case):
        return NEVER
    copy(node, child)
    start_move(child, option, when, case)
    return max(key, estimate(child, case))


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
