"""The compiled part of the search: change a set of programs a little, and anneal.

For programs as codes and their times see `search_times`. All times ns, all memory bytes, int64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .search_moves import find, keep, offload, overtake
from .search_times import NEVER, B, F, O, measure


@njit(cache=True)
def _blocks(one, two, low, high):
    """Whether `one` must stay before `two`, its neighbour in a program."""
    if (one ^ two) & ((1 << high) - 1) == 0:  # F, O, R, B, W of one microbatch and stage
        return True
    # one kind of a stage keeps its microbatches in order
    return one >> low == two >> low


@njit(cache=True)
def shift(prog, d, start, stop, low, high):
    """Move the op at `start` towards `stop`, as far as nothing forbids; returns where it is."""
    here = start
    while here < stop:
        if _blocks(prog[d, here], prog[d, here + 1], low, high):
            break
        prog[d, here], prog[d, here + 1] = prog[d, here + 1], prog[d, here]
        here += 1
    while here > stop:
        if _blocks(prog[d, here - 1], prog[d, here], low, high):
            break
        prog[d, here], prog[d, here - 1] = prog[d, here - 1], prog[d, here]
        here -= 1
    return here


@njit(cache=True)
def toggle(prog, length, d, unit, ahead, high):
    """Offload an activation that stays, its reload `ahead` ops before its B; keep one that goes."""
    if keep(prog, length, d, unit, high) == 0:
        offload(prog, length, d, unit, ahead, high)


@njit(cache=True)
def _copy_neighbour(prog, length, d, other, step):
    """Give device d the order of a neighbour, for one stage per device on both."""
    for slot in range(length[other]):
        prog[d, slot] = prog[other, slot] + step
    length[d] = length[other]


@njit(cache=True)
def _critical(end, cause, prog, length, path, high):
    """Ops on one critical path from the last end back; returns how many."""
    last = -1
    for d in range(len(length)):
        for slot in range(length[d] - 1, -1, -1):
            code = prog[d, slot]
            if code >> high < O:
                if last < 0 or end[code] > end[last]:
                    last = code
                break
    count = 0
    while last >= 0 and count < len(path):
        path[count] = last
        count += 1
        last = cause[last]
    return count


@njit(cache=True)
def _repeat(prog, length, costs, code, offloads):
    """Make the same change to an op for a run of microbatches, here and perhaps on the devices near
    by."""
    m, stages, low, high = costs[11], len(costs[1]), costs[12], costs[13]
    kind = code >> high
    stage, micro = (code & ((1 << high) - 1)) >> low, code & ((1 << low) - 1)
    change = np.random.randint(1, 5)
    if np.random.random() < 0.5:
        change = -change
    run = np.random.randint(1, max(2, min(m, 12)))
    if np.random.random() < 0.2:
        run = m
    wide = np.random.random() < 0.4
    flip = offloads and np.random.random() < 0.25
    ahead = np.random.randint(1, 12)
    for other in range(stages):
        if other != stage and not wide:
            continue
        if wide and abs(other - stage) > 3 and run < m:
            continue
        for step_on in range(run):
            j = micro + step_on if change < 0 else micro + run - 1 - step_on
            if j >= m:
                continue
            where = costs[4][other]
            if flip:
                toggle(prog, length, where, other << low | j, ahead, high)
                continue
            slot = find(prog, where, length[where], kind << high | other << low | j)
            if slot >= 0:
                to = min(max(slot + change, 0), length[where] - 1)
                shift(prog, where, slot, to, low, high)


@njit(cache=True)
def _pass(prog, length, costs, kind, unit):
    """Let the microbatch of an op pass others, or be passed: see `search_moves.overtake`."""
    m, low, high = costs[11], costs[12], costs[13]
    code = unit if kind in (F, O) else unit | B << high
    if code >> low == 0:
        return False  # from the very first F on: mere labels
    far = np.random.randint(1, 3 if np.random.random() < 0.7 else m + 1)
    if np.random.random() < 0.5:
        far = -far
    stays, parks = np.random.random() < 0.5, np.random.random() < 0.5
    return overtake(prog, length, costs, code, far, stays, parks, np.random.randint(1, 12))


@njit(cache=True)
def seed_random(seed):
    """Seed the generator of the compiled code."""
    np.random.seed(seed)


@njit(cache=True)
def anneal(
    prog, length, costs, links, space, end, ready, cause, best_prog, best_length, best, steps, hot, cold,
    span_counts, mean_weight, offloads, alike, goal, passing,
):  # fmt: skip
    """Anneal `prog` in place for `steps` evaluations, from temperature `hot` to `cold` (ns).

    `best_prog`, `best_length`: the best so far, kept up to date; `best`: its cost. `alike`: one
    stage per device. `goal`: stop at this cost. `passing`: the part of the changes that let
    microbatches pass one another; the others keep their order.

    Returns:
        (best cost, evaluations done).
    """
    devices, m, stages = len(length), costs[11], len(costs[1])
    low, high = costs[12], costs[13]
    path = np.empty(4 * stages * m, np.int64)
    saved = prog.copy()
    saved_length = length.copy()

    makespan, span, total = measure(prog, length, costs, links, space, end, ready, cause)
    cost = span if span_counts else makespan
    score = cost + mean_weight * total
    on_path = _critical(end, cause, prog, length, path, high)
    if cost < best:
        best = cost
        best_prog[:] = prog
        best_length[:] = length
    for step in range(steps):
        if best <= goal:
            return best, step
        temperature = hot * (cold / hot) ** (step / steps)
        draw = np.random.random()
        if on_path and draw < 0.7:
            code = path[np.random.randint(on_path)]
        else:
            d = np.random.randint(devices)
            code = prog[d, np.random.randint(length[d])]
        kind = code >> high
        unit = code & ((1 << high) - 1)
        d = costs[4][unit >> low]
        many = False
        choice = np.random.random()
        if passing > 0 and np.random.random() < passing:
            many = True
            if not _pass(prog, length, costs, kind, unit):
                continue
        elif offloads and choice < 0.15:
            toggle(prog, length, d, unit, np.random.randint(1, 12), high)
        elif choice < 0.75:
            slot = find(prog, d, length[d], code)
            move = np.random.randint(1, 9)
            if np.random.random() < 0.3:
                move = np.random.randint(1, 3)
            to = slot - move if np.random.random() < 0.5 else slot + move
            if shift(prog, d, slot, min(max(to, 0), length[d] - 1), low, high) == slot:
                continue
        elif choice < 0.97 or not alike or devices < 2:
            many = True
            _repeat(prog, length, costs, code, offloads)
        else:
            other = d + 1 if np.random.random() < 0.5 else d - 1
            if other < 0 or other >= devices:
                continue
            _copy_neighbour(prog, length, d, other, (d - other) << low)
        makespan, span, total = measure(prog, length, costs, links, space, end, ready, cause)
        new = span if span_counts else makespan
        new_score = new + mean_weight * total
        if new < NEVER and (
            new_score <= score or np.random.random() < np.exp((score - new_score) / temperature)
        ):
            cost, score = new, new_score
            if many:
                saved[:] = prog
                saved_length[:] = length
            else:
                saved[d, : length[d]] = prog[d, : length[d]]
                saved_length[d] = length[d]
            on_path = _critical(end, cause, prog, length, path, high)
            if cost < best:
                best = cost
                best_prog[:] = prog
                best_length[:] = length
        elif many:
            prog[:] = saved
            length[:] = saved_length
        else:
            length[d] = saved_length[d]
            prog[d, : length[d]] = saved[d, : length[d]]
    return best, steps
