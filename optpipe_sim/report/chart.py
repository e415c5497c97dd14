"""Time over memory: a point per schedule, which a click opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    HoverTool,
    OpenURL,
    PanTool,
    ResetTool,
    SaveTool,
    TapTool,
    Title,
    WheelZoomTool,
)
from bokeh.plotting import figure

from ..plot.axis import size_unit, time_unit
from ..plot.style import LIMIT
from ..units import format_size, format_time

# kind: what it is called, colour, marker, size; distinct without colours as well
KINDS = {
    "over": ("above the limit", "#D55E00", "x", 9),
    "replayed": ("replayed", "#56B4E9", "circle", 5),
    "published": ("published, no limit", "#B26A00", "diamond", 9),
    "best": ("best for a limit", "#0072B2", "circle", 11),
    "fits": ("fits", "#0072B2", "circle", 11),
}
GREY = "#4A5258"  # of texts
NEAR = 0.06, 0.04  # of the picture's width and height: nearer points are named together
MOST_NAMES = 30  # beside points; more would cover one another
SLOWEST = 1.7  # times the fastest: slower points are outside the picture at first
LARGEST = 1.5  # times the limit, or the largest that fits: points with more are, too


class Mark(NamedTuple):
    """A point of the chart: its name, its place, one of `KINDS`, and the view that a click on it opens."""

    name: str
    memory_bytes: float
    time_ns: float
    kind: str
    view: int = 0


class Curve(NamedTuple):
    """A step function: each value holds up to the next place."""

    name: str
    places: Sequence[tuple[float, float]]
    dashed: bool = False


def chart(
    marks: Sequence[Mark], curves: Sequence[Curve], limit_bytes: int | None, axis: str
) -> Any:
    """Return the figure; a click on a point opens its view."""
    lines = [place for curve in curves for place in curve.places]
    memory = [*(mark.memory_bytes for mark in marks), *(x for x, _ in lines), limit_bytes or 1]
    times = [*(mark.time_ns for mark in marks), *(y for _, y in lines)] or [1]
    size_name, size = size_unit(max(memory))
    time_name, unit = time_unit(max(times))
    plot = figure(
        name="chart",
        html_attributes={
            "role": "figure",
            "aria-label": f"Time per iteration over the {axis}; the table below has the numbers",
        },
        height=420,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        x_axis_label=f"{axis} ({size_name})",
        y_axis_label=f"time per iteration ({time_name})",
    )
    for curve in curves:
        xs, ys = zip(*curve.places, strict=True)
        plot.step(
            [x / size for x in xs],
            [y / unit for y in ys],
            mode="after",
            line_width=2,
            line_color="#9B6BC9" if curve.dashed else "#0072B2",
            line_dash="dashed" if curve.dashed else "solid",
            legend_label=curve.name,
        )
    points = [_points(plot, kind, marks, size, unit) for kind in KINDS]
    points = [renderer for renderer in points if renderer is not None]
    if limit_bytes is not None:
        name = f"limit: {format_size(limit_bytes)}"
        plot.vspan(x=[limit_bytes / size], line_color=LIMIT, line_dash="dashed", legend_label=name)
    if curves:  # the range of the curves; what lies outside is a zoom away
        memory = [x for x, _ in lines]
    left, right = _range(memory, _most_bytes(marks, limit_bytes) if not curves else max(memory))
    low, high = _range(times, SLOWEST * min(times))
    room = 0.08 * (right - left or right)
    plot.x_range.start, plot.x_range.end = (left - room) / size, (right + room) / size
    plot.y_range.start, plot.y_range.end = 0.97 * low / unit, 1.06 * high / unit
    away = [
        mark
        for mark in marks
        if mark.time_ns > 1.06 * high or not left - room <= mark.memory_bytes <= right + room
    ]
    _names(plot, [mark for mark in marks if mark.view and mark not in away], size, unit)
    if away:
        plot.add_layout(Title(text=_away(away), text_color=GREY, text_font_style="italic"), "below")
    opening = [each for each in points if any(each.data_source.data["view"])]
    plot.add_tools(
        PanTool(),
        WheelZoomTool(modifiers={"ctrl": True}),
        BoxZoomTool(),
        ResetTool(),
        SaveTool(filename="chart"),
        HoverTool(
            renderers=points,
            tooltips=[("", "@name"), ("time", "@time"), ("memory", "@memory")],
            visible=False,
        ),
        TapTool(renderers=opening, callback=OpenURL(url="#view-@view", same_tab=True)),
    )
    plot.toolbar.logo = None
    plot.legend.click_policy = "hide"
    plot.legend.background_fill_alpha = 0
    plot.legend.border_line_color = None
    plot.legend.label_text_color = GREY
    plot.grid.grid_line_alpha = 0.35
    plot.axis.minor_tick_line_color = None
    return plot


def _range(values: Sequence[float], most: float) -> tuple[float, float]:
    """Return the least of the values, and the largest that is at most `most`."""
    least = min(values)
    return least, max((value for value in values if value <= most), default=least)


def _most_bytes(marks: Sequence[Mark], limit_bytes: int | None) -> float:
    """Return the memory up to which points are in the picture at first: points that do not fit and are far from all
    that do are left out, as they would squeeze the others into one line."""
    fitting = [mark.memory_bytes for mark in marks if mark.kind != "over"]
    largest = max([*fitting, limit_bytes or 0]) or max(mark.memory_bytes for mark in marks)
    return LARGEST * largest


def _away(marks: Sequence[Mark]) -> str:
    """Say which points are outside the picture."""
    names = [
        f"{mark.name} ({format_time(mark.time_ns)}, {format_size(round(mark.memory_bytes))})"
        for mark in marks
        if mark.view
    ]
    named = f": {_joined(names)}" if names else ""
    return f"{len(marks)} outside the picture{named}; zoom out with Ctrl and the wheel"


def _names(plot: Any, marks: Sequence[Mark], size: int, unit: int) -> None:
    """Draw labels above the points that open a schedule, where no curve crosses them."""
    if not 0 < len(marks) <= MOST_NAMES:
        return
    together = _together(marks)
    data = {
        "x": [found[0].memory_bytes / size for found in together],
        "y": [found[0].time_ns / unit for found in together],
        "text": [_joined([mark.name for mark in found]) for found in together],
    }
    plot.text(
        "x",
        "y",
        "text",
        source=ColumnDataSource(data),
        x_offset=5,
        y_offset=-4,
        text_color=GREY,
        text_font_size="11px",
        text_baseline="bottom",
    )


def _together(marks: Sequence[Mark]) -> list[list[Mark]]:
    """Return groups of points whose labels would overlap; the first of each stands for the group."""
    wide, high = (max(values) - min(values) for values in zip(*map(_place, marks), strict=True))
    found: list[list[Mark]] = []
    for mark in marks:
        memory, time = _place(mark)
        for others in found:
            near = abs(memory - others[0].memory_bytes) <= NEAR[0] * wide
            if near and abs(time - others[0].time_ns) <= NEAR[1] * high:
                others.append(mark)
                break
        else:
            found.append([mark])
    return found


def _place(mark: Mark) -> tuple[float, float]:
    return mark.memory_bytes, mark.time_ns


def _joined(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _points(plot: Any, kind: str, marks: Sequence[Mark], size: int, unit: int) -> Any:
    """Return the points of one kind; None where there is none."""
    chosen = [mark for mark in marks if mark.kind == kind]
    if not chosen:
        return None
    label, colour, marker, pixels = KINDS[kind]
    data = {
        "x": [mark.memory_bytes / size for mark in chosen],
        "y": [mark.time_ns / unit for mark in chosen],
        "name": [mark.name for mark in chosen],
        "time": [format_time(mark.time_ns) for mark in chosen],
        "memory": [format_size(round(mark.memory_bytes)) for mark in chosen],
        "view": [mark.view for mark in chosen],
    }
    return plot.scatter(
        "x",
        "y",
        source=ColumnDataSource(data, name=f"chart-{kind}"),
        marker=marker,
        size=pixels,
        line_color=colour,
        fill_color=colour,
        fill_alpha=0.75,
        nonselection_alpha=0.75,
        legend_label=label,
    )
