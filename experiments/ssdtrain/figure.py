"""What drives take of the activations for free, and what it costs to give them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import MUTED, new_figure, styled

CLAIMED = (0.45, 0.47)
SPEEDS = ((1.0, "rates fitted to Megatron-LM"), (0.5, "half of these rates"))


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A column per speed; above the reduction of the peak at no more than 1 % of overhead, below what
    offloading everything, or recomputing everything, costs; a line per shape."""
    with styled():
        figure = new_figure(8.2, 5.4)
        axes = figure.subplots(2, 2, sharex=True, sharey="row")
        for (speed, title), (above, below) in zip(SPEEDS, axes.T, strict=True):
            above.axhspan(*CLAIMED, color=MUTED, alpha=0.4, linewidth=0)
            above.set_title(title)
            mine = [row for row in rows if (row["speed"], row["batch"]) == (speed, 16)]
            shapes = sorted({(row["hidden"], row["layers"]) for row in mine})
            for shape, look in zip(shapes, line_styles(len(shapes)), strict=True):
                line = sorted(
                    (row for row in mine if (row["hidden"], row["layers"]) == shape),
                    key=lambda row: row["gb_per_s"],
                )
                rates = [row["gb_per_s"] for row in line]
                name = f"{shape[0]} x {shape[1]} layers"
                above.plot(rates, [row["reduction"] for row in line], label=name, **look)
                below.plot(rates, [row["all_overhead"] for row in line], **look)
            if mine:
                recomputed = sum(row["recompute_overhead"] for row in mine) / len(mine)
                below.axhline(recomputed, color=MUTED, linewidth=1)
            below.set_yscale("symlog", linthresh=0.1)
            below.set_yticks([0, 0.1, 0.3, 1, 3], ["0 %", "10 %", "30 %", "100 %", "300 %"])
            below.set_xlabel("GB/s of a device's drives")
        axes[0, 0].annotate(
            "claimed", (5, CLAIMED[1]), xytext=(0, 2), textcoords="offset points", color=MUTED
        )
        axes[1, 1].annotate(
            "full recomputation",
            (24, 0.32),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            color=MUTED,
        )
        axes[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[0, 0].set_ylabel("less activation memory, for free")
        axes[1, 0].set_ylabel("longer, with all offloaded")
        axes[0, 1].legend(title="hidden size", loc="upper left", bbox_to_anchor=(1.02, 1))
        figure.tight_layout()
    return figure
