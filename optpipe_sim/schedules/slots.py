"""Ops on unit slots: a repeated block of cells, whose warm-up and cool-down move forward into free
slots.

The weight gradients of a device are only numbered: ``Op(W, rank, k)`` is the k-th W of a device,
whichever backward it belongs to.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence

import numpy as np

from ..ops import B, F, Op, OpKind, W, dependencies
from ..schedule import Shape

Slots = dict[int, Op]  # the op in each occupied slot of one device
Grid = list[Slots]
Place = tuple[int, int]  # slot, device: the order in which ops are visited
Releases = Callable[[np.ndarray], np.ndarray]

FREE = -1
BEFORE_ALL = -1, 0


def repeat(
    cells: Sequence[Sequence[int]], kinds: Sequence[tuple[OpKind, int]], shape: Shape
) -> Grid:
    """Repeat a block of cells once per microbatch; the offset is the number of compute ops of a
    device per microbatch, weight gradients included.

    Args:
        cells: per device, the slots of its ops of the first microbatch.
        kinds: the kind and the chunk of each of these ops.
        shape: of the schedule.
    """
    length = 3 * shape.chunks
    return [
        {
            slot + length * microbatch: Op(kind, shape.stages_of(rank)[chunk], microbatch)
            for slot, (kind, chunk) in zip(slots, kinds, strict=True)
            for microbatch in range(shape.microbatches)
        }
        for rank, slots in enumerate(cells)
    ]


def with_weights(grid: Grid) -> Grid:
    """Place each device's W's in its free slots, as soon as possible after their B's."""
    found = []
    for rank, slots in enumerate(grid):
        filled, pending, done, slot = dict(slots), 0, 0, 0
        last = max(slots)
        while slot <= last or pending:
            op = slots.get(slot)
            if op is None and pending:
                filled[slot] = Op(W, rank, done)
                pending, done = pending - 1, done + 1
            pending += op is not None and op.kind is B
            slot += 1
        found.append(filled)
    return found


def kinds_of(slots: Slots) -> np.ndarray:
    """Return the kind of op in each slot of a device, FREE if there is none."""
    kinds = np.full(max(slots) + 1, FREE)
    kinds[list(slots)] = [op.kind for op in slots.values()]
    return kinds


def released_after_b(kinds: np.ndarray) -> np.ndarray:
    """Return how many activations are released by each slot: each in the slot after its B."""
    done: np.ndarray = kinds == B
    after: np.ndarray = np.cumsum(done) - done
    return after


def released_at_w(kinds: np.ndarray) -> np.ndarray:
    """As `released_after_b`, but each in the slot of its W."""
    return np.cumsum(kinds == W)


def released_in_free_slots(kinds: np.ndarray) -> np.ndarray:
    """As `released_at_w`, with a W in every free slot if one is pending."""
    free = np.cumsum(kinds == FREE)
    idle = free - np.cumsum(kinds == B)  # free slots beyond the number of B's so far cannot be used
    used: np.ndarray = free - np.maximum.accumulate(np.maximum(idle, 0))
    return used


def most_held(kinds: np.ndarray, releases: Releases) -> int:
    """Return the most activations that a device holds in any slot."""
    return int((np.cumsum(kinds == F) - releases(kinds)).max())


def move_forward(grid: Grid, steady: tuple[Place, Place], limit: int, releases: Releases) -> None:
    """Move each op outside the steady places to the earliest free slot in which its inputs, and the
    op of its kind and stage before it, are done, and its device still holds at most `limit`
    activations in any slot."""
    slot_of = {op: slot for slots in grid for slot, op in slots.items()}
    kinds = [kinds_of(slots) for slots in grid]
    backwards: list[list[int]] = [[] for _ in grid]  # per device, the slots of the B's so far
    places = sorted((at, rank, op) for rank, slots in enumerate(grid) for at, op in slots.items())
    for slot, rank, op in places:
        if not steady[0] <= (slot, rank) <= steady[1]:
            for to in range(_earliest(op, slot_of, backwards[rank]), slot):
                if kinds[rank][to] != FREE:
                    continue
                kinds[rank][slot], kinds[rank][to] = FREE, op.kind
                if most_held(kinds[rank], releases) <= limit:
                    slot_of[op] = to
                    grid[rank][to] = grid[rank].pop(slot)
                    break
                kinds[rank][slot], kinds[rank][to] = op.kind, FREE
        if op.kind is B:
            insort(backwards[rank], slot_of[op])


def _earliest(op: Op, slot_of: dict[Op, int], backwards: Sequence[int]) -> int:
    """Return the first slot in which the inputs of an op and the previous op of its kind are done."""
    if op.kind is W:
        done = [backwards[op.microbatch]]
    else:
        done = [slot_of[need] for need in dependencies(op) if need in slot_of]
    if op.microbatch:
        done.append(slot_of[op._replace(microbatch=op.microbatch - 1)])
    return max(done, default=-1) + 1


def retimed(grid: Grid) -> Grid:
    """Move the ops of a grid, in its order, to the first slot that their inputs permit; W's are
    removed and their slots stay free."""
    ended: dict[Op, int] = {}
    free_at = [0] * len(grid)
    found: Grid = [{} for _ in grid]
    places = sorted((at, rank, op) for rank, slots in enumerate(grid) for at, op in slots.items())
    for _, rank, op in places:
        slot = free_at[rank]
        if op.kind is not W:
            slot = max([slot, *(ended[need] for need in dependencies(op) if need in ended)])
            found[rank][slot] = op
            ended[op] = slot + 1
        free_at[rank] = slot + 1
    return found
