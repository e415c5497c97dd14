"""Published and simulated bubble rates of the zero-bubble papers, and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

SCHEDULES = ("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p", "ZB-V")
_WIDE = 0.8  # of the room of a row of the tables, for its schedules


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel per published table; below, simulated less published."""
    looks = dict(zip(SCHEDULES, line_styles(len(SCHEDULES)), strict=True))
    tables = sorted({row["table"] for row in rows})
    with styled():
        figure = new_figure(10.0, 4.8)
        grid = figure.subplots(
            2, len(tables), sharey="row", sharex="col", squeeze=False,
            gridspec_kw={"height_ratios": [3, 1], "width_ratios": _widths(rows, tables)},
        )  # fmt: skip
        for at, table in enumerate(tables):
            cells = [row for row in rows if row["table"] == table]
            _panel(grid[0][at], grid[1][at], cells, looks)
            grid[0][at].set_title(f"table {table}", loc="left")
        grid[0][0].set_ylabel("bubble rate")
        grid[1][0].set_ylabel("simulated less\npublished")
        grid[0][0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        grid[1][0].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        grid[0][0].set_ylim(0, 0.3)
        names = [name for name in SCHEDULES if any(row["schedule"] == name for row in rows)]
        keys = [
            *(grid[0][0].plot([], [], **{**looks[n], "linestyle": ""})[0] for n in names),
            grid[0][0].plot([], [], "_", color=INK, markersize=10)[0],
        ]
        figure.legend(
            keys, [*names, "published"], loc="upper center", ncols=len(keys), columnspacing=1.1,
            handletextpad=0.3,
        )  # fmt: skip
        figure.tight_layout(rect=(0, 0, 1, 0.94))
    return figure


def _widths(rows: Sequence[Mapping[str, Any]], tables: Sequence[int]) -> list[int]:
    """How many profiles each table has."""
    return [len({row["profile"] for row in rows if row["table"] == table}) for table in tables]


def _panel(upper: Any, lower: Any, cells: Sequence[Mapping[str, Any]], looks: Any) -> None:
    where = list(dict.fromkeys(row["profile"] for row in cells))
    names = [name for name in SCHEDULES if any(row["schedule"] == name for row in cells)]
    step = _WIDE / len(names)
    for row in cells:
        at = names.index(row["schedule"])
        x = where.index(row["profile"]) + step * (at + 0.5) - _WIDE / 2
        look = {**looks[row["schedule"]], "linestyle": "", "zorder": 3}
        upper.plot(x, row["simulated"], **look)
        upper.plot(x, row["published"], "_", color=INK, markersize=9, zorder=2)
        lower.plot(x, row["simulated"] - row["published"], **look)
    first = [next(row for row in cells if row["profile"] == name) for name in where]
    lower.set_xticks(
        range(len(where)), [f"{r['model']}\np = {r['devices']}\nm = {r['microbatches']}" for r in first]
    )  # fmt: skip
    lower.tick_params(axis="x", labelsize=6)
    for ax in (upper, lower):
        ax.grid(axis="y")
        ax.set_xlim(-0.5, len(where) - 0.5)
        ax.tick_params(axis="x", length=0)
        for at in range(1, len(where)):
            ax.axvline(at - 0.5, color=MUTED, linewidth=0.3)
    lower.axhline(0, color=MUTED, linewidth=0.7, zorder=1)
