"""The figure of one trace: a lane per device and engine, the memory below, one time axis for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.models import (
    CDSView,
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    FixedTicker,
    GroupFilter,
    HoverTool,
    IndexFilter,
    LinearColorMapper,
    LinearInterpolator,
    Range1d,
)
from bokeh.models.renderers import GlyphRenderer
from bokeh.models.renderers.renderer import RendererGroup
from bokeh.plotting import figure
from bokeh.transform import transform

from ..ops import OpKind
from ..plot.axis import time_unit
from ..plot.style import shade, text_colour
from ..trace import CAUSES, Trace
from ..trace.boxes import CAUSE_COLOURS
from .actions import Parts, add_actions, named_view
from .columns import Drawing, TraceColumns, whole
from .lane_layout import COMPUTE, ROWS, LaneLayout, pixels
from .memory import Scales, memory_areas, memory_labels, memory_lanes, other_memory

# What tells causes apart without their colours, in grey.
CAUSE_PATTERNS = {
    "fill": " ",
    "neighbour": "/",
    "communication": ".",
    "reload": "x",
    "memory": "-",
    "drain": " ",
}
FADED = 0.16  # what is not marked, while something is
INK = "#1D2126"  # of names on a light ground
MARK, MESSAGE = "#E0218A", "#6A5ACD"
FOLDED_FROM = 9  # devices: a page of more begins with all of them folded


def time_range(traces: Sequence[Trace]) -> Range1d:
    """Return the time axis of one figure, or of several: all of the longest trace."""
    end = max(trace.makespan_ns for trace in traces)
    return Range1d(0, end, bounds=(-0.02 * end, 1.02 * end), min_interval=max(1, end // 10**6))


def time_label(trace: Trace) -> str:
    """Return what the time axis of a trace says."""
    return f"time ({time_unit(trace.makespan_ns)[0]})"


def lanes(
    columns: TraceColumns,
    name: str,
    scales: Scales,
    times: Range1d,
    *,
    marks: Mapping[str, Sequence[int]],
    other: TraceColumns | None = None,
) -> Any:
    """Return the figure called `name`; its callbacks are in `actions`.

    Args:
        times: its time axis.
        marks: rows of ops that a switch shows, by the name of the switch.
        other: whose memory is drawn as lines over this one's, by that one's ``shift``.
    """
    layout = columns.layout
    opened = [at for at in range(layout.lanes) if opens(columns.trace, at)]
    placed = layout.placed(opened)
    plot = figure(
        name=name,
        html_attributes={
            "role": "figure",
            "aria-label": "Ops and memory of each device over time; the tables below have the numbers",
        },
        sizing_mode="stretch_width",
        height=pixels(placed[-1]),
        x_range=times,
        y_range=Range1d(placed[-1], 0),
        tools="",
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_right=12,
    )
    columns.shift.name = f"{name}-shift"
    places = LinearInterpolator(x=layout.knots, y=placed, clip=False, name=f"{name}-places")
    sources = _lane_source(layout, opened, name)
    _axes(plot, columns.trace, np.interp(layout.levels, layout.knots, placed).tolist(), sources)
    on = Drawing(plot, columns, places)
    ops, idle = _boxes(on)
    memory = memory_lanes(columns, scales)
    areas = memory_areas(on, memory)
    if other is not None:
        other_memory(Drawing(plot, other, places), memory, memory_lanes(other, scales))
    memory_labels(on, memory)
    _messages(on)
    marked = {"line_alpha": 0, "nonselection_line_alpha": 0, "selection_line_alpha": 1}
    _arrows(on, ops.data_source, name=f"{name}-arrows", **marked)
    for mark, rows in marks.items():
        _marked(on, ops, mark, rows)
    inks = _coloured([text_colour(look) for look in _looks(columns.trace)])
    names = [
        _names(on, ops.data_source, inks),
        _names(on, idle[0].data_source, INK, background_fill_color="white"),
    ]
    add_actions(Parts(plot, ops, idle, names, places, columns.shift, sources, layout))
    plot.add_tools(
        _op_hover(columns, ops),
        _hover(idle, [("idle", "@idle"), ("cause", "@cause")]),
        _hover(areas, [("held", "@held"), ("time", "@time"), ("of", "$name")]),
    )
    return plot


def opens(trace: Trace, lane: int) -> bool:
    """Whether a lane is unfolded at first: all are where there are few devices, else those of the fullest device and of
    the hosts."""
    devices = trace.schedule.shape.devices
    fullest = int(np.argmax(trace.peak_bytes))
    return devices < FOLDED_FROM or lane == fullest or lane >= devices


def _lane_source(layout: LaneLayout, opened: list[int], name: str) -> ColumnDataSource:
    """Return the labels of all lanes; those that are selected are unfolded."""
    unfolded, folded = layout.labels()
    source = ColumnDataSource({"unfolded": unfolded, "folded": folded}, name=f"{name}-lanes")
    source.selected.indices = opened
    source.selected.name = f"{name}-unfolded"
    return source


def _axes(plot: Any, trace: Trace, levels: list[float], lanes: ColumnDataSource) -> None:
    plot.xaxis.name = f"{plot.name}-time"
    _, size = time_unit(trace.makespan_ns)
    plot.xaxis.axis_label = time_label(trace)
    plot.xaxis.formatter = CustomJSTickFormatter(
        code=f"return (tick / {size}).toLocaleString('en', {{maximumFractionDigits: 6}})"
    )
    plot.yaxis.ticker = FixedTicker(ticks=levels)
    plot.yaxis.formatter = CustomJSTickFormatter(
        code="return lanes.data[lanes.selected.indices.includes(index) ? 'unfolded' : 'folded'][index]",
        args={"lanes": lanes},
    )
    plot.yaxis.axis_line_width = plot.yaxis.major_tick_line_width = 0
    plot.xaxis.minor_tick_line_color = None
    plot.xgrid.grid_line_alpha = 0.35
    plot.ygrid.visible = False


def _boxes(on: Drawing) -> tuple[GlyphRenderer, list[GlyphRenderer]]:
    """Return the lanes, the idle intervals in them, and the ops."""
    trace, name = on.columns.trace, on.plot.name
    _grounds(on, fill_color="#8A8A8A", fill_alpha=0.13)
    source = ColumnDataSource(on.columns.gaps, name=f"{name}-gaps")
    idle = [
        _quads(
            on,
            source,
            # a pattern for each box of one glyph would be drawn for each box; one for all, once
            view=CDSView(filter=GroupFilter(column_name="cause_at", group=at)),
            fill_color=CAUSE_COLOURS[cause],
            fill_alpha=0.24,
            hatch_pattern=CAUSE_PATTERNS[cause],
            hatch_color="#808080",
            hatch_alpha=0.3,
            hatch_scale=7,
            hatch_weight=0.7,
        )
        for at, cause in enumerate(CAUSES)
        if trace.idle_ns[cause] or at == 0  # the source is asked for
    ]
    source = ColumnDataSource(on.columns.ops, name=f"{name}-ops")
    ops = _quads(on, source, fill_color=_coloured(_looks(trace)))
    _quads(on, ColumnDataSource(on.columns.inside), fill_color=shade(OpKind.C, 0, 1))
    return ops, idle


def _grounds(on: Drawing, **look: Any) -> GlyphRenderer:
    """Return boxes from the beginning to the end of the lanes of all engines."""
    layout = on.columns.layout
    rows = [COMPUTE, *((ROWS[OpKind.O], ROWS[OpKind.R]) if layout.nodes else ())]
    devices = np.arange(layout.devices)
    tops, bottoms = np.hstack([layout.within(row, devices) for row in rows])
    source = ColumnDataSource({"top": whole(tops), "bottom": whole(bottoms)})
    ends = on.whole()
    return _quads(on, source, left=ends["start"], right=ends["end"], **look)


def _looks(trace: Trace) -> list[str]:
    """Return the colour of each ``look``."""
    chunks = trace.schedule.shape.chunks
    return [shade(kind, chunk, chunks) for kind in OpKind for chunk in range(chunks)]


def _coloured(palette: list[str]) -> Any:
    return transform("look", LinearColorMapper(palette, low=-0.5, high=len(palette) - 0.5))


def _quads(on: Drawing, source: ColumnDataSource, **look: Any) -> GlyphRenderer:
    """Return the boxes of a source; those that are not marked while others are fade."""
    alpha = look.get("fill_alpha", 1.0)
    faded = {"nonselection_fill_alpha": FADED * alpha, "nonselection_hatch_alpha": 0.1}
    marked = {"selection_fill_alpha": alpha}
    renderer: GlyphRenderer = on.plot.quad(
        source=source,
        top=on.height("top"),
        bottom=on.height("bottom"),
        **{
            "left": on.columns.moved("start"),
            "right": on.columns.moved("end"),
            "line_color": None,
            **faded,
            **marked,
            **look,
        },
    )
    return renderer


def _messages(on: Drawing) -> None:
    """Messages between devices, which a switch shows."""
    on.plot.segment(
        x0=on.columns.moved("depart"),
        x1=on.columns.moved("arrive"),
        y0=on.height("sender"),
        y1=on.height("receiver"),
        source=ColumnDataSource(on.columns.messages),
        name=f"{on.plot.name}-sent",
        line_color=MESSAGE,
        line_alpha=0.75,
        visible=False,
    )


def _arrows(on: Drawing, ops: ColumnDataSource, **look: Any) -> GlyphRenderer:
    """Lines to ops from what they waited for."""
    renderer: GlyphRenderer = on.plot.segment(
        x0=on.columns.moved("since"),
        x1=on.columns.moved("start"),
        y0=on.height("before"),
        y1=on.height("level"),
        source=ops,
        line_color=MARK,
        line_width=1.6,
        **look,
    )
    return renderer


def _marked(on: Drawing, ops: GlyphRenderer, name: str, rows: Sequence[int]) -> None:
    """Ops that a switch shows over a veil on all others, those of the critical path with their arrows."""
    source = ops.data_source
    look = {"fill_color": ops.glyph.fill_color, "view": CDSView(filter=IndexFilter(list(rows)))}
    shown = [
        _grounds(on, fill_color="white", fill_alpha=0.8),
        _quads(on, source, nonselection_fill_alpha=1, **look),
    ]
    if name == "critical":
        shown.append(_arrows(on, source, view=look["view"], nonselection_line_alpha=1))
    group = RendererGroup(name=f"{on.plot.name}-{name}", visible=False)
    for renderer in shown:
        renderer.group, renderer.visible = group, False


def _names(on: Drawing, source: ColumnDataSource, ink: Any, **look: Any) -> GlyphRenderer:
    """Names in the boxes that are in sight and have room for them.

    What stands on a tint has a ground of its own.
    """
    renderer: GlyphRenderer = on.plot.text(
        x=on.columns.moved("start"),
        x_offset=3,
        y=on.height("level"),
        text="name",
        text_color=ink,
        source=source,
        view=named_view(on.plot, on.columns.shift),
        text_baseline="middle",
        text_font_size="11px",
        background_fill_alpha=0.6,
        border_radius=2,
        padding=(0, 3),
        **look,
    )
    return renderer


def _op_hover(columns: TraceColumns, ops: GlyphRenderer) -> HoverTool:
    """Return the hover of ops, in the unit of the time axis; texts that all ops of an activation share are stored
    once."""
    unit, size = time_unit(columns.trace.makespan_ns)
    time = CustomJSHover(code=f"return `${{Number((value / {size}).toPrecision(6))}} {unit}`")
    life = CustomJSHover(
        args=columns.lives, code=f"return {{{', '.join(columns.lives)}}}[format][value]"
    )
    lines = [
        ("op", "@op"),
        ("time", "@start{ns} to @end{ns}, @took"),
        ("waited", "@waited"),
        *((line, f"@life{{{line}}}") for line in columns.lives),
        ("bytes", "@bytes"),
    ]
    hover = _hover([ops], lines)
    hover.formatters = {"@start": time, "@end": time, "@life": life}
    return hover


def _hover(renderers: list[GlyphRenderer], lines: list[tuple[str, str]]) -> HoverTool:
    return HoverTool(
        renderers=renderers,
        tooltips=lines,
        point_policy="follow_mouse",
        attachment="vertical",  # above or below, where it does not cover the lane that it explains
        visible=False,
    )
