"""What offloads write to the drives of a node, and how long these stand it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..op_costs import moved_bytes
from ..ops import O
from ..units import format_size

if TYPE_CHECKING:
    from ..profile import CostProfile
    from . import Trace

DAY_NS = 86_400 * 10**9


class Wear(NamedTuple):
    """What an iteration writes to the drives of the node that writes most.

    Attributes:
        written_bytes: in one iteration.
        bytes_per_day: with iterations back to back, each as long as the trace's cost: without the
            update of the weights, so that it is rather too much.
        years: until what the drives are rated for is written; None without a rating, or where
            nothing is written.
    """

    written_bytes: int
    bytes_per_day: int
    years: float | None

    def __str__(self) -> str:
        text = (
            f"{format_size(self.written_bytes)} written to a node's drives per iteration,"
            f" {self.bytes_per_day / 1e12:,.1f} TB a day"
        )
        return text if self.years is None else f"{text}: worn out after {self.years:.2g} years"


def most_written(profile: CostProfile) -> int:
    """The bytes that one microbatch writes to the drives of a node if everything that may is offloaded."""
    written = [0] * -(-profile.devices // profile.devices_per_node)
    for cost, device in zip(profile.stages, profile.placement, strict=True):
        parts = cost.slices or (cost,)
        written[device // profile.devices_per_node] += sum(part.offloadable for part in parts)
    return max(written)


def wear_of(trace: Trace) -> Wear | None:
    """The wear of a trace's offloads; None where they go to the host's memory."""
    offload, profile = trace.profile.offload, trace.profile
    if offload is None or offload.nvme is None:
        return None
    moved = moved_bytes(trace.schedule, profile)
    out = trace.schedule.table[:, 0] == O
    node = trace.schedule.devices // profile.devices_per_node
    nodes = range(-(-profile.devices // profile.devices_per_node))
    written = max(int(moved[out & (node == at)].sum()) for at in nodes)
    daily = written * DAY_NS // trace.cost_ns
    rated = offload.nvme.rated_bytes
    return Wear(written, daily, None if not (rated and daily) else rated / daily / 365)
