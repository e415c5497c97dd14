"""The overview of a trace: its Gantt chart, the memory curves below it, and a line of measures."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..trace import Trace
from ..units import counted, format_size, format_time, format_times
from .axis import (
    BOTTOM,
    LEFT,
    WIDTH,
    Instant,
    Window,
    place,
    shortened,
    text_inches,
    time_unit,
    window_of,
)
from .held import memory
from .lanes import gantt, gantt_height, legible_window
from .style import INK, LIMIT, MUTED, new_figure, styled

_TITLE, _GAP, _MEMORY = 0.72, 0.16, 1.9  # inches: above the lanes, between the axes, the curves
_BETWEEN, _FLAT = 0.6, 0.6  # inches below a detail; how much of its height the chart of all has
_TALLEST = 14.0  # inches; higher charts have no detail
_EDGE = 0.2  # inches between the texts at the top and the edge
_Text = tuple[str, float, str, str]  # text, points, weight, colour


def overview(trace: Trace, start: Instant | None = None, end: Instant | None = None) -> Figure:
    """Gantt chart and memory curves over one time axis, under a title with the measures.

    If a trace is too long to be read as a whole, as much of its beginning as can be read is drawn above
    the chart of all, and framed in that chart.

    Args:
        start, end: the part to draw: ``10%`` of the iteration, ``120ms``, or ns; default: all.

    Raises:
        OptPipeError: see `window_of`.
    """
    window = None if start is None and end is None else window_of(trace, start, end)
    lanes = gantt_height(trace)
    with styled():
        detail = None if window else _detail(trace)
        top = _TITLE if detail is None else _TITLE + lanes + _BETWEEN
        lower = lanes if detail is None else _FLAT * lanes
        figure = new_figure(WIDTH, top + lower + _GAP + _MEMORY + BOTTOM)
        above = place(figure, top, lower)
        below = place(figure, top + lower + _GAP, _MEMORY, share=above)
        gantt(trace, above, window=window, legend=detail is None)
        memory(trace, below, window=window)
        above.set_xlabel("")
        above.tick_params(axis="x", length=0, labelbottom=False)
        above.spines["bottom"].set_visible(False)
        above.grid(axis="x")
        below.grid(axis="x")
        figure.align_ylabels([above, below])
        if detail:
            gantt(trace, place(figure, _TITLE, lanes), window=detail).grid(axis="x")
            _mark(trace, above, detail)
        _title(trace, figure, window)
    return figure


def _detail(trace: Trace) -> Window | None:
    """Return the beginning that is to be drawn separately, or None."""
    height = gantt_height(trace)
    if height > _TALLEST:
        return None
    return legible_window(trace, place(new_figure(WIDTH, 2 * height), 0, height))


def _mark(trace: Trace, ax: Axes, detail: Window) -> None:
    """Frame the part of the chart of all that is drawn above."""
    _, size = time_unit(trace.makespan_ns)
    ax.axvspan(0, detail.to_ns / size, fill=False, edgecolor=INK, linewidth=1, zorder=3)


def lanes_until(trace: Trace, end_ns: int) -> Figure:
    """Draw the Gantt chart alone, up to a time."""
    lanes = gantt_height(trace)
    with styled():
        figure = new_figure(WIDTH, _TITLE + lanes + BOTTOM)
        gantt(trace, place(figure, _TITLE, lanes), window=Window(0, end_ns), legend=False).grid(
            axis="x"
        )
        name = trace.schedule.name
        taken = (format_time(end_ns), 11, "normal", INK)
        _line(figure, 0.16, (name, 13, "bold", INK), taken)
        _line(figure, 0.44, (_facts(trace), 9, "normal", MUTED), ("", 9, "normal", MUTED))
    return figure


def _title(trace: Trace, figure: Figure, window: Window | None) -> None:
    """Write the schedule's name and its measures; below, smaller, what was replayed."""
    peak = max(trace.peak_bytes)
    bubble = trace.bubble_rate_flush if trace.objective == "flush" else trace.bubble_rate
    measures = (
        f"{'makespan' if trace.objective == 'flush' else 'longest span'} {format_time(trace.cost_ns)}",
        f"bubble {bubble:.1%}",
        f"peak {format_size(peak)} on device {trace.peak_bytes.index(peak)}",
    )
    name = trace.schedule.name
    _line(figure, 0.16, (name, 13, "bold", INK), ("   ·   ".join(measures), 11, "normal", INK))
    misfit = "" if trace.fits else "does not fit the limit: drawn without it"
    facts = _facts(trace)
    if window:
        begin, until = format_times(*window)
        facts = f"{begin} to {until}  ·  {facts}"
    _line(figure, 0.44, (facts, 9, "normal", MUTED), (misfit, 9, "bold", LIMIT))


def _facts(trace: Trace) -> str:
    """Return what was replayed: profile, shape, what is offloaded."""
    shape = trace.schedule.shape
    facts = [trace.profile.name, counted(shape.devices, "device")]
    if shape.chunks > 1:
        facts.append(f"{shape.chunks} chunks each")
    facts.append(counted(shape.microbatches, "microbatch", "microbatches"))
    if shape.slices > 1:
        facts.append(f"{shape.slices} slices each")
    if trace.offloaded:
        total = shape.activations
        facts.append(f"{trace.offloaded} of {total} activations offloaded")
        facts.append(f"host peak {format_size(trace.host_peak_bytes)}")
    return "  ·  ".join(facts)


def _line(figure: Figure, top: float, left: _Text, right: _Text) -> None:
    """Write two texts on one line `top` inches below the edge; the left one is shortened where both are long."""
    width, height = figure.get_size_inches()
    taken = text_inches(right[0], right[1], weight=right[2])
    room = width - LEFT - taken - 2 * _EDGE
    shown = shortened(left[0], room, left[1], weight=left[2])
    baseline = 1 - (top + max(left[1], right[1]) / 72) / height
    for text, x, side, (_, size, weight, colour) in (
        (shown, LEFT, "left", left),
        (right[0], width - _EDGE, "right", right),
    ):
        if text:
            figure.text(
                x / width, baseline, text, fontsize=size, weight=weight, color=colour, ha=side
            )
