"""Time of each schedule over the P2P latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import line_styles, schedule_label
from optpipe_sim.plot.style import new_figure, styled


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A line per schedule."""
    with styled():
        figure = new_figure(6.2, 3.6)
        ax = figure.add_axes((0.1, 0.13, 0.66, 0.83))
        names = list(dict.fromkeys(row["schedule"] for row in rows))
        for name, style in zip(names, line_styles(len(names)), strict=True):
            line = [row for row in rows if row["schedule"] == name and row["fits"]]
            latencies = [float(row["profile.t_comm_ms"]) for row in line]
            ax.plot(
                latencies,
                [row["makespan_ns"] / 1e9 for row in line],
                label=schedule_label(name),
                **style,
            )
        ax.set_xlabel("P2P latency [ms]")
        ax.set_ylabel("time of an iteration [s]")
        ax.grid(visible=True)
        figure.legend(loc="center left", bbox_to_anchor=(0.77, 0.54))
    return figure
