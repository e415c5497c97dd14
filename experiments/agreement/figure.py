"""How long each engine took on the random instances, from the quickest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import new_figure, styled

ENGINES = {"auto": "auto", "cpsat": "CP-SAT", "milp": "reconstructed MILP on HiGHS"}


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A line per engine: in how many instances it ended within so many seconds with a proof."""
    with styled():
        figure = new_figure(5.6, 3.4)
        ax = figure.add_axes((0.11, 0.15, 0.86, 0.75))
        looks = line_styles(len(ENGINES))
        for (engine, name), look in zip(ENGINES.items(), looks, strict=True):
            ends = sorted(row[f"{engine}_s"] for row in rows if _proven(row, engine))
            ax.step(ends, range(1, len(ends) + 1), where="post", label=name, color=look["color"],
                    linestyle=look["linestyle"])  # fmt: skip
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_ylim(0, len(rows) * 1.03)
        ax.set_xlabel("seconds")
        ax.set_ylabel("instances proven optimal")
        ax.set_title(f"{len(rows)} random small instances", loc="left")
        ax.grid(visible=True)
        ax.legend(loc="lower right")
    return figure


def _proven(row: Mapping[str, Any], engine: str) -> bool:
    return bool(row["auto_status"] == "optimal" if engine == "auto" else row[f"{engine}_proven"])
