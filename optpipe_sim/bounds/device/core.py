"""The compiled rules of `search`: the moves of one device whose activations are kept or offloaded.

A node has, after the fields of `best_first`, per stage its counts (``WIDE`` of them), then per stage the ends
of the F's whose activations wait on the device.

All times ns, all memory bytes, int64; nothing here allocates.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...compiled import entry, step
from .best_first import (
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
    Room,
    T,
    best_first,
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
from .heap import hashed_row
from .layers import Layers, ages_apart, apart, earliest, earliest_ages, layered

# per stage, counted as they start: F's, backwards, weight gradients (or BW's), on the host, reloaded,
# and waiting where F left them
NF, NB, NW, HOST, BACK, STAY = range(6)
WIDE = 6
# columns of `costs`, one row per stage
F, B, W, BW, O, R, ACT, KEPT, MOVED, DELAY = range(10)  # noqa: E741
# columns of `prices`: per ns of F, B, W, BW, O, R; then per F to come, per backward to come, per
# weight gradient pending, per activation on the host
YF, YB, YW, YBW, YO, YR, PER_F, PER_B, PER_W, PER_HOST = range(10)
ONE = 1 << 20  # prices are in 1/ONE
# moves of a stage: F; B and BW of the oldest that stayed; B and BW of a reloaded one; W; R;
# O of the newest that has ended, of the F that runs
M_F, M_B, M_BW, M_B_BACK, M_BW_BACK, M_W, M_R, M_O, M_O_NOW = range(9)
MOVES = 9
LAYERS = 9  # per stage and microbatch, see `_layer_of`


class Case(NamedTuple):
    """One device without recomputation."""

    costs: np.ndarray  # (stages, 10); BW below 0 where fusing gains nothing
    microbatches: int
    capacity: int
    shared: bool  # whether O and R take turns
    keep: int  # ends of F's distinguished per stage
    goal: int
    after: int  # the longest total time of W's after the last backward
    idle: int  # `LastForward.lost`
    releases: np.ndarray  # (stages, m): the earliest start of the n-th F
    backs: np.ndarray  # likewise of the n-th backward
    tails: (
        np.ndarray
    )  # (stages, m): the least time from the end of the n-th backward to the end of everything
    follows: np.ndarray  # likewise of the n-th F
    prices: np.ndarray  # (sets, stages, 10), see `search`


@step
def _ages(stages, keep, s):
    """Return where the ends of the F's of stage s begin in a node."""
    return FIELDS + stages * WIDE + s * keep


