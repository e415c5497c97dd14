"""MFU and least memory of each way to bear a long sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from optpipe_sim.plot.labels import COLOURS
from optpipe_sim.plot.style import MUTED, new_figure, styled

# the colour says what bears the length, the marker what becomes of activations
BEARS = {"": COLOURS[6], "slices": COLOURS[1], "context": COLOURS[0], "slices+context": COLOURS[2]}
TREATED = {
    "": ("o", "-"),
    "recompute": ("s", "--"),
    "offload": ("^", "-."),
    "drives": ("D", ":"),
}
LIMITS = (75.6, 40)  # GiB: what an H100 of 80 GB leaves, and the smaller limit


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A column per model on 64 H100s; above the MFU of each way's fastest schedule that fits, below the
    memory that its most frugal one needs."""
    with styled():
        figure = new_figure(9.6, 5.8)
        mine = [row for row in rows if row["devices"] == 64]
        models = list(dict.fromkeys(row["model"] for row in mine))
        axes = figure.subplots(2, len(models), sharex=True, sharey="row", squeeze=False)
        ways = list(dict.fromkeys(row["way"] for row in mine))
        for model, (above, below) in zip(models, axes.T, strict=True):
            above.set_title(model)
            for way in ways:
                look = _look(way)
                line = sorted(
                    (row for row in mine if (row["model"], row["way"]) == (model, way)),
                    key=lambda row: row["seq"],
                )
                fits = [row for row in line if row["mfu"] is not None]
                above.plot(
                    [row["seq"] for row in fits], [row["mfu"] for row in fits], label=way, **look
                )
                needs = [row for row in line if row["least_gib"] is not None]
                below.plot(
                    [row["seq"] for row in needs], [row["least_gib"] for row in needs], **look
                )
            for limit in LIMITS:
                below.axhline(limit, color=MUTED, linewidth=0.8)
            below.set_xscale("log", base=2)
            below.set_yscale("log", base=2)
            ticks = sorted({row["seq"] for row in mine})
            below.set_xticks(ticks, [f"{seq // 1024}k" for seq in ticks])
            below.set_yticks(
                [4, 8, 16, 32, 64, 128, 256], ["4", "8", "16", "32", "64", "128", "256"]
            )
            below.set_xlabel("tokens of a sequence")
        axes[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[0, 0].set_ylabel("MFU")
        axes[1, 0].set_ylabel("GiB needed at least")
        axes[0, -1].legend(loc="upper left", bbox_to_anchor=(1.02, 1))
        figure.tight_layout()
    return figure


def _look(way: str) -> dict[str, Any]:
    """Return the style of a way's line."""
    parts = [] if way == "nothing" else way.split("+")
    treated = next((part for part in parts if part in TREATED), "")
    marker, dash = TREATED[treated]
    colour = BEARS["+".join(part for part in parts if part != treated)]
    return {"color": colour, "marker": marker, "linestyle": dash, "markersize": 4}
