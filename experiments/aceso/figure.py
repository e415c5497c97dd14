"""How far each replay is from the measured run, by kind of link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import MUTED, new_figure, styled


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a row per run, a mark per kind of link; the band is 2 % to either side."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    kinds = list(dict.fromkeys((row["links"], row["times"]) for row in rows))
    with styled():
        figure = new_figure(6.4, 0.6 + 0.28 * len(cases))
        ax = figure.subplots()
        ax.axvspan(-2, 2, color="#F0F0F0", zorder=0)
        ax.axvline(0, color=MUTED, linewidth=0.8)
        for kind, look in zip(kinds, line_styles(len(kinds)), strict=True):
            found = {
                row["case"]: 100 * row["error"]
                for row in rows
                if (row["links"], row["times"]) == kind
            }
            ax.plot(
                [found[case] for case in cases],
                range(len(cases)),
                linestyle="",
                marker=look["marker"],
                color=look["color"],
                label=f"links: {kind[0]}, {kind[1]}",
            )
        ax.set_yticks(range(len(cases)), cases)
        ax.invert_yaxis()
        ax.set_xlabel("replayed against measured time (%)")
        ax.grid(visible=True, axis="x")
        ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
        figure.tight_layout()
    return figure
