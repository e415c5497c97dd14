"""Where the boxes of a figure lie: a lane per device and engine, its memory below, the hosts at the end.

Heights are in hundredths of a compute lane, counted from the top, and are those of a figure whose
devices are all unfolded. page.js folds a device by moving the knots of its lane (see `Layout.lanes`);
all that lies between two knots moves with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
MEMORY, ROOM = 90, 28  # a memory lane, and what lies below it


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

    def lanes(self) -> list[dict[str, Any]]:
        """The knots of each lane from its top, the last where the next begins; a host has no other
        place when it is folded."""
        unfolded = [0, COMPUTE[1], self.memory_top + MEMORY, self.height]
        folded = [0, FOLDED, FOLDED, FOLDED + SPACE]
        devices = [
            {"name": str(device), "unfolded": unfolded, "folded": folded}
            for device in range(self.devices)
        ]
        names = ["host"] if self.nodes == 1 else [f"host {node}" for node in range(self.nodes)]
        return devices + [{"name": name, "unfolded": [0, MEMORY, MEMORY + ROOM]} for name in names]

    @cached_property
    def knots(self) -> list[int]:
        """All knots from top to bottom, but for those where the next lane begins."""
        found, top = [], 0
        for lane in self.lanes():
            found += [top + knot for knot in lane["unfolded"][:-1]]
            top += lane["unfolded"][-1]
        return found


def curve(place: Place, sizes: np.ndarray, scale_bytes: int) -> np.ndarray:
    """Heights of a curve of bytes in a lane; `scale_bytes` is what the whole lane stands for."""
    top, bottom = place
    return (bottom - (bottom - top) * (np.asarray(sizes) / scale_bytes)).astype(np.float32)
