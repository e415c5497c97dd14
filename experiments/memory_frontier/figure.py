"""Time over the memory limit: every schedule a point or a curve, this search, and the proven bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.spread import Spread, spread
from optpipe_sim.plot.frontier import BEST, BOUND, FIXED, write_names
from optpipe_sim.plot.labels import FONT, OUTLINE, schedule_label
from optpipe_sim.plot.style import LIMIT, new_figure, styled

Row = Mapping[str, Any]
GIB = 2**30
PROVEN = "dashed: proven bound, 1 to 3 chunks"
TICKS = (1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7)
# families that plan for the limit, or have options to choose from: name, colour, marker, dash, and
# the limits (GiB) at one of which there is room for the name
CURVES = {
    "zb-1p": ("ZB-1p", "#7A7A7A", "v", (0, (1, 1)), (17.1, 24.0)),
    "zb-v": ("ZB-V", "#CC79A7", "^", (0, (3, 1, 1, 1)), (15.0, 17.1)),
    "po": ("PipeOffload, best settings", FIXED, "D", (0, (5, 1.5)), (15.0, 24.0)),
    "adaoffload": ("AdaOffload", "#009E73", "s", "-", (12.5, 10.0)),
}


def draw(rows: Sequence[Row]) -> Figure:
    """Draw time over the limit; for this search the median of its seeds, and a bar from least to most."""
    low = min(row["lower_bound_ns"] for row in rows if row.get("lower_bound_ns")) / 1e9
    high = max(each.most for each in solved_by_limit(rows).values())
    with styled():
        figure = new_figure(7.2, 5.2)
        ax = figure.add_axes((0.085, 0.11, 0.89, 0.8))
        _panel(ax, rows, (low * 0.975, high * 1.08))
        ax.set_title("copies: 15 GB/s each way, as measured on A100s", loc="left")
        ax.set_title(PROVEN, loc="right", fontsize=FONT, color=BOUND)
        ax.set_ylabel("time per iteration [s]")
    return figure


def solved_by_limit(rows: Sequence[Row]) -> dict[float, Spread]:
    """Return, by limit in GiB, the time of this search in its best shape, in seconds, over its seeds."""
    seeds: dict[int, list[Row]] = {}
    for row in rows:
        if row["part"] == "solved":
            seeds.setdefault(row["seed"], []).append(row)
    found = [_best(each) for each in seeds.values()]
    limits = sorted({limit for each in found for limit in each})
    return {limit: spread(each[limit] for each in found if limit in each) for limit in limits}


def bound_by_limit(rows: Sequence[Row]) -> dict[float, float]:
    """Return, by limit in GiB, the least over the shapes of the largest bound of any seed, in seconds."""
    shapes: dict[tuple[float, int, str], float] = {}
    for row in rows:
        if row["part"] == "solved" and row["lower_bound_ns"]:
            key = row["limit_bytes"] / GIB, row["chunks"], row["placement"]
            shapes[key] = max(row["lower_bound_ns"] / 1e9, shapes.get(key, 0))
    found: dict[float, float] = {}
    for (limit, _, _), bound in shapes.items():
        found[limit] = min(bound, found.get(limit, bound))
    return found


def _panel(ax: Axes, rows: Sequence[Row], span: tuple[float, float]) -> None:
    seeds = solved_by_limit(rows)
    solved = {limit: each.median for limit, each in seeds.items()}
    limits = sorted(solved)
    right = limits[-1] + 1.5
    least = min(row["least_limit_bytes"] for row in rows if row["part"] == "solved") / GIB
    bound = bound_by_limit(rows)
    ax.set_yscale("log")
    ax.set_xlim(max(0.0, least - 1), right)
    ax.set_ylim(span)
    ax.yaxis.set_major_locator(FixedLocator(TICKS))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:g}")
    times, bounds = [solved[x] for x in limits], [bound[x] for x in limits]
    xs, stop = [*limits, right], times[-1]
    # a schedule fits at every limit above its own, and a bound holds for every limit below
    ax.step(limits, bounds, where="pre", color=BOUND, linestyle=(0, (4, 2)), lw=1.3)
    ax.plot(limits, bounds, "_", color=BOUND, ms=6)
    ax.step(xs, [*times, stop], where="post", color=BEST, lw=2.2, zorder=4)
    ax.plot(limits, times, "o", color=BEST, ms=4.5, zorder=4)
    ax.vlines(
        limits, [seeds[x].least for x in limits], [seeds[x].most for x in limits], color=BEST, lw=4,
        alpha=0.35,
    )  # fmt: skip
    marks = list(zip(limits, times, strict=True))
    lines = [_corners(limits, times, right), list(zip(limits, bounds, strict=True))]
    for name, (text, colour, marker, dash, rooms) in CURVES.items():
        found = _best(r for r in rows if r["part"] == "family" and _family(r) == name)
        at = sorted(x for x in found if found[x] <= ax.get_ylim()[1])
        ys = [found[x] for x in at]
        if not at:
            continue
        ax.step(
            [*at, right],
            [*ys, ys[-1]],
            where="post",
            color=colour,
            lw=1,
            linestyle=dash,
            zorder=5 if name == "po" else 3,
        )
        ax.plot(at, ys, marker, color=colour, ms=3.5, zorder=5 if name == "po" else 3)
        marks += list(zip(at, ys, strict=True))
        lines.append(_corners(at, ys, right))
        room = next((x for near in rooms for x in at if isclose(x, near, abs_tol=0.01)), None)
        if room is not None:
            _write(ax, room, found[room], text, colour, below=name == "po")
    named = limits[min(1, len(limits) - 1)]
    _write(ax, named, solved[named], "this search", BEST, weight="bold")
    ax.annotate(
        "nothing fits", (least, ax.get_ylim()[1]), (-3, -4), textcoords="offset points", rotation=90,
        ha="right", va="top", fontsize=FONT, color=LIMIT,
    )  # fmt: skip
    alone = {
        (row["peak_bytes"] / GIB, row["cost_ns"] / 1e9): schedule_label(row["schedule"])
        for row in rows
        if row["part"] == "alone" and _family(row) not in CURVES
    }
    shown = {at: name for at, name in alone.items() if at[0] <= right and at[1] <= ax.get_ylim()[1]}
    ax.plot(
        [x for x, _ in shown],
        [y for _, y in shown],
        "o",
        mfc="white",
        mec="#222222",
        ms=4.5,
        lw=0,
        zorder=5,
    )
    ax.axvspan(0, least, color="#9A9A9A", alpha=0.18, lw=0)
    ax.axvline(least, color=LIMIT, lw=0.9, linestyle=(0, (5, 2)))
    ax.grid()
    ax.set_xlabel("memory limit of a device [GiB]")
    write_names(ax, shown, marks, lines)


def _corners(xs: Sequence[float], ys: Sequence[float], right: float) -> list[tuple[float, float]]:
    """The corners of a line that steps after its points, up to the right edge."""
    found = [(xs[0], ys[0])]
    for x, y in zip(xs[1:], ys[1:], strict=True):
        found += [(x, found[-1][1]), (x, y)]
    return [*found, (right, ys[-1])]


def _write(
    ax: Axes, x: float, y: float, text: str, colour: str, below: bool = False, **font: Any
) -> None:
    """A name above (or below) the step of a curve that begins there."""
    ax.annotate(
        text, (x, y), (4, -4 if below else 2.5), textcoords="offset points", ha="left",
        va="top" if below else "bottom", fontsize=FONT, color=colour, path_effects=OUTLINE,
        zorder=6, **font,
    )  # fmt: skip


def _best(rows: Any) -> dict[float, float]:
    """By limit in GiB, the least time in seconds of those that have one; it holds above too."""
    found: dict[float, float] = {}
    for row in rows:
        if row["cost_ns"]:
            at = row["limit_bytes"] / GIB
            found[at] = min(found.get(at, row["cost_ns"] / 1e9), row["cost_ns"] / 1e9)
    best = float("inf")
    return {at: (best := min(best, found[at])) for at in sorted(found)}


def _family(row: Row) -> str:
    return str(row["schedules"][0]).split(":")[0]
