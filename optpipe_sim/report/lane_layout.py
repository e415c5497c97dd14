"""Where the boxes of a figure lie: a lane per device and engine, its memory below, the hosts at the end.

Heights are in hundredths of a compute lane, counted from the top, and are those of a figure whose
devices are all unfolded. A device is folded by moving the knots of its lane (see `LaneLayout.placed`); all
that lies between two knots moves with them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import NamedTuple

import numpy as np

from ..ops import BW, B, C, F, O, OpKind, R, W
from ..trace import Trace

Place = tuple[int, int]  # top, bottom
# What is forward stands at the top of its lane and what is backward at the bottom, so that they differ
# without colours as well.
ROWS: dict[OpKind, Place] = {
    F: (0, 84),
    B: (16, 100),
    W: (40, 100),
    BW: (16, 100),
    C: (30, 70),
    O: (108, 132),
    R: (138, 162),
}
INSIDE: Place = (88, 100)  # the part of a backward that is recomputation
COMPUTE: Place = (0, 100)
FOLDED, SPACE = 56, 10  # a compute lane that is folded, and what lies below it
HIDDEN = 0  # the step to what is not drawn while its lane is folded
MEMORY, ROOM = 90, 28  # a memory lane, and what lies below it
TOP = 9  # above the first lane
PIXELS = 0.27  # of a hundredth of a lane
AROUND = 85  # pixels of a figure that are axis and toolbar


class Steps(NamedTuple):
    """The distance of each knot from the one above it, while its `lane` is unfolded (`full`) and while it is folded
    (`small`)."""

    lane: np.ndarray
    full: list[int]
    small: list[int]


def pixels(bottom: float) -> int:
    """Return the height of a figure whose last lane ends there."""
    return round(PIXELS * bottom) + AROUND


@dataclass(frozen=True)
class LaneLayout:
    """The lanes of a trace; `nodes` is 0 where nothing is offloaded: no lanes for copies then."""

    devices: int
    nodes: int

    @classmethod
    def of(cls, trace: Trace) -> LaneLayout:
        return cls(trace.schedule.shape.devices, len(trace.pinned))

    @cached_property
    def memory_top(self) -> int:
        """Where a device's memory lane begins, counted from the top of the device."""
        return 172 if self.nodes else 112

    @cached_property
    def height(self) -> int:
        """The distance from one device to the next."""
        return self.memory_top + MEMORY + ROOM

    def memory(self, device: int) -> Place:
        """Return the memory lane of a device."""
        top = device * self.height + self.memory_top
        return top, top + MEMORY

    def host(self, node: int) -> Place:
        """Return the lane of a node's host memory."""
        top = self.devices * self.height + node * (MEMORY + ROOM)
        return top, top + MEMORY

    def within(self, row: Place, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tops and bottoms of one row in many devices."""
        return devices * self.height + row[0], devices * self.height + row[1]

    @property
    def lanes(self) -> int:
        """The number of lanes: of devices, then of hosts."""
        return self.devices + self.nodes

    @cached_property
    def levels(self) -> list[float]:
        """The middle height of each lane: of a device's compute lane, or of a host."""
        devices = [device * self.height + COMPUTE[1] / 2 for device in range(self.devices)]
        return devices + [self.host(node)[0] + MEMORY / 2 for node in range(self.nodes)]

    def labels(self) -> tuple[list[str], list[str]]:
        """Return the labels of each lane, unfolded and folded; a host does not fold."""
        hosts = ["host"] if self.nodes == 1 else [f"host {node}" for node in range(self.nodes)]
        both = [[f"{sign} {at}" for at in range(self.devices)] + hosts for sign in "▾▸"]
        return both[0], both[1]

    @cached_property
    def steps(self) -> Steps:
        """From knot to knot: the end of a compute lane, of the memory lane below it, and what is just above the
        next lane, since what is on a knot belongs to what is above it; of a host the last two."""
        ends = COMPUTE[1], self.memory_top + MEMORY
        full = [ends[0] + 1, ends[1] - ends[0], ROOM - 1]
        small = [FOLDED + 1, HIDDEN, SPACE - 1]
        host = [MEMORY + 1, ROOM - 1] * self.nodes
        lanes = [
            *np.repeat(range(self.devices), 3),
            *np.repeat(range(self.nodes), 2) + self.devices,
        ]
        return Steps(np.array(lanes), full * self.devices + host, small * self.devices + host)

    def placed(self, unfolded: Collection[int]) -> list[float]:
        """Return where the knots of all lanes are while only some are unfolded; `fold` of page.js does
        the same."""
        steps = np.where(
            np.isin(self.steps.lane, list(unfolded)), self.steps.full, self.steps.small
        )
        found = TOP + np.cumsum(steps, dtype=float)
        return [TOP, *np.where(steps == HIDDEN, nan, found).tolist()]

    @cached_property
    def knots(self) -> list[float]:
        """The knots of all lanes from top to bottom, in heights of the layout."""
        return [-1.0, *(np.cumsum(self.steps.full, dtype=float) - 1).tolist()]


def curve(place: Place, sizes: np.ndarray, scale_bytes: int) -> np.ndarray:
    """Heights of a curve of bytes in a lane; `scale_bytes` is what the whole lane stands for."""
    top, bottom = place
    return (bottom - (bottom - top) * (np.asarray(sizes) / scale_bytes)).astype(np.float32)
