"""Gaps by problem (``cells``), and of each engine over time and over the number of stages (``engines``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.line_names import name_ends
from experiments.spread import grouped, middle_runs
from optpipe_sim.plot.labels import COLOURS, FONT, MARKERS, OUTLINE, line_styles
from optpipe_sim.plot.style import LIMIT, MUTED, new_figure, styled
from optpipe_sim.solvers.milp.milp import MOST_ROWS

Row = Mapping[str, Any]
PLAIN = FuncFormatter(lambda x, _: f"{x:g}")

# -- by problem -----------------------------------------------------------------------------------

ACT_BYTES = 100  # of the uniform stages
COPY = "profile.offload.t_offload_ns"
COPY_ENGINES = "profile.offload.copy_engines"


def over_optimum(rows: Iterable[Row], copy_engines: str) -> list[tuple[Row, float]]:
    """Return AdaOffload's rows of the reference cells, each with the share by which it is slower than the proven optimum
    with an engine for each direction."""
    cells = grouped((row for row in rows if row["part"] == "reference"), ("p", "m", "limit", COPY))
    found = []
    for cell in cells.values():
        best = min(row["objective_ns"] for row in cell if row["status"] == "optimal")
        found += [
            (row, row["objective_ns"] / best - 1)
            for row in cell
            if row["engine"] == "adaoffload" and row[COPY_ENGINES] == copy_engines
        ]
    return found


def _cells(rows: Sequence[Row]) -> Figure:
    """Draw AdaOffload above the optima of uniform stages, and everything above the bounds of the others."""
    figure = new_figure(11.4, 4.8)
    ax = figure.add_axes((0.055, 0.11, 0.34, 0.8))
    kinds = [(engines, copy) for engines in ("separate", "shared") for copy in (5, 16)]
    for at, ((engines, copy), look) in enumerate(zip(kinds, line_styles(4), strict=True)):
        found = [(row, over) for row, over in over_optimum(rows, engines) if row[COPY] == copy]
        slots = [row["limit"] / ACT_BYTES / row["p"] + 0.012 * (at - 1.5) for row, _ in found]
        label = f"copies of {copy} ns, {engines} engines"
        ax.plot(slots, [100 * over for _, over in found], **{**look, "linestyle": ""}, label=label)
    ax.set_xlabel("activations per device that fit, as a share of 1F1B's")
    ax.set_ylabel("above the proven optimum [%]")
    ax.set_title("AdaOffload on uniform stages (F = 10, B = 11, W = 9 ns)", loc="left")
    ax.grid(visible=True)
    ax.legend()
    ax = figure.add_axes((0.56, 0.11, 0.43, 0.8))
    cells = grouped((row for row in rows if row["case"]), ["case"])
    for y, (case, runs) in enumerate(reversed(cells.items())):
        _case(ax, y, runs)
        ax.text(-0.02, y, case[0], transform=ax.get_yaxis_transform(), fontsize=FONT, ha="right", va="center")  # fmt: skip
    ax.set_yticks([])
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlim(-0.05, 400)
    ax.xaxis.set_major_locator(FixedLocator([0, 1, 3, 10, 30, 100, 300]))
    ax.xaxis.set_major_formatter(PLAIN)
    ax.set_xlabel("gap to the best bound [%]")
    ax.set_title("Other costs and links", loc="left")
    ax.grid(visible=True, axis="x")
    ax.legend(loc="lower right", bbox_to_anchor=(1.01, 0.98), ncols=2, fontsize=FONT)
    return figure


METHODS = (
    ("other", "published", "best published", 5),
    ("other", "adaoffload", "AdaOffload", 4),
    ("long", "auto", "auto, up to two minutes", 2),
    ("other", "auto", "auto, five seeds", 0),
)


def _case(ax: Axes, y: int, rows: Sequence[Row]) -> None:
    bound = max(row["lower_bound_ns"] or 0 for row in rows)
    for *method, name, look in METHODS:
        found = [row["objective_ns"] for row in rows if [row["part"], row["engine"]] == method]
        gaps = [100 * (ns / bound - 1) for ns in found if ns]
        label = name if y == 0 else None
        ax.plot(gaps, [y] * len(gaps), MARKERS[look], color=COLOURS[look], ms=4.5, label=label)


# -- by engine ------------------------------------------------------------------------------------

ENGINES = {
    "adaoffload": ("AdaOffload", 4),
    "auto": ("auto", 6),
    "search": ("annealing alone", 2),
    "cpsat": ("CP-SAT", 0),
    "milp": ("MILP", 5),
}
RATE = "profile.offload.d2h_gb_per_s"
KEPT = (0, (4, 1.5))  # line without offloading
FIRST_S, LAST_S = 0.02, 300
SIZES = (4, 8, 16, 32)


def _engines(rows: Sequence[Row]) -> Figure:
    """Draw sizes; seconds to a first schedule; and gap over time for each number of stages; of several seeds
    the one in the middle."""
    rows = middle_runs(
        (row for row in rows if row["part"] in ("time", "size")),
        ("part", "p", "memory_limit", "engine", "start"),
    )
    figure = new_figure(10.2, 9.4)
    scaling = [row for row in rows if row["part"] == "size"]
    _sizes(figure.add_axes((0.075, 0.76, 0.29, 0.21)), scaling)
    _first(figure.add_axes((0.53, 0.76, 0.28, 0.21)), scaling)
    kinds = (
        ("copies, from AdaOffload", True, "adaoffload"),
        ("copies, from nothing", True, "none"),
        ("no offload, from nothing", False, "none"),
    )
    for down, (what, copies, start) in enumerate(kinds):
        for at, devices in enumerate(SIZES):
            ax = figure.add_axes((0.075 + 0.2125 * at, 0.5 - 0.2 * down, 0.1925, 0.18))
            here = [
                row for row in rows if row["p"] == devices and (row[RATE] is not None) == copies
            ]
            _gap(ax, here, start)
            if down == 0:
                ax.set_title(f"p = {devices}, m = {2 * devices}", loc="left", fontsize=9)
            if down == len(kinds) - 1:
                ax.set_xlabel("seconds")
            ax.tick_params(labelbottom=down == len(kinds) - 1, labelleft=not at)
            if not at:
                ax.set_ylabel(f"gap to the best bound [%]\n{what}", fontsize=8.5)
    handles = [
        Line2D([], [], color=COLOURS[look], marker=MARKERS[look], ms=4.5, label=name)
        for name, look in ENGINES.values()
    ]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles))
    return figure


def _by_stages(ax: Axes, rows: Sequence[Row]) -> None:
    stages = sorted({row["p"] for row in rows})
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(FixedLocator(stages))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(PLAIN)
    ax.yaxis.set_major_formatter(FuncFormatter(_counted))
    ax.set_xlim(stages[0] * 0.9, stages[-1] * 1.05)
    ax.set_xlabel("stages p, with m = 2 p microbatches")
    ax.grid()


def _counted(x: float, _: float) -> str:
    """0.01, 10, 1,000, 100 million: without exponents, which would need mathematical type."""
    return f"{x / 1e6:,g} million" if x >= 1e6 else f"{x:,g}"


def _of(rows: Sequence[Row], engine: str, copies: bool) -> list[Row]:
    """An engine's last row per number of stages."""
    last: dict[int, Row] = {}
    for row in rows:
        if row["engine"] == engine and (row[RATE] is not None) == copies:
            last[row["p"]] = row  # the rows of a point are ordered by time
    return [last[devices] for devices in sorted(last)]


