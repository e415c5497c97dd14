"""PipeOffload: a uniformly repeated block, with the activations of the first chunks offloaded.

Activations of the first chunks live longest, so offloading half of the chunks saves more than half
the memory.
"""

from __future__ import annotations

from ..errors import InvalidSchedule
from ..ops import O, R
from ..profile import CostProfile
from ..schedule import Schedule
from . import default_chunks
from .copies import copies_hide, require_offload, with_copies
from .gis import grouped


def pipeoffload(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    group: int = 1,
    offloaded: int | None = None,
    early: int = 0,
    late: int = 0,
) -> Schedule:
    """Repeat a block of `group` microbatches, with each device's first `offloaded` chunks
    offloaded.

    By default as many chunks are offloaded as the copy engines can carry beside the compute: all of
    them if the round trip of a microbatch's activations takes no longer than its F, B and W.
    `copies.with_copies` plans the copies; ``meta["dropped"]`` counts those that found no slot.
    `early` and `late` are no part of PipeOffload: see `gis.grouped`.

    At p = 4, m = 6, v = 2, copies as long as a cell::

        0 F0 F1 .  .  f0 F2 f1 F3 .  .  .  b0 w0 f2 F4 .  b1 w1 f3 B0 W0 F5 b2 w2 f4 B1 W1 .  b3 w3 f5 B2 W2 .  b4 w4 .  B3 W3 b5 w5 B4 W4 B5 W5
         O0 O1          O2 o1 O3                r1 O4    R0    o3 r2    O5 R1    o4 r3       R2    o5 r4       R3    r5    R4    R5
    1 .  F0 F1 .  .  f0 F2 f1 .  .  b0 w0 F3 .  f2 b1 w1 F4 B0 W0 f3 b2 w2 F5 B1 W1 f4 b3 w3 .  B2 W2 f5 b4 w4 .  B3 W3 b5 w5 B4 W4 B5 W5 .
            O0 O1          O2                O3       R0    O4          R1    O5          R2                R3          R4    R5
    2 .  .  F0 F1 .  .  f0 F2 .  b0 w0 f1 .  F3 b1 w1 f2 B0 W0 F4 b2 w2 f3 B1 W1 F5 b3 w3 f4 B2 W2 .  b4 w4 f5 B3 W3 b5 w5 B4 W4 B5 W5 .  .
               O0 O1          O2                O3 R0             O4 R1             O5 R2                R3          R4    R5
    3 .  .  .  F0 F1 .  .  f0 b0 w0 F2 .  f1 b1 w1 F3 B0 W0 f2 b2 w2 F4 B1 W1 f3 b3 w3 F5 B2 W2 f4 b4 w4 B3 W3 f5 b5 w5 B4 W4 B5 W5 .  .  .
                  O0 O1                O2       R0    O3          R1    O4          R2    O5       R3             R4    R5

    Source: Wan et al., PipeOffload (arXiv 2503.01328), sections 3 to 5.

    Raises:
        InvalidSchedule: for a profile that does not offload; for a group or a number of chunks
            below 1, a negative `early` or `late`, or `offloaded` not from 0 to the number of chunks.
    """
    costs = profile.rechunk(default_chunks(profile, chunks))
    require_offload(costs, "PipeOffload")
    if offloaded is None:
        offloaded = _affordable(costs)
    if not 0 <= offloaded <= costs.chunks:
        raise InvalidSchedule(
            f"offloaded: must be from 0 to {costs.chunks}, the chunks per device, got {offloaded}"
        )
    return with_copies(grouped(costs, microbatches, group, early, late), costs, offloaded)


