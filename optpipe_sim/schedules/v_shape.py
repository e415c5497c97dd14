"""V-Min and V-Half: a block of cells repeated on the vee placement, for a third or half the memory.

A block gives every device the two forwards and two backwards of a microbatch; it is laid so that
activations live short, and is repeated every six unit slots. The weight gradients fill the gaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..ops import B, F, Op, W, dependencies
from ..profile import CostProfile
from ..schedule import Schedule, Shape

_BLOCK = 6  # unit slots from one microbatch to the next: F, B, W of two chunks
_CELLS = ((F, 0), (F, 1), (B, 1), (B, 0))  # kind and chunk of a device's cells, as they follow
_Grid = list[dict[int, Op]]  # per device, the op in each slot


def v_min(profile: CostProfile, microbatches: int) -> Schedule:
    """V-Min: the least memory of the V family, about a third of 1F1B's, two thirds of its bubble.

    At equal costs no device holds more than 2*((p+4)//3) chunk activations. Where costs differ the
    bubble grows with m: the pattern does not look at them.

    At p = 4, m = 6, one cell per unit::

        0 F0 F1 .  .  .  .  .  f0 b0 F2 w0 .  .  f1 b1 B0 w1 F3 W0 f2 b2 B1 w2 F4 W1 f3 b3 B2 w3 F5 W2 f4 b4 B3 w4 W3 .  f5 b5 B4 w5 W4 .  .  .  B5 W5
    1 .  F0 .  .  .  .  f0 F1 .  b0 w0 .  f1 F2 B0 b1 W0 w1 f2 F3 B1 b2 W1 w2 f3 F4 B2 b3 W2 w3 f4 F5 B3 b4 W3 w4 f5 .  B4 b5 W4 w5 .  .  B5 W5 .
    2 .  .  F0 .  .  f0 .  .  F1 .  b0 f1 w0 B0 F2 W0 b1 f2 w1 B1 F3 W1 b2 f3 w2 B2 F4 W2 b3 f4 w3 B3 F5 W3 b4 f5 w4 B4 W4 .  b5 w5 .  B5 W5 .  .
    3 .  .  .  F0 f0 .  .  .  .  F1 f1 b0 B0 w0 W0 F2 f2 b1 B1 w1 W1 F3 f3 b2 B2 w2 W2 F4 f4 b3 B3 w3 W3 F5 f5 b4 B4 w4 W4 .  .  b5 B5 w5 W5 .  .

    Source: Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), V-Min.
    """
    costs = profile.rechunk(2, "vee")
    p = costs.devices
    shift = 0 if p % 3 else 2  # else two cells of a device would meet
    cells = [(d, 2 * p - 1 - d, 2 * p + shift + d, 4 * p + shift - 1 - d) for d in range(p)]
    shape = costs.shape(microbatches)
    return _with_weights(_repeat(cells, shape), shape, 2 * ((p + 4) // 3))


def v_half(profile: CostProfile, microbatches: int) -> Schedule:
    """V-Half: half the memory of 1F1B, and half its bubble or less.

    At equal costs no device holds more than 2*((p+2)//2) chunk activations; the bubble stays the
    same for any m as long as W + 2B >= 2F and W + 2F >= 2B. The ops of warm-up and drain move
    forward into gaps of the repeated block.

    At p = 4, m = 6, one cell per unit::

        0 F0 F1 F2 F3 F4 .  .  f0 b0 w0 f1 b1 w1 f2 .  .  B0 b2 W0 f3 b3 w2 F5 B1 w3 W1 f4 b4 B2 w4 W2 f5 b5 B3 w5 B4 W3 W4 .  B5 W5
    1 .  F0 F1 F2 F3 .  f0 .  f1 b0 w0 f2 b1 w1 .  B0 F4 W0 f3 b2 B1 w2 W1 F5 b3 f4 B2 w3 b4 W2 f5 w4 B3 b5 B4 W3 w5 W4 B5 W5 .
    2 .  .  F0 F1 F2 f0 .  f1 .  f2 b0 w0 F3 b1 B0 w1 W0 f3 F4 B1 b2 W1 w2 f4 F5 B2 b3 W2 w3 f5 b4 B3 w4 B4 b5 W3 W4 B5 w5 W5 .
    3 .  .  .  F0 f0 F1 f1 F2 f2 .  .  b0 B0 w0 F3 W0 f3 b1 B1 w1 F4 W1 f4 b2 B2 w2 F5 W2 f5 b3 B3 b4 B4 w3 W3 b5 B5 w4 W4 w5 W5

    Source: Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), V-Half.
    """
    costs = profile.rechunk(2, "vee")
    p, m = costs.devices, microbatches
    shift = 3 if p % 2 == 0 else 0
    cells = [
        (2 * d, 3 * p - 2 - d, 3 * p + shift + 2 * d - 1, 6 * p + shift - 2 - d) for d in range(p)
    ]
    shape, limit = costs.shape(m), 2 * ((p + 2) // 2)
    grid = _repeat(cells, shape)
    # steady from rank 0's first backward of chunk 0 to its last forward of chunk 0
    _move_forward(grid, shape, limit, (cells[0][3], cells[0][0] + _BLOCK * (m - 1)))
    return _with_weights(grid, shape, limit)


def _repeat(cells: Sequence[Sequence[int]], shape: Shape) -> _Grid:
    """The block of `cells` (per device, the slots of `_CELLS`), once per microbatch."""
    return [
        {
            slot + _BLOCK * microbatch: Op(kind, shape.stages_of(rank)[chunk], microbatch)
            for slot, (kind, chunk) in zip(slots, _CELLS, strict=True)
            for microbatch in range(shape.microbatches)
        }
        for rank, slots in enumerate(cells)
    ]


def _move_forward(grid: _Grid, shape: Shape, limit: int, steady: tuple[int, int]) -> None:
    """Move each op outside the steady slots to the earliest free slot after its dependencies at
    which its device still holds at most `limit` chunk activations."""
    slot_of = {op: slot for slots in grid for slot, op in slots.items()}
    held = [_held(slots) for slots in grid]
    for slot, op in sorted((slot, op) for op, slot in slot_of.items()):
        if steady[0] <= slot <= steady[1]:
            continue
        rank = shape.placement[op.stage]
        to = max((slot_of[need] + 1 for need in dependencies(op) if need in slot_of), default=0)
        if op.kind is F:
            full = slot
            while full > to and held[rank][full - 1] < limit:
                full -= 1
            to = full
        while to < slot and to in grid[rank]:
            to += 1
        if to == slot:
            continue
        grid[rank][to] = grid[rank].pop(slot)
        slot_of[op] = to
        if op.kind is F:  # held from its slot on; what a B releases is free in the slot after it
            for at in range(to, slot):
                held[rank][at] += 1
        else:
            for at in range(to + 1, slot + 1):
                held[rank][at] -= 1


def _held(slots: dict[int, Op]) -> list[int]:
    """The activations held in each slot, from F to B."""
    changes = [0] * (max(slots) + 2)
    for slot, op in slots.items():
        changes[slot if op.kind is F else slot + 1] += 1 if op.kind is F else -1
    level, levels = 0, []
    for change in changes:
        level += change
        levels.append(level)
    return levels


def _with_weights(grid: _Grid, shape: Shape, limit: int) -> Schedule:
    """The schedule of a grid of F's and B's, run once at unit costs to put in the W's.

    A device whose next op has to wait does its oldest pending W instead. Memory counts from F to W
    here, so that `limit` (chunk activations) holds even where W needs all of the activation: an F
    that finds no room waits for a W.
    """
    orders = [deque(slots[slot] for slot in sorted(slots)) for slots in grid]
    there = {op for order in orders for op in order}
    programs: list[list[Op]] = [[] for _ in orders]
    pending: list[deque[Op]] = [deque() for _ in orders]
    held, ended, now = [0] * len(orders), dict[Op, int](), 0
    while any(orders) or any(pending):
        now += 1
        for order, waiting, program, rank in zip(
            orders, pending, programs, range(len(orders)), strict=True
        ):
            op = order[0] if order else None
            if (
                op is not None
                and not (op.kind is F and held[rank] >= limit)
                and all(ended.get(need, now) < now for need in dependencies(op) if need in there)
            ):
                order.popleft()
            elif waiting:
                op = waiting.popleft()
            else:
                continue
            program.append(op)
            ended[op] = now
            if op.kind is B:
                waiting.append(op._replace(kind=W))
            else:
                held[rank] += 1 if op.kind is F else -1
    return Schedule(shape, programs)
