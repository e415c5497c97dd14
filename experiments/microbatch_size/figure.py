"""Throughput and memory over the size of a microbatch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.line_names import name_ends
from experiments.spread import over_seeds
from optpipe_sim.plot.labels import line_styles, schedule_label
from optpipe_sim.plot.style import LIMIT, MUTED, new_figure, styled

Row = Mapping[str, Any]
SIZE, BATCH = "profile.estimate.microbatch", "profile.meta.batch"
GIB = 2**30


def joined(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows with the seeds of this search joined to their medians."""
    named = [{**row, "schedule": re.sub(r",seed=\d+", "", row["schedule"])} for row in rows]
    same = ("schedule", SIZE, BATCH, "memory_limit")
    return over_seeds(named, same, ("makespan_ns", "peak_bytes"))


def draw(rows: Sequence[Row]) -> Figure:
    """Throughput of a small batch, of a large one, and of that under a limit; its memory."""
    rows = joined(rows)
    names = list(dict.fromkeys(row["schedule"] for row in rows))
    looks = dict(zip(names, line_styles(len(names)), strict=True))
    for name in names:
        if name.startswith(("adaoffload", "optpipe")):
            looks[name].update(color="#999999", marker="h", linestyle="-")
        if name.startswith("optpipe"):
            looks[name].update(color="#000000", marker="*", markersize=7, lw=1.8)
    free = [row for row in rows if row.get("memory_limit") is None]
    tight = [row for row in rows if row.get("memory_limit") is not None]
    batches = sorted({row[BATCH] for row in rows})
    most = max(row[BATCH] * 1e9 / row["makespan_ns"] for row in rows if row["makespan_ns"])
    with styled():
        figure = new_figure(10.0, 6.6)
        place = [(x, y, 0.315, 0.37) for y in (0.57, 0.085) for x in (0.065, 0.545)]
        for box, batch in zip(place, batches, strict=False):
            ax = figure.add_axes(box)
            here = [row for row in free if row[BATCH] == batch]
            _throughput(ax, here, looks, most, f"{batch} sequences per iteration")
        if tight:
            title = f"{batches[-1]} sequences, {tight[0]['memory_limit'].replace('GiB', ' GiB')} per device"
            _throughput(figure.add_axes(place[2]), tight, looks, most, title)
        large = [row for row in free if row[BATCH] == batches[-1]]
        _memory(figure.add_axes(place[3]), large, looks, f"{batches[-1]} sequences: memory")
    return figure


def _throughput(
    ax: Axes, rows: Sequence[Row], looks: Mapping[str, Any], most: float, title: str
) -> None:
    ends = []
    for name, look in looks.items():
        line = [
            (row[SIZE], row[BATCH] * 1e9 / row["makespan_ns"])
            for row in rows
            if row["schedule"] == name and row["fits"]
        ]
        if line:
            ax.plot(*zip(*line, strict=True), **look)
            ends.append((*line[-1], schedule_label(name), look["color"]))
    _axis(ax, rows, title)
    ax.set_ylim(0, 1.06 * most)
    ax.set_ylabel("sequences per second")
    name_ends(ax, ends, ax.get_xlim()[1] * 1.06)


def _memory(ax: Axes, rows: Sequence[Row], looks: Mapping[str, Any], title: str) -> None:
    ends = []
    limit = max(row["peak_bytes"] for row in rows if row["fits"]) / GIB
    for name, look in looks.items():
        line = [
            (row[SIZE], row["peak_bytes"] / GIB)
            for row in rows
            if row["schedule"] == name and row["peak_bytes"]
        ]
        ax.plot(*zip(*line, strict=True), **look)
        ends.append((*line[-1], schedule_label(name), look["color"]))
    _axis(ax, rows, title)
    ax.axhline(limit, color=LIMIT, lw=0.9, linestyle=(0, (5, 2)))
    ax.annotate(
        "what a device has", (ax.get_xlim()[0], limit), (3, 3), textcoords="offset points",
        fontsize=7.5, color=LIMIT,
    )  # fmt: skip
    ax.set_ylim(0, None)
    ax.set_ylabel("fullest device [GiB]")
    name_ends(ax, ends, ax.get_xlim()[1] * 1.06)


def _axis(ax: Axes, rows: Sequence[Row], title: str) -> None:
    sizes = sorted({row[SIZE] for row in rows})
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] * 0.93, sizes[-1] * 1.07)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.grid()
    ax.set_xlabel("sequences per microbatch", color=MUTED)
    ax.set_title(title, loc="left")
