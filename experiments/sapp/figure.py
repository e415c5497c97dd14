"""Time of each plan over its bound, and the division of the best plan in the family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.spread import grouped
from optpipe_sim.plot.labels import COLOURS
from optpipe_sim.plot.style import new_figure, styled

EVEN = 3  # layers of a chunk that offsets are counted from
KINDS = ("none", "selective", "selective and communication", "full")


def layers_by_kind(row: Mapping[str, Any], chunk: int) -> np.ndarray:
    """(kinds, stages) the layers of a chunk by what of them is recomputed."""
    offset, full, select, both = (
        np.array(row[name][chunk]) for name in ("offset", "recompute", "select", "comm")
    )
    return np.array([EVEN + offset - select, select - both - full, both, full])


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Layers of each stage in the family's best plan, a panel per chunk; the best times of all seeds in the title."""
    runs = grouped((row for row in rows if row["memory"] == "replay"), ["plan"])
    bests = {plan: min(seeds, key=lambda row: row["time"]) for (plan,), seeds in runs.items()}
    with styled():
        figure = new_figure(7.4, 3.2)
        panels = figure.subplots(1, 2, sharey=True)
        for chunk, ax in enumerate(panels):
            counts = layers_by_kind(bests["family"], chunk)
            below = np.zeros(counts.shape[1])
            for kind, (name, row) in enumerate(zip(KINDS, counts, strict=True)):
                ax.bar(range(len(row)), row, 0.8, below, color=COLOURS[kind], label=name)
                below += row
            ax.set_yticks(range(int(max(below)) + 1))
            ax.axhline(EVEN, color="black", lw=0.6, ls=":")
            ax.set_xlabel(f"stage, chunk {chunk}")
        panels[0].set_ylabel("layers")
        taken = ", ".join(f"{plan} {row['time']:,.0f}" for plan, row in bests.items())
        panels[0].set_title(taken, loc="left", fontsize=9)
        figure.tight_layout(rect=(0, 0, 1, 0.9))
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="upper left", ncols=4, fontsize=7.5, title="recomputed")
    return figure
