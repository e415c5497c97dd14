"""ZB-1p and ZB-2p: zero-bubble schedules fitted to the costs and to any memory limit.

A greedy in rounds runs with every setting of three switches; the result with the least longest
device span is kept. Source: Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), section
3.1 and table 5.
"""

from __future__ import annotations

from itertools import product

from ..codes import B, F
from ..compiled import entry, step
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size
from .greedy import (
    ALWAYS,
    FREE,
    LATENCY,
    LIMIT,
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
    slack,
)


def zb_1p(profile: CostProfile, microbatches: int, limit: Size | None = None) -> Schedule:
    """Build the automatic zero-bubble schedule within 1F1B's memory; one chunk per device, any m.

    Each device holds at most p activations of its stage in addition to its static bytes (or `limit`
    bytes in total), with any durations. At p = 4, m = 6::

        0 F0 F1 F2 F3 .  .  .  B0 W0 F4 B1 W1 F5 B2 W2 B3 W3 B4 W4 B5 W5
        1 .  F0 F1 F2 .  .  B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 B4 W3 B5 W4 W5
        2 .  .  F0 F1 .  B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 B5 W3 W4 W5
        3 .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 W3 W4 W5

    Args:
        profile: merged or divided to one chunk per device.
        microbatches: m.
        limit: bytes per device, static included, instead of p activations.

    Raises:
        OutOfMemory: if `limit` does not hold one activation; names the least limit.
    """
    return _best(profile, microbatches, limit, 1)


def zb_2p(profile: CostProfile, microbatches: int, limit: Size | None = None) -> Schedule:
    """Build the automatic zero-bubble schedule within twice 1F1B's memory: almost no bubble.

    As `zb_1p`, with 2p activations. At p = 4, m = 8::

        0 F0 F1 F2 F3 F4 F5 F6 B0 F7 B1 W0 B2 W1 B3 W2 B4 W3 B5 W4 B6 W5 B7 W6 W7 .  .  .
        1 .  F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 F7 B3 W0 B4 W1 B5 W2 B6 W3 B7 W4 W5 W6 W7 .  .
        2 .  .  F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 W0 B6 W1 B7 W2 W3 W4 W5 W6 W7 .
        3 .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 W0 W1 W2 W3 W4 W5 W6 W7

    Raises:
        OutOfMemory: if `limit` does not hold one activation; names the least limit.
    """
    return _best(profile, microbatches, limit, 2)


def _best(profile: CostProfile, microbatches: int, limit: Size | None, slots: int) -> Schedule:
    costs = profile.rechunk(1)
    limits = device_limits(costs, limit, slots * costs.devices)
    runs = []
    for switches in product((False, True), repeat=3):
        runs.append(begin(costs, microbatches, limits))
        _grow(runs[-1], *switches)
    return as_schedule(min(runs, key=longest_span), costs)


@entry
def _grow(g: Grown, eager: bool, skipping: bool, always_fill: bool) -> None:
    """Run the greedy once. Each round appends the next B, from the last rank to the first, then at
    most one more F per rank, from the first to the last.

    So before round i every rank has more than i forwards, and its B can run: after its i-th B and
    the W's, a rank without further F's holds no activation, and has room for the next one.

    Args:
        g: without ops.
        eager: warm-up forwards may end after the first B could start.
        skipping: a rank well ahead of its successor skips an F that would make its B late.
        always_fill: a W also fills a wait that is too short for it.
    """
    p = g.device.shape[1]
    last = ALWAYS if always_fill else PAST_SLACK
    _warm_up(g, eager)
    for done in range(1, g.ends.shape[2] + 1):
        for rank in range(p - 1, -1, -1):
            fill(g, rank, arrival(g, B, rank), last)
            put(g, B, rank)
        if skipping:
            _next_backwards(g)
        for rank in range(p):
            if not exists(g, F, rank):
                continue
            if skipping and g.done[F, rank] > done and _makes_late(g, rank):
                continue
            if make_room(g, rank, g.net[F, rank]):
                fill(g, rank, arrival(g, F, rank), last)
                put(g, F, rank)
    finish(g)


@step
def _most(g: Grown, rank: int) -> int:
    """Return how many forwards a rank may have before the first backward: fewer than the previous rank has
    room for, so that one F per round can flow through all of them."""
    most = g.ends.shape[2] + g.device.shape[1]
    for before in range(rank + 1):
        size = g.net[F, before]
        if size:
            capacity = (g.device[LIMIT, before] - g.device[STATIC, before]) // size
            most = min(most, capacity - (rank - before))
    return int(most)


@step
def _warm_up(g: Grown, eager: bool) -> None:
    """Append F of microbatch 0 everywhere; then, from the last rank back, more forwards down to
    that rank while they fit into memory and end (with `eager`: start) before the first B can
    start."""
    p = g.device.shape[1]
    for rank in range(p):
        put(g, F, rank)
    first_backward = g.device[FREE, p - 1]
    for rank in range(p - 1, -1, -1):
        most = _most(g, rank)
        while exists(g, F, 0) and g.done[F, rank] < most:
            start = end = 0
            for before in range(rank + 1):
                arrives = end + g.stage[LATENCY, before - 1] if before else 0
                start = max(arrives, g.device[FREE, before])
                end = start + g.duration[F, before]
            if (start if eager else end) > first_backward:
                break
            for before in range(rank + 1):
                put(g, F, before)
        first_backward += g.duration[B, rank] + (g.stage[LATENCY, rank - 1] if rank else 0)


@step
def _next_backwards(g: Grown) -> None:
    """Note, per rank, when the next B could arrive from its successor if every rank ran one more
    F first."""
    arrives = 0
    for rank in range(g.device.shape[1] - 1, -1, -1):
        g.chosen[rank] = arrives
        more = g.duration[F, rank] if g.done[F, rank] < g.ends.shape[2] else 0
        end = max(arrives, g.device[FREE, rank] + more) + g.duration[B, rank]
        arrives = end + (g.stage[LATENCY, rank - 1] if rank else 0)


@step
def _makes_late(g: Grown, rank: int) -> bool:
    """Whether this rank is at least two forwards ahead of its successor and one more would delay
    its B more than it can afford."""
    if rank + 1 == g.device.shape[1] or g.done[F, rank] < g.done[F, rank + 1] + 2:
        return False
    end = max(g.device[FREE, rank], arrival(g, F, rank)) + g.duration[F, rank]
    return bool(end > g.chosen[rank] + slack(g, rank))
