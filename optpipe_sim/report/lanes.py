"""The figure of one trace: a lane per device and engine, the memory below, one time axis for all."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.events import AxisClick
from bokeh.models import (
    BoxZoomTool,
    CDSView,
    ColumnDataSource,
    CustomJSFilter,
    CustomJSHover,
    CustomJSTickFormatter,
    CustomJSTransform,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    PanTool,
    Range1d,
    ResetTool,
    SaveTool,
    TapTool,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)
from bokeh.models.callbacks import CustomJS
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure
from bokeh.transform import transform

from ..ops import OpKind
from ..plot.axis import time_unit
from ..plot.style import LIMIT, shade, text_colour
from ..trace import CAUSES, Trace
from .columns import (
    COMPUTE_LANE,
    MEMORY_LANE,
    OFFLOAD_LANE,
    REASONS,
    RELOAD_LANE,
    ROWS,
    TraceColumns,
    narrow,
)

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
MEMORY_COLOUR, MARK, MESSAGE, OTHER = "#7D95AD", "#E0218A", "#6A5ACD", "#B5541C"
OFF_SCALE = 2.5  # a limit above so many times the peak is not drawn: the curve would lie flat
FOLDED_FROM = 9  # devices: a page of more begins with all of them folded


def lanes(
    columns: TraceColumns, name: str, scale_bytes: int, other: TraceColumns | None = None
) -> Any:
    """The figure, to be laid out and brought to life by page.js, which knows it by `name`.

    Args:
        scale_bytes: what the whole height of a memory lane stands for.
        other: whose memory is drawn as lines over this one's.
    """
    trace = columns.trace
    end = trace.makespan_ns
    plot = figure(
        name=name,
        sizing_mode="stretch_width",
        height=200,
        x_range=Range1d(
            0, end, bounds=(-0.02 * end, 1.02 * end), min_interval=max(1, end // 10**6)
        ),
        y_range=Range1d(1, 0),
        tools="",
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_right=12,
    )
    _axes(plot, trace)
    ops, idle = _boxes(plot, columns, name)
    areas = _memory(plot, columns, name, scale_bytes)
    if other is not None:
        _other_memory(plot, other, trace.schedule.shape.devices, name)
    _marks(plot, columns, name)
    wheel = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
    pan = PanTool(dimensions="width")
    told = CustomJS(code=f"optpipe.tapped('{name}', cb_data.source)")
    plot.add_tools(
        pan,
        wheel,
        BoxZoomTool(dimensions="width"),
        ZoomInTool(dimensions="width"),
        ZoomOutTool(dimensions="width"),
        ResetTool(),
        SaveTool(filename=name),
        TapTool(renderers=[ops, *idle], callback=told),
        _hover(
            name, ops, ("op", "time", "waited", "activation", "offloaded", "recomputed", "bytes")
        ),
        _hover(name, idle, ("idle", "cause")),
        _hover(name, areas, ("held", "of"), "@device"),
    )
    plot.toolbar.active_scroll, plot.toolbar.active_drag = wheel, pan
    plot.toolbar.logo = None
    return plot


def memory_scale(traces: list[Trace]) -> int:
    """What the height of a memory lane stands for: the highest peak, or limit where that is near."""
    reach = peak = max(1, *(max(trace.peak_bytes) for trace in traces))
    for trace in traces:
        near = [limit for limit in trace.memory_limit or () if limit <= OFF_SCALE * peak]
        reach = max(reach, *near, 0)
    return reach


def description(columns: TraceColumns, name: str, scale_bytes: int) -> dict[str, Any]:
    """What page.js has to know of a figure beside its columns; plain data."""
    trace = columns.trace
    shape = trace.schedule.shape
    return {
        "name": name,
        "devices": shape.devices,
        "stages": shape.stages,
        "microbatches": shape.units,
        "chunkOf": list(shape.chunk_of),
        "makespan": trace.makespan_ns,
        "inks": [text_colour(look) for look in _looks(shape.chunks)],
        "copies": bool(trace.offloaded),
        "folded": shape.devices >= FOLDED_FROM,
        "fullest": int(np.argmax(trace.peak_bytes)),
        "kinds": [kind.name for kind in OpKind],
        "causes": CAUSES,
        "reasons": REASONS,
        "sizes": columns.sizes,
        "levels": columns.levels,
        "levelNames": list(trace.schedule.levels.names),
        "critical": columns.critical,
        "scale": scale_bytes,
        "limits": trace.memory_limit and list(trace.memory_limit),
    }


def _placed(field: str, name: str, edge: float) -> Any:
    """The vertical place of an edge of boxes: page.js says it, since devices fold and unfold."""
    code = f"return optpipe.place('{name}', xs, {edge})"
    return transform(field, CustomJSTransform(func="return x", v_func=code))


def _axes(plot: Any, trace: Trace) -> None:
    unit, size = time_unit(trace.makespan_ns)
    plot.xaxis.axis_label = f"time ({unit})"
    plot.xaxis.formatter = CustomJSTickFormatter(
        code=f"return (tick / {size}).toLocaleString('en', {{maximumFractionDigits: 6}})"
    )
    plot.yaxis.ticker = FixedTicker(ticks=[])
    plot.yaxis.axis_line_color = plot.yaxis.major_tick_line_color = None
    plot.xgrid.grid_line_alpha = 0.35
    plot.ygrid.grid_line_color = None
    fold = CustomJS(code=f"optpipe.foldAt('{plot.name}', cb_obj.value)")
    plot.yaxis.js_on_event(AxisClick, fold)


def _boxes(
    plot: Any, columns: TraceColumns, name: str
) -> tuple[GlyphRenderer, list[GlyphRenderer]]:
    """The lanes, the idle intervals in them, and the ops."""
    trace = columns.trace
    shape = trace.schedule.shape
    rows = [COMPUTE_LANE, *((OFFLOAD_LANE, RELOAD_LANE) if trace.offloaded else ())]
    places = narrow([device * ROWS + row for device in range(shape.devices) for row in rows])
    _quads(
        plot,
        name,
        {"place": places},
        "lanes",
        left=0,
        right=trace.makespan_ns,
        fill_color="#8A8A8A",
        fill_alpha=0.13,
    )
    source = ColumnDataSource(columns.gaps, name=f"{name}-gaps")
    idle = [
        _quads(
            plot,
            name,
            source,
            f"idle-{cause}",
            # a pattern for each box of one glyph would be drawn for each box; one for all, once
            view=CDSView(
                filter=CustomJSFilter(
                    code=f"return Array.from(source.data.cause, (cause) => cause === {at})"
                )
            ),
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
    looks = _looks(shape.chunks)
    ops = _quads(plot, name, columns.ops, "ops", fill_color=_coloured("look", looks))
    _quads(plot, name, columns.inside, "inside", fill_color=shade(OpKind.C, 0, 1))
    return ops, idle


def _looks(chunks: int) -> list[str]:
    """The colour of each ``look``."""
    return [shade(kind, chunk, chunks) for kind in OpKind for chunk in range(chunks)]


def _coloured(field: str, palette: list[str]) -> Any:
    return transform(field, LinearColorMapper(palette, low=-0.5, high=len(palette) - 0.5))


def _quads(
    plot: Any, name: str, data: dict[str, np.ndarray] | ColumnDataSource, part: str, **look: Any
) -> GlyphRenderer:
    """Boxes of one source, whose model is called by the figure's name and the part's."""
    alpha = look.get("fill_alpha", 1.0)
    faded = {"nonselection_fill_alpha": FADED * alpha, "nonselection_hatch_alpha": 0.1}
    marked = {"selection_fill_alpha": alpha}
    if isinstance(data, dict):
        data = ColumnDataSource(data, name=f"{name}-{part}")
    renderer: GlyphRenderer = plot.quad(
        source=data,
        name=f"{name}-{part}-boxes",
        top=_placed("place", name, 0),
        bottom=_placed("place", name, 1),
        **{"left": "start", "right": "end", "line_color": None, **look, **faded, **marked},
    )
    return renderer


def _memory(plot: Any, columns: TraceColumns, name: str, scale_bytes: int) -> list[GlyphRenderer]:
    """What each device holds, as an area, with what is static in it and its limit above."""
    trace = columns.trace
    devices = range(trace.schedule.shape.devices)
    areas = []
    for device in devices:
        data = columns.memory(device)
        data["device"] = np.full(len(data["time"]), device, np.uint8 if device < 256 else np.uint16)
        code = f"return optpipe.height('{name}', {device}, xs)"
        areas.append(
            plot.varea_step(
                x="time",
                y1=_placed("place", name, 1),
                y2=transform("bytes", CustomJSTransform(func="return x", v_func=code)),
                source=ColumnDataSource(
                    {
                        **data,
                        "place": narrow(np.full(len(data["time"]), device * ROWS + MEMORY_LANE)),
                    },
                    name=f"{name}-memory",
                ),
                step_mode="after",
                fill_color=MEMORY_COLOUR,
                fill_alpha=0.6,
            )
        )
    limits = trace.memory_limit or ()
    shown = [device for device in devices if limits and limits[device] <= scale_bytes]
    static = trace.profile.static_bytes
    for values, chosen, look in (
        (static, [device for device in devices if static[device]], {"line_color": "#7A7A7A"}),
        (limits, shown, {"line_color": LIMIT, "line_dash": (5, 2), "line_width": 1.3}),
    ):
        heights = CustomJSTransform(
            args={"of": [int(values[device]) for device in chosen], "devices": chosen},
            func="return x",
            v_func=f"return Array.from(xs, (_, at) => optpipe.height('{name}', devices[at], [of[at]], true)[0])",
        )
        data = {"device": narrow(chosen)}
        level = transform("device", heights)
        source = ColumnDataSource(data, name=f"{name}-limits")
        plot.segment(x0=0, x1=trace.makespan_ns, y0=level, y1=level, source=source, **look)
    return areas


def _other_memory(plot: Any, other: TraceColumns, devices: int, name: str) -> None:
    """What the devices of another trace hold, as a line each."""
    shifted = CustomJSTransform(func="return x", v_func=f"return optpipe.shifted('{name}', xs)")
    for device in range(min(devices, other.trace.schedule.shape.devices)):
        code = f"return optpipe.height('{name}', {device}, xs, true)"
        plot.step(
            x=transform("time", shifted),
            y=transform("bytes", CustomJSTransform(func="return x", v_func=code)),
            source=ColumnDataSource(other.memory(device), name=f"{name}-other"),
            mode="after",
            line_color=OTHER,
            line_width=1.2,
        )


def _marks(plot: Any, columns: TraceColumns, name: str) -> None:
    """What appears on demand: messages, the way back through the causes, and names in boxes."""
    plot.segment(
        x0="depart",
        x1="arrive",
        y0=_placed("sender", name, 0.5),
        y1=_placed("receiver", name, 0.5),
        source=ColumnDataSource(columns.messages, name=f"{name}-messages"),
        name=f"{name}-messages-lines",
        line_color=MESSAGE,
        line_alpha=0.75,
        visible=False,
    )
    plot.segment(
        x0="x0",
        x1="x1",
        y0=_placed("from", name, 0.5),
        y1=_placed("to", name, 0.5),
        source=ColumnDataSource({"x0": [], "x1": [], "from": [], "to": []}, name=f"{name}-way"),
        line_color=MARK,
        line_width=1.6,
    )
    plot.text(
        x="x",
        y=_placed("place", name, 0.5),
        text="text",
        text_color="colour",
        source=ColumnDataSource(
            {"x": [], "place": [], "text": [], "colour": []}, name=f"{name}-labels"
        ),
        text_align="center",
        text_baseline="middle",
        text_font_size="11px",
    )


def _hover(
    name: str,
    renderers: GlyphRenderer | list[GlyphRenderer],
    parts: tuple[str, ...],
    field: str = "$index",
) -> HoverTool:
    """A hover whose lines page.js writes, one part each; Bokeh shows them as text."""
    code = f"return optpipe.tell('{name}', format, value, special_vars)"
    return HoverTool(
        renderers=renderers if isinstance(renderers, list) else [renderers],
        tooltips=[(part, f"{field}{{{part}}}") for part in parts],
        formatters={field: CustomJSHover(code=code)},
        point_policy="follow_mouse",
        visible=False,
    )
