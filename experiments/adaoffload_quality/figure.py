"""How far AdaOffload is above the proven best makespan, over the room for activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import new_figure, styled

Row = Mapping[str, Any]
ACT_BYTES = 100
ENGINES = "profile.offload.copy_engines"
COPY = "profile.offload.t_offload_ns"


def over(row: Row) -> float:
    """Return by how much it is slower than the proven optimum with one engine per direction."""
    return float(row["makespan_ns"] / row["profile.meta.best_ns"] - 1)


def draw(rows: Sequence[Row]) -> Figure:
    """Draw a marker per cell; copies shorter and longer than half a forward and backward, engines separate and shared."""
    kinds = sorted({(row[ENGINES], row[COPY]) for row in rows})
    with styled():
        figure = new_figure(6.4, 3.6)
        ax = figure.add_axes((0.11, 0.15, 0.86, 0.75))
        for at, (kind, look) in enumerate(zip(kinds, line_styles(len(kinds)), strict=True)):
            here = [row for row in rows if (row[ENGINES], row[COPY]) == kind]
            slots = [row["memory_limit_bytes"] / ACT_BYTES / row["profile.devices"] for row in here]
            label = f"copies of {kind[1]} ns, {kind[0]} engines"
            ax.plot([slot + 0.012 * (at - 1.5) for slot in slots], [100 * over(row) for row in here],
                    **{**look, "linestyle": ""}, label=label)  # fmt: skip
        ax.set_xlabel("activations per device that fit, as a share of 1F1B's")
        ax.set_ylabel("above the proven best [%]")
        ax.set_title("AdaOffload on uniform stages (F = 10, B = 11, W = 9 ns)", loc="left")
        ax.grid(visible=True)
        ax.legend()
    return figure
