"""How large the models are, when the first schedule comes, and what gap is left, by stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ...solve.milp import MOST_ROWS
from ..labels import FONT, OUTLINE, name_ends
from ..style import LIMIT, MUTED, new_figure, styled
from . import COLOURS, MARKERS

Row = Mapping[str, Any]
ENGINES = {"auto": ("auto", 6), "cpsat": ("CP-SAT", 0), "milp": ("MILP", 5)}
RATE = "profile.offload.d2h_gb_per_s"
PLAIN = (0, (4, 1.5))  # without offloading


def draw(rows: Sequence[Row]) -> Figure:
    """Sizes; seconds to a first schedule; and gap over time for each number of stages."""
    with styled():
        figure = new_figure(10.2, 6.4)
        _sizes(figure.add_axes((0.07, 0.57, 0.3, 0.36)), rows)
        _first(figure.add_axes((0.58, 0.57, 0.3, 0.36)), rows)
        with_copies = [row for row in rows if row[RATE] is not None]
        stages = sorted({row["profile.devices"] for row in with_copies if row["objective_ns"]})
        width = 0.82 / max(1, len(stages))
        for at, devices in enumerate(stages):
            ax = figure.add_axes((0.07 + width * at, 0.08, width - 0.02, 0.33))
            here = [row for row in with_copies if row["profile.devices"] == devices]
            _gap(ax, here, with_copies)
            ax.set_title(f"p = {devices}, m = {here[0]['microbatches']}", loc="left", fontsize=9)
            if at:
                ax.tick_params(labelleft=False)
            else:
                ax.set_ylabel("gap to the best bound [%]")
    return figure


def _by_stages(ax: Axes, rows: Sequence[Row]) -> None:
    stages = sorted({row["profile.devices"] for row in rows})
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(FixedLocator(stages))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_xlim(stages[0] * 0.9, stages[-1] * 1.05)
    ax.set_xlabel("stages p, with m = 2 p microbatches")
    ax.grid()


def _of(rows: Sequence[Row], engine: str, copies: bool) -> list[Row]:
    """An engine's last row per number of stages."""
    last: dict[int, Row] = {}
    for row in rows:
        if row["engine"] == engine and (row[RATE] is not None) == copies:
            last[row["profile.devices"]] = row  # rows of a point come by time
    return [last[devices] for devices in sorted(last)]


def _sizes(ax: Axes, rows: Sequence[Row]) -> None:
    _by_stages(ax, rows)
    ax.set_title("constraints of the models", loc="left")
    ends = []
    for engine, key in (("milp", "formula_constraints"), ("cpsat", "constraints")):
        name, look = ENGINES[engine]
        for copies, line, more in ((True, "-", ""), (False, PLAIN, ", no offload")):
            mine = [row for row in _of(rows, engine, copies) if row[key]]
            if not mine:
                continue
            xs, ys = [row["profile.devices"] for row in mine], [row[key] for row in mine]
            ax.plot(xs, ys, color=COLOURS[look], lw=1.3, linestyle=line)
            for row, y in zip(mine, ys, strict=True):
                built = row["status"] != "refused"
                ax.plot(
                    row["profile.devices"], y, MARKERS[look], ms=5, color=COLOURS[look],
                    mfc=COLOURS[look] if built else "white",
                )  # fmt: skip
            ends.append((xs[-1], ys[-1], f"{name}{more}", COLOURS[look]))
    ax.axhline(MOST_ROWS, color=LIMIT, lw=0.9, linestyle=(0, (5, 2)))
    ax.annotate(
        f"refused above {MOST_ROWS:,} (hollow)", (ax.get_xlim()[0], MOST_ROWS), (3, 2),
        textcoords="offset points", fontsize=FONT, color=LIMIT, path_effects=OUTLINE,
    )  # fmt: skip
    name_ends(ax, ends, ax.get_xlim()[1])


def _first(ax: Axes, rows: Sequence[Row]) -> None:
    _by_stages(ax, rows)
    ax.set_title("seconds to the first schedule", loc="left")
    limit = max(row["after_s"] for row in rows)
    ends = []
    for engine, (name, look) in ENGINES.items():
        for copies, line, more in ((True, "-", ""), (False, PLAIN, ", no offload")):
            mine = [row for row in _of(rows, engine, copies) if row["status"] != "refused"]
            if not mine:
                continue
            xs = [row["profile.devices"] for row in mine]
            ys = [row["first_s"] if row["first_s"] is not None else 1.6 * limit for row in mine]
            ax.plot(xs, ys, color=COLOURS[look], lw=1.3, linestyle=line)
            for row, y in zip(mine, ys, strict=True):
                ax.plot(
                    row["profile.devices"], y, MARKERS[look] if row["first_s"] is not None else "x",
                    ms=5, color=COLOURS[look],
                )  # fmt: skip
            ends.append((xs[-1], ys[-1], f"{name}{more}", COLOURS[look]))
    ax.axhline(limit, color=MUTED, lw=0.9, linestyle=(0, (5, 2)))
    ax.annotate(
        f"none in {limit:g} s (crosses)", (ax.get_xlim()[0], limit), (3, 9),
        textcoords="offset points", fontsize=FONT, color=MUTED, path_effects=OUTLINE,
    )  # fmt: skip
    name_ends(ax, ends, ax.get_xlim()[1])


def _gap(ax: Axes, rows: Sequence[Row], all_rows: Sequence[Row]) -> None:
    bound = max(row["lower_bound_ns"] for row in rows)
    limit = max(row["after_s"] for row in rows)
    ax.set_xscale("log")
    ax.set_xlim(0.01, limit)
    ax.set_yscale("symlog", linthresh=1)
    ax.set_ylim(0, 1500)
    ax.yaxis.set_major_locator(FixedLocator([0, 1, 3, 10, 30, 100, 300, 1000]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_xlabel("seconds")
    ax.grid()
    lines = []
    for engine, (name, look) in ENGINES.items():
        mine = [row for row in rows if row["engine"] == engine]
        found = [entry for row in mine for entry in row["incumbents"] or ()]
        if found:
            xs = [max(0.01, at) for at, _ in found]
            ys = [100 * (ns / bound - 1) for _, ns in found]
            ax.step([*xs, limit], [*ys, ys[-1]], where="post", color=COLOURS[look], lw=1.5)
            ax.plot(xs[-1], ys[-1], MARKERS[look], color=COLOURS[look], ms=4.5)
        elif mine:
            refused = mine[0]["status"] == "refused"
            lines.append((f"{name}: {'refused' if refused else 'no schedule'}", COLOURS[look]))
    for at, (text, colour) in enumerate(lines):
        ax.annotate(
            text, (1, 1), (-3, -3 - 11 * at), xycoords="axes fraction",
            textcoords="offset points", ha="right", va="top", fontsize=FONT, color=colour,
        )  # fmt: skip
