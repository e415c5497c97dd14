"""Compiled moves on a plan: move an op, or change the treatment of an activation, for one or for
many microbatches and devices.

Within a program the ops of one activation keep the order F, O, R, C, B, W, and ops of one kind and stage the order of
microbatches, unless those are swapped, overtake one another (`passing`), or wait less (`tightening`), on purpose.
"""

from __future__ import annotations

import numpy as np

from ...codes import B, F, O
from ...compiled import part
from ..anneal.moves import shift
from .edits import (
    add_offload,
    copy_treatment,
    draw_mode,
    drop_offload,
    is_offloaded,
    put,
    set_mode,
    treat,
)
from .passing import overtake
from .tightening import tighten

# the share of the moves by which microbatches may pass one another that tighten the trip of one
TIGHTER = 0.5
NEARBY = 4  # it begins fewer stages than this behind the op that was drawn
FAR = 12  # the most slots between an inserted op and the op it belongs to


@part
def change(prog, length, mode, costs, t, path, offloads, alike, per_stage, passing):
    """Make a random move; most moves start from an op of `path`.

    Args:
        offloads: whether activations may be offloaded. `alike`: one stage per device, all with the
            same levels. `per_stage`: all activations of a stage are treated alike. `passing`: the share of
            moves that let microbatches overtake one another, or tighten the trip of one.

    Returns:
        (first device that may have changed, last one); -1 if nothing changed.
    """
    devices, low, high, m = len(length), costs.low, costs.high, costs.microbatches
    if len(path) and np.random.random() < 0.7:
        code = path[np.random.randint(len(path))]
        if t.slot[code] < 0:
            return -1, -1
    else:
        d = np.random.randint(devices)
        code = prog[d, np.random.randint(length[d])]
    unit = code & ((1 << high) - 1)
    stage, micro = unit >> low, unit & ((1 << low) - 1)
    d = costs.place[stage]
    choice = np.random.random()
    ahead, behind = np.random.randint(0, FAR), np.random.randint(0, FAR)
    if passing > 0 and np.random.random() < passing:
        if np.random.random() < TIGHTER:
            return _tighten(prog, length, mode, costs, t, unit, offloads, per_stage)
        return _let_pass(prog, length, mode, costs, t, code, per_stage)
    if choice < 0.25:
        if per_stage and np.random.random() < 0.7:
            return -1, -1
        every, old = m if per_stage else 1, mode[unit]
        flip = offloads and np.random.random() < 0.4
        offloaded, new = is_offloaded(t, unit, high), draw_mode(mode, costs, unit)
        trade = np.random.random()
        for j in range(every):
            one = stage << low | j if per_stage else unit
            if not flip and (new // 2 != old // 2 or one == unit):
                treat(prog, length, mode, costs, t, one, new, ahead, behind)
            if offloads and (flip or trade < 0.3):
                if offloaded:
                    drop_offload(prog, length, costs, t, one)
                else:
                    add_offload(prog, length, mode, costs, t, one, ahead)
        return d, d
    if choice < 0.75:
        at = t.slot[code]
        move = np.random.randint(1, 9)
        if np.random.random() < 0.3:
            move = np.random.randint(1, 3)
        to = at - move if np.random.random() < 0.5 else at + move
        if shift(prog, t.slot, d, at, min(max(to, 0), length[d] - 1), low, high) == at:
            return -1, -1
        return d, d
    if choice < 0.90:
        return _repeat(prog, length, mode, costs, t, code, offloads, per_stage)
    if choice < 0.95 and not per_stage:
        far = np.random.randint(1, 5)
        other = micro + far if np.random.random() < 0.5 else micro - far
        if other < 0 or other >= m:
            return -1, -1
        _swap(prog, length, mode, costs, t, unit, stage << low | other, ahead, behind)
        return d, d
    if not alike or devices < 2:
        return -1, -1
    other = d + 1 if np.random.random() < 0.5 else d - 1
    if other < 0 or other >= devices:
        return -1, -1
    if np.random.random() < 0.5:
        _copy_neighbour(prog, length, mode, costs, t, d, other)
    else:
        begin, stop = (0, m) if per_stage else (micro, min(m, micro + np.random.randint(1, 9)))
        for j in range(begin, stop):
            source = other << low | j
            copy_treatment(prog, length, mode, costs, t, source, d << low | j, ahead, behind)
    return d, d


@part
def _tighten(prog, length, mode, costs, t, unit, offloads, per_stage):
    """Tighten the trip of an activation's microbatch through some stages, and perhaps change how it is treated there."""
    low, stages = costs.low, len(costs.place)
    top = min(stages - 1, (unit >> low) + np.random.randint(0, NEARBY))
    base = max(0, top - np.random.randint(0, stages))
    new = draw_mode(mode, costs, unit) if not per_stage and np.random.random() < 0.6 else -1
    keeps = offloads and not per_stage and np.random.random() < 0.5
    sides, micro = np.random.randint(3), unit & ((1 << low) - 1)
    return tighten(
        prog, length, mode, costs, t, micro, base, top, new, keeps, sides != 1, sides != 0
    )  # fmt: skip


@part
def _let_pass(prog, length, mode, costs, t, code, per_stage):
    """Let the microbatch of an op overtake others, or be overtaken, and perhaps change how it is treated there."""
    m, low, high = costs.microbatches, costs.low, costs.high
    unit, kind = code & ((1 << high) - 1), code >> high
    stage, micro = unit >> low, unit & ((1 << low) - 1)
    first = unit if kind in (F, O) else unit | B << high
    if first >> low == 0:
        return -1, -1  # from the very first F on this only renames microbatches
    far = np.random.randint(1, 3 if np.random.random() < 0.7 else m + 1)
    if np.random.random() < 0.5:
        far = -far
    new, ahead = draw_mode(mode, costs, unit), np.random.randint(0, FAR)
    if not overtake(prog, length, mode, costs, t, first, far, ahead):
        return -1, -1
    if not per_stage and np.random.random() < 0.3:
        for other in range(stage + 1):
            if new < costs.many[other]:
                one = other << low | micro
                treat(prog, length, mode, costs, t, one, new, ahead, np.random.randint(0, FAR))
    return 0, len(length) - 1


@part
def _swap(prog, length, mode, costs, t, one, two, ahead, behind):
    """Exchange the treatments of two activations of a stage."""
    high = costs.high
    was, other = mode[one], mode[two]
    offloaded, other_offloaded = is_offloaded(t, one, high), is_offloaded(t, two, high)
    treat(prog, length, mode, costs, t, one, other, ahead, behind)
    treat(prog, length, mode, costs, t, two, was, ahead, behind)
    if offloaded != other_offloaded:
        if offloaded:
            drop_offload(prog, length, costs, t, one)
            add_offload(prog, length, mode, costs, t, two, ahead)
        else:
            drop_offload(prog, length, costs, t, two)
            add_offload(prog, length, mode, costs, t, one, ahead)


@part
def _copy_neighbour(prog, length, mode, costs, t, d, other):
    """Copy the program and the treatments of a neighbour to device d, with one stage on each."""
    low = costs.low
    for j in range(costs.microbatches):
        unit, new = d << low | j, mode[other << low | j]
        if new == mode[unit] or t.filled[0] >= len(t.touched):
            continue
        set_mode(mode, t, unit, new)
    for at in range(length[d]):
        t.slot[prog[d, at]] = -1
    for at in range(length[other]):
        put(prog, t, d, at, prog[other, at] + ((d - other) << low))
    length[d] = length[other]


@part
def _repeat(prog, length, mode, costs, t, code, offloads, per_stage):
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
    what = np.random.random()
    flips = offloads and what < 0.15
    treats = 0.15 <= what < 0.4
    if (flips or treats) and per_stage:
        micro, run, every = 0, m, 1
    elif not flips and not treats and np.random.random() < (0.05 if wide else 0.2):
        run = m
    ahead, behind = np.random.randint(0, FAR), np.random.randint(0, FAR)
    new, offloaded = draw_mode(mode, costs, unit), is_offloaded(t, unit, high)
    trade = np.random.random() < 0.3
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
                treat(prog, length, mode, costs, t, one, new, ahead, behind)
            if flips or (treats and trade and offloads):
                if offloaded:
                    drop_offload(prog, length, costs, t, one)
                else:
                    add_offload(prog, length, mode, costs, t, one, ahead)
            elif not treats:
                at = t.slot[kind << high | one]
                if at >= 0:
                    to = min(max(at + by, 0), length[d] - 1)
                    shift(prog, t.slot, d, at, to, low, high)
    return first, last
