"""GIS, GIS-H and any group size: the generalised interleaved schedule with split backwards.

Microbatches pass one chunk after another in groups of g. A smaller group returns and is released
sooner, so it holds fewer activations, but uses the pipeline less densely: g = p gives GIS, g =
ceil(p/2) GIS-H, and g = 1 the uniform repeat that PipeOffload is built on.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from ..errors import InvalidSchedule
from ..ops import B, F, W
from ..profile import CostProfile
from ..schedule import Schedule
from . import default_chunks


def gis(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    group: int | None = None,
    early: int = 0,
    late: int = 0,
) -> Schedule:
    """Build the generalised interleaved schedule with groups of `group` microbatches (default: p).
    `early` and `late` are no part of GIS: see `grouped`.

    With d devices, v chunks and TF, TB, TW of one chunk, rank 0 holds g*(v-1) + d chunk
    activations, for ceil(d/2) <= g <= d; the bubble is (d-1)*(TF+TB) + (d-g)*(v-1)*(TF+TB-TW),
    which is exact for equal stages with g = d and g = d/2. Any g and m are admitted; an incomplete
    last group adds to the bubble.

    At p = 4, m = 8, v = 2, one cell per unit::

        0 F0 F1 F2 F3 f0 f1 f2 f3 .  .  .  b0 w0 F4 b1 w1 F5 b2 w2 F6 b3 w3 F7 B0 W0 f4 B1 W1 f5 B2 W2 f6 B3 W3 f7 b4 w4 .  b5 w5 .  b6 w6 .  b7 w7 B4 W4 B5 W5 B6 W6 B7 W7
    1 .  F0 F1 F2 F3 f0 f1 f2 .  .  b0 w0 f3 b1 w1 F4 b2 w2 F5 b3 w3 F6 B0 W0 F7 B1 W1 f4 B2 W2 f5 B3 W3 f6 b4 w4 f7 b5 w5 .  b6 w6 .  b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .
    2 .  .  F0 F1 F2 F3 f0 f1 .  b0 w0 f2 b1 w1 f3 b2 w2 F4 b3 w3 F5 B0 W0 F6 B1 W1 F7 B2 W2 f4 B3 W3 f5 b4 w4 f6 b5 w5 f7 b6 w6 .  b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .  .
    3 .  .  .  F0 F1 F2 F3 f0 b0 w0 f1 b1 w1 f2 b2 w2 f3 b3 w3 F4 B0 W0 F5 B1 W1 F6 B2 W2 F7 B3 W3 f4 b4 w4 f5 b5 w5 f6 b6 w6 f7 b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .  .  .

    Source: Wan et al., PipeOffload (arXiv 2503.01328), section 4 and table 1.

    Raises:
        InvalidSchedule: for a group or a number of chunks below 1, or a negative `early` or `late`.
    """
    costs = profile.rechunk(default_chunks(profile, chunks))
    return grouped(costs, microbatches, costs.devices if group is None else group, early, late)


def gis_h(profile: CostProfile, microbatches: int, chunks: int | None = None) -> Schedule:
    """Build GIS with groups of half the devices (rounded up): about half the memory for some
    bubble.

    Rank 0 holds ceil(d/2)*(v-1) + d chunk activations, (v+1)/(2v) of the 1F1B peak; see `gis` for
    the bubble.

    At p = 4, m = 6, v = 2, one cell per unit::

        0 F0 F1 .  .  f0 f1 F2 F3 .  .  .  b0 w0 .  f2 b1 w1 f3 B0 W0 F4 B1 W1 F5 b2 w2 f4 b3 w3 f5 B2 W2 B3 W3 .  b4 w4 .  b5 w5 B4 W4 B5 W5
    1 .  F0 F1 .  .  f0 f1 F2 .  .  b0 w0 F3 b1 w1 f2 B0 W0 f3 B1 W1 F4 b2 w2 F5 b3 w3 f4 B2 W2 f5 B3 W3 .  b4 w4 .  b5 w5 B4 W4 B5 W5 .
    2 .  .  F0 F1 .  .  f0 f1 .  b0 w0 F2 b1 w1 F3 B0 W0 f2 B1 W1 f3 b2 w2 F4 b3 w3 F5 B2 W2 f4 B3 W3 f5 b4 w4 .  b5 w5 B4 W4 B5 W5 .  .
    3 .  .  .  F0 F1 .  .  f0 b0 w0 f1 b1 w1 F2 B0 W0 F3 B1 W1 f2 b2 w2 f3 b3 w3 F4 B2 W2 F5 B3 W3 f4 b4 w4 f5 b5 w5 B4 W4 B5 W5 .  .  .

    Source: Wan et al., PipeOffload (arXiv 2503.01328), table 1.

    Raises:
        InvalidSchedule: for a number of chunks below 1.
    """
    costs = profile.rechunk(default_chunks(profile, chunks))
    return grouped(costs, microbatches, -(-costs.devices // 2))


def grouped(
    costs: CostProfile, microbatches: int, group: int, early: int = 0, late: int = 0
) -> Schedule:
    """Repeat a block of `group` microbatches, for a profile that is already divided into its
    chunks.

    Per device the ops are laid out on unit slots, three (F, B, W) per chunk and microbatch, and
    taken in the order of the slots; the replay closes the gaps.

    Args:
        early: how many F's more the first device runs ahead, and each device after it in proportion
            fewer (the last none), as in ZB-H2: the lower ranks wait longest for their first B. It
            takes memory, and from some number on devices wait for one another for ever.
        late: how many W's more the last device postpones, and each device before it in proportion
            fewer (the first none), as in ZB-H1: B's reach the lower ranks sooner, and the higher
            ones, whose last B's come first, run their W's meanwhile.
    """
    if group < 1:
        raise InvalidSchedule(f"group: must be at least 1, got {group}")
    for key, value in (("early", early), ("late", late)):
        if value < 0:
            raise InvalidSchedule(f"{key}: must not be negative, got {value}")
    p, v = costs.devices, costs.chunks
    chunk = np.arange(v)[:, None]
    shape = costs.shape(microbatches)
    index = np.arange(shape.units)[None, :]
    # backwards take the slices of a microbatch in reverse, from its last one on
    order = index[0] + shape.slices - 1 - 2 * (index[0] % shape.slices)
    # the slot of chunk c of each microbatch, from the first forward of chunk 0 (backwards: from the
    # first backward of the last chunk, c counted from the end)
    passes = _passes(costs, group)
    period = v // gcd(v, passes)  # after that many chunks the slots would repeat
    within = 3 * (index % group) + 3 * group * v * (index // group)
    offset = 3 * passes * group * chunk + 3 * group * (chunk // period) + within
    tables = []
    for rank in range(p):
        forward = offset + rank
        backward = forward[-1, shape.slices - 1] + 1 + 3 * (p - 1 - rank) + offset[::-1]
        ahead, behind = (3 * early * (p - 1 - rank), 3 * late * rank)
        weights = backward + 1 + behind // max(1, p - 1)
        slots = np.concatenate((forward - ahead // max(1, p - 1), backward, weights), axis=None)
        table = np.empty((len(slots), 3), np.int32)
        table[:, 0] = np.repeat((F, B, W), v * shape.units)
        table[:, 1] = np.tile(np.repeat(shape.stages_of(rank), shape.units), 3)
        table[:, 2] = np.concatenate((np.tile(index[0], v), np.tile(order, 2 * v)))
        tables.append(table[np.argsort(slots, kind="stable")])
    return Schedule.from_tables(shape, tables)


def _passes(costs: CostProfile, group: int) -> int:
    """Return how many groups fit between a group's forwards of one chunk and the next.

    In steady state a device gives one stage's F, B and W to each microbatch; as many as half the
    devices have to be in flight until a microbatch returns (fewer would leave gaps in every block);
    more if the stages or messages are slow in one direction, but never more than p: that many hide
    any compute latency, and with more the memory would exceed that of the interleaved schedule.
    """
    p = costs.devices
    longest = max(cost.t_f_ns + cost.t_b_ns + cost.t_w_ns for cost in costs.stages)
    latency = 0
    for first in range(0, len(costs.stages), p):
        stages = costs.stages[first : first + p]
        forward, backward = sum(c.t_f_ns for c in stages), sum(c.t_b_ns for c in stages)
        latency = max(latency, forward, backward)
    under_way = min(p, max(-(-p // 2), -(-latency // longest)))
    return -(-under_way // group)
