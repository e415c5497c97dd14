"""What plans without a search take on layouts that people train, beside five searches: at the costs given, and where costs are off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

Row = Mapping[str, Any]
SEARCH = "this search"
# by method: colour, marker, label
LOOKS = {
    "rules": ("#D55E00", "s", "fastest published schedule"),
    "AdaOffload": ("#CC79A7", "D", "AdaOffload"),
    SEARCH: ("#0072B2", "|", "this search, each of five seeds"),
}
TENTH = 10  # shares of draws that a bar leaves out on either side: one in ten


class Contest(NamedTuple):
    """A pair: the row of each method that draws nothing, None where nothing fits, and the rows of the search, a seed each."""

    pair: str
    others: dict[str, Row | None]
    seeds: list[Row]

    @property
    def ours_ns(self) -> float:
        """The median of the seeds."""
        return float(median(row["iteration_ns"] for row in self.seeds))

    @property
    def rival(self) -> Row | None:
        """The fastest of the others."""
        found = [row for row in self.others.values() if row is not None]
        return min(found, key=lambda row: row["iteration_ns"], default=None)

    @property
    def gains(self) -> list[float]:
        """How much longer the fastest of the others takes, seed by seed."""
        rival = self.rival
        return [rival["iteration_ns"] / row["iteration_ns"] - 1 for row in self.seeds] if rival else []  # fmt: skip

    @property
    def drawn_gains(self) -> list[float]:
        """The same for all draws of all seeds."""
        rival = self.rival
        return [
            slow / fast - 1
            for row in self.seeds
            for slow, fast in zip(
                (rival or {}).get("drawn_ns") or (), row["drawn_ns"], strict=False
            )
            if slow and fast
        ]

    @property
    def gap(self) -> float:
        """How far the median seed's plan is above its own bound."""
        return float(median(row["iteration_ns"] / row["bound_ns"] - 1 for row in self.seeds))


def contests(rows: Sequence[Row]) -> list[Contest]:
    """Return the pairs of a table, the largest gain first."""
    found = []
    for pair in dict.fromkeys(row["pair"] for row in rows):
        mine = [row for row in rows if row["pair"] == pair]
        others = {
            row["method"]: row if row["iteration_ns"] else None for row in mine if row["method"] != SEARCH
        }  # fmt: skip
        found.append(Contest(pair, others, [row for row in mine if row["method"] == SEARCH]))
    return sorted(found, key=lambda one: -median(one.gains or [1.0]))


def draw(rows: Sequence[Row]) -> Figure:
    """Left: a line per pair, each method beside the median seed. Right: the fastest of the others where costs are off."""
    every = contests(rows)
    with styled():
        figure = new_figure(10.2, 1.7 + 0.3 * len(every))
        tall = figure.get_figheight()
        bottom, height = 0.95 / tall, 1 - 1.4 / tall
        left = figure.add_axes((0.29, bottom, 0.34, height))
        right = figure.add_axes((0.66, bottom, 0.33, height))
        _given(left, every)
        _drawn(right, every)
        handles: list[Any] = [
            Line2D([], [], color=colour, marker=marker, ls="", ms=6, label=label)
            for colour, marker, label in LOOKS.values()
        ]
        handles += [
            Line2D([], [], color=MUTED, lw=3, label="left open by its own bound"),
            Patch(facecolor=MUTED, alpha=0.18, label="a toss-up"),
            Line2D([], [], color=INK, marker="o", ms=4, lw=1.2, label="four draws in five, median"),
        ]
        figure.legend(handles=handles, loc="lower center", ncols=6, fontsize=7, frameon=False)
        title = f"{len(every)} published layouts: how much longer an iteration's pipeline takes than in the median of five searches"
        figure.text(0.01, 1 - 0.22 / tall, title, fontsize=9, color=INK)
    return figure


def _given(ax: Axes, every: Sequence[Contest]) -> None:
    for at, one in enumerate(every):
        bound = 1 / (1 + one.gap) - 1
        ax.plot([bound, 0], [at, at], color=MUTED, lw=3, solid_capstyle="butt")
        plans = [(SEARCH, row) for row in one.seeds]
        plans += [(method, row) for method, row in one.others.items() if row is not None]
        for method, row in plans:
            colour, marker, _ = LOOKS[method]
            size = 9 if method == SEARCH else 5
            ax.plot([row["iteration_ns"] / one.ours_ns - 1], [at], marker=marker, color=colour, ms=size, ls="")  # fmt: skip
    _finish(ax, every, "at the costs given")
    ax.set_yticks(range(len(every)), [one.pair for one in every], fontsize=6.5)


def _drawn(ax: Axes, every: Sequence[Contest]) -> None:
    for at, one in enumerate(every):
        found = sorted(one.drawn_gains)
        if not found:
            continue
        cut = len(found) // TENTH
        ax.plot([found[cut], found[-1 - cut]], [at, at], color=INK, lw=1.2)
        ax.plot([median(found)], [at], marker="o", color=INK, ms=4)
    _finish(ax, every, "the fastest of the others where costs are off")
    ax.set_yticks([])


def _finish(ax: Axes, every: Sequence[Contest], label: str) -> None:
    toss = max(one.seeds[0]["toss_up"] for one in every)
    ax.axvspan(-toss, toss, color=MUTED, alpha=0.18, lw=0)
    ax.axvline(0, color=MUTED, lw=0.8)
    ax.set_ylim(len(every) - 0.4, -0.6)
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    ax.set_xlabel(label, fontsize=8)
    ax.grid(axis="x")
