"""Where the boxes of a figure lie: a lane per device and engine, its memory below, the hosts at the end.

Heights are in hundredths of a compute lane, counted from the top, and are those of a figure whose
devices are all unfolded. A device is folded by moving the knots of its lane (see `Layout.shapes`); all
that lies between two knots moves with them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any, NamedTuple

import numpy as np

from ..ops import BW, B, C, F, O, OpKind, R, W
from ..trace import Trace

Place = tuple[int, int]  # top, bottom
Shape = tuple[
    Any, ...
]  # of a lane: its label, its knots from its top, and where the next lane begins
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
NOWHERE = nan  # of what is not drawn while its lane is folded
MEMORY, ROOM = 90, 28  # a memory lane, and what lies below it
TOP = 10  # above the first lane
PIXELS = 0.27  # of a hundredth of a lane
AROUND = 85  # pixels of a figure that are axis and toolbar


class Placed(NamedTuple):
    """Where the knots of all lanes are, the label at each height, and where the last lane ends."""

    knots: list[float]
    labels: dict[float, str]
    bottom: float

    @property
    def pixels(self) -> int:
        """The height of the figure."""
        return round(PIXELS * self.bottom) + AROUND


@dataclass(frozen=True)
class Layout:
    """The lanes of a trace; `nodes` is 0 where nothing is offloaded: no lanes for copies then."""

    devices: int
    nodes: int

    @classmethod
    def of(cls, trace: Trace) -> Layout:
        return cls(trace.schedule.shape.devices, len(trace.host_memory) if trace.offloaded else 0)

    @cached_property
    def memory_top(self) -> int:
        """Of a device's memory lane, counted from the top of the device."""
        return 172 if self.nodes else 112

    @cached_property
    def height(self) -> int:
        """From one device to the next."""
        return self.memory_top + MEMORY + ROOM

    def memory(self, device: int) -> Place:
        """The memory lane of a device."""
        top = device * self.height + self.memory_top
        return top, top + MEMORY

    def host(self, node: int) -> Place:
        """The lane of a node's host memory."""
        top = self.devices * self.height + node * (MEMORY + ROOM)
        return top, top + MEMORY

    def ops(self, kinds: np.ndarray, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tops and bottoms of ops."""
        tops, bottoms = np.array([ROWS[kind] for kind in OpKind]).T
        start = devices * self.height
        return start + tops[kinds], start + bottoms[kinds]

    def within(self, row: Place, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tops and bottoms of one row in many devices."""
        return devices * self.height + row[0], devices * self.height + row[1]

    def shapes(self) -> tuple[list[Shape], list[Shape]]:
        """Each lane unfolded and folded; a host has no other place when it is folded.

        The first knot is a little above its lane: what is on a knot belongs to what is above it."""
        full: Shape = (-1, COMPUTE[1], self.memory_top + MEMORY, self.height)
        small: Shape = (-1, FOLDED, NOWHERE, FOLDED + SPACE)
        names = ["host"] if self.nodes == 1 else [f"host {node}" for node in range(self.nodes)]
        hosts: list[Shape] = [(name, -1, MEMORY, MEMORY + ROOM) for name in names]
        devices = range(self.devices)
        unfolded: list[Shape] = [(f"▾ {device}", *full) for device in devices]
        return unfolded + hosts, [(f"▸ {device}", *small) for device in devices] + hosts

    def placed(self, unfolded: Collection[int]) -> Placed:
        """Where everything is while only some lanes are unfolded; see `FOLD` in actions.py."""
        knots: list[float] = []
        labels: dict[float, str] = {}
        top: float = TOP
        for at, shapes in enumerate(zip(*self.shapes(), strict=True)):
            label, *own = shapes[at not in unfolded]
            knots += [top + knot for knot in own[:-1]]
            labels[top + own[1] / 2] = label
            top += own[-1]
        return Placed(knots, labels, top)

    @cached_property
    def knots(self) -> list[int]:
        """The knots of all lanes from top to bottom, in heights of the layout."""
        found, top = [], 0
        for _, *own in self.shapes()[0]:
            found += [top + knot for knot in own[:-1]]
            top += own[-1]
        return found


def curve(place: Place, sizes: np.ndarray, scale_bytes: int) -> np.ndarray:
    """Heights of a curve of bytes in a lane; `scale_bytes` is what the whole lane stands for."""
    top, bottom = place
    return (bottom - (bottom - top) * (np.asarray(sizes) / scale_bytes)).astype(np.float32)
