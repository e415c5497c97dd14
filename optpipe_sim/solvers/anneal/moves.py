"""The moves on a plan: a list of operators, each with a weight and what a problem must have for it.

Within a program the ops of one activation keep the order F, O, R, C, B, W, and ops of one kind and stage
the order of microbatches, unless those overtake one another (`passing`), or wait less (`tightening`), on
purpose.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import B, F, O
from ...compiled import part
from .edits import (
    copy_treatment,
    draw_mode,
    is_offloaded,
    put,
    set_joins,
    set_mode,
    set_offload,
    shift,
    treat,
)
from .passing import overtake
from .tightening import tighten
from .times import partner


class Operator(NamedTuple):
    """A kind of move.

    Attributes:
        needs: ``offloads``: activations may be offloaded; ``modes``: some may be treated in several
            ways; ``either`` of the two; ``single``: activations of a stage may be treated differently;
            ``copyable``: one stage per device, all with the same treatments; ``pairs``: forwards may be
            one op with backwards.
        passes: whether microbatches may come into another order, or reach it after several such moves.
    """

    name: str
    weight: float
    needs: tuple[str, ...] = ()
    passes: bool = False


# Weights by hand, on problems with levels. Plain problems do as well by them as by the ones they once had: mean cost
# +0.02 % over the 35 of the referee without shared links, up to 600,000 evaluations each, one seed.
OPERATORS = (
    Operator("move an op", 0.5),
    Operator("treat an activation", 0.15, ("modes",)),
    Operator("offload or keep an activation", 0.1, ("offloads",)),
    Operator("move the ops of a run of microbatches", 0.09),
    Operator("treat a run of microbatches", 0.0375, ("modes",)),
    Operator("offload or keep a run of microbatches", 0.0225, ("offloads",)),
    Operator("exchange two treatments", 0.05, ("either", "single")),
    Operator("copy a neighbour's program", 0.025, ("copyable",)),
    Operator("copy a neighbour's treatments", 0.025, ("copyable", "either")),
    Operator("overtake", 0.5, passes=True),
    Operator("tighten a trip", 0.5, passes=True),
    Operator("pair or part", 0.2, ("pairs",)),
    Operator("pair or part a run of microbatches", 0.05, ("pairs",)),
)
(
    MOVE,
    TREAT,
    FLIP,
    MOVE_RUN,
    TREAT_RUN,
    FLIP_RUN,
    SWAP,
    COPY,
    COPY_TREATMENTS,
    PASS,
    TIGHTEN,
    PAIR,
    PAIR_RUN,
) = range(len(OPERATORS))  # in their order
PER_STAGE = 0.3  # times the weight of moves that treat all activations of a stage alike

ON_PATH = 0.7  # share of the moves that begin with an op of the critical path
TRADE = 0.3  # share of the treatments that are changed together with the offload
NEARBY = 4  # fewest stages that a trip is not tightened beyond, behind the op that was drawn
FAR = 12  # the most slots between an inserted op and the op it belongs to


def chances(costs, passing: float) -> np.ndarray:
    """Return for each operator the chance that it or one before it is drawn; `passing`: the share of
    those that let microbatches pass one another."""
    modes = bool((costs.many > 1).any())
    has = {
        "offloads": costs.offloads,
        "modes": modes,
        "either": costs.offloads or modes,
        "single": not costs.per_stage,
        "copyable": costs.copyable and len(costs.place) > 1,
        "pairs": costs.pairs is not None,
    }
    weights = np.array([all(has[need] for need in one.needs) * one.weight for one in OPERATORS])
    if costs.per_stage:
        weights[[TREAT, FLIP]] *= PER_STAGE
    passes = np.array([one.passes for one in OPERATORS])
    weights[passes] *= passing / weights[passes].sum()
    weights[~passes] *= (1 - passing) / weights[~passes].sum()
    return np.append(np.cumsum(weights)[:-1], 2.0)


@part
def change(plan, costs, t, path, chances):
    """Make a random move; most moves start from an op of `path`.

    Returns:
        (first device that may have changed, last one); -1 if nothing changed.
    """
    # 1. an op
    low, high = costs.low, costs.high
    if len(path) and np.random.random() < ON_PATH:
        code = path[np.random.randint(len(path))]
        if t.slot[code] < 0:
            return -1, -1
    else:
        d = np.random.randint(len(plan.length))
        code = plan.prog[d, np.random.randint(plan.length[d])]
    unit = code & ((1 << high) - 1)
    d = costs.place[unit >> low]
    # 2. an operator
    draw, operator = np.random.random(), 0
    while draw >= chances[operator]:
        operator += 1
    # 3. the move
    if operator == MOVE:
        return _move(plan, costs, t, d, code)
    if operator in (TREAT, FLIP):
        return _treat(plan, costs, t, d, unit, operator == FLIP)
    if operator in (MOVE_RUN, TREAT_RUN, FLIP_RUN):
        return _repeat(plan, costs, t, code, operator)
    if operator == SWAP:
        return _swap(plan, costs, t, d, unit)
    if operator in (COPY, COPY_TREATMENTS):
        return _copy_neighbour(plan, costs, t, d, unit, operator == COPY)
    if operator == PASS:
        return _let_pass(plan, costs, t, code)
    if operator in (PAIR, PAIR_RUN):
        return _pair(plan, costs, t, d, code, operator == PAIR_RUN)
    if operator == TIGHTEN:
        return _tighten(plan, costs, t, unit)
    return -1, -1


@part
def _move(plan, costs, t, d, code):
    """Move an op a few slots."""
    at = t.slot[code]
    by = np.random.randint(1, 9)
    if np.random.random() < 0.3:
        by = np.random.randint(1, 3)
    to = at - by if np.random.random() < 0.5 else at + by
    to = min(max(to, 0), plan.length[d] - 1)
    mate = partner(code, plan, costs, t)
    if shift(plan, costs, t, d, at, to) == at:
        return -1, -1
    if mate >= 0 and np.random.random() < 0.5:
        _bring_together(plan, costs, t, d, code, mate)
    return d, d


@part
def _bring_together(plan, costs, t, d, code, mate):
    """Move the other half of a pair to one that has been moved, as far as dependencies allow."""
    at, to = t.slot[mate], t.slot[code]
    if code >> costs.high == F:  # the backward goes right behind it
        shift(plan, costs, t, d, at, to if at < to else to + 1)
    else:
        shift(plan, costs, t, d, at, to - 1 if at < to else to)


@part
def _pair(plan, costs, t, d, code, runs):
    """Let an F and a backward near it run as one op, or no longer; with `runs` alike for a run of microbatches of
    the stage."""
    low, high, m = costs.low, costs.high, costs.microbatches
    kind, unit = code >> high, code & ((1 << high) - 1)
    if kind not in (F, B):
        return -1, -1
    joins = partner(code, plan, costs, t) < 0
    far, run = np.random.randint(1, FAR), 1
    if runs:
        run = m if np.random.random() < 0.3 else np.random.randint(1, max(2, min(m, 12)))
    micro = unit & ((1 << low) - 1)
    for j in range(micro, min(m, micro + run)):
        one = kind << high | (unit >> low) << low | j
        if (partner(one, plan, costs, t) < 0) == joins:
            _join(plan, costs, t, d, one, joins, far)
    return d, d


@part
def _join(plan, costs, t, d, code, joins, far):
    """Make an op one with the nearest op that it can be a pair with, at most `far` slots off; without `joins`
    part it from its own."""
    high = costs.high
    if not joins:
        other = partner(code, plan, costs, t)
        set_joins(plan, costs, t, other if code >> high == B else code, 0)
        return
    wanted = F if code >> high == B else B
    unit, at = code & ((1 << high) - 1), t.slot[code]
    for by in range(1, far + 1):
        for side in range(2):
            there = at + by if side == 0 else at - by
            if there < 0 or there >= plan.length[d]:
                continue
            other = plan.prog[d, there]
            apart = other & ((1 << high) - 1) != unit and partner(other, plan, costs, t) < 0
            if other >> high == wanted and apart:
                _bring_together(plan, costs, t, d, code, other)
                set_joins(plan, costs, t, other if wanted == F else code, 1)
                return


@part
def _treat(plan, costs, t, d, unit, flips):
    """Change the treatment of an activation, or whether it is offloaded, or of all of its stage."""
    low, ahead, behind = costs.low, np.random.randint(0, FAR), np.random.randint(0, FAR)
    old, new = plan.mode[unit], draw_mode(plan, costs, unit)
    offloaded = is_offloaded(t, unit, costs.high)
    trades = flips or (costs.offloads and np.random.random() < TRADE)
    for j in range(costs.microbatches if costs.per_stage else 1):
        one = (unit >> low) << low | j if costs.per_stage else unit
        if not flips and (new // 2 != old // 2 or one == unit):
            treat(plan, costs, t, one, new, ahead, behind)
        if trades:
            set_offload(plan, costs, t, one, not offloaded, ahead)
    return d, d


@part
def _repeat(plan, costs, t, code, operator):
    """Move an op, or change its treatment, alike for a run of microbatches, possibly also at nearby
    stages."""
    m, low, high, stages = costs.microbatches, costs.low, costs.high, len(costs.place)
    kind, unit = code >> high, code & ((1 << high) - 1)
    stage, micro = unit >> low, unit & ((1 << low) - 1)
    by = np.random.randint(1, 5)
    if np.random.random() < 0.5:
        by = -by
    run = np.random.randint(1, max(2, min(m, 12)))
    every = np.random.randint(1, 4) if np.random.random() < 0.3 else 1
    wide = np.random.random() < 0.4
    treats = operator == TREAT_RUN
    if operator != MOVE_RUN and costs.per_stage:
        micro, run, every = 0, m, 1
    elif operator == MOVE_RUN and np.random.random() < (0.05 if wide else 0.2):
        run = m
    ahead, behind = np.random.randint(0, FAR), np.random.randint(0, FAR)
    new, offloaded = draw_mode(plan, costs, unit), is_offloaded(t, unit, high)
    trades = operator == FLIP_RUN or (treats and costs.offloads and np.random.random() < TRADE)
    first = last = costs.place[stage]
    for other in range(stages):
        if other != stage and (not wide or (abs(other - stage) > 3 and run < m)):
            continue
        d = costs.place[other]
        first, last = min(first, d), max(last, d)
        for turn in range(run):
            j = micro + every * (turn if by < 0 else run - 1 - turn)
            if j >= m:
                continue
            one = other << low | j
            if treats and new < costs.many[other]:
                treat(plan, costs, t, one, new, ahead, behind)
            if trades:
                set_offload(plan, costs, t, one, not offloaded, ahead)
            at = t.slot[kind << high | one]
            if operator == MOVE_RUN and at >= 0:
                shift(plan, costs, t, d, at, min(max(at + by, 0), plan.length[d] - 1))
    return first, last


@part
def _swap(plan, costs, t, d, one):
    """Exchange the treatments of two nearby activations of a stage."""
    high, low = costs.high, costs.low
    far = np.random.randint(1, 5)
    if np.random.random() < 0.5:
        far = -far
    micro = (one & ((1 << low) - 1)) + far
    if micro < 0 or micro >= costs.microbatches:
        return -1, -1
    two = one + far
    ahead, behind = np.random.randint(0, FAR), np.random.randint(0, FAR)
    was, other = plan.mode[one], plan.mode[two]
    offloaded, other_offloaded = is_offloaded(t, one, high), is_offloaded(t, two, high)
    treat(plan, costs, t, one, other, ahead, behind)
    treat(plan, costs, t, two, was, ahead, behind)
    if offloaded != other_offloaded:
        set_offload(plan, costs, t, one, other_offloaded, ahead)
        set_offload(plan, costs, t, two, offloaded, ahead)
    return d, d


@part
def _copy_neighbour(plan, costs, t, d, unit, program):
    """Copy the program and the treatments of a neighbour to device d, with one stage on each, or only a few
    treatments."""
    m, low = costs.microbatches, costs.low
    other = d + 1 if np.random.random() < 0.5 else d - 1
    if other < 0 or other >= len(plan.length):
        return -1, -1
    if not program:
        ahead, behind = np.random.randint(0, FAR), np.random.randint(0, FAR)
        micro = unit & ((1 << low) - 1)
        begin, stop = (
            (0, m) if costs.per_stage else (micro, min(m, micro + np.random.randint(1, 9)))
        )
        for j in range(begin, stop):
            copy_treatment(plan, costs, t, other << low | j, d << low | j, ahead, behind)
        return d, d
    for j in range(m):
        one, new = d << low | j, plan.mode[other << low | j]
        if new != plan.mode[one] and t.filled[0] < len(t.touched):
            set_mode(plan, t, one, new)
        if costs.pairs is not None:
            set_joins(plan, costs, t, one, plan.mode[1 << costs.high | other << low | j])
    for at in range(plan.length[d]):
        t.slot[plan.prog[d, at]] = -1
    for at in range(plan.length[other]):
        put(plan, t, d, at, plan.prog[other, at] + ((d - other) << low))
    plan.length[d] = plan.length[other]
    return d, d


@part
def _let_pass(plan, costs, t, code):
    """Let the microbatch of an op overtake others, or be overtaken, and perhaps change how it is treated there."""
    m, low, high = costs.microbatches, costs.low, costs.high
    unit, kind = code & ((1 << high) - 1), code >> high
    stage, micro = unit >> low, unit & ((1 << low) - 1)
    first = unit if kind in (F, O) else unit | B << high
    if first >> low == 0 and not costs.differ:
        return -1, -1  # from the very first F on this only renames microbatches
    far = np.random.randint(1, 3 if np.random.random() < 0.7 else m + 1)
    if np.random.random() < 0.5:
        far = -far
    new, ahead = draw_mode(plan, costs, unit), np.random.randint(0, FAR)
    trades = costs.offloads and not costs.per_stage
    stays, parks = not trades or np.random.random() < 0.5, trades and np.random.random() < 0.5
    if not overtake(plan, costs, t, first, far, ahead, stays, parks):
        return -1, -1
    if not costs.per_stage and np.random.random() < 0.3:
        for other in range(stage + 1):
            if new < costs.many[other]:
                one = other << low | micro
                treat(plan, costs, t, one, new, ahead, np.random.randint(0, FAR))
    return 0, len(plan.length) - 1


@part
def _tighten(plan, costs, t, unit):
    """Tighten the trip of an activation's microbatch through some stages, and perhaps change how it is
    treated there."""
    low, stages = costs.low, len(costs.place)
    top = min(stages - 1, (unit >> low) + np.random.randint(0, NEARBY))
    base = max(0, top - np.random.randint(0, stages))
    new = draw_mode(plan, costs, unit) if not costs.per_stage and np.random.random() < 0.6 else -1
    keeps = costs.offloads and not costs.per_stage and np.random.random() < 0.5
    sides, micro = np.random.randint(3), unit & ((1 << low) - 1)
    return tighten(plan, costs, t, micro, base, top, new, keeps, sides != 1, sides != 0)
