"""ZB-1p and ZB-2p: zero-bubble schedules fitted to the costs and to any memory limit.

A greedy in rounds runs with every setting of three switches; the result with the least longest
device span is kept. Source: Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), section
3.1 and table 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ..ops import B, F
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size
from .greedy import Growing, LastW, device_limits


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
    runs = (
        _grow(costs, microbatches, limits, *switches)
        for switches in product((False, True), repeat=3)
    )
    return min(runs, key=lambda grown: grown.longest_span).schedule()


def _grow(
    costs: CostProfile,
    microbatches: int,
    limits: Sequence[int],
    eager: bool,
    skipping: bool,
    always_fill: bool,
) -> Growing:
    """Run the greedy once. Each round appends the next B, from the last rank to the first, then at
    most one more F per rank, from the first to the last.

    So before round i every rank has more than i forwards, and its B can run: after its i-th B and
    the W's, a rank without further F's holds no activation, and has room for the next one.

    Args:
        eager: warm-up forwards may end after the first B could start.
        skipping: a rank well ahead of its successor skips an F that would make its B late.
        always_fill: see `LastW`.
    """
    grown = Growing(costs, microbatches, limits)
    last = LastW.ALWAYS if always_fill else LastW.PAST_SLACK
    ranks = range(costs.devices)
    _warm_up(grown, eager)
    for done in range(1, microbatches + 1):
        for rank in reversed(ranks):
            grown.fill(rank, grown.arrival(B, rank), last)
            grown.put(B, rank)
        due = _next_backwards(grown) if skipping else None
        for rank in ranks:
            if not grown.exists(F, rank):
                continue
            needed = grown.count(F, rank) <= done
            if due and not needed and _makes_late(grown, rank, due[rank]):
                continue
            if grown.make_room(rank, costs.stages[rank].act_bytes):
                grown.fill(rank, grown.arrival(F, rank), last)
                grown.put(F, rank)
    grown.finish()
    return grown


def _warm_up(grown: Growing, eager: bool) -> None:
    """Append F of microbatch 0 everywhere; then, from the last rank back, more forwards down to
    that rank while they fit into memory and end (with `eager`: start) before the first B can
    start.

    Each rank keeps fewer forwards than the previous rank has room for, so that one F per round can
    flow through all of them.
    """
    costs, ranks = grown.costs.stages, range(grown.devices)
    latency = grown.costs.t_comm_ns
    capacity = []
    for rank in ranks:
        grown.put(F, rank)
        size, free = costs[rank].act_bytes, grown.limits[rank] - grown.costs.static_bytes[rank]
        capacity.append(free // size if size else grown.microbatches + grown.devices)
    first_backward = grown.free_at[-1]
    for rank in reversed(ranks):
        most = min(capacity[before] - (rank - before) for before in range(rank + 1))
        while grown.exists(F, 0) and grown.count(F, rank) < most:
            start = end = 0
            for before in range(rank + 1):
                start = max(end + latency if before else 0, grown.free_at[before])
                end = start + costs[before].t_f_ns
            if (start if eager else end) > first_backward:
                break
            for before in range(rank + 1):
                grown.put(F, before)
        first_backward += costs[rank].t_b_ns + latency


def _next_backwards(grown: Growing) -> list[int]:
    """Return, per rank, when the next B could arrive from its successor if every rank ran one more
    F first."""
    costs, latency = grown.costs.stages, grown.costs.t_comm_ns
    due, arrival = [0] * grown.devices, 0
    for rank in reversed(range(grown.devices)):
        due[rank] = arrival
        more = costs[rank].t_f_ns if grown.count(F, rank) < grown.microbatches else 0
        arrival = max(arrival, grown.free_at[rank] + more) + costs[rank].t_b_ns + latency
    return due


def _makes_late(grown: Growing, rank: int, due: int) -> bool:
    """Whether this rank is at least two forwards ahead of its successor and one more would delay
    its B more than it can afford."""
    if rank + 1 == grown.devices or grown.count(F, rank) < grown.count(F, rank + 1) + 2:
        return False
    end = max(grown.free_at[rank], grown.arrival(F, rank)) + grown.costs.stages[rank].t_f_ns
    return end > due + grown.slack(rank)
