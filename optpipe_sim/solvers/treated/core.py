"""The compiled annealing of plans. All times ns, all memory bytes, int64."""

from __future__ import annotations

import numpy as np

from ...codes import O
from ...compiled import compiled, part
from .moves import change
from .state import FAILED, NEVER
from .times import accept, column, evaluate, longest, rewind, run

SURE = 0.97  # a better plan reaches at least this share of the mean end before a move
PATHS = 4  # accepted moves until the critical path is computed again


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


@part
def _first_change(prog, length, saved, saved_length, mode, costs, t, first, begin, stop):
    """Find the first changed slot of each of some devices, into `first`; returns whether any changed."""
    found = False
    for d in range(len(length)):
        first[d] = -1
    for d in range(begin, stop + 1):
        at, least = 0, min(length[d], saved_length[d])
        while at < least and prog[d, at] == saved[d, at]:
            at += 1
        if at < length[d] or at < saved_length[d]:
            first[d] = at
            found = True
    for which in range(t.filled[0]):
        unit = t.touched[which, 0]
        if mode[unit] == t.touched[which, 1]:
            continue
        d, at = costs.place[unit >> costs.low], t.slot[unit]
        if first[d] < 0 or at < first[d]:
            first[d] = at
            found = True
    return found


@part
def _keep_times(length, saved, t):
    """Save the times of the ops that will be evaluated again."""
    for d in range(len(length)):
        for at in range(t.begin[d], length[d]):
            code = saved[d, at]
            t.kept[code, 0], t.kept[code, 1], t.kept[code, 2] = (
                t.end[code], t.ready[code], t.cause[code],
            )  # fmt: skip


@part
def _restore_times(length, saved, t):
    for d in range(len(length)):
        for at in range(t.begin[d], length[d]):
            code = saved[d, at]
            t.end[code], t.ready[code], t.cause[code] = (
                t.kept[code, 0], t.kept[code, 1], t.kept[code, 2],
            )  # fmt: skip


@part
def _restore_plan(prog, length, mode, saved, saved_length, costs, t, first, begin, stop):
    """Restore the programs of devices and the modes of units."""
    for d in range(begin, stop + 1):
        if first[d] < 0:
            continue
        for at in range(first[d], length[d]):
            t.slot[prog[d, at]] = -1
        for at in range(first[d], saved_length[d]):
            prog[d, at] = saved[d, at]
            t.slot[prog[d, at]] = at
        length[d] = saved_length[d]
    for which in range(t.filled[0] - 1, -1, -1):
        unit, old = t.touched[which, 0], t.touched[which, 1]
        stage, new = unit >> costs.low, column(unit, mode, costs)
        t.work[costs.place[stage]] += (
            costs.work[stage, new - mode[unit] + old] - costs.work[stage, new]
        )
        mode[unit] = old
    t.filled[0] = 0


@compiled
def anneal(
    prog, length, mode, costs, t, best_prog, best_length, best_mode, best, steps, hot, cold,
    span_counts, mean_weight, offloads, alike, per_stage, goal,
):  # fmt: skip
    """Anneal a plan in place for `steps` evaluations, from temperature `hot` to `cold` (ns).

    `best_prog`, `best_length`, `best_mode`: the best so far, kept up to date; `best`: its cost.
    `goal`: stop at this cost. `offloads`, `alike`, `per_stage`: see `moves.change`.

    Returns:
        (best cost, evaluations done).
    """
    devices = len(length)
    path = np.empty(8 * len(costs.place) * costs.microbatches, np.int64)
    saved, saved_length = prog.copy(), length.copy()
    first = np.empty(devices, np.int64)
    makespan, span, total = evaluate(prog, length, mode, costs, t)
    if makespan == NEVER:
        return best, steps
    cost = span if span_counts else makespan
    score = cost + mean_weight * total
    on_path = critical(length, t, path, costs.high, prog)
    taken = 0
    if cost < best:
        best = cost
        best_prog[:] = prog
        best_length[:] = length
        best_mode[:] = mode
    for trial in range(steps):
        if best <= goal:
            return best, trial
        # 1. a random move from the critical path; accepted moves make the path stale
        if taken >= PATHS:
            on_path = critical(length, t, path, costs.high, prog)
            taken = 0
        temperature = hot * (cold / hot) ** (trial / steps)
        begin, stop = change(
            prog, length, mode, costs, t, path[:on_path], offloads, alike, per_stage
        )
        if begin < 0:
            continue
        if not _first_change(prog, length, saved, saved_length, mode, costs, t, first, begin, stop):
            t.filled[0] = 0
            continue
        # 2. evaluate it, up to the highest score that is accepted at this temperature
        most = score - temperature * np.log(1 - np.random.random())
        rewind(length, t, first, saved_length)
        _keep_times(saved_length, saved, t)
        bar = np.int64(most - SURE * mean_weight * total)
        new_total = run(
            prog,
            length,
            mode,
            costs,
            t,
            NEVER if span_counts else bar,
            bar if span_counts else NEVER,
        )
        fits = new_total != FAILED
        if fits:
            makespan, span = longest(length, t)
            new = span if span_counts else makespan
            fits = new + mean_weight * new_total <= most
        # 3. reject it: restore the times and the plan
        if not fits:
            _restore_times(saved_length, saved, t)
            _restore_plan(prog, length, mode, saved, saved_length, costs, t, first, begin, stop)
            continue
        # 4. or accept it, perhaps as the best so far
        accept(length, t)
        t.filled[0] = 0
        for d in range(begin, stop + 1):
            if first[d] >= 0:
                for at in range(first[d], length[d]):
                    saved[d, at] = prog[d, at]
                saved_length[d] = length[d]
        cost, total = new, new_total
        score = cost + mean_weight * total
        taken += 1
        if cost < best:
            taken = PATHS
            best = cost
            best_prog[:] = prog
            best_length[:] = length
            best_mode[:] = mode
    return best, steps
