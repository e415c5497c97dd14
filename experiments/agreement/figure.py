"""Time of each engine on the random instances, fastest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import new_figure, styled

ENGINES = {"auto": "auto", "cpsat": "CP-SAT", "milp": "reconstructed MILP on HiGHS"}


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw, without and with levels of recomputation, a line per engine: the number of instances proven
    within a time."""
    looks = line_styles(len(ENGINES))
    with styled():
        figure = new_figure(7.4, 3.4)
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for levels, ax in zip((False, True), panels, strict=True):
            some = [row for row in rows if bool(row["level_count"]) is levels]
            for (engine, name), look in zip(ENGINES.items(), looks, strict=True):
                ends = sorted(row[f"{engine}_s"] for row in some if _proven(row, engine))
                ax.step(ends, range(1, len(ends) + 1), where="post", label=name, color=look["color"],
                        linestyle=look["linestyle"])  # fmt: skip
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
            ax.set_xlabel("seconds")
            ax.set_title(
                f"{len(some)} instances, {'levels' if levels else 'no levels'}", loc="left"
            )
            ax.grid(visible=True)
        panels[0].set_ylim(0)
        panels[0].set_ylabel("instances proven optimal")
        panels[1].legend(loc="lower right")
        figure.tight_layout()
    return figure


def _proven(row: Mapping[str, Any], engine: str) -> bool:
    return bool(row["auto_status"] == "optimal" if engine == "auto" else row[f"{engine}_proven"])
