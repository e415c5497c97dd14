"""The compiled annealing of plans. All times ns, all memory bytes, int64."""

from __future__ import annotations

import numpy as np

from ...codes import F, O
from ...compiled import compiled, copy, part, step
from ..anneal.host import exceeds
from ..anneal.state import Goal, begin, undo
from .moves import change
from .state import FAILED, NEVER, copied, duration, mark_move
from .tails import find_tails, renew_tails
from .times import evaluate, last_start, longest, update

PATHS = 4  # accepted moves until the critical path is computed again
FAR = 3.0  # where tails are not valid, a plan is rejected at this multiple of the current score


@part
def critical(length, t, path, high, prog):
    """Collect the ops on one critical path from the last end back; returns their number."""
    last = -1
    for d in range(len(length)):
        for at in range(length[d] - 1, -1, -1):
            code = prog[d, at]
            if code >> high < O:
                if last < 0 or t.end[code] > t.end[last]:
                    last = code
                break
    count = 0
    while last >= 0 and count < len(path):
        path[count] = last
        count += 1
        last = t.cause[last]
    return count


@compiled
def seed_random(seed):
    """Seed the random generator of the compiled code."""
    np.random.seed(seed)


@step
def _soonest(t):
    """Return when the first device begins whose ops a move has made stale."""
    soonest = NEVER
    for d in range(len(t.wake)):
        if t.wake[d] >= 0:
            soonest = min(soonest, t.key[d])
    return soonest


@part
def _restore(prog, length, mode, saved, saved_length, t):
    """Restore the programs of devices and the modes of units."""
    for d in range(len(length)):
        first = t.changed[d, 0]
        if first < 0:
            continue
        for at in range(first, length[d]):
            t.slot[prog[d, at]] = -1
        for at in range(first, saved_length[d]):
            prog[d, at] = saved[d, at]
            t.slot[prog[d, at]] = at
        length[d] = saved_length[d]
    for which in range(t.filled[0] - 1, -1, -1):
        mode[t.touched[which, 0]] = t.touched[which, 1]


@part
def _exceeds_host(prog, length, mode, costs, host, t):
    """Return whether an evaluated plan pins more host memory than it may."""
    high = costs.high
    if host.limit == NEVER:
        return False
    for d in range(len(length)):
        for slot in range(length[d]):
            code = prog[d, slot]
            if code >> high == O:
                unit = code & (1 << high) - 1
                host.begin[unit] = t.end[code] - duration(code, mode, costs, t)
                how = copied(unit, mode, costs, t)
                host.size[unit] = costs.gives[O, unit >> costs.low, how]
    return exceeds(prog, length, t.end, high, host)


@compiled
def anneal(
    prog, length, mode, costs, host, t, best_prog, best_length, best_mode, best, steps, hot, cold,
    span_counts, mean_weight, offloads, alike, per_stage, goal, passing,
):  # fmt: skip
    """Anneal a plan in place for `steps` evaluations, from temperature `hot` to `cold` (ns).

    `best_prog`, `best_length`, `best_mode`: the best so far, kept up to date; `best`: its cost.
    `goal`: stop at this cost. `offloads`, `alike`, `per_stage`, `passing`: see `moves.change`.

    Returns:
        (best cost, evaluations done).
    """
    path = np.empty(8 * len(costs.place) * costs.microbatches, np.int64)
    saved, saved_length = prog.copy(), length.copy()
    ahead = costs.lag + costs.durations[F].min()
    makespan, span, total = evaluate(prog, length, mode, costs, t)
    if makespan == NEVER:
        return best, steps
    cost = span if span_counts else makespan
    score = cost + mean_weight * total
    on_path = critical(length, t, path, costs.high, prog)
    taken, begun, old_tails = 0, 0, True
    if cost < best and not _exceeds_host(prog, length, mode, costs, host, t):
        best = cost
        copy(best_prog, prog)
        copy(best_length, length)
        copy(best_mode, mode)
    for trial in range(steps):
        if best <= goal:
            return best, trial
        # 1. tails and the critical path, if accepted moves have outdated them
        if old_tails:
            find_tails(prog, length, mode, costs, t, span_counts)
            begun = last_start(prog, mode, costs, t) if span_counts else 0
            old_tails = False
        if taken >= PATHS:
            on_path = critical(length, t, path, costs.high, prog)
            taken = 0
        # 2. a random move, and the highest score that is accepted at this temperature
        temperature = hot * (cold / hot) ** (trial / steps)
        t.filled[0] = 0
        first, last = change(
            prog, length, mode, costs, t, path[:on_path], offloads, alike, per_stage, passing
        )
        if first < 0:
            continue
        most = score - temperature * np.log(1 - np.random.random())
        begin(t)
        some, gone, shorter = mark_move(
            prog, length, mode, saved, saved_length, first, last, costs, t
        )
        if not some:
            continue
        # 3. evaluate what it changes; tails to the longest span are valid once all devices have begun
        valid = _soonest(t) >= begun
        goes = Goal(most + shorter, mean_weight, begun) if valid else Goal(FAR * score, 0.0, begun)
        new_total = update(prog, length, mode, costs, t, total - gone, goes, ahead, True)
        fits = new_total != FAILED
        if fits:
            makespan, span = longest(prog, length, mode, costs, t)
            new = span if span_counts else makespan
            fits = new + mean_weight * new_total <= most
        fits = fits and not _exceeds_host(prog, length, mode, costs, host, t)
        # 4. reject it: restore the times and the plan
        if not fits:
            undo(t)
            _restore(prog, length, mode, saved, saved_length, t)
            continue
        # 5. or accept it, perhaps as the best so far
        old_tails = not valid
        if valid:
            renew_tails(prog, length, mode, saved, saved_length, costs, t)
        for d in range(first, last + 1):
            since = t.changed[d, 0]
            if since >= 0:
                copy(saved[d, since : length[d]], prog[d, since : length[d]])
                saved_length[d] = length[d]
        cost, total = new, new_total
        score = cost + mean_weight * total
        taken += 1
        if cost < best:
            taken = PATHS
            best = cost
            copy(best_prog, prog)
            copy(best_length, length)
            copy(best_mode, mode)
    return best, steps
