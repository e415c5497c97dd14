"""V-Min and V-Half: a block of cells repeated on the vee placement, for a third or half the memory.

A block contains the two forwards and two backwards of a microbatch on every device; it is arranged
so that activations have short lifetimes, and is repeated every six unit slots. The weight gradients
fill the gaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np

from .. import codes
from ..compiled import entry
from ..ops import B, F, Op, W
from ..profile import CostProfile
from ..schedule import Schedule, Shape
from ..sim import simulate
from ..stage_cost import StageCost
from .greedy import (
    HOME,
    NEVER,
    Grown,
    arrival,
    as_schedule,
    begin,
    fill,
    finish,
    make_room,
    put,
)
from .slots import (
    BEFORE_ALL,
    Grid,
    Place,
    kinds_of,
    most_held,
    move_forward,
    released_after_b,
    released_at_w,
    released_in_free_slots,
    repeat,
    retimed,
    with_weights,
)

_CELLS = ((F, 0), (F, 1), (B, 1), (B, 0))  # kind and chunk of a device's cells, in order


def v_min(profile: CostProfile, microbatches: int) -> Schedule:
    """Build V-Min: the least memory of the V family, about a third of 1F1B's, with two thirds of
    its bubble.

    No device holds more than 2*((p+4)//3) chunk activations. Where costs differ the bubble grows
    with m, as the pattern ignores them; `_fastest` describes what takes them into account.

    At p = 4, m = 6, one cell per unit::

        0 F0 F1 F2 .  .  .  .  f0 b0 w0 f1 b1 w1 .  .  B0 F3 W0 .  f2 b2 B1 w2 F4 W1 f3 b3 B2 w3 F5 W2 f4 b4 B3 w4 W3 .  f5 b5 B4 w5 W4 .  .  .  B5 W5
    1 .  F0 F1 .  .  .  f0 .  f1 b0 w0 F2 .  .  B0 b1 W0 w1 f2 F3 B1 b2 W1 w2 f3 F4 B2 b3 W2 w3 f4 F5 B3 b4 W3 w4 f5 .  B4 b5 W4 w5 .  .  B5 W5 .
    2 .  .  F0 F1 .  f0 .  f1 .  .  b0 w0 F2 B0 W0 .  b1 f2 w1 B1 F3 W1 b2 f3 w2 B2 F4 W2 b3 f4 w3 B3 F5 W3 b4 f5 w4 B4 W4 .  b5 w5 .  B5 W5 .  .
    3 .  .  .  F0 f0 F1 f1 .  .  .  .  b0 B0 w0 F2 W0 f2 b1 B1 w1 W1 F3 f3 b2 B2 w2 W2 F4 f4 b3 B3 w3 W3 F5 f5 b4 B4 w4 W4 .  .  b5 B5 w5 W5 .  .

    Source: Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), V-Min.
    """
    costs = profile.rechunk(2, "vee")
    p = costs.devices
    shift = 0 if p % 3 else 2  # else two cells of a device would collide
    cells = [(d, 2 * p - 1 - d, 2 * p + shift + d, 4 * p + shift - 1 - d) for d in range(p)]
    return _fastest(cells, costs, microbatches, 2 * ((p + 4) // 3))


def v_half(profile: CostProfile, microbatches: int) -> Schedule:
    """Build V-Half: half the memory of 1F1B, and at most half its bubble.

    No device holds more than 2*((p+2)//2) chunk activations; with free messages the bubble is the
    same for any m as long as W + 2B >= 2F and W + 2F >= 2B. The ops of warm-up and cool-down move
    forward into gaps of the repeated block; see `_fastest`.

    At p = 4, m = 6, one cell per unit::

        0 F0 F1 F2 F3 F4 .  .  f0 b0 w0 f1 b1 w1 f2 .  .  B0 b2 W0 f3 b3 w2 F5 B1 w3 W1 f4 b4 B2 w4 W2 f5 b5 B3 w5 B4 W3 W4 .  B5 W5
    1 .  F0 F1 F2 F3 .  f0 .  f1 b0 w0 f2 b1 w1 .  B0 F4 W0 f3 b2 B1 w2 W1 F5 b3 f4 B2 w3 b4 W2 f5 w4 B3 b5 B4 W3 w5 W4 B5 W5 .
    2 .  .  F0 F1 F2 f0 .  f1 .  f2 b0 w0 F3 b1 B0 w1 W0 f3 F4 B1 b2 W1 w2 f4 F5 B2 b3 W2 w3 f5 b4 B3 w4 B4 b5 W3 W4 B5 w5 W5 .
    3 .  .  .  F0 f0 F1 f1 F2 f2 .  .  b0 B0 w0 F3 W0 f3 b1 B1 w1 F4 W1 f4 b2 B2 w2 F5 W2 f5 b3 B3 b4 B4 w3 W3 b5 B5 w4 W4 w5 W5

    Source: Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), V-Half.
    """
    costs = profile.rechunk(2, "vee")
    p = costs.devices
    shift = 3 if p % 2 == 0 else 0
    cells = [
        (2 * d, 3 * p - 2 - d, 3 * p + shift + 2 * d - 1, 6 * p + shift - 2 - d) for d in range(p)
    ]
    return _fastest(cells, costs, microbatches, 2 * ((p + 2) // 2))


def _fastest(
    cells: Sequence[Sequence[int]], costs: CostProfile, microbatches: int, limit: int
) -> Schedule:
    """Return the best of a few schedules of the same block: the authors', and those that run W's
    where devices wait, at unit costs or at the given costs, in two orders of forwards and
    backwards.

    The shortest makespan wins, among those with no more memory than the authors' schedule; no
    device holds more than `limit` chunk activations from F to W.
    """
    shape = costs.shape(microbatches)
    closed, reordered = _grids(tuple(map(tuple, cells)), shape, limit)
    authors = simulate(_as_laid(reordered, shape), costs, enforce=False)
    found = [
        simulate(schedule, costs, enforce=False)
        for grid, planned in product((closed, reordered), (_unit(costs), _counted(costs)))
        if (schedule := _where_devices_wait(grid, planned, microbatches, limit)) is not None
    ]
    most = max(authors.peak_bytes)
    fitting = [trace for trace in found if max(trace.peak_bytes) <= most]
    return min(
        [*fitting, authors], key=lambda trace: (trace.makespan_ns, max(trace.peak_bytes))
    ).schedule


@lru_cache(maxsize=4)
def _grids(cells: tuple[tuple[int, ...], ...], shape: Shape, limit: int) -> tuple[Grid, Grid]:
    """Make the two orders of the block, which do not depend on the costs; callers must not modify them."""
    block = repeat(cells, _CELLS, shape)
    return _closed(block, shape, limit), _reordered(block, shape)


def _reordered(block: Grid, shape: Shape) -> Grid:
    """Make the authors' order: the ops of warm-up and cool-down, W's included, move forward; then,
    without the W's, those of the cool-down once more."""
    laid = with_weights(block)
    most = max(most_held(kinds_of(slots), released_at_w) for slots in laid)
    move_forward(laid, _steady(laid, shape), most, released_at_w)
    grid = retimed(laid)
    most = max(most_held(kinds_of(slots), released_in_free_slots) for slots in grid)
    move_forward(grid, (BEFORE_ALL, _steady(grid, shape)[1]), most, released_in_free_slots)
    return retimed(with_weights(grid))


