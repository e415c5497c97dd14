"""ZB-V: zero bubble at 1F1B's memory, with two chunks per device in the shape of a V."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ..codes import B, F
from ..compiled import entry, part, step
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size
from .greedy import (
    FREE,
    HOME,
    LIMIT,
    MOST_IDLE,
    NEVER,
    PAST_SLACK,
    STATIC,
    Grown,
    arrival,
    as_schedule,
    begin,
    device_limits,
    exists,
    fill,
    finish,
    longest_span,
    make_room,
    put,
    room,
)


def zb_v(profile: CostProfile, microbatches: int, limit: Size | None = None) -> Schedule:
    """Build the zero-bubble schedule on the V placement; any m.

    The first device also has the last stage, so the first backward starts there directly, and all
    devices need the same memory: at most 2p chunk activations (as much as 1F1B's p) in addition to
    the static bytes, or `limit` bytes in total. No bubble at equal costs without communication. At
    p = 4, m = 6 (lower case: the second chunk)::

        0 F0 F1 F2 F3 F4 F5 .  f0 b0 f1 b1 w0 f2 b2 w1 f3 b3 w2 B0 w3 f4 b4 W0 B1 w4 f5 b5 B2 W1 B3 w5 B4 W2 B5 W3 W4 W5 .  .
        1 .  F0 F1 F2 F3 F4 f0 F5 f1 b0 w0 f2 b1 w1 f3 b2 w2 B0 W0 f4 b3 w3 B1 W1 f5 b4 B2 b5 B3 w4 B4 W2 B5 w5 W3 W4 W5 .  .
        2 .  .  F0 F1 F2 f0 F3 f1 F4 f2 b0 w0 f3 b1 w1 F5 B0 W0 f4 b2 w2 B1 W1 f5 b3 B2 b4 B3 b5 B4 w3 B5 W2 w4 W3 w5 W4 W5 .
        3 .  .  .  F0 f0 F1 f1 F2 f2 F3 f3 b0 w0 F4 B0 W0 f4 b1 w1 F5 B1 W1 f5 b2 B2 b3 B3 b4 B4 b5 B5 w2 W2 w3 W3 w4 W4 w5 W5

    A greedy in rounds runs with every setting of two switches, each repeatedly with the slack
    widened by the idle time of the previous run while that helps; the least longest device span is
    kept.

    Args:
        profile: re-chunked to two chunks per device, placement ``vee``.
        microbatches: m.
        limit: bytes per device, static included, instead of 2p chunk activations.

    Raises:
        OutOfMemory: if `limit` does not hold one microbatch; names the least limit.

    Source: Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), section 6 and table 8;
    Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), V-ZB.
    """
    costs = profile.rechunk(2, "vee")
    limits = device_limits(costs, limit, 2 * costs.devices)
    runs = (
        _widened(costs, microbatches, limits, *switches)
        for switches in product((False, True), repeat=2)
    )
    return as_schedule(min(runs, key=longest_span), costs)


def _widened(
    costs: CostProfile, microbatches: int, limits: Sequence[int], *switches: bool
) -> Grown:
    """Return the best of several runs, each of which is given the largest idle time of the previous one."""
    best, idle = None, 0
    while True:
        run = begin(costs, microbatches, limits, idle)
        _grow(run, *switches)
        if best is not None and longest_span(run) >= longest_span(best):
            return best
        best, idle = run, int(run.state[MOST_IDLE])


@entry
def _grow(g: Grown, delay_upward: bool, delay_forward: bool) -> None:
    """Run the greedy once.

    Args:
        g: without ops.
        delay_upward: a W may make a B of chunk 1 late (one of chunk 0 always may).
        delay_forward: a W may make an F late.
    """
    _first_microbatch(g)
    _level(g)
    left = True
    while left:
        _backwards(g, PAST_SLACK if delay_upward else NEVER)
        _forwards(g, PAST_SLACK if delay_forward else NEVER)
        left = False
        for s in range(g.device.shape[1]):
            left = left or g.done[B, s] < g.ends.shape[2]
    finish(g)


@part
def _safe(g: Grown, s: int) -> bool:
    """Whether this stage may run one more F without a later deadlock.

    Whatever the chunk-0 activations of a device that still wait for their chunk-1 forward, one
    chunk-1 activation must fit beside them. Then the next op of the oldest microbatch always finds
    room, once the microbatches before it are done, under any limit that holds one microbatch.
    """
    if s >= g.device.shape[1]:
        return True
    top = g.stage.shape[1] - 1 - s
    waiting = 1 + g.done[F, s] - g.done[F, top]
    needed = waiting * g.net[F, s] + g.net[F, top]
    return bool(needed <= g.device[LIMIT, s] - g.device[STATIC, s])


@step
def _more_fit(g: Grown, rank: int) -> bool:
    """Whether one more chunk-0 forward on ranks 0..rank delays the first microbatch's return to this rank
    by nothing, and leaves memory for 2 + 2 * rank chunks."""
    top = g.stage.shape[1] - 1 - rank
    spare = (2 + 2 * rank) * max(g.net[F, rank], g.net[F, top])
    if not exists(g, F, 0) or g.device[FREE, rank] >= arrival(g, F, top):
        return False
    if not room(g, rank, spare):
        return False
    for before in range(rank + 1):  # noqa: SIM110 - numba compiles no generators
        if not _safe(g, before):
            return False
    return True


@step
def _first_microbatch(g: Grown) -> None:
    """Append F of microbatch 0 down the V and up again; before it returns to rank i, more chunk-0
    forwards on ranks 0..i, as long as they do not delay it and memory for 2 + 2i chunks remains."""
    p = g.device.shape[1]
    for rank in range(p):
        put(g, F, rank)
    for rank in range(p - 1, -1, -1):
        while _more_fit(g, rank):
            for before in range(rank + 1):
                put(g, F, before)
        put(g, F, 2 * p - 1 - rank)


@step
def _level(g: Grown) -> None:
    """Append, for ranks 1, 2, ..., chunk-1 and chunk-0 forwards in turn from that rank to the last,
    until it has as many forwards as the previous rank, and more of chunk 1 (or no more fit)."""
    p = g.device.shape[1]
    for rank in range(1, p):
        idle_turns, upward = 0, True
        while idle_turns < 2 and not _is_level(g, rank):
            # in both directions in the order in which the microbatch flows
            progress = False
            for s in range(p, 2 * p - rank) if upward else range(rank, p):
                if _put_forward(g, s):
                    progress = True
            idle_turns = 0 if progress else idle_turns + 1
            upward = not upward


@step
def _is_level(g: Grown, rank: int) -> bool:
    top = g.stage.shape[1] - 1 - rank
    down, up = g.done[F, rank], g.done[F, top]
    down_before, up_before = g.done[F, rank - 1], g.done[F, top + 1]
    return bool(down + up >= down_before + up_before and up > up_before)


@step
def _may_forward(g: Grown, s: int) -> bool:
    """Whether the next F of a stage exists and fits, after the W's that make room for it; these are appended."""
    return exists(g, F, s) and _safe(g, s) and make_room(g, g.stage[HOME, s], g.net[F, s])


