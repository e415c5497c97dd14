"""The rate after each step, as published and as estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import COLOURS
from optpipe_sim.plot.style import MUTED, new_figure, styled


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a line per kind of rate over the steps; a step of which nothing is known has no estimate."""
    known = [row for row in rows if row["estimated"] is not None]
    with styled():
        figure = new_figure(8.6, 4.4)
        ax = figure.subplots()
        lines = (
            (rows, "measured", "published", COLOURS[0], "o", "-"),
            (known, "estimated", "estimated; fitted to the first", COLOURS[1], "s", "-"),
            (known, "kernels", "estimated, were the host never late", MUTED, "^", ":"),
        )
        for told, key, label, colour, marker, style in lines:
            steps = [row["step"] for row in told]
            rates = [row[key] for row in told]
            ax.plot(steps, rates, color=colour, marker=marker, linestyle=style, label=label)
        ax.set_xticks(
            [row["step"] for row in rows],
            [f"{row['step']} {_short(row['change'])}" for row in rows],
            rotation=35,
            ha="right",
            fontsize=7.5,
        )
        ax.set_ylim(bottom=0)
        ax.set_ylabel("TFLOP/s per GPU")
        ax.grid(visible=True, axis="y")
        ax.legend(loc="lower right")
        figure.tight_layout()
    return figure


def _short(change: str) -> str:
    """Return the first part of a change that is told in two."""
    first = change.split(";")[0]
    return first if len(first) <= 34 else f"{first[:33]}…"
