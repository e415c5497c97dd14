"""SPPO: Seq1F1B with the leading slices of every microbatch offloaded."""

from __future__ import annotations

from ...errors import InvalidSchedule
from ...profile import CostProfile
from ...schedule import Schedule
from ..copies import copies_hide, require_offload, with_copies
from .seq1f1b import seq1f1b


def sppo(profile: CostProfile, microbatches: int, offloaded: int | None = None) -> Schedule:
    """Build Seq1F1B with the first `offloaded` slices of each microbatch offloaded.

    Early slices wait longest for their backward and are offloaded; the last slice is needed first
    and stays. Copies overlap with the compute of the later slices of the microbatch and of other
    microbatches. Keys and values stay until the last slice has read them. In the paper a solver
    chooses the slices; here, by default, as many are offloaded as the copy engine of each direction
    can carry while the busiest device computes.

    Args:
        offloaded: the number of offloaded slices of each microbatch, from 0 to n.

    Raises:
        InvalidSchedule: for a profile without an offload section, or a number out of range.

    At p = 4, m = 3, n = 2, copies as long as an op::

        0 F0/0  F0/1  F1/0  F1/1  F2/0  .     .     .     .     .     .     BW0/1       F2/1  BW0/0       .     BW1/1       .     BW1/0       .     BW2/1       BW2/0
                O0/0        O1/0        O2/0                                R0/0                                R1/0                                R2/0
        1 .     F0/0  F0/1  F1/0  F1/1  .     .     .     .     BW0/1       F2/0  BW0/0       F2/1  BW1/1       .     BW1/0       .     BW2/1       BW2/0       .     .
                      O0/0        O1/0                          R0/0              O2/0              R1/0                                R2/0
        2 .     .     F0/0  F0/1  F1/0  .     .     BW0/1       F1/1  BW0/0       F2/0  BW1/1       F2/1  BW1/0       .     BW2/1       BW2/0       .     .     .     .
                                        O1/0                                            R1/0                                R2/0
        3 .     .     .     F0/0  F0/1  BW0/1       F1/0  BW0/0       F1/1  BW1/1       F2/0  BW1/0       F2/1  BW2/1       BW2/0       .     .     .     .     .     .

    Source: Chen et al., SPPO (arXiv 2503.10377), sections 4 and 5.
    """
    costs = profile.rechunk(1)
    require_offload(costs, "SPPO")
    if offloaded is None:
        offloaded = _affordable(costs)
    if not 0 <= offloaded <= costs.slices:
        raise InvalidSchedule(
            f"offloaded: must be from 0 to {costs.slices}, the slices, got {offloaded}"
        )
    return with_copies(seq1f1b(costs, microbatches), costs, 1, slices=offloaded)


def _affordable(costs: CostProfile) -> int:
    """Return how many leading slices can be offloaded for free: their copies take no more time, on
    any engine or host link, than a microbatch's compute on the busiest device."""
    budget = max(cost.work_ns for cost in costs.stages)

    def fits(count: int) -> bool:
        leading = [cost.slices[:count] for cost in costs.stages]
        out = [sum(part.t_offload_ns or 0 for part in parts) for parts in leading]
        back = [sum(part.t_reload_ns or 0 for part in parts) for parts in leading]
        return copies_hide(costs, out, back, budget)

    return max(count for count in range(costs.slices) if fits(count))