@part
def _put_forward(g: Grown, s: int) -> bool:
    """Append the next F of a stage if it exists and fits, whatever its device waits."""
    if not _may_forward(g, s):
        return False
    put(g, F, s)
    return True


@step
def _backwards(g: Grown, last_upward: int) -> None:
    """Append at most one B per rank: of chunk 1 if no B of chunk 0 is outstanding, else of chunk 0
    if its input is available, else of chunk 1."""
    p, top = g.device.shape[1], g.stage.shape[1] - 1
    for rank in range(p):
        done, done_1 = g.done[B, rank], g.done[B, top - rank]
        left = rank < p - 1 and done_1 < g.ends.shape[2]
        first = done == done_1 or (left and not exists(g, B, rank))
        g.chosen[rank] = top - rank if first else rank
    # chunk 0 from the last rank to the first, then chunk 1 from the first to the last
    for turn in range(2 * p):
        rank = p - 1 - turn if turn < p else turn - p
        s = rank if turn < p else top - rank
        if g.chosen[rank] == s and exists(g, B, s):
            fill(g, rank, arrival(g, B, s), PAST_SLACK if s < p else last_upward)
            put(g, B, s)


@step
def _forwards(g: Grown, last: int) -> None:
    """Append at most one F per rank: of chunk 0 if chunk 1 has caught up, else of chunk 1 if its
    input is available, else of chunk 0."""
    p, top = g.device.shape[1], g.stage.shape[1] - 1
    for rank in range(p):
        level = g.done[F, top - rank] == g.done[F, rank]
        s = rank if level or not exists(g, F, top - rank) else top - rank
        g.chosen[rank] = s if level or exists(g, F, s) else -1
    for s in range(2 * p):
        rank = s if s < p else top - s
        if g.chosen[rank] == s and _may_forward(g, s):
            fill(g, rank, arrival(g, F, s), last)
            put(g, F, s)