def _steady(grid: Grid, shape: Shape) -> tuple[Place, Place]:
    """Return the steady slots: from rank 0's first B of chunk 0 to the first of the last
    microbatch's forwards of chunk 0 that is not before it; to the end if there is none."""
    p, last = shape.devices, shape.microbatches - 1
    begin = min((slot, 0) for slot, op in grid[0].items() if op == Op(B, 0, 0))
    ends = [
        (slot, rank)
        for rank, slots in enumerate(grid)
        for slot, op in slots.items()
        if op.kind is F and op.stage < p and op.microbatch == last and (slot, rank) > begin
    ]
    return begin, min(ends, default=(max(map(max, grid)), p))


def _closed(block: Grid, shape: Shape, limit: int) -> Grid:
    """Make another order: the ops before rank 0's first B of chunk 0 and after its last F of chunk
    0 move forward as if each W came right after its B."""
    grid = [dict(slots) for slots in block]
    slot_of = {op: slot for slot, op in grid[0].items()}
    last = shape.microbatches - 1
    steady = (slot_of[Op(B, 0, 0)], 0), (slot_of[Op(F, 0, last)], shape.devices)
    move_forward(grid, steady, limit, released_after_b)
    return grid


def _as_laid(grid: Grid, shape: Shape) -> Schedule:
    """Make the schedule of a grid, with W's in its free slots, those of chunk 1 first."""
    programs = []
    for slots in grid:
        program: list[Op] = []
        pending: tuple[deque[Op], deque[Op]] = (deque(), deque())
        slot, last = 0, max(slots)
        while slot <= last or any(pending):
            op = slots.get(slot)
            if op is not None:
                program.append(op)
            elif any(pending):
                program.append((pending[0] or pending[1]).popleft())
            if op is not None and op.kind is B:
                pending[op.stage < shape.devices].append(op._replace(kind=W))
            slot += 1
        programs.append(program)
    return Schedule(shape, programs)


def _counted(costs: CostProfile) -> CostProfile:
    """Return the costs with one byte per activation, held from F to W, so that bytes count activations."""
    return replace(costs, offload=None).map_stages(
        lambda _, cost: StageCost(cost.t_f_ns, cost.t_b_ns, cost.t_w_ns, 1, 1)
    )


def _unit(costs: CostProfile) -> CostProfile:
    """As `_counted`, with ops of equal duration and free messages."""
    unit = replace(costs, offload=None).map_stages(lambda _, cost: StageCost(1, 1, 1, 1, 1))
    return replace(unit, latency_ns=0, occupancy_ns=0)


def _where_devices_wait(
    grid: Grid, costs: CostProfile, microbatches: int, limit: int
) -> Schedule | None:
    """Run the F's and B's in the order of a grid. A device that waits for its next op runs the W's
    that fit into the wait, and, before an F that does not fit in memory, as many as free it.
    None if that is not enough."""
    grown = begin(costs, microbatches, [limit] * costs.devices)
    places = sorted(
        (slot, rank, op.kind, op.stage)
        for rank, slots in enumerate(grid)
        for slot, op in slots.items()
    )
    if not _follow(grown, np.array(places)[:, 2:]):
        return None
    return as_schedule(grown, costs)


@entry
def _follow(g: Grown, ops: np.ndarray) -> bool:
    """Append F's and B's (kind, stage) in this order, W's in the waits before them, and the other W's; False if
    an F does not fit."""
    for at in range(len(ops)):
        kind, s = ops[at, 0], ops[at, 1]
        d = g.stage[HOME, s]
        if kind == codes.F and not make_room(g, d, g.net[codes.F, s]):
            return False
        fill(g, d, arrival(g, kind, s), NEVER)
        put(g, kind, s)
    finish(g)
    return True