def _sizes(ax: Axes, rows: Sequence[Row]) -> None:
    _by_stages(ax, rows)
    ax.set_title("constraints (MILP: by formula; CP-SAT: last phase)", loc="left")
    ends = []
    for engine, key in (("milp", "formula_constraints"), ("cpsat", "constraints")):
        name, look = ENGINES[engine]
        for copies, line, more in ((True, "-", ""), (False, KEPT, ", no offload")):
            mine = [row for row in _of(rows, engine, copies) if row[key]]
            if not mine:
                continue
            xs, ys = [row["p"] for row in mine], [row[key] for row in mine]
            ax.plot(xs, ys, color=COLOURS[look], lw=1.3, linestyle=line)
            for row, y in zip(mine, ys, strict=True):
                built = row["status"] != "refused"
                ax.plot(
                    row["p"], y, MARKERS[look], ms=5, color=COLOURS[look],
                    mfc=COLOURS[look] if built else "white",
                )  # fmt: skip
            ends.append((xs[-1], ys[-1], f"{name}{more}", COLOURS[look]))
    ax.axhline(MOST_ROWS, color=LIMIT, lw=0.9, linestyle=(0, (5, 2)))
    ax.annotate(
        f"refused over {MOST_ROWS:,}", (ax.get_xlim()[0], MOST_ROWS), (3, 3),
        textcoords="offset points", fontsize=FONT - 0.5, color=LIMIT, path_effects=OUTLINE,
    )  # fmt: skip
    name_ends(ax, ends, ax.get_xlim()[1])


