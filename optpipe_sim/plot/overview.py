"""The overview of a trace: its Gantt chart, the memory curves below it, and a line of measures."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from ..trace import Trace
from ..units import format_size, format_time
from .axis import BOTTOM, LEFT, WIDTH, place, shortened, text_inches
from .gantt import gantt, gantt_height
from .memory import memory
from .style import INK, LIMIT, MUTED, check_ending, new_figure, save, styled

_TITLE, _GAP, _MEMORY = 0.72, 0.16, 1.9  # inches: above the lanes, between the axes, the curves
_EDGE = 0.2  # inches between the texts at the top and the edge
_Text = tuple[str, float, str, str]  # text, points, weight, colour


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
    peak = max(trace.peak_bytes)
    bubble = trace.bubble_rate_flush if trace.objective == "flush" else trace.bubble_rate
    measures = (
        f"{'makespan' if trace.objective == 'flush' else 'longest span'} {format_time(trace.cost_ns)}",
        f"bubble {bubble:.1%}",
        f"peak {format_size(peak)} on device {trace.peak_bytes.index(peak)}",
    )
    name = str(trace.schedule.meta.get("name", "schedule"))
    _line(figure, 0.16, (name, 13, "bold", INK), ("   ·   ".join(measures), 11, "normal", INK))
    misfit = "" if trace.fits else "does not fit the limit: drawn without it"
    _line(figure, 0.44, (_facts(trace), 9, "normal", MUTED), (misfit, 9, "bold", LIMIT))


def _facts(trace: Trace) -> str:
    """What was replayed: profile, shape, what is offloaded."""
    shape = trace.schedule.shape
    facts = [trace.profile.name, _counted(shape.devices, "device")]
    if shape.chunks > 1:
        facts.append(f"{shape.chunks} chunks each")
    facts.append(_counted(shape.microbatches, "microbatch"))
    if trace.offloaded:
        total = shape.stages * shape.microbatches
        facts.append(f"{trace.offloaded} of {total} activations offloaded")
        facts.append(f"host peak {format_size(trace.host_peak_bytes)}")
    return "  ·  ".join(facts)


def _counted(count: int, noun: str) -> str:
    """``1 device``, ``4 microbatches``."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('ch') else 's'}"


def _line(figure: Figure, top: float, left: _Text, right: _Text) -> None:
    """Two texts on one line `top` inches below the edge; the left one yields where both are long."""
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
