"""The compiled annealing of a set of programs.

See `times` for the encoding of programs. All times ns, all memory bytes, int64.
"""

from __future__ import annotations

import numpy as np

from ...codes import O, W
from ...compiled import compiled, copy, entry, part
from .host import exceeds
from .moves import change
from .state import LOGGED, begin, fill_slots, mark, undo
from .tails import find_tails, renew_tails
from .times import FAILED, NEVER, last_start, longest, measure, update

FAR = 3.0  # a schedule is rejected at this multiple of the current score


@entry
def _critical(end, cause, prog, length, path, high):
    """Collect the ops on one critical path from the last end back; returns their number."""
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


@compiled
def seed_random(seed):
    """Seed the random generator of the compiled code."""
    np.random.seed(seed)


@entry
def _restore(prog, length, slot, saved, saved_length, d, begin):
    """Restore the saved program of a device from slot `begin` on."""
    for at in range(begin, length[d]):
        slot[prog[d, at]] = -1
    for at in range(begin, saved_length[d]):
        prog[d, at] = saved[d, at]
        slot[prog[d, at]] = at
    length[d] = saved_length[d]


@part
def _exceeds_host(prog, length, costs, host, end):
    """Return whether evaluated programs pin more host memory than they may."""
    high = costs.high
    if host.limit == NEVER:
        return False
    for d in range(len(length)):
        for slot in range(length[d]):
            code = prog[d, slot]
            if code >> high == O:
                unit = code & (1 << high) - 1
                stage = unit >> costs.low
                host.begin[unit] = end[code] - costs.durations[O, stage]
                host.size[unit] = costs.moved[stage]
    return exceeds(prog, length, end, high, host)


@compiled
def anneal(
    prog, length, costs, links, host, t, best_prog, best_length, best, steps, hot, cold,
    span_counts, mean_weight, offloads, alike, goal, passing,
):  # fmt: skip
    """Anneal `prog` in place for `steps` evaluations, from temperature `hot` to `cold` (ns).

    `best_prog`, `best_length`: the best so far, kept up to date; `best`: its cost. `alike`: one
    stage per device. `goal`: stop at this cost. `passing`: the share of the moves that let
    microbatches overtake one another; the others keep their order.

    Returns:
        (best cost, evaluations done).
    """
    devices, stages, high = len(length), len(costs.act), costs.high
    linked = links.number > 0
    slot = t.slot
    path = np.empty(4 * stages * costs.microbatches, np.int64)
    saved = prog.copy()
    saved_length = length.copy()
    ahead = costs.lag + costs.durations[: W + 1].min()
    makespan, span, total = measure(prog, length, costs, links, t)
    if linked:
        fill_slots(prog, length, slot)
    cost = span if span_counts else makespan
    score = cost + mean_weight * total
    on_path = _critical(t.end, t.cause, prog, length, path, high)
    if cost < best and not _exceeds_host(prog, length, costs, host, t.end):
        best = cost
        copy(best_prog, prog)
        copy(best_length, length)
    begun, old_tails = 0, True
    since_path = 0  # ops evaluated in accepted moves since the critical path was computed
    for trial in range(steps):
        if best <= goal:
            return best, trial
        # 1. tails and the critical path, if accepted moves have outdated them
        if not linked and old_tails:
            find_tails(prog, length, costs, t, span_counts)
            begun = last_start(prog, costs, t) if span_counts else 0
            old_tails = False
        if since_path > on_path:
            on_path = _critical(t.end, t.cause, prog, length, path, high)
            since_path = 0
        # 2. a random move, and the highest score that is accepted at this temperature
        temperature = hot * (cold / hot) ** (trial / steps)
        d, many = change(prog, length, slot, costs, path[:on_path], offloads, alike, passing)
        if d < 0:
            continue
        most = score - temperature * np.log(1 - np.random.random())
        begin(t)
        soonest = NEVER
        for other in range(devices) if many else range(d, d + 1):
            if mark(prog, length, saved, saved_length, other, t, high):
                soonest = min(soonest, t.key[other])
        if soonest == NEVER:
            continue
        # 3. evaluate it, all of it with shared links, else what it changes
        if linked:
            makespan, span, new_total = measure(prog, length, costs, links, t)
            fits = makespan < NEVER
        else:
            # tails to the longest span are valid once all devices have begun
            sure, weight = (most, mean_weight) if soonest >= begun else (FAR * score, 0.0)
            new_total = update(prog, length, costs, t, total, sure, weight, begun, ahead, True)
            fits = new_total != FAILED
            if fits:
                makespan, span = longest(prog, length, costs, t)
        new = span if span_counts else makespan
        fits = fits and new + mean_weight * new_total <= most
        fits = fits and not _exceeds_host(prog, length, costs, host, t.end)
        if fits and not linked:
            old_tails = soonest < begun
            if not old_tails:
                renew_tails(prog, length, saved, saved_length, costs, t)
        # 4. accept it, or restore the programs and the times
        for other in range(devices):
            first = t.changed[other, 0]
            if first >= 0 and fits:
                copy(saved[other, first : length[other]], prog[other, first : length[other]])
                saved_length[other] = length[other]
            elif first >= 0:
                _restore(prog, length, slot, saved, saved_length, other, first)
        if fits:
            cost, total = new, new_total
            score = cost + mean_weight * total
            since_path += t.tally[LOGGED] if not linked else NEVER
            if cost < best:
                since_path = NEVER
                best = cost
                copy(best_prog, prog)
                copy(best_length, length)
        elif not linked:
            undo(t)
    return best, steps
