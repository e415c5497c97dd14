"""The compiled part of `patterns`: expand a pattern to programs, and anneal it.

A pattern gives each op of the first k microbatches a time, ``times[kind, stage, microbatch]``, and
``offloaded[stage, microbatch]`` says which of them are offloaded; every period it starts again with the
next k. Only the order of the times matters. See `plans` for the encoding of programs. All times ns.
"""

from __future__ import annotations

import numpy as np

from ...codes import B, F, O, R, W
from ...compiled import compiled, copy, step
from .linked import evaluate_links
from .times import NEVER

# A pattern recomputes nothing; its moves shift forwards or backwards, each with what goes with it.
KINDS = (F, B, W, O, R)


@compiled
def write(times, offloaded, period, costs, plan):
    """Write the programs of all microbatches, in the order of the pattern's times."""
    place, m, low, high = costs.place, costs.microbatches, costs.low, costs.high
    _, stages, k = times.shape
    phase = np.empty(stages * k * 5, np.int64)
    turn, codes = np.empty_like(phase), np.empty_like(phase)
    for d in range(len(plan.length)):
        count = 0
        for s in range(stages):
            for i in range(k):
                for kind in KINDS:
                    if place[s] == d and (kind < O or offloaded[s, i]):
                        turn[count], phase[count] = divmod(times[kind, s, i], period)
                        codes[count] = kind << high | s << low | i
                        count += 1
        order = np.argsort(phase[:count], kind="mergesort")
        plan.length[d] = 0
        for now in range(turn[:count].min(), turn[:count].max() + -(-m // k)):
            for x in order:
                j = (now - turn[x]) * k + (codes[x] & ((1 << low) - 1))
                if now >= turn[x] and j < m:
                    plan.prog[d, plan.length[d]] = codes[x] >> low << low | j
                    plan.length[d] += 1


@step
def _delay(times, kind, begin, end, i, later):
    """Delay the ops of a kind and a microbatch at stages `begin` to `end`."""
    for stage in range(begin, end):
        times[kind, stage, i] += later


@compiled
def _change(times, offloaded, typical, back_ns):
    """Change a pattern at random: move an op, move an op and all that follows it, or toggle offloads."""
    _, stages, k = times.shape
    s, i, draw = np.random.randint(stages), np.random.randint(k), np.random.random()
    later = np.int64(typical * np.random.normal() * (0.2 if np.random.random() < 0.5 else 1.0))
    if draw < 0.45:  # an op of one stage, of all before it or of all after it
        kind = KINDS[np.random.randint(5)]
        reach = np.random.random()
        begin = 0 if 0.3 <= reach < 0.5 else s
        end = stages if reach < 0.3 else s + 1
        _delay(times, kind, begin, end, i, later)
    elif draw < 0.55:  # a forward and all that follows
        for kind in KINDS:
            _delay(times, kind, s if kind in (F, O) else 0, stages, i, later)
    elif draw < 0.65:  # a backward and all that follows
        for kind in (B, W, R):
            _delay(times, kind, 0, s + 1, i, later)
    elif draw < 0.75:  # a microbatch
        for kind in KINDS:
            _delay(times, kind, 0, stages, i, later)
    else:  # toggle offloading, on one or a few stages
        end = s + 1 if np.random.random() < 0.8 else s + np.random.randint(1, 5)
        offload = not offloaded[s, i]
        for other in range(s, min(end, stages)):
            offloaded[other, i] = offload
            if offload:
                times[O, other, i] = times[F, other, i] + 1
                times[R, other, i] = times[B, other, i] - back_ns[other]


@compiled
def anneal_pattern(
    times,
    offloaded,
    period,
    costs,
    links,
    t,
    plan,
    best_plan,
    best,
    part,
    span_counts,
    mean_weight,
    typical,
):
    """Anneal a pattern in place through the temperatures of `part` (ns, one per evaluation).

    `best_plan`: the best programs so far, kept up to date; `best`: their cost.

    Returns:
        (best cost, period).
    """
    kept_times, kept_offloaded, kept_period, score = times.copy(), offloaded.copy(), period, np.inf
    for at in range(-1, len(part)):
        if at >= 0 and np.random.random() < 0.15:
            period = max(1, np.int64(period * (1 + 0.05 * np.random.normal())))
        elif at >= 0:
            _change(times, offloaded, typical, costs.durations[R, :, 0])
        write(times, offloaded, period, costs, plan)
        makespan, span, total = evaluate_links(plan, costs, links, t)
        new = span if span_counts else makespan
        new_score = new + mean_weight * total
        if makespan < NEVER and (
            new_score <= score or np.random.random() < np.exp((score - new_score) / part[at])
        ):
            score = new_score
            copy(kept_times, times)
            copy(kept_offloaded, offloaded)
            kept_period = period
            if new < best:
                best = new
                copy(best_plan.prog, plan.prog)
                copy(best_plan.length, plan.length)
        else:
            copy(times, kept_times)
            copy(offloaded, kept_offloaded)
            period = kept_period
    return best, period
