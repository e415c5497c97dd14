"""Bytes that offloads write to the drives of a node, and the lifetime of these drives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..op_costs import moved_bytes
from ..ops import O
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import format_size
from .host import written_behind

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
    """Return the bytes that one microbatch writes to the drives of a node if everything that may is
    offloaded."""
    written = [0] * profile.nodes
    for cost, device in zip(profile.stages, profile.placement, strict=True):
        parts = cost.slices or (cost,)
        written[device // profile.devices_per_node] += sum(part.offloadable for part in parts)
    return max(written)


def wear_of(
    schedule: Schedule,
    profile: CostProfile,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    cost_ns: int,
) -> Wear | None:
    """Return the wear of a schedule whose iterations take so long; None where offloads go to the host."""
    offload = profile.offload
    if offload is None or offload.nvme is None:
        return None
    moved = moved_bytes(schedule, profile)
    out = schedule.table[:, 0] == O
    if offload.writes_behind:
        out &= written_behind(schedule, profile, start_ns, end_ns).begun
    node = schedule.devices // profile.devices_per_node
    written = max(int(moved[out & (node == at)].sum()) for at in range(profile.nodes))
    daily = written * DAY_NS // cost_ns
    rated = offload.nvme.rated_bytes
    return Wear(written, daily, None if not (rated and daily) else rated / daily / 365)