def po_h(
    profile: CostProfile, microbatches: int, chunks: int | None = None, group: int = 1
) -> Schedule:
    """Build PO-H: half of the chunks (rounded up) offloaded; same restrictions as `pipeoffload`.

    At p = 4, m = 6, v = 2, copies as long as a cell::

        0 F0 F1 .  .  f0 F2 f1 F3 .  .  .  b0 w0 f2 F4 .  b1 w1 f3 B0 W0 F5 b2 w2 f4 B1 W1 .  b3 w3 f5 B2 W2 .  b4 w4 .  B3 W3 b5 w5 B4 W4 B5 W5
         O0 O1          O2    O3                   O4    R0             O5 R1                R2                R3          R4    R5
    1 .  F0 F1 .  .  f0 F2 f1 .  .  b0 w0 F3 .  f2 b1 w1 F4 B0 W0 f3 b2 w2 F5 B1 W1 f4 b3 w3 .  B2 W2 f5 b4 w4 .  B3 W3 b5 w5 B4 W4 B5 W5 .
            O0 O1          O2                O3       R0    O4          R1    O5          R2                R3          R4    R5
    2 .  .  F0 F1 .  .  f0 F2 .  b0 w0 f1 .  F3 b1 w1 f2 B0 W0 F4 b2 w2 f3 B1 W1 F5 b3 w3 f4 B2 W2 .  b4 w4 f5 B3 W3 b5 w5 B4 W4 B5 W5 .  .
               O0 O1          O2                O3 R0             O4 R1             O5 R2                R3          R4    R5
    3 .  .  .  F0 F1 .  .  f0 b0 w0 F2 .  f1 b1 w1 F3 B0 W0 f2 b2 w2 F4 B1 W1 f3 b3 w3 F5 B2 W2 f4 b4 w4 B3 W3 f5 b5 w5 B4 W4 B5 W5 .  .  .
                  O0 O1                O2       R0    O3          R1    O4          R2    O5       R3             R4    R5

    Source: Wan et al., PipeOffload (arXiv 2503.01328), table 1.
    """
    count = default_chunks(profile, chunks)
    return pipeoffload(profile, microbatches, count, group, -(-count // 2))


def po_f(
    profile: CostProfile, microbatches: int, chunks: int | None = None, group: int = 1
) -> Schedule:
    """Build PO-F: all chunks offloaded; same restrictions as `pipeoffload`.

    At p = 4, m = 6, v = 2, copies as long as a cell::

        0 F0 F1 .  .  f0 F2 f1 F3 .  .  .  b0 w0 f2 F4 .  b1 w1 f3 B0 W0 F5 b2 w2 f4 B1 W1 .  b3 w3 f5 B2 W2 .  b4 w4 .  B3 W3 b5 w5 B4 W4 B5 W5
         O0 O1          O2 o1 O3                r1 O4    R0    o3 r2    O5 R1    o4 r3       R2    o5 r4       R3    r5    R4    R5
    1 .  F0 F1 .  .  f0 F2 f1 .  .  b0 w0 F3 .  f2 b1 w1 F4 B0 W0 f3 b2 w2 F5 B1 W1 f4 b3 w3 .  B2 W2 f5 b4 w4 .  B3 W3 b5 w5 B4 W4 B5 W5 .
            O0 O1          O2                O3       R0    O4          R1    O5          R2                R3          R4    R5
    2 .  .  F0 F1 .  .  f0 F2 .  b0 w0 f1 .  F3 b1 w1 f2 B0 W0 F4 b2 w2 f3 B1 W1 F5 b3 w3 f4 B2 W2 .  b4 w4 f5 B3 W3 b5 w5 B4 W4 B5 W5 .  .
               O0 O1          O2                O3 R0             O4 R1             O5 R2                R3          R4    R5
    3 .  .  .  F0 F1 .  .  f0 b0 w0 F2 .  f1 b1 w1 F3 B0 W0 f2 b2 w2 F4 B1 W1 f3 b3 w3 F5 B2 W2 f4 b4 w4 B3 W3 f5 b5 w5 B4 W4 B5 W5 .  .  .
                  O0 O1                O2       R0    O3          R1    O4          R2    O5       R3             R4    R5

    Source: Wan et al., PipeOffload (arXiv 2503.01328), table 1.
    """
    count = default_chunks(profile, chunks)
    return pipeoffload(profile, microbatches, count, group, count)


def _affordable(costs: CostProfile) -> int:
    """Return how many leading chunks can be offloaded for free: the transfers of one microbatch
    take no more time on any engine or host link than its compute on the busiest device."""
    durations, shape = costs.durations_ns, costs.shape(1)
    budget = max(
        sum(costs.stages[stage].work_ns for stage in shape.stages_of(device))
        for device in range(costs.devices)
    )

    def fits(count: int) -> bool:
        out, back = (
            [
                int(sum(durations[kind][s] for s in shape.stages_of(device)[:count]))
                for device in range(costs.devices)
            ]
            for kind in (O, R)
        )
        return copies_hide(costs, out, back, budget)

    return max(count for count in range(costs.chunks + 1) if fits(count))
