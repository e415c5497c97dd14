"""Memory lanes: what each device and each host holds over time, with its limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource
from bokeh.models.renderers import GlyphRenderer

from ..plot.style import LIMIT
from ..trace import Trace
from ..trace.boxes import OFF_SCALE
from ..trace.steps import Steps
from ..units import format_size
from .columns import Drawing, TraceColumns
from .lane_layout import Place, curve

MEMORY_COLOUR, OTHER, STATIC, LABEL = "#7D95AD", "#B5541C", "#7A7A7A", "#4A5258"


class MemoryLane(NamedTuple):
    """What a device or a host holds: where the lane lies, what its whole height stands for, and what is
    static and allowed there (None: no limit)."""

    name: str
    steps: Steps
    place: Place
    scale_bytes: int
    static_bytes: int
    limit_bytes: int | None

    def says(self) -> str:
        limit = "no limit" if self.limit_bytes is None else f"limit {format_size(self.limit_bytes)}"
        return f"{self.name}, {limit}, peak {format_size(self.steps.peak)}"

    def label(self) -> str:
        limit = "" if self.limit_bytes is None else f" of {format_size(self.limit_bytes)}"
        return f"peak {format_size(self.steps.peak)}{limit}"


class Scales(NamedTuple):
    """What the whole height of a memory lane stands for: the same for all traces of a page."""

    device_bytes: int
    host_bytes: int

    @classmethod
    def of(cls, *traces: Trace) -> Scales:
        """Return the highest peaks, or limits where those are near."""
        device = [(max(trace.peak_bytes), trace.memory_limit or ()) for trace in traces]
        host = [(trace.host_peak_bytes, _host_limits(trace)) for trace in traces]
        return cls(_reach(device), _reach(host))


def _reach(found: Sequence[tuple[int, Sequence[int]]]) -> int:
    peak = max(1, *(peak for peak, _ in found))
    near = [limit for _, limits in found for limit in limits if limit <= OFF_SCALE * peak]
    return max(peak, *near, 0)


def _host_limits(trace: Trace) -> list[int]:
    offload = trace.profile.offload
    return [] if offload is None or not offload.pinned_limit_bytes else [offload.pinned_limit_bytes]


def memory_lanes(columns: TraceColumns, scales: Scales) -> list[MemoryLane]:
    """Return the devices' lanes, then those of the hosts where anything is offloaded."""
    trace, layout = columns.trace, columns.layout
    limits = trace.memory_limit or [None] * layout.devices
    found = [
        MemoryLane(
            f"device {device}",
            steps,
            layout.memory(device),
            scales.device_bytes,
            trace.profile.static_bytes[device],
            limits[device],
        )
        for device, steps in enumerate(trace.memory)
    ]
    most = next(iter(_host_limits(trace)), None)
    for node, steps in enumerate(trace.pinned):
        name = "pinned host memory" + (f" of node {node}" if layout.nodes > 1 else "")
        found.append(MemoryLane(name, steps, layout.host(node), scales.host_bytes, 0, most))
    return found


def memory_areas(on: Drawing, found: list[MemoryLane]) -> list[GlyphRenderer]:
    """Return what each device and host holds, as an area, with what is static in it and its limit above."""
    plot, columns = on.plot, on.columns
    areas = [
        plot.varea_step(
            x=columns.moved("start"),
            y1=value(lane.place[1], transform=on.places),
            y2=on.height("level"),
            source=ColumnDataSource(
                columns.memory(lane.steps, lane.place, lane.scale_bytes), name=f"{plot.name}-memory"
            ),
            name=lane.says(),
            step_mode="after",
            fill_color=MEMORY_COLOUR,
            fill_alpha=0.6,
        )
        for lane in found
    ]
    static = [(lane, lane.static_bytes) for lane in found if lane.static_bytes]
    limits = [
        (lane, lane.limit_bytes)
        for lane in found
        if lane.limit_bytes is not None and lane.limit_bytes <= lane.scale_bytes
    ]
    for lines, look in (
        (static, {"line_color": STATIC}),
        (limits, {"line_color": LIMIT, "line_dash": (5, 2), "line_width": 1.3}),
    ):
        levels = [
            float(curve(lane.place, np.array(size), lane.scale_bytes)) for lane, size in lines
        ]
        level, ends = on.height("level"), on.whole()
        source = ColumnDataSource({"level": levels})
        plot.segment(x0=ends["start"], x1=ends["end"], y0=level, y1=level, source=source, **look)
    return areas


def memory_labels(on: Drawing, found: list[MemoryLane]) -> None:
    """The peak of each device and host, and its limit, at the beginning of its lane."""
    labels = {"text": [lane.label() for lane in found], "top": [lane.place[0] for lane in found]}
    on.plot.text(
        x=on.columns.at(0),
        y=on.height("top"),
        source=ColumnDataSource(labels),
        x_offset=4,
        y_offset=4,
        text_baseline="top",
        text_font_size="10px",
        text_color=LABEL,
        background_fill_color="white",
        background_fill_alpha=0.8,
    )


def other_memory(on: Drawing, own: list[MemoryLane], others: list[MemoryLane]) -> None:
    """What the devices and hosts of another trace, whose columns these are, hold, as lines in the lanes of the same
    names."""
    place = {lane.name: lane.place for lane in own}
    for lane in others:
        if lane.name in place:
            data = on.columns.memory(lane.steps, place[lane.name], lane.scale_bytes)
            on.plot.step(
                x=on.columns.moved("start"),
                y=on.height("level"),
                source=ColumnDataSource(
                    {key: data[key] for key in ("start", "level")}, name=f"{on.plot.name}-other"
                ),
                mode="after",
                line_color=OTHER,
                line_width=1.2,
            )
