"""The least memory a schedule can run with, and the margin that suffices when activations vary in size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter

from experiments.line_names import name_ends
from optpipe_sim.plot.labels import FONT, OUTLINE, line_styles, schedule_label
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

Row = Mapping[str, Any]
ORDER, ANEW = "#D55E00", "#0072B2"
ALIKE = {
    "all": "all alike",
    "microbatch": "a microbatch alike",
    "activation": "each on its own",
}


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """The least memory of each schedule, and the margins against noise."""
    with styled():
        least = new_figure(6.6, 4.0)
        _least(least.add_axes((0.2, 0.12, 0.77, 0.74)), rows)
        noise = new_figure(9.0, 3.7)
        _needed(noise.add_axes((0.075, 0.14, 0.3, 0.74)), rows)
        _price(noise.add_axes((0.56, 0.14, 0.26, 0.74)), rows)
    return {"least": least, "noise": noise}


# -- less memory ----------------------------------------------------------------------------------


def _least(ax: Axes, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(r["schedule"] for r in rows if r["part"] == "least"))
    for y, name in enumerate(names):
        here = [row for row in rows if row["schedule"] == name]
        own = next(row for row in here if row["part"] == "least")
        anew = min(
            (r for r in here if r["part"] == "anew" and r["fits"]),
            key=lambda r: r["share"],
            default=None,
        )
        low = min(own["share"], anew["share"] if anew else 1.0)
        ax.plot([low, 1], [y, y], color="#CFCFCF", lw=2, solid_capstyle="round", zorder=1)
        for row, colour, marker in ((anew, ANEW, "s"), (own, ORDER, "o")):
            if row is None:
                continue
            ax.plot(row["share"], y, marker, color=colour, ms=6, zorder=3)
            slower = row["makespan_ns"] / own["planned_ns"]
            if row["share"] < 0.999:
                text = f"{slower - 1:+.0%}" if slower < 2 else f"× {slower:.1f}"
                ax.annotate(
                    text, (row["share"], y), (0, 5), textcoords="offset points", ha="center",
                    fontsize=FONT, color=colour, path_effects=OUTLINE,
                )  # fmt: skip
    ax.set_yticks(range(len(names)), [schedule_label(name) for name in names])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(names) - 0.4, -0.7)
    ax.set_xlim(0, 1.03)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.grid(axis="x")
    ax.set_xlabel("activation memory, of what the schedule was profiled to need")
    title = (
        ("● ", ORDER, "the same order, the least that works"),
        ("■ ", ANEW, "made anew for it"),
    )
    for x, (mark, colour, text) in zip((0.0, 0.56), title, strict=True):
        ax.text(
            x,
            1.07,
            f"{mark}{text}",
            transform=ax.transAxes,
            fontsize=8.5,
            color=colour,
            va="bottom",
        )
    ax.text(
        0, 1.02, "numbers: how much slower than as planned", transform=ax.transAxes, fontsize=7.5,
        color=MUTED, va="bottom",
    )  # fmt: skip


# -- noise ----------------------------------------------------------------------------------------


def _needed(ax: Axes, rows: Sequence[Row]) -> None:
    full = [r for r in rows if r["part"] == "noise" and r["fits"] and r["margin"] == 0]
    spreads = sorted({row["spread"] for row in full})
    top = spreads[-1]
    ends = []
    for (alike, text), look in zip(ALIKE.items(), line_styles(len(ALIKE)), strict=True):
        found = [
            [r["excess_99"] for r in full if r["alike"] == alike and r["spread"] == spread]
            for spread in spreads
        ]
        middle = [0.0, *(mean(values) for values in found)]
        ax.plot([0, *spreads], middle, clip_on=False, **look)
        ends.append((top, middle[-1], text, look["color"]))
    ax.plot([0, top], [0, top], color=INK, lw=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    ends.append((top, top, "always enough", INK))
    ax.set_xlim(0, top)
    ax.set_ylim(0, top * 1.02)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_major_locator(MultipleLocator(0.05))
    ax.grid()
    ax.set_xlabel("sizes vary by up to ±")
    ax.set_ylabel("margin that 99 % of runs need")
    ax.set_title("What margin is needed", loc="left")
    name_ends(ax, ends, top * 1.06)


def _price(ax: Axes, rows: Sequence[Row]) -> None:
    noise = [row for row in rows if row["part"] == "noise" and row["fits"]]
    names = list(dict.fromkeys(schedule_label(row["schedule"]) for row in noise))
    ends = []
    for name, look in zip(names, line_styles(len(names)), strict=True):
        times: dict[float, dict[str, int]] = {}  # of several seeds the median
        for row in noise:
            if schedule_label(row["schedule"]) == name:
                times.setdefault(row["margin"], {})[row["schedule"]] = row["makespan_ns"]
        xs = sorted(times)
        ys = [median(times[margin].values()) / 1e9 for margin in xs]
        ax.step(xs, ys, where="post", clip_on=False, **{**look, "markersize": 3})
        ends.append((xs[-1], ys[-1], name, look["color"]))
    last = max(end[0] for end in ends)
    ax.set_xlim(0, last)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.grid()
    ax.set_xlabel("margin that is planned for")
    ax.set_ylabel("time per iteration [s]")
    ax.set_title("What it costs", loc="left")
    name_ends(ax, ends, last * 1.06)
