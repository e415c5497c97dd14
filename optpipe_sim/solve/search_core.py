"""The compiled part of the search: change a set of programs a little, and anneal.

For programs as codes and their times see `search_times`. All times ns, all memory bytes, int64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..schedules.compiled import entry, part, step
from .search_moves import keep, offload, overtake
from .search_state import LOGGED, B, F, O, W, begin, fill_slots, mark, undo
from .search_tails import find_tails, renew_tails
from .search_times import FAILED, NEVER, last_start, longest, measure, update

FAR = 3.0  # times its score is where a schedule is given up anyway


@step
def _blocks(one, two, low, high):
    """Whether `one` must stay before `two`, its neighbour in a program."""
    if (one ^ two) & ((1 << high) - 1) == 0:  # F, O, R, B, W of one microbatch and stage
        return True
    # one kind of a stage keeps its microbatches in order
    return one >> low == two >> low


@njit(cache=True)
def shift(prog, slot, d, start, stop, low, high):
    """Move the op at `start` towards `stop`, as far as nothing forbids; returns where it is."""
    here, code = start, prog[d, start]
    while here < stop and not _blocks(code, prog[d, here + 1], low, high):
        prog[d, here] = prog[d, here + 1]
        slot[prog[d, here]] = here
        here += 1
    while here > stop and not _blocks(prog[d, here - 1], code, low, high):
        prog[d, here] = prog[d, here - 1]
        slot[prog[d, here]] = here
        here -= 1
    prog[d, here] = code
    slot[code] = here
    return here


@njit(cache=True)
def toggle(prog, length, slot, d, unit, ahead, high):
    """Offload an activation that stays, its reload `ahead` ops before its B; keep one that goes."""
    if keep(prog, length, slot, d, unit, high) == 0:
        offload(prog, length, slot, d, unit, ahead, high)


@part
def _copy_neighbour(prog, length, slot, d, other, step):
    """Give device d the order of a neighbour, for one stage per device on both."""
    for at in range(length[d]):
        slot[prog[d, at]] = -1
    for at in range(length[other]):
        prog[d, at] = prog[other, at] + step
        slot[prog[d, at]] = at
    length[d] = length[other]


@entry
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


@entry
def _repeat(prog, length, slot, costs, code, offloads):
    """Make the same change to an op for a run of microbatches, here and perhaps on the devices near
    by; returns whether on others, too."""
    m, stages, low, high = costs[11], len(costs[1]), costs[12], costs[13]
    kind = code >> high
    stage, micro = (code & ((1 << high) - 1)) >> low, code & ((1 << low) - 1)
    change = np.random.randint(1, 5)
    if np.random.random() < 0.5:
        change = -change
    run = np.random.randint(1, max(2, min(m, 12)))
    wide = np.random.random() < 0.4
    flip = offloads and np.random.random() < 0.25
    if not flip and np.random.random() < (0.05 if wide else 0.2):
        run = m
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
                toggle(prog, length, slot, where, other << low | j, ahead, high)
                continue
            at = slot[kind << high | other << low | j]
            if at >= 0:
                to = min(max(at + change, 0), length[where] - 1)
                shift(prog, slot, where, at, to, low, high)
    return wide


@njit(cache=True)
def _pass(prog, length, slot, costs, kind, unit):
    """Let the microbatch of an op pass others, or be passed: see `search_moves.overtake`."""
    m, low, high = costs[11], costs[12], costs[13]
    code = unit if kind in (F, O) else unit | B << high
    if code >> low == 0:
        return False  # from the very first F on: mere labels
    far = np.random.randint(1, 3 if np.random.random() < 0.7 else m + 1)
    if np.random.random() < 0.5:
        far = -far
    stays, parks = np.random.random() < 0.5, np.random.random() < 0.5
    return overtake(prog, length, slot, costs, code, far, stays, parks, np.random.randint(1, 12))


@njit(cache=True)
def seed_random(seed):
    """Seed the generator of the compiled code."""
    np.random.seed(seed)


@entry
def _take(prog, length, slot, saved, saved_length, d, begin):
    """Give a device back its program from slot `begin` on."""
    for at in range(begin, length[d]):
        slot[prog[d, at]] = -1
    for at in range(begin, saved_length[d]):
        prog[d, at] = saved[d, at]
        slot[prog[d, at]] = at
    length[d] = saved_length[d]


@njit(cache=True)
def anneal(
    prog, length, costs, links, t, best_prog, best_length, best, steps, hot, cold,
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
    linked = links[1] > 0
    slot = t.slot
    path = np.empty(4 * stages * m, np.int64)
    saved = prog.copy()
    saved_length = length.copy()
    ahead = costs[7] + costs[0][: W + 1].min()
    makespan, span, total = measure(prog, length, costs, links, t)
    if linked:
        fill_slots(prog, length, slot)
    cost = span if span_counts else makespan
    score = cost + mean_weight * total
    on_path = _critical(t.end, t.cause, prog, length, path, high)
    if cost < best:
        best = cost
        best_prog[:] = prog
        best_length[:] = length
    begun, old_tails = 0, True
    since_path = 0  # ops evaluated in changes that were taken since the path was found
    for trial in range(steps):
        if best <= goal:
            return best, trial
        if not linked and old_tails:
            find_tails(prog, length, costs, t, span_counts)
            begun = last_start(prog, costs, t) if span_counts else 0
            old_tails = False
        if since_path > on_path:
            on_path = _critical(t.end, t.cause, prog, length, path, high)
            since_path = 0
        temperature = hot * (cold / hot) ** (trial / steps)
        draw = np.random.random()
        if on_path and draw < 0.7:
            code = path[np.random.randint(on_path)]
            if slot[code] < 0:
                continue
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
            if not _pass(prog, length, slot, costs, kind, unit):
                continue
        elif offloads and choice < 0.15:
            toggle(prog, length, slot, d, unit, np.random.randint(1, 12), high)
        elif choice < 0.75:
            at = slot[code]
            move = np.random.randint(1, 9)
            if np.random.random() < 0.3:
                move = np.random.randint(1, 3)
            to = at - move if np.random.random() < 0.5 else at + move
            if shift(prog, slot, d, at, min(max(to, 0), length[d] - 1), low, high) == at:
                continue
        elif choice < 0.97 or not alike or devices < 2:
            many = _repeat(prog, length, slot, costs, code, offloads)
        else:
            other = d + 1 if np.random.random() < 0.5 else d - 1
            if other < 0 or other >= devices:
                continue
            _copy_neighbour(prog, length, slot, d, other, (d - other) << low)
        most = score - temperature * np.log(1 - np.random.random())
        begin(t)
        soonest = NEVER
        for other in range(devices) if many else range(d, d + 1):
            if mark(prog, length, saved, saved_length, other, t, high):
                soonest = min(soonest, t.key[other])
        if soonest == NEVER:
            continue
        if linked:
            makespan, span, new_total = measure(prog, length, costs, links, t)
            fits = makespan < NEVER
        else:
            # tails to the longest span hold from where all devices have begun
            sure, weight = (most, mean_weight) if soonest >= begun else (FAR * score, 0.0)
            new_total = update(prog, length, costs, t, total, sure, weight, begun, ahead, True)
            fits = new_total != FAILED
            if fits:
                makespan, span = longest(prog, length, costs, t)
        new = span if span_counts else makespan
        fits = fits and new + mean_weight * new_total <= most
        if fits and not linked:
            old_tails = soonest < begun
            if not old_tails:
                renew_tails(prog, length, saved, saved_length, costs, t)
        for other in range(devices):
            first = t.changed[other, 0]
            if first >= 0 and fits:
                saved[other, first : length[other]] = prog[other, first : length[other]]
                saved_length[other] = length[other]
            elif first >= 0:
                _take(prog, length, slot, saved, saved_length, other, first)
        if fits:
            cost, total = new, new_total
            score = cost + mean_weight * total
            since_path += t.tally[LOGGED] if not linked else NEVER
            if cost < best:
                since_path = NEVER
                best = cost
                best_prog[:] = prog
                best_length[:] = length
        elif not linked:
            undo(t)
    return best, steps
