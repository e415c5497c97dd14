"""Loss of plans when durations are not as profiled, against the best known in hindsight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from experiments.line_names import name_ends
from experiments.spread import over_seeds
from optpipe_sim.plot.labels import COLOURS, MARKERS, schedule_label
from optpipe_sim.plot.style import INK, new_figure, styled

Row = Mapping[str, Any]
KINDS = {
    "op": "each op and copy,\nanew in every iteration",
    "device": "each device faster or slower,\nfor good",
    "straggler": "one device slower,\nfor good",
    "copy": "all copies slower,\nfor good",
}
# schedules by the name before the colon: colour and marker
LOOKS = {
    "optpipe": 0, "po": 1, "adaoffload": 2, "zb-v": 3, "v-half": 3, "zb-h1": 4, "v-min": 4, "1f1b": 6,
}  # fmt: skip
PLANS_ANEW = ("optpipe", "adaoffload", "po")  # the others have nothing to change


def draw(rows: Sequence[Row]) -> Figure:
    """A row of panels per memory limit, a panel per kind of change, a curve per schedule: medians over
    the seeds."""
    rows = medians(rows)
    limits = list(dict.fromkeys(row["memory_limit"] for row in rows))
    with styled():
        tall = 1.12 + 2.5 * len(limits)
        figure = new_figure(10.2, tall)
        for down, limit in enumerate(limits):
            here = [row for row in rows if row["memory_limit"] == limit and row["fits"]]
            top = max(max(row["loss"], row["replanned_loss"]) for row in here) * 1.07
            bottom = (0.45 + 2.5 * (len(limits) - 1 - down)) / tall
            for at, kind in enumerate(KINDS):
                ax = figure.add_axes((0.075 + 0.209 * at, bottom, 0.192, 2.3 / tall))
                _panel(ax, here, kind, top, last=at == len(KINDS) - 1)
                if at:
                    ax.tick_params(labelleft=False)
                else:
                    ax.set_ylabel(f"over the best in hindsight\n{_memory(limit)}")
                if not down:
                    ax.set_title(KINDS[kind], loc="left", fontsize=9)
                if down == len(limits) - 1:
                    ax.set_xlabel("durations off by [%]")
                else:
                    ax.tick_params(labelbottom=False)
        figure.text(
            0.075, 1 - 0.13 / tall, "solid: planned for the profiled durations;  dashed: planned anew"
            " (where durations change in every iteration: planned for the scatter)",
            fontsize=8.5, color=INK, va="center",
        )  # fmt: skip
    return figure


def medians(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row per memory limit, kind, level and schedule: the medians over the seeds."""
    return over_seeds(
        rows, ("memory_limit", "kind", "level", "schedule"), ("cost_ns", "loss", "replanned_loss")
    )


def _memory(limit: str) -> str:
    share, of_1f1b, _ = limit.partition("x")
    return (
        f"{float(share):.0%} of 1F1B's activations"
        if of_1f1b
        else f"in {limit.replace('GiB', ' GiB')}"
    )


def _panel(ax: Axes, rows: Sequence[Row], kind: str, top: float, last: bool) -> None:
    ends = []
    for name in dict.fromkeys(row["schedule"] for row in rows):
        # without any change all kinds are one
        mine = sorted(
            (row for row in rows if row["schedule"] == name and (row["kind"] == kind or not row["level"])),
            key=lambda row: float(row["level"]),
        )  # fmt: skip
        base = name.split(":")[0]
        look = LOOKS.get(base, 5)
        colour, marker = COLOURS[look], MARKERS[look]
        bold = base == "optpipe"
        levels = [row["level"] for row in mine]
        if base in PLANS_ANEW:
            ax.plot(
                levels, [row["replanned_loss"] for row in mine], color=colour, lw=1.0, marker=marker,
                ms=3, mfc="white", mew=0.8, linestyle=(0, (4, 2)), zorder=4 + bold, clip_on=False,
            )  # fmt: skip
        losses = [row["loss"] for row in mine]
        ax.plot(
            levels, losses, color=colour, lw=2.0 if bold else 1.2, marker=marker, ms=4,
            zorder=5 + bold, clip_on=False,
        )  # fmt: skip
        ends.append((levels[-1], losses[-1], schedule_label(base), colour))
    ax.set_ylim(0, top)
    ax.set_xlim(0, max(row["level"] for row in rows))
    ax.grid()
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
    ax.set_xticks(sorted({row["level"] for row in rows} - {0.05}))
    if last:
        name_ends(ax, ends, 1.035 * ax.get_xlim()[1])
