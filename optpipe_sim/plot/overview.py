"""The overview of a trace: its Gantt chart, the memory curves below it, and a line of measures."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from ..trace import Trace
from ..units import format_size, format_time
from .axis import BOTTOM, LEFT, WIDTH, place
from .gantt import gantt, gantt_height
from .memory import memory
from .style import LIMIT, MUTED, check_ending, new_figure, save, styled

_TITLE, _GAP, _MEMORY = 0.72, 0.16, 1.9  # inches: above the lanes, between the axes, the curves


def overview(trace: Trace) -> Figure:
    """Gantt chart and memory curves over one time axis, under a title with the measures."""
    with styled():
        lanes = gantt_height(trace)
        figure = new_figure(WIDTH, _TITLE + lanes + _GAP + _MEMORY + BOTTOM)
        above = place(figure, _TITLE, lanes)
        below = place(figure, _TITLE + lanes + _GAP, _MEMORY, share=above)
        gantt(trace, above)
        memory(trace, below)
        above.set_xlabel("")
        above.tick_params(axis="x", length=0, labelbottom=False)
        above.spines["bottom"].set_visible(False)
        above.grid(axis="x")
        below.grid(axis="x")
        figure.align_ylabels([above, below])
        _title(trace, figure)
    return figure


def save_overview(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Draw `overview` into a .png, .svg or .pdf file, whole or not at all.

    Raises:
        OptPipeError: for another ending, or a path that cannot be written.
    """
    check_ending(path)
    return save(overview(trace), path)


def _title(trace: Trace, figure: Figure) -> None:
    """The schedule's name and its measures; below, smaller, what was replayed."""
    width, height = figure.get_size_inches()
    shape = trace.schedule.shape
    peak = max(trace.peak_bytes)
    worst = trace.peak_bytes.index(peak)
    bubble = trace.bubble_rate_flush if trace.objective == "flush" else trace.bubble_rate
    measures = [
        f"{'makespan' if trace.objective == 'flush' else 'longest span'} {format_time(trace.cost_ns)}",
        f"bubble {bubble:.1%}",
        f"peak {format_size(peak)} on device {worst}",
    ]
    name = str(trace.schedule.meta.get("name", "schedule"))
    x = LEFT / width
    figure.text(x, 1 - 0.16 / height, name, fontsize=13, weight="bold", va="top")
    figure.text(
        1 - 0.2 / width,
        1 - 0.18 / height,
        "   ·   ".join(measures),
        fontsize=11,
        va="top",
        ha="right",
    )
    facts = [
        trace.profile.name,
        f"{shape.devices} devices",
        f"{shape.chunks} chunks each" if shape.chunks > 1 else "",
        f"{shape.microbatches} microbatches",
    ]
    if trace.offloaded:
        total = shape.stages * shape.microbatches
        facts.append(f"{trace.offloaded} of {total} activations offloaded")
        facts.append(f"host peak {format_size(trace.host_peak_bytes)}")
    figure.text(x, 1 - 0.44 / height, "  ·  ".join(filter(None, facts)), color=MUTED, va="top")
    if not trace.fits:
        figure.text(
            1 - 0.2 / width,
            1 - 0.44 / height,
            "does not fit the limit: drawn without it",
            color=LIMIT,
            weight="bold",
            va="top",
            ha="right",
        )