def _first(ax: Axes, rows: Sequence[Row]) -> None:
    _by_stages(ax, rows)
    ax.set_title("seconds to the first schedule", loc="left")
    limit = max(row["after_s"] for row in rows)
    ends = []
    rank = 0
    for engine, (name, look) in ENGINES.items():
        for copies, line, more in ((True, "-", ""), (False, KEPT, ", no offload")):
            mine = [row for row in _of(rows, engine, copies) if row["status"] != "refused"]
            if not mine:
                continue
            some = [row for row in mine if row["first_s"] is not None]
            none = [row["p"] for row in mine if row["first_s"] is None]
            xs, ys = [row["p"] for row in some], [row["first_s"] for row in some]
            ax.plot(
                xs, ys, MARKERS[look], color=COLOURS[look], lw=1.3, linestyle=line, ms=5,
                mfc=COLOURS[look] if copies else "white",
            )  # fmt: skip
            if none:
                rank += 1
                level = limit * 1.25 * 1.75**rank  # in a row of its own, above the limit
                ax.plot(none, [level] * len(none), "x", ms=5.5, mew=1.5, color=COLOURS[look])
                label = f"{name}{more}: none in {limit:g} s"
                ends.append((none[-1], level, label, COLOURS[look]))
            if xs:
                ends.append((xs[-1], ys[-1], f"{name}{more}", COLOURS[look]))
    ax.axhline(limit, color=MUTED, lw=0.9, linestyle=(0, (5, 2)))
    ax.set_ylim(top=limit * 1.9 * 1.75**rank)
    name_ends(ax, ends, ax.get_xlim()[1])


def _gap(ax: Axes, rows: Sequence[Row], start: str) -> None:
    """Draw the longest run of each engine from a start, over the best bound that any engine has."""
    bound = max((row["lower_bound_ns"] or 0 for row in rows), default=0)
    ax.set_xscale("log")
    ax.set_xlim(FIRST_S, LAST_S)
    ax.set_yscale("symlog", linthresh=1)
    ax.set_ylim(0, 6000)
    ax.yaxis.set_major_locator(FixedLocator([0, 1, 3, 10, 30, 100, 300, 1000]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(PLAIN)
    ax.xaxis.set_major_formatter(PLAIN)
    ax.grid()
    without = []
    for engine, (name, look) in ENGINES.items():
        runs = grouped(
            (row for row in rows if (row["engine"], row["start"]) == (engine, start)), ["part"]
        )
        mine = max(runs.values(), key=lambda run: run[-1]["after_s"], default=[])
        found = [entry for row in mine for entry in row["incumbents"] or ()]
        if found:
            xs = [max(FIRST_S, at) for at, _ in found]
            ys = [100 * (ns / bound - 1) for _, ns in found]
            end = mine[-1]["after_s"]
            ax.step([*xs, end], [*ys, ys[-1]], where="post", color=COLOURS[look], lw=1.5)
            ax.plot(xs[-1], ys[-1], MARKERS[look], color=COLOURS[look], ms=4.5, clip_on=False)
        elif mine:
            refused = mine[0]["status"] == "refused"
            why = "refused" if refused else f"no schedule in {mine[-1]['after_s']:g} s"
            without.append((f"{name}: {why}", COLOURS[look]))
    for at, (text, colour) in enumerate(without):
        ax.annotate(
            text, (1, 1), (-3, -3 - 11 * at), xycoords="axes fraction",
            textcoords="offset points", ha="right", va="top", fontsize=FONT, color=colour,
        )  # fmt: skip


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw both figures."""
    with styled():
        return {"cells": _cells(rows), "engines": _engines(rows)}
