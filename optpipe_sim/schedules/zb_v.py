"""ZB-V: zero bubble at 1F1B's memory, with two chunks per device in the shape of a V."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ..ops import B, F
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size
from .greedy import Growing, LastW, device_limits


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
    return min(runs, key=lambda grown: grown.longest_span).schedule()


def _widened(
    costs: CostProfile, microbatches: int, limits: Sequence[int], *switches: bool
) -> Growing:
    """Return the best of several runs, each of which is given the largest idle time of the previous one."""
    best = _grow(costs, microbatches, limits, 0, *switches)
    while True:
        run = _grow(costs, microbatches, limits, best.most_idle, *switches)
        if run.longest_span >= best.longest_span:
            return best
        best = run


def _grow(
    costs: CostProfile,
    microbatches: int,
    limits: Sequence[int],
    expected_idle: int,
    delay_upward: bool,
    delay_forward: bool,
) -> Growing:
    """Run the greedy once.

    Args:
        expected_idle: see `Growing`.
        delay_upward: a W may make a B of chunk 1 late (one of chunk 0 always may).
        delay_forward: a W may make an F late.
    """
    grown = Growing(costs, microbatches, limits, expected_idle)
    _first_microbatch(grown)
    _level(grown)
    while any(grown.count(B, rank) < microbatches for rank in range(grown.devices)):
        _backwards(grown, LastW(delay_upward))
        _forwards(grown, LastW(delay_forward))
    grown.finish()
    return grown


def _safe(grown: Growing, stage: int) -> bool:
    """Whether this stage may run one more F without a later deadlock.

    Whatever the chunk-0 activations of a device that still wait for their chunk-1 forward, one
    chunk-1 activation must fit beside them. Then the next op of the oldest microbatch always finds
    room, once the microbatches before it are done, under any limit that holds one microbatch.
    """
    if stage >= grown.devices:
        return True
    down, up = grown.costs.stages[stage], grown.costs.stages[-1 - stage]
    waiting = 1 + grown.count(F, stage) - grown.count(F, grown.stages - 1 - stage)
    free = grown.limits[stage] - grown.costs.static_bytes[stage]
    return waiting * down.act_bytes + up.act_bytes <= free


def _first_microbatch(grown: Growing) -> None:
    """Append F of microbatch 0 down the V and up again; before it returns to rank i, more chunk-0
    forwards on ranks 0..i, as long as they do not delay it and memory for 2 + 2i chunks remains."""
    ranks, last = range(grown.devices), grown.stages - 1
    for rank in ranks:
        grown.put(F, rank)
    for rank in reversed(ranks):
        sizes = [grown.costs.stages[stage].act_bytes for stage in (rank, last - rank)]
        spare = (2 + 2 * rank) * max(sizes)
        while (
            grown.exists(F, 0)
            and grown.free_at[rank] < grown.arrival(F, last - rank)
            and grown.room(rank, spare)
            and all(_safe(grown, before) for before in range(rank + 1))
        ):
            for before in range(rank + 1):
                grown.put(F, before)
        grown.put(F, last - rank)


def _level(grown: Growing) -> None:
    """Append, for ranks 1, 2, ..., chunk-1 and chunk-0 forwards in turn from that rank to the last,
    until it has as many forwards as the previous rank, and more of chunk 1 (or no more fit)."""
    p, last = grown.devices, grown.stages - 1
    for rank in range(1, p):
        idle_turns, upward = 0, True
        while idle_turns < 2 and not _is_level(grown, rank):
            # in both directions in the order in which the microbatch flows
            stages = range(p, last - rank + 1) if upward else range(rank, p)
            put = [_put_forward(grown, stage, None) for stage in stages]
            idle_turns = 0 if any(put) else idle_turns + 1
            upward = not upward


def _is_level(grown: Growing, rank: int) -> bool:
    down, up = grown.count(F, rank), grown.count(F, grown.stages - 1 - rank)
    down_before, up_before = grown.count(F, rank - 1), grown.count(F, grown.stages - rank)
    return down + up >= down_before + up_before and up > up_before


def _put_forward(grown: Growing, stage: int, last: LastW | None) -> bool:
    """Append the next F of a stage if it exists and fits; `last` as in `Growing.fill`; None: no W
    in the wait."""
    device = grown.home[stage]
    if not grown.exists(F, stage) or not _safe(grown, stage):
        return False
    if not grown.make_room(device, grown.costs.stages[stage].act_bytes):
        return False
    if last is not None:
        grown.fill(device, grown.arrival(F, stage), last)
    grown.put(F, stage)
    return True


def _backwards(grown: Growing, last_upward: LastW) -> None:
    """Append at most one B per rank: of chunk 1 if no B of chunk 0 is outstanding, else of chunk 0
    if its input is available, else of chunk 1."""
    p, top, m = grown.devices, grown.stages - 1, grown.microbatches
    chosen = []
    for rank in range(p):
        done, done_1 = grown.count(B, rank), grown.count(B, top - rank)
        first = done == done_1 or (rank < p - 1 and done_1 < m and not grown.exists(B, rank))
        chosen.append(top - rank if first else rank)
    # chunk 0 from the last rank to the first, then chunk 1 from the first to the last
    for stage in sorted(chosen, key=lambda stage: (stage >= p, -stage)):
        if grown.exists(B, stage):
            last = LastW.PAST_SLACK if stage < p else last_upward
            grown.fill(grown.home[stage], grown.arrival(B, stage), last)
            grown.put(B, stage)


def _forwards(grown: Growing, last: LastW) -> None:
    """Append at most one F per rank: of chunk 0 if chunk 1 has caught up, else of chunk 1 if its
    input is available, else of chunk 0."""
    top = grown.stages - 1
    chosen = []
    for rank in range(grown.devices):
        level = grown.count(F, top - rank) == grown.count(F, rank)
        stage = rank if level or not grown.exists(F, top - rank) else top - rank
        if level or grown.exists(F, stage):
            chosen.append(stage)
    for stage in sorted(chosen):
        _put_forward(grown, stage, last)
