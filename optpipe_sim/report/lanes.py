"""The figure of one trace: a lane per device and engine, the memory below, one time axis for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.events import AxisClick
from bokeh.models import (
    BoxZoomTool,
    CDSView,
    ColumnDataSource,
    CustomJS,
    CustomJSFilter,
    CustomJSHover,
    CustomJSTickFormatter,
    FixedTicker,
    GroupFilter,
    HoverTool,
    LinearColorMapper,
    LinearInterpolator,
    PanTool,
    Range1d,
    ResetTool,
    SaveTool,
    TapTool,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure
from bokeh.transform import transform

from ..ops import OpKind
from ..plot.axis import time_unit
from ..plot.style import shade, text_colour
from ..trace import CAUSES, Trace
from .columns import TraceColumns, narrow
from .layout import COMPUTE, ROWS
from .memory import Scales, memory_areas, memory_lanes, other_memory

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; drawn pale, with a
# pattern each, which is what remains of them in grey.
CAUSE_COLOURS = {
    "fill": "#56B4E9",
    "neighbour": "#E69F00",
    "communication": "#009E73",
    "reload": "#F0E442",
    "memory": "#CC79A7",
    "drain": "#0072B2",
}
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
    """The time axis of a figure: all of the longest trace. Alone it cannot be left."""
    end = max(trace.makespan_ns for trace in traces)
    bounds = (-0.02 * end, 1.02 * end) if len(traces) == 1 else None
    return Range1d(0, end, bounds=bounds, min_interval=max(1, end // 10**6))


def lanes(
    columns: TraceColumns,
    name: str,
    scales: Scales,
    times: Range1d,
    other: tuple[TraceColumns, Range1d] | None = None,
) -> Any:
    """The figure, which page.js knows by `name`, as it knows its models: ``NAME-ops``, ``NAME-gaps``...

    Args:
        times: its time axis.
        other: whose memory is drawn as lines over this one's, on that one's time axis.
    """
    trace, layout = columns.trace, columns.layout
    plot = figure(
        name=name,
        sizing_mode="stretch_width",
        height=200,
        x_range=times,
        y_range=Range1d(1, 0),
        tools="",
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_right=12,
    )
    # where heights of the layout are, now that some devices are folded; what is of no use there is NaN
    knots = [float(knot) for knot in layout.knots]
    places = LinearInterpolator(x=knots, y=knots, clip=False, name=f"{name}-places")
    inside = LinearInterpolator(x=knots, y=knots, clip=False, name=f"{name}-inside")
    _axes(plot, trace)
    ops, idle = _boxes(plot, columns, places)
    memory = memory_lanes(columns, scales)
    areas = memory_areas(plot, columns, memory, places, inside)
    if other is not None:
        plot.extra_x_ranges = {"other": other[1]}
        other_memory(plot, memory, memory_lanes(other[0], scales), other[0], inside)
    _arrows(plot, columns, ops.data_source, places)
    inks = _coloured([text_colour(look) for look in _looks(trace)])
    _names(plot, ops.data_source, f"{name}-names", places, inks)
    _names(plot, idle[0].data_source, f"{name}-causes", places, INK, background_fill_color="white")
    wheel = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
    pan = PanTool(dimensions="width")
    tapped = CustomJS(code=f"optpipe.tapped('{name}', cb_data.source)")
    plot.add_tools(
        pan,
        wheel,
        BoxZoomTool(dimensions="width"),
        ZoomInTool(dimensions="width"),
        ZoomOutTool(dimensions="width"),
        ResetTool(),
        SaveTool(filename=name),
        TapTool(renderers=[ops, *idle], callback=tapped),
        _op_hover(columns, ops),
        _hover(idle, [("idle", "@idle"), ("cause", "@cause")]),
        _hover(areas, [("held", "@held"), ("time", "@time"), ("of", "$name")]),
    )
    plot.toolbar.active_scroll, plot.toolbar.active_drag = wheel, pan
    plot.toolbar.logo = None
    return plot


def description(columns: TraceColumns) -> dict[str, Any]:
    """What page.js has to know of a figure beside its models; plain data."""
    trace, devices = columns.trace, columns.trace.schedule.shape.devices
    fullest = int(np.argmax(trace.peak_bytes))
    lanes = columns.layout.lanes()
    return {
        "makespan": trace.makespan_ns,
        "critical": columns.critical,
        "lanes": lanes,
        "open": [
            devices < FOLDED_FROM or at in (fullest, *range(devices, len(lanes)))
            for at in range(len(lanes))
        ],
    }


def _axes(plot: Any, trace: Trace) -> None:
    unit, size = time_unit(trace.makespan_ns)
    plot.xaxis.axis_label = f"time ({unit})"
    plot.xaxis.formatter = CustomJSTickFormatter(
        code=f"return (tick / {size}).toLocaleString('en', {{maximumFractionDigits: 6}})"
    )
    plot.yaxis.ticker = FixedTicker(ticks=[])
    plot.yaxis.axis_line_width = plot.yaxis.major_tick_line_width = 0
    plot.xaxis.minor_tick_line_color = None
    plot.xgrid.grid_line_alpha = 0.35
    plot.ygrid.visible = False
    fold = CustomJS(code=f"optpipe.foldAt('{plot.name}', cb_obj.value)")
    plot.yaxis.js_on_event(AxisClick, fold)


def _boxes(
    plot: Any, columns: TraceColumns, places: LinearInterpolator
) -> tuple[GlyphRenderer, list[GlyphRenderer]]:
    """The lanes, the idle intervals in them, and the ops."""
    trace, layout = columns.trace, columns.layout
    devices = np.arange(layout.devices)
    rows = [COMPUTE, *((ROWS[OpKind.O], ROWS[OpKind.R]) if layout.nodes else ())]
    tops, bottoms = np.hstack([layout.within(row, devices) for row in rows])
    under = ColumnDataSource({"top": narrow(tops), "bottom": narrow(bottoms)})
    _quads(
        plot, under, places, left=0, right=trace.makespan_ns, fill_color="#8A8A8A", fill_alpha=0.13
    )
    source = ColumnDataSource(columns.gaps, name=f"{plot.name}-gaps")
    idle = [
        _quads(
            plot,
            source,
            places,
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
        if trace.idle_ns[cause] or at == 0  # page.js asks for the source
    ]
    source = ColumnDataSource(columns.ops, name=f"{plot.name}-ops")
    ops = _quads(plot, source, places, fill_color=_coloured(_looks(trace)))
    inside = ColumnDataSource(columns.inside)
    _quads(plot, inside, places, fill_color=shade(OpKind.C, 0, 1))
    return ops, idle


def _looks(trace: Trace) -> list[str]:
    """The colour of each ``look``."""
    chunks = trace.schedule.shape.chunks
    return [shade(kind, chunk, chunks) for kind in OpKind for chunk in range(chunks)]


def _coloured(palette: list[str]) -> Any:
    return transform("look", LinearColorMapper(palette, low=-0.5, high=len(palette) - 0.5))


def _quads(
    plot: Any, source: ColumnDataSource, places: LinearInterpolator, **look: Any
) -> GlyphRenderer:
    """The boxes of a source; those that are not marked while others are fade."""
    alpha = look.get("fill_alpha", 1.0)
    faded = {"nonselection_fill_alpha": FADED * alpha, "nonselection_hatch_alpha": 0.1}
    marked = {"selection_fill_alpha": alpha}
    renderer: GlyphRenderer = plot.quad(
        source=source,
        top=transform("top", places),
        bottom=transform("bottom", places),
        **{"left": "start", "right": "end", "line_color": None, **look, **faded, **marked},
    )
    return renderer


def _arrows(
    plot: Any, columns: TraceColumns, ops: ColumnDataSource, places: LinearInterpolator
) -> None:
    """What appears on demand: messages, and lines to marked ops from what they waited for."""
    plot.segment(
        x0="depart",
        x1="arrive",
        y0=transform("sender", places),
        y1=transform("receiver", places),
        source=ColumnDataSource(columns.messages),
        name=f"{plot.name}-messages",
        line_color=MESSAGE,
        line_alpha=0.75,
        visible=False,
    )
    plot.segment(
        x0="since",
        x1="start",
        y0=transform("before", places),
        y1=transform("level", places),
        source=ops,
        name=f"{plot.name}-arrows",
        line_color=MARK,
        line_width=1.6,
        nonselection_line_alpha=0,
        visible=False,
    )


NAMED = """
const { start, end, top, bottom, name } = source.data, from = times.start, to = times.end;
const pixels = plot.properties.inner_width.is_unset ? 0 : plot.inner_width / (to - from);
const high = (at) => places.compute(bottom[at]) - places.compute(top[at]);
const room = (at) => (end[at] - start[at]) * pixels > 6.2 * name[at].length + 3 && high(at) > 35;
return Array.from(start, (left, at) => left < to && end[at] > from && room(at));
"""


def _names(
    plot: Any,
    source: ColumnDataSource,
    name: str,
    places: LinearInterpolator,
    ink: Any,
    **look: Any,
) -> None:
    """Names in the boxes that are in sight and have room for them; page.js asks again after a zoom.

    What stands on a tint has a ground of its own, to be read on light and dark alike.
    """
    args = {"plot": plot, "times": plot.x_range, "places": places}
    plot.text(
        name=name,
        x="start",
        x_offset=3,
        y=transform("level", places),
        text="name",
        text_color=ink,
        source=source,
        view=CDSView(filter=CustomJSFilter(code=NAMED, args=args)),
        text_baseline="middle",
        text_font_size="11px",
        background_fill_alpha=0.6,
        border_radius=2,
        padding=(0, 3),
        **look,
    )


def _op_hover(columns: TraceColumns, ops: GlyphRenderer) -> HoverTool:
    """Times in the axis' unit; what is the same for all ops of an activation is there once."""
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
        renderers=renderers, tooltips=lines, point_policy="follow_mouse", visible=False
    )
