"""The Gantt chart: a lane per device, its transfers in thin lanes below, time to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from ..errors import require
from ..ops import COMPUTE, TRANSFERS, O, OpKind
from ..trace import Trace
from ..trace.boxes import heights, kinds_in
from .axis import (
    BESIDE,
    BOTTOM,
    WIDTH,
    Window,
    place,
    points,
    show_devices,
    show_time,
    time_unit,
    window_of,
)
from .style import IDLE, IDLE_COPY, KIND_NAMES, MUTED, new_figure, shade, styled, text_colour
from .text import unit_name

RASTERISE_ABOVE = 6000  # boxes; with more, a vector file is large and slow to draw
LARGEST_LABEL, LEAST_LABEL = 8.0, 4.5  # points
# widths in ems: a digit, and the name of each kind of compute op
_DIGIT = 0.636
_NAME = {OpKind.F: 0.575, OpKind.B: 0.686, OpKind.W: 0.989, OpKind.BW: 1.675, OpKind.C: 0.698}
_FILL = 0.88  # the share of its box that a label may take
_EDGE_FROM = 3.0  # points; where boxes are narrower, edges would cover them
_APART_FROM = 2.0  # points; narrower ones blur into one another
_DETAIL_LABEL = 5.5  # points, of the microbatches in a detail
MAIN = (OpKind.F, OpKind.B, OpKind.BW)  # kinds that every schedule has and that are never short


def gantt(
    trace: Trace, ax: Axes | None = None, *, window: Window | None = None, legend: bool = True
) -> Axes:
    """Draw a trace as a Gantt chart.

    Boxes are coloured by kind, lighter for later chunks of a device, and have the number of their microbatch
    where it can be read. The time axis is in ms or s, depending on the makespan.

    Args:
        ax: where to draw; None: a new figure of fitting size (``ax.figure``).
        window: the part to draw (`window_of`); None: all of it.
        legend: whether to put one to the right of the axis.

    Returns:
        The axis.
    """
    require("trace", trace, Trace, "make one with simulate(schedule, profile)")
    with styled():
        if ax is None:
            height = gantt_height(trace)
            ax = place(new_figure(WIDTH, height + 0.2 + BOTTOM), 0.2, height)
        window = window or window_of(trace)
        _axes(trace, ax, window)
        _boxes(trace, ax, window)
        if legend:
            ax.legend(handles=_legend(trace), **BESIDE)
    return ax


def gantt_height(trace: Trace) -> float:
    """Return the height in inches that the lanes of a trace, or its legend, need."""
    devices = trace.schedule.shape.devices
    lane = float(np.interp(devices, [4, 8, 16, 32, 64], [0.42, 0.36, 0.24, 0.16, 0.11]))
    return max(0.2 * len(_legend(trace)), devices * lane * (1.4 if trace.offloaded else 1))


def lane_within(trace: Trace, kind: OpKind = OpKind.F) -> tuple[float, float]:
    """Top and bottom of an op's lane within its device's, which is 1 high."""
    if not trace.offloaded:
        return 0.08, 0.92
    if kind in COMPUTE:
        return 0.06, 0.64
    return (0.67, 0.79) if kind is O else (0.82, 0.94)


def legible_window(trace: Trace, ax: Axes) -> Window | None:
    """Return the part from the beginning of a trace in which ops and their microbatches can be read on
    the axis; None where the whole trace can be."""
    room = _narrowest(trace, ax, window_of(trace), MAIN)
    if min(room.values()) >= _APART_FROM:
        return None
    digits = _DIGIT * _longest_name(trace)
    share = _FILL * min(room.values()) / (digits * _DETAIL_LABEL)
    return Window(0, max(1, int(trace.makespan_ns * share)))


def _longest_name(trace: Trace) -> int:
    """Return how many characters the name of a unit takes at most."""
    shape = trace.schedule.shape
    return len(unit_name(shape.op(OpKind.F, 0, shape.units - 1)))


def _axes(trace: Trace, ax: Axes, window: Window) -> None:
    """Set limits, ticks and names of the axes, and draw the light lanes that show where devices idle."""
    devices = trace.schedule.shape.devices
    _, size = time_unit(trace.makespan_ns)
    begin, end = window.from_ns / size, window.to_ns / size
    lanes, left, right = np.arange(devices), np.full(devices, begin), np.full(devices, end)
    for kind in (*TRANSFERS, OpKind.F) if trace.offloaded else (OpKind.F,):
        top, bottom = lane_within(trace, kind)
        colour = IDLE if kind in COMPUTE else IDLE_COPY
        ax.add_collection(boxes(left, right, lanes + top, lanes + bottom, colour, zorder=0.5))
    show_time(ax, window, trace.makespan_ns)
    show_devices(ax, devices, (top + bottom) / 2)


def _boxes(trace: Trace, ax: Axes, window: Window) -> None:
    """One collection of boxes per kind and chunk, and their labels."""
    shape = trace.schedule.shape
    _, size = time_unit(trace.makespan_ns)
    start, end = trace.start_ns / size, trace.end_ns / size
    kinds, stages, _ = trace.schedule.table.T
    chunks = np.array(shape.chunk_of)[stages]
    shown = (trace.end_ns > window.from_ns) & (trace.start_ns < window.to_ns)
    many = int(shown.sum()) > RASTERISE_ABOVE
    narrowest = min(_narrowest(trace, ax, window).values(), default=0.0)
    edged = not many and narrowest >= _EDGE_FROM
    labels = _label_size(trace, ax, window)
    lane = lane_within(trace)
    tops, bottoms = heights(
        trace.schedule, {kind: lane_within(trace, kind) for kind in OpKind}, lane
    )
    for kind in OpKind:
        for chunk in range(shape.chunks):
            rows = np.flatnonzero(shown & (kinds == kind) & (chunks == chunk))
            if not len(rows):
                continue
            lanes = trace.schedule.devices[rows]
            colour = shade(kind, chunk, shape.chunks)
            ax.add_collection(
                boxes(
                    start[rows],
                    end[rows],
                    lanes + tops[rows],
                    lanes + bottoms[rows],
                    colour,
                    edgecolors="white" if edged else "none",
                    linewidths=0.6 if edged else 0,
                    rasterized=many,
                    snap=None if edged else False,  # whole pixels would hide or widen narrow boxes
                    zorder=1,
                    gid=f"{kind.name}-{chunk}",
                )
            )
            if kind in (OpKind.B, OpKind.BW):
                _recomputed_share(trace, ax, rows, lanes, size, lane[1], rasterized=many)
            if labels and kind in labels.kinds:
                middles = lanes + (tops[rows] + bottoms[rows]) / 2
                for row, height in zip(rows.tolist(), middles.tolist(), strict=True):
                    named = kind.name if labels.named else ""
                    middle = (start[row] + end[row]) / 2
                    if not window.from_ns <= middle * size <= window.to_ns:
                        continue
                    ax.text(
                        middle,
                        height,
                        f"{named}{unit_name(trace.schedule.op(row))}",
                        fontsize=labels.font,
                        color=text_colour(colour),
                        ha="center",
                        va="center_baseline",
                        clip_on=True,
                    )


def _recomputed_share(
    trace: Trace,
    ax: Axes,
    rows: np.ndarray,
    lanes: np.ndarray,
    size: int,
    bottom: float,
    *,
    rasterized: bool,
) -> None:
    """Underline the part of each backward that is a recomputation inside it."""
    inside = trace.recomputing_ns[rows] > 0
    if not inside.any():
        return
    rows, lanes = rows[inside], lanes[inside]
    start = trace.start_ns[rows]
    ax.add_collection(
        boxes(
            start / size,
            (start + trace.recomputing_ns[rows]) / size,
            lanes + bottom - 0.12,
            lanes + bottom,
            shade(OpKind.C, 0, 1),
            rasterized=rasterized,
            zorder=1.5,
            gid="recomputed-inside",
        )
    )


def boxes(
    left: np.ndarray,
    right: np.ndarray,
    top: np.ndarray,
    bottom: np.ndarray,
    colour: str,
    **settings: Any,
) -> PolyCollection:
    """Boxes of one colour."""
    corners = ((left, top), (right, top), (right, bottom), (left, bottom))
    vertices = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    return PolyCollection(vertices, facecolors=colour, **settings)  # type: ignore[arg-type]


class _Labels(NamedTuple):
    """The kinds of ops that have labels, whether labels name the kind, and their size in points."""

    kinds: tuple[OpKind, ...]
    named: bool
    font: float


def _label_size(trace: Trace, ax: Axes, window: Window) -> _Labels | None:
    """Return the labels of a picture; None where none could be read.

    Kind and microbatch where every compute box has room for both, else the microbatch alone: on
    every kind, or on F and the backwards where weight gradients and recomputation are too short.
    """
    shape = trace.schedule.shape
    top, bottom = lane_within(trace, OpKind.F)
    tallest = 0.8 * points(ax)[1] * (bottom - top) / shape.devices
    digits = _DIGIT * _longest_name(trace)
    for named, kinds in ((True, COMPUTE), (False, COMPUTE), (False, MAIN)):
        room = _narrowest(trace, ax, window, kinds)
        if not room:
            continue
        widest = _FILL * min(room[kind] / (digits + named * _NAME[kind]) for kind in room)
        font = min(LARGEST_LABEL, tallest, widest)
        if font >= (6 if named else LEAST_LABEL):
            return _Labels(tuple(room), named, font)
    return None


def _narrowest(
    trace: Trace, ax: Axes, window: Window, kinds: Sequence[OpKind] = COMPUTE
) -> dict[OpKind, float]:
    """Per kind of compute op that occurs in a window, the width of its narrowest box in points."""
    op_ns = trace.end_ns - trace.start_ns
    shown = (op_ns > 0) & (trace.end_ns > window.from_ns) & (trace.start_ns < window.to_ns)
    return {
        kind: points(ax)[0] * float(op_ns[rows].min()) / window.length_ns
        for kind in kinds
        if (rows := shown & (trace.schedule.table[:, 0] == kind)).any()
    }


def _legend(trace: Trace) -> list[Patch]:
    """Return the kinds that occur, with the shades of chunks where there are several, and idle."""
    shape = trace.schedule.shape
    handles = []
    for kind in kinds_in(trace):
        label = f"{kind.name}  {KIND_NAMES[kind]}"
        handles.append(Patch(facecolor=shade(kind, 0, shape.chunks), label=label))
        if kind is OpKind.F:  # one kind as an example of the shades
            handles += [
                Patch(facecolor=shade(kind, chunk, shape.chunks), label=f"F  of chunk {chunk}")
                for chunk in range(1, shape.chunks)
            ]
    if shape.chunks > 1:  # the others are paler likewise
        paler = shade(OpKind.B, shape.chunks - 1, shape.chunks)
        handles.append(Patch(facecolor=paler, label="paler: of later chunks"))
    return [*handles, Patch(facecolor=IDLE, edgecolor=MUTED, linewidth=0.3, label="idle")]