@step
def _estimate(node, case):
    """Return a lower bound on the cost of every schedule that continues from a node."""
    m, costs, prices = case.microbatches, case.costs, case.prices
    stages = costs.shape[0]
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
        cost = max(cost, end - min(pending, case.after) + case.tails[0, m - 1])
    if node[FIELDS + NF] < m:
        cost = max(cost, end + case.idle)  # idle time after the forward that is still to come
    for k in range(prices.shape[0]):
        value = np.int64(0)
        highest = np.int64(0)
        for s in range(stages):
            highest = max(highest, prices[k, s, YW])
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
            value -= highest * min(pending, case.after)
            cost = max(cost, node[T] + (value + ONE - 1) // ONE + case.tails[0, m - 1])
    return cost


@step
def _start(node, move, s, case):
    """Return the earliest start of a move of stage s, or NONE."""
    m, costs = case.microbatches, case.costs
    stages = costs.shape[0]
    at = FIELDS + s * WIDE
    if move == M_F:
        n = node[at + NF]
        if n == m or (s > 0 and node[at - WIDE + NF] <= n):
            return np.int64(NONE)
        return fits_at(node, costs[s, ACT], case.capacity, max(node[TC], case.releases[s, n]))
    if move <= M_BW_BACK:
        n = node[at + NB]
        if n == m or (s + 1 < stages and node[at + WIDE + NB] <= n):
            return np.int64(NONE)
        if move in (M_BW, M_BW_BACK) and costs[s, BW] < 0:
            return np.int64(NONE)
        when = max(node[TC], case.backs[s, n])
        if move <= M_BW:
            if node[at + STAY] == 0:
                return np.int64(NONE)
            return max(when, node[_ages(stages, case.keep, s)] + costs[s, DELAY])
        if node[at + BACK] == 0:
            return np.int64(NONE)
        if node[at + BACK] == 1 and node[SR] == s:
            when = max(when, node[TR])
        return when
    if move == M_W:
        return node[TC] if node[at + NW] < node[at + NB] else np.int64(NONE)
    if move == M_R:
        return reload_start(node, s, node[at + HOST], costs[s, MOVED], case.capacity, case.shared)
    if costs[s, MOVED] == 0:
        return np.int64(NONE)
    return offload_start(node, 4 * s, node[at + STAY], move == M_O_NOW, case.shared)


@step
def _find_starts(node, starts, case):
    """Fill in when each move can start; returns when the first B or W that may go first could have ended."""
    cut, costs = np.int64(NEVER), case.costs
    for s in range(costs.shape[0]):
        for move in range(MOVES):
            when = _start(node, move, s, case)
            if when >= 0:
                when = max(when, node[T])
                duration = costs[s, W] if move == M_W else max(costs[s, B], costs[s, BW])
                early = move in (M_B_BACK, M_W)
                early = early or (move == M_B and node[FIELDS + s * WIDE + BACK] == 0)
                if early and duration > 0:
                    cut = min(cut, when + duration)
            starts[s * MOVES + move] = when
    return cut


@step
def _is_needless(option, starts, cut, case):
    """Whether a W or B may go first instead, or a reloaded activation is at least as good."""
    s, move, when = option // MOVES, option % MOVES, starts[option]
    if move <= M_W and when >= cut:
        return True
    return move in (M_B, M_BW) and 0 <= starts[s * MOVES + M_B_BACK] <= when


@step
def _move(node, option, when, case):
    """Start a move at a time."""
    s, move, costs, keep = option // MOVES, option % MOVES, case.costs, case.keep
    at = FIELDS + s * WIDE
    stay, ages = at + STAY, _ages(costs.shape[0], keep, s)
    runs = forward_outlasts(node, 4 * s, case.shared)
    settle(node, when)
    if move == M_F:
        node[TC], node[KC] = when + costs[s, F], 4 * s
        node[LEVEL] += costs[s, ACT]
        node[COST] = max(node[COST], node[TC] + case.follows[s, node[at + NF]])
        if node[stay] < keep:
            node[ages + node[stay]] = node[TC]
        node[stay] += 1
        node[at + NF] += 1
    elif move <= M_BW_BACK:
        fused = move in (M_BW, M_BW_BACK)
        node[TC] = when + (costs[s, BW] if fused else costs[s, B])
        node[KC] = 4 * s + (3 if fused else 1)
        node[GC] = costs[s, ACT] - (0 if fused else costs[s, KEPT])
        node[COST] = max(node[COST], node[TC] + case.tails[s, node[at + NB]])
        node[at + NB] += 1
        node[at + NW] += 1 if fused else 0
        if move <= M_BW:
            remove(node, stay, ages, keep, 0)
        else:
            node[at + BACK] -= 1
    elif move == M_W:
        node[TC], node[KC], node[GC] = when + costs[s, W], 4 * s + 2, costs[s, KEPT]
        node[at + NW] += 1
    elif move == M_R:
        node[TR], node[SR] = when + costs[s, R], s
        node[LEVEL] += costs[s, MOVED]
        node[at + HOST] -= 1
        node[at + BACK] += 1
    else:
        node[TO], node[SO], node[GO] = when + costs[s, O], s, costs[s, MOVED]
        remove_newest(node, stay, ages, keep, move == M_O and runs)
        node[at + HOST] += 1
    _normalise(node, case)


@step
def _normalise(node, case):
    """Make nodes equal that differ only in the past."""
    stages, keep = case.costs.shape[0], case.keep
    forget_past(node)
    for s in range(stages):
        at, ages = FIELDS + s * WIDE, _ages(stages, keep, s)
        # no backward of the stage starts earlier than this
        soonest = max(node[TC], case.backs[s, min(node[at + NB], case.microbatches - 1)])
        forget_ages(node, at + STAY, ages, keep, soonest - case.costs[s, DELAY])


@step
def _is_whole(node, case):
    whole = True
    for s in range(case.costs.shape[0]):
        whole = whole and node[FIELDS + s * WIDE + NW] == case.microbatches
    return whole


@step
def _hash_counts(node, case, size):
    return hashed_row(node[FIELDS : FIELDS + case.costs.shape[0] * WIDE], size)


@step
def _same_counts(one, other, case):
    differ = 0
    for k in range(FIELDS, FIELDS + case.costs.shape[0] * WIDE):
        differ += one[k] != other[k]
    return differ == 0


@step
def _no_worse(one, other, case):
    """Whether whatever can follow `other` can follow `one` no later (their counts are the same)."""
    if not no_later(one, other):
        return False
    stages, keep = case.costs.shape[0], case.keep
    for s in range(stages):
        stay, ages = FIELDS + s * WIDE + STAY, _ages(stages, keep, s)
        if not no_younger(one, other, stay, ages, keep):
            return False
    return True


@entry
def search(case: Case, room: Room) -> tuple[int, int, int]:
    """Search one device; returns (bound, nodes made, FULL, DONE or GOAL_REACHED), see `best_first`."""
    return best_first(  # type: ignore[no-any-return]
        case, room, _is_whole, _find_starts, _is_needless, _move, _estimate, _hash_counts,
        _same_counts, _no_worse,
    )  # fmt: skip


@step
def _layer_of(node, case):
    """Return a number that the counts determine and every move increases."""
    layer = np.int64(0)
    for s in range(case.costs.shape[0]):
        at = FIELDS + s * WIDE
        layer += 3 * (node[at + NF] + node[at + NB] + node[at + NW])
        layer += node[at + HOST] + 2 * node[at + BACK]
    return layer


@step
def _distance(one, other, case):
    far, stages = apart(one, other), case.costs.shape[0]
    for s in range(stages):
        stay, ages = FIELDS + s * WIDE + STAY, _ages(stages, case.keep, s)
        far += ages_apart(one, other, stay, ages, case.keep)
    return far


@step
def _merge(one, into, case):
    earliest(one, into)
    stages = case.costs.shape[0]
    for s in range(stages):
        stay, ages = FIELDS + s * WIDE + STAY, _ages(stages, case.keep, s)
        earliest_ages(one, into, stay, ages, case.keep)


@entry
def search_layers(case: Case, layers: Layers, width: int, most: int) -> tuple[int, int, bool]:
    """Search one device in layers; see `layers.layered`."""
    return layered(  # type: ignore[no-any-return]
        case, layers, width, most, _is_whole, _find_starts, _is_needless, _move, _estimate, _hash_counts,
        _same_counts, _no_worse, _layer_of, _distance, _merge,
    )  # fmt: skip
