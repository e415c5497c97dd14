"""What an iteration takes with each packing, in the order given and in the best one found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import COLOURS, schedule_label
from optpipe_sim.plot.style import MUTED, new_figure, styled

Row = Mapping[str, Any]
DATA = {"megatron-mock": "1k to 8k tokens, lognormal", "longalign": "8k to 64k tokens"}
PACKINGS = ("one each", "as drawn", "best fit", "by time")
GIVEN, SEARCHED, BOUND = "given_ns", "searched_ns", "lower_bound_ns"


def times(rows: Sequence[Row], key: str) -> dict[tuple[str, str, str], list[float]]:
    """Return a time of each seed over that of 1F1B with what was packed as drawn, in the order given, by data, schedule and
    packing."""
    usual = {
        (row["data"], row["seed"]): row[GIVEN]
        for row in rows
        if (row["schedule"], row["packing"]) == ("1f1b", PACKINGS[1])
    }
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        one = (row["data"], row["schedule"], row["packing"])
        share = row[key] / usual.get((row["data"], row["seed"]), row[GIVEN])
        found.setdefault(one, []).append(share)
    return found


def draw(rows: Sequence[Row]) -> Figure:
    """Draw a panel per kind of data: bars for the packings of each schedule, a light one for the order given behind a dark one
    for the best order, and a tick at the lower bound."""
    given, searched, bound = (times(rows, key) for key in (GIVEN, SEARCHED, BOUND))
    schedules = list(dict.fromkeys(row["schedule"] for row in rows))
    packings = [one for one in PACKINGS if any(row["packing"] == one for row in rows)]
    data = [one for one in DATA if any(row["data"] == one for row in rows)]
    with styled():
        figure = new_figure(9.6, 4.2)
        panels = figure.subplots(1, len(data), sharey=True, squeeze=False)[0]
        for ax, kind in zip(panels, data, strict=True):
            for block, schedule in enumerate(schedules):
                for place, packing in enumerate(packings):
                    at, key = block * (len(packings) + 1) + place, (kind, schedule, packing)
                    colour = COLOURS[place]
                    ax.bar(at, median(given[key]), color=colour, alpha=0.35, width=0.85)
                    label = packing if not block else None
                    ax.bar(at, median(searched[key]), color=colour, width=0.85, label=label)
                    ax.hlines(median(bound[key]), at - 0.42, at + 0.42, color="black", lw=1)
            width = len(packings) + 1
            ax.set_xticks(
                [block * width + (len(packings) - 1) / 2 for block in range(len(schedules))],
                [schedule_label(one) for one in schedules],
            )
            ax.set_title(DATA[kind], loc="left")
            ax.grid(visible=True, axis="y")
        panels[0].set_ylabel("time, 1F1B packed as drawn = 1")
        panels[0].legend(title="packing", loc="upper right", ncols=2)
        figure.text(
            0.01, 0.01, "light: microbatches in the order given; full: best order found; line: lower bound for that packing",
            color=MUTED, fontsize=8,
        )  # fmt: skip
        figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure
