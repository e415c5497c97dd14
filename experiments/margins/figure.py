"""Times of plans with a margin for slower copies, where copies are slower and where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from experiments.spread import Spread, spread
from optpipe_sim.plot.labels import COLOURS, MARKERS
from optpipe_sim.plot.style import new_figure, styled

Row = Mapping[str, Any]
Losses = dict[tuple[str, float, float], Spread]
LIMITS = {"1x 1f1b": "memory of 1F1B", "0.5x 1f1b": "half of its activations"}


def losses(rows: Iterable[Row]) -> Losses:
    """Return, by limit, margin and slowdown of copies, the loss as a share over the best plan for
    that slowdown (the least median over the margins)."""
    times: dict[tuple[str, float, float], list[float]] = {}
    for row in rows:
        key = row["memory_limit"], float(row["margin"]), float(row["slower"])
        times.setdefault(key, []).append(row["cost_ns"])
    found = {key: spread(values) for key, values in times.items()}
    best: dict[tuple[str, float], float] = {}
    for (limit, _, slower), one in found.items():
        best[limit, slower] = min(one.median, best.get((limit, slower), one.median))
    return {key: spread(value / best[key[0], key[2]] - 1 for value in times[key]) for key in found}


def draw(rows: Sequence[Row]) -> Figure:
    """A panel per limit, a curve per margin, with its spread over the seeds."""
    found = losses(rows)
    top = max(one.most for one in found.values()) * 1.06
    bottom = min(one.least for one in found.values()) - 0.005
    with styled():
        figure = new_figure(8.2, 3.1)
        for at, (limit, title) in enumerate(LIMITS.items()):
            ax = figure.add_axes((0.09 + 0.46 * at, 0.16, 0.42, 0.72))
            for look, margin in enumerate(sorted({key[1] for key in found})):
                here = sorted(
                    (s, one) for (own, m, s), one in found.items() if (own, m) == (limit, margin)
                )
                xs = [slower for slower, _ in here]
                colour = COLOURS[look]
                label = f"margin {margin:.0%}" if margin else "no margin"
                ax.plot(
                    xs,
                    [one.median for _, one in here],
                    color=colour,
                    marker=MARKERS[look],
                    ms=4.5,
                    lw=1.4,
                    label=label,
                )
                ax.fill_between(
                    xs,
                    [one.least for _, one in here],
                    [one.most for _, one in here],
                    color=colour,
                    alpha=0.18,
                    lw=0,
                )
            ax.set_ylim(bottom, top)
            ax.grid()
            ax.set_title(title, loc="left")
            ax.set_xlabel("copies slower by")
            ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            if at:
                ax.tick_params(labelleft=False)
            else:
                ax.set_ylabel("over the best plan for that")
                ax.legend(loc="upper left", frameon=False)
    return figure
