"""Size of the models, time to the first schedule, and final gap, by number of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.spread import middle_runs
from optpipe_sim.plot.labels import COLOURS, FONT, MARKERS, OUTLINE, name_ends
from optpipe_sim.plot.style import LIMIT, MUTED, new_figure, styled
from optpipe_sim.solvers.milp.milp import MOST_ROWS

Row = Mapping[str, Any]
ENGINES = {"auto": ("auto", 6), "cpsat": ("CP-SAT", 0), "milp": ("MILP", 5)}
RATE = "profile.offload.d2h_gb_per_s"
PLAIN = (0, (4, 1.5))  # without offloading
MOST_PANELS = 4


def draw(rows: Sequence[Row]) -> Figure:
    """Sizes; seconds to a first schedule; and gap over time for each number of stages; of several seeds
    the one in the middle."""
    rows = middle_runs(rows, ("profile.devices", "memory_limit", "engine", "start"))
    with styled():
        figure = new_figure(10.2, 7.6)
        _sizes(figure.add_axes((0.075, 0.69, 0.29, 0.27)), rows)
        _first(figure.add_axes((0.53, 0.69, 0.28, 0.27)), rows)
        stages = sorted({row["profile.devices"] for row in rows if row["objective_ns"]})
        stages = stages[:MOST_PANELS]
        width = 0.85 / len(stages)
        for down, copies in enumerate((True, False)):
            for at, devices in enumerate(stages):
                ax = figure.add_axes((0.075 + width * at, 0.335 - 0.275 * down, width - 0.02, 0.24))
                here = [
                    row
                    for row in rows
                    if row["profile.devices"] == devices and (row[RATE] is not None) == copies
                ]
                _gap(ax, here)
                if not down:
                    size = f"p = {devices}, m = {2 * devices}"
                    ax.set_title(size, loc="left", fontsize=9)
                    ax.tick_params(labelbottom=False)
                else:
                    ax.set_xlabel("seconds")
                if at:
                    ax.tick_params(labelleft=False)
                else:
                    what = "3/4 of the memory, copies" if copies else "no offload"
                    ax.set_ylabel(f"gap to the best bound [%]\n{what}")
    return figure


def _by_stages(ax: Axes, rows: Sequence[Row]) -> None:
    stages = sorted({row["profile.devices"] for row in rows})
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(FixedLocator(stages))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
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
            last[row["profile.devices"]] = row  # the rows of a point are ordered by time
    return [last[devices] for devices in sorted(last)]


def _sizes(ax: Axes, rows: Sequence[Row]) -> None:
    _by_stages(ax, rows)
    ax.set_title("constraints (MILP: by formula; CP-SAT: last phase)", loc="left")
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
        for copies, line, more in ((True, "-", ""), (False, PLAIN, ", no offload")):
            mine = [row for row in _of(rows, engine, copies) if row["status"] != "refused"]
            if not mine:
                continue
            some = [row for row in mine if row["first_s"] is not None]
            none = [row["profile.devices"] for row in mine if row["first_s"] is None]
            xs, ys = [row["profile.devices"] for row in some], [row["first_s"] for row in some]
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


def _gap(ax: Axes, rows: Sequence[Row]) -> None:
    bound = max(row["lower_bound_ns"] or 0 for row in rows)
    limit = max(row["after_s"] for row in rows)
    ax.set_xscale("log")
    ax.set_xlim(0.02, limit)
    ax.set_yscale("symlog", linthresh=1)
    ax.set_ylim(0, 6000)
    ax.yaxis.set_major_locator(FixedLocator([0, 1, 3, 10, 30, 100, 300, 1000]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.grid()
    without = []
    for engine, (name, look) in ENGINES.items():
        mine = [row for row in rows if row["engine"] == engine]
        found = [entry for row in mine for entry in row["incumbents"] or ()]
        if found:
            xs = [max(0.02, at) for at, _ in found]
            ys = [100 * (ns / bound - 1) for _, ns in found]
            ax.step([*xs, limit], [*ys, ys[-1]], where="post", color=COLOURS[look], lw=1.5)
            ax.plot(xs[-1], ys[-1], MARKERS[look], color=COLOURS[look], ms=4.5, clip_on=False)
            late = xs[0] > limit / 5
            ax.annotate(
                name, (xs[0], ys[0]), (-3 if late else 2, 3), textcoords="offset points",
                ha="right" if late else "left", fontsize=FONT, color=COLOURS[look],
                path_effects=OUTLINE,
            )  # fmt: skip
        elif mine:
            refused = mine[0]["status"] == "refused"
            without.append((f"{name}: {'refused' if refused else 'no schedule'}", COLOURS[look]))
    for at, (text, colour) in enumerate(without):
        ax.annotate(
            text, (1, 1), (-3, -3 - 11 * at), xycoords="axes fraction",
            textcoords="offset points", ha="right", va="top", fontsize=FONT, color=colour,
        )  # fmt: skip
