"""The Gantt chart with its idle time coloured and named by cause."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ..reasons.explain import Gap, gaps
from ..trace import CAUSES, Trace
from ..units import format_time
from .axis import BESIDE, BOTTOM, LEFT, WIDTH, place, points, text_inches, time_unit
from .lanes import gantt, gantt_height, lane_within
from .style import INK, new_figure, styled

# Pale, so that the ops stand out; the names identify the tints.
TINTS = {
    "fill": "#D6E4F2",
    "drain": "#E4ECF5",
    "neighbour": "#F8D0D0",
    "communication": "#F3DCC0",
    "memory": "#EBD3E6",
    "reload": "#D8C9E4",
}
_FONT, _TOP, _ROW = 7.0, 0.45, 0.2  # points; inches above the lanes, and of a row of the legend


def idle_gantt(trace: Trace) -> Figure:
    """Draw a trace as a Gantt chart in which each gap shows what the device waits for.

    The title has the idle time of all devices by cause; a gap is labelled with its cause where there is
    room. Meant for small traces: every gap is a box.
    """
    with styled():
        found = gaps(trace)
        causes = [cause for cause in CAUSES if any(gap.cause == cause for gap in found)]
        height = gantt_height(trace) + _ROW * len(causes)
        figure = new_figure(WIDTH, _TOP + height + BOTTOM)
        ax = place(figure, _TOP, height)
        gantt(trace, ax)
        for gap in found:
            _box(trace, ax, gap)
        legend = ax.get_legend()
        assert legend is not None
        handles = [handle for handle in legend.legend_handles if isinstance(handle, Patch)][:-1]
        handles += [Patch(facecolor=TINTS[cause], label=f"idle: {cause}") for cause in causes]
        ax.legend(handles=handles, **BESIDE)
        name = trace.schedule.name
        parts = ", ".join(f"{cause} {format_time(trace.idle_ns[cause])}" for cause in causes)
        total = format_time(sum(trace.idle_ns.values()))
        text = f"{name}: {format_time(trace.makespan_ns)}; the devices idle {total} in all: {parts}"
        figure.text(LEFT / WIDTH, 1 - 0.28 / figure.get_figheight(), text, fontsize=10, color=INK)
    return figure


def _box(trace: Trace, ax: Axes, gap: Gap) -> None:
    """Draw one gap, with its cause where that fits."""
    _, size = time_unit(trace.makespan_ns)
    top, bottom = lane_within(trace)
    start, wide = gap.start_ns / size, gap.length_ns / size
    corner = (start, gap.device + top)
    ax.add_patch(Rectangle(corner, wide, bottom - top, color=TINTS[gap.cause], lw=0, zorder=0.8))
    room = points(ax)[0] * gap.length_ns / trace.makespan_ns
    if 72 * text_inches(gap.cause, _FONT) < 0.9 * room:
        ax.text(
            start + wide / 2,
            gap.device + (top + bottom) / 2,
            gap.cause,
            fontsize=_FONT,
            color=INK,
            alpha=0.75,
            ha="center",
            va="center_baseline",
            zorder=2,
        )
