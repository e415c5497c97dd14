"""Time over memory of every configuration that `advise` replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .axis import points, size_unit, text_inches, time_unit
from .labels import FONT, OUTLINE
from .style import INK, LIMIT, MUTED, new_figure, styled

if TYPE_CHECKING:
    from ..costs.advise.rows import Advice, Point

FITS, OVER, FRONT, BEST, BOUGHT = "#3F7FBF", "#B9B9B9", "#5E2D79", "#D9622B", "#2E8B57"
_WIDTH, _HEIGHT = 9.0, 5.4  # inches
_SLOWEST = 2.5  # configurations slower than this many times the best are left out
_LEFT, _RIGHT = 0.085, 0.885  # of the width: where the axis begins, how wide it is


def advice_chart(advice: Advice) -> Figure:
    """Draw a point per configuration, the Pareto front of those that fit, and the rows of the answer.

    What lies far above the best, or far beyond the limit, is left out and counted.
    """
    with styled():
        figure = new_figure(_WIDTH, _HEIGHT)
        ax = figure.add_axes((_LEFT, 0.11, _RIGHT, 0.79))
        _draw(advice, ax)
    return figure


def _bought(
    advice: Advice, ax: Axes, ceiling: float, scale: tuple[int, int]
) -> list[tuple[float, float]]:
    """Draw the times of the best row's split under other limits; return the points."""
    bought = [
        (one.limit_bytes / scale[0], one.iteration_ns / scale[1])
        for one in advice.memory
        if one.iteration_ns is not None and one.iteration_ns <= ceiling
    ]
    if bought:
        ax.plot(
            *zip(*bought, strict=True),
            drawstyle="steps-post",
            color=BOUGHT,
            lw=1.4,
            marker="s",
            ms=3.5,
            label="the best, under other limits",
            zorder=3,
        )
    return bought


def pareto(found: list[Point]) -> list[Point]:
    """Return those of which no other is both faster and smaller in memory, smallest first."""
    front: list[Point] = []
    for point in sorted(found, key=lambda point: (point.peak_bytes, point.iteration_ns)):
        if not front or point.iteration_ns < front[-1].iteration_ns:
            front.append(point)
    return front


def _draw(advice: Advice, ax: Axes) -> None:
    best, limit = advice.rows[0].iteration_ns, advice.question.limit_bytes
    ceiling = max(_SLOWEST * best, 1.05 * advice.rows[-1].iteration_ns)
    shown = [p for p in advice.points if p.iteration_ns <= ceiling and p.peak_bytes <= 1.6 * limit]
    unit, per_unit = time_unit(ceiling)
    size, per_size = size_unit(limit)
    for fits, colour, label in ((False, OVER, "above the limit"), (True, FITS, "fits")):
        these = [point for point in shown if point.fits is fits]
        if these:
            ax.plot(
                [point.peak_bytes / per_size for point in these],
                [point.iteration_ns / per_unit for point in these],
                "o",
                color=colour,
                ms=4,
                alpha=0.6,
                mew=0,
                label=f"{label} ({len(these)})",
            )
    front = pareto([point for point in shown if point.fits])
    ax.plot(
        [point.peak_bytes / per_size for point in front],
        [point.iteration_ns / per_unit for point in front],
        drawstyle="steps-post",
        color=FRONT,
        lw=1.1,
        label="nothing is both faster and leaner",
    )
    rows = [(row.peak_bytes / per_size, row.iteration_ns / per_unit) for row in advice.rows]
    xs, ys = zip(*rows, strict=True)
    ax.plot(xs, ys, "o", color=BEST, ms=6.5, label="best of each split", zorder=4)
    bought = _bought(advice, ax, ceiling, (per_size, per_unit))
    low, high = best / per_unit, best * (1 + advice.between) / per_unit
    ax.axhspan(low, high, color=BEST, alpha=0.08, lw=0, label="a toss-up with the best")
    ax.axvline(limit / per_size, color=LIMIT, lw=0.9, linestyle=(0, (5, 2)), label="limit")
    times = [point.iteration_ns / per_unit for point in shown] + [time for _, time in bought]
    sizes = [point.peak_bytes / per_size for point in shown] + [limit / per_size]
    sizes += [size for size, _ in bought]
    across, up = max(sizes) - min(sizes) or 1.0, max(times) - min(times) or max(times)
    ax.set_xlim(max(0.0, min(sizes) - 0.05 * across), max(sizes) + 0.05 * across)
    ax.set_ylim(min(times) - 0.1 * up, max(times) + 0.06 * up)
    ax.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 4, 5, 10]))
    ax.grid(axis="both")
    ax.set(xlabel=f"memory of the fullest device ({size})", ylabel=f"time per iteration ({unit})")
    asked = advice.question
    ax.set_title(
        f"{asked.model.name} on {asked.gpus} x {asked.machine.title}:"
        f" {asked.global_batch} sequences of {asked.seq} tokens",
        loc="left",
        pad=10,
    )
    names = [f"{at}  {row.choice}, {_short(row.schedule)}" for at, row in enumerate(advice.rows, 1)]
    _name(ax, rows, names)
    hidden = len(advice.points) - len(shown)
    legend = ax.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
    legend.set_zorder(6)
    if hidden:
        ax.annotate(
            f"{hidden} outside the picture",
            (0, 1),
            (4, -4),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize=FONT,
            color=MUTED,
        )


def _short(schedule: str) -> str:
    return schedule.partition(":")[0]


def _name(ax: Axes, places: list[tuple[float, float]], names: list[str]) -> None:
    """Write the rows' names in a column beside their points, without overlaps, each with a thin line to
    its point."""
    wide, high = points(ax)
    at = [ax.transLimits.transform(place) for place in places]
    spots = [(float(x) * wide, float(y) * high) for x, y in at]
    longest = 72 * max(text_inches(name, FONT) for name in names)
    column = max(x for x, _ in spots) + 30
    if column + longest > wide:
        column = max(4.0, min(x for x, _ in spots) - longest - 30)
    floor = 4.0
    for (x, y), name in sorted(zip(spots, names, strict=True), key=lambda pair: pair[0][1]):
        floor = max(y - 4, floor)
        ax.annotate(
            name,
            (x / wide, y / high),
            (column, floor),
            xycoords="axes fraction",
            textcoords="axes points",
            fontsize=FONT,
            color=INK,
            va="bottom",
            path_effects=OUTLINE,
            arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.5, "shrinkB": 3},
            zorder=5,
        )
        floor += 11
