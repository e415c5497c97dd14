"""Where offloading pays, over the rate of copies, the engines, memory and models: what is proven, and what is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from experiments.which_link.task import ALTERNATIVES, ENGINES
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

Row = Mapping[str, Any]
CLOSE = 0.01  # a schedule so near to the bound on everything is as good as anything
PAYS, ENOUGH, NOTHING, RECOMPUTE, OPEN = "pays", "enough", "nothing", "recompute", "open"
LOOKS = {
    PAYS: ("#4FA3DB", "proven: nothing without\noffloading is as fast"),
    ENOUGH: ("#BBDDF3", "proven: nothing is 1 % faster\nthan offloading alone"),
    NOTHING: ("#C9C9C9", "proven: offloading gains\nno more than a toss-up"),
    RECOMPUTE: ("#F0B95B", "proven: recomputing alone is\nfaster than offloading alone"),
    OPEN: ("#FFFFFF", "open"),
}


class Cell(NamedTuple):
    """A model, memory, engines and rate: per alternative the fastest schedule (inf: none fits) and the bound, over all cuts, in ns."""

    setting: tuple[str, int]
    share: float
    engines: str
    rate: float
    copy_over_work: float
    interval: tuple[float, float]
    toss_up: float
    best: Mapping[str, float]
    bound: Mapping[str, float]

    @property
    def gain(self) -> float:
        """By how much the best schedule without offloading takes longer than the best of all."""
        return self.best["recompute"] / self.best["all"] - 1

    @property
    def least(self) -> float:
        """What offloading is proven to gain; negative: nothing is proven."""
        return self.bound["recompute"] / self.best["all"] - 1

    @property
    def most(self) -> float:
        """More than this it is proven not to gain."""
        return self.best["recompute"] / self.bound["all"] - 1

    @property
    def verdict(self) -> str:
        """What is proven of it."""
        if self.most <= self.toss_up:
            return NOTHING
        if self.least > 0:
            return PAYS
        if self.best["offload"] <= self.bound["all"] * (1 + CLOSE):
            return ENOUGH
        return RECOMPUTE if self.best["recompute"] < self.bound["offload"] else OPEN


def cells(rows: Sequence[Row]) -> list[Cell]:
    """Return the cells of the table, the fastest of all cuts in each, by setting, memory, engines and rate."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row["model"], row["seq"]), row["share"], row["engines"], row["rate"]
        found.setdefault(key, []).append(row)
    return [
        Cell(
            setting,
            share,
            engines,
            rate,
            same[0]["copy_over_work"],
            tuple(same[0]["interval"]),
            same[0]["toss_up"],
            {name: min(row[f"{name}_ns"] or float("inf") for row in same) for name in ALTERNATIVES},
            {name: min(row[f"{name}_bound_ns"] for row in same) for name in ALTERNATIVES},
        )
        for (setting, share, engines, rate), same in found.items()
    ]


def flips(cell: Cell, every: Sequence[Cell]) -> bool:
    """Return whether cost error makes a gain beyond a toss-up of none, or the reverse.

    Compute that takes f times as long as estimated is as good as copies f times as fast: the gain seen is interpolated between the rates of the table, at both
    ends of the interval of times.
    """
    line = sorted((one.rate, one.gain) for one in every if one[:3] == cell[:3])
    ends = [_at(line, cell.rate * factor) > cell.toss_up for factor in cell.interval]
    return ends[0] != ends[1]


def _at(line: Sequence[tuple[float, float]], rate: float) -> float:
    for (low, first), (high, second) in pairwise(line):
        if low <= rate <= high:
            return first + (second - first) * log(rate / low) / log(high / low)
    return line[0][1] if rate < line[0][0] else line[-1][1]


def draw(rows: Sequence[Row]) -> Figure:
    """A panel per memory limit; in it a row per model and number of engines, a column per rate."""
    every = cells(rows)
    settings = list(dict.fromkeys(one.setting for one in every))
    shares = sorted({one.share for one in every}, reverse=True)
    rates = sorted({one.rate for one in every})
    with styled():
        figure = new_figure(10.4, 1.55 + 0.5 * len(settings))
        bottom, height = 0.9 / figure.get_figheight(), 1 - 1.5 / figure.get_figheight()
        for at, share in enumerate(shares):
            ax = figure.add_axes((0.16 + 0.275 * at, bottom, 0.265, height))
            _panel(ax, [one for one in every if one.share == share], every, settings, rates)
            ax.set_title(f"memory: {share:g} x 1F1B's activations", loc="left", fontsize=9)
            ax.set_xlabel("copies, GB/s per direction")
            if at == 0:
                _name_rows(ax, settings)
        figure.legend(
            handles=[Patch(facecolor=colour, edgecolor=MUTED, label=label) for colour, label in LOOKS.values()],
            loc="lower left", bbox_to_anchor=(0.01, 0.0), ncols=5, fontsize=7.5, columnspacing=1.2,
        )  # fmt: skip
        figure.text(
            0.01, 1 - 0.22 / figure.get_figheight(),
            "What offloading gains over keeping and recomputing, in % (best schedules found); pale: a toss-up in reality (within"
            f" {100 * every[0].toss_up:.1f} %); ◆: cost error turns it around",
            fontsize=9, color=INK,
        )  # fmt: skip
    return figure


def _panel(
    ax: Axes,
    mine: Sequence[Cell],
    every: Sequence[Cell],
    settings: Sequence[tuple[str, int]],
    rates: Sequence[float],
) -> None:
    for one in mine:
        x = rates.index(one.rate)
        y = settings.index(one.setting) * 2.3 + ENGINES.index(one.engines)
        ax.add_patch(
            Rectangle((x, y), 1, 1, facecolor=LOOKS[one.verdict][0], edgecolor="white", lw=0.8)
        )
        if one.verdict == OPEN:
            ax.add_patch(
                Rectangle(
                    (x + 0.03, y + 0.04), 0.94, 0.92, facecolor="none", edgecolor=MUTED, lw=0.4
                )
            )
        pale = one.gain <= one.toss_up
        text = f"{100 * one.gain:.0f}" + (" ◆" if flips(one, every) else "")
        ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7.5, color=MUTED if pale else INK,
                fontweight="normal" if pale else "bold")  # fmt: skip
    ax.set_xlim(0, len(rates))
    ax.set_ylim(len(settings) * 2.3 - 0.3, 0)
    ax.set_xticks([at + 0.5 for at in range(len(rates))], [f"{rate:g}" for rate in rates])
    ax.set_yticks([])
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)


def _name_rows(ax: Axes, settings: Sequence[tuple[str, int]]) -> None:
    for at, (model, seq) in enumerate(settings):
        ax.text(
            -1.75,
            at * 2.3 + 1,
            f"{model}\n{seq // 1024}k tokens",
            ha="right",
            va="center",
            fontsize=8,
            color=INK,
        )
        for engine, word in enumerate(("one engine", "two")):
            ax.text(
                -0.1,
                at * 2.3 + engine + 0.5,
                word,
                ha="right",
                va="center",
                fontsize=6.5,
                color=MUTED,
            )
