"""What every picture of a trace has in common, be it a figure, a page or text: boxes in lanes, and the colours of causes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..ops import C, OpKind
from ..schedule import Schedule
from . import Trace

# of idle time by its cause: Okabe and Ito's, which people with any kind of colour vision tell apart
CAUSE_COLOURS = {
    "fill": "#56B4E9",
    "neighbour": "#E69F00",
    "communication": "#009E73",
    "reload": "#F0E442",
    "memory": "#CC79A7",
    "drain": "#0072B2",
}
OFF_SCALE = 2.5  # a limit above so many times the peak is not drawn: the curve would lie flat


def heights(
    schedule: Schedule, rows: Mapping[OpKind, tuple[float, float]], lane: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tops and bottoms of the boxes of all ops, counted from the top of their device.

    Args:
        rows: the top and bottom of each kind. lane: of the compute lane, which the two halves of a pair share: the
            forward is above, the backward below.
    """
    tops, bottoms = np.array([rows[kind] for kind in OpKind]).T
    kinds, middle = schedule.table[:, 0], (lane[0] + lane[1]) / 2
    return (
        np.where(schedule.second, middle, tops[kinds]),
        np.where(schedule.paired, middle, bottoms[kinds]),
    )


def kinds_in(*traces: Trace) -> list[OpKind]:
    """Return the kinds of ops that occur in some traces, recomputation inside backwards included."""
    there = {kind for trace in traces for kind in np.unique(trace.schedule.table[:, 0]).tolist()}
    if any(trace.recomputed for trace in traces):
        there.add(C)
    return [kind for kind in OpKind if kind in there]
