"""Schedules side by side: time per iteration and peak memory, with the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..errors import OptPipeError
from ..units import format_size
from .axis import points, shortened, size_unit, text_inches, time_unit
from .style import INK, LIMIT, MUTED, new_figure, styled

BUSY, BUBBLE, HELD = "#3F7FBF", "#C9DCEE", "#7A6FA8"
_HATCH = "/////"
_OUTLIER = 5  # times the median peak; larger ones do not set the scale
_FONT = 8  # points, of names and numbers
_WIDTH, _ROW, _TOP, _BOTTOM = 11.0, 0.3, 0.45, 0.85  # inches
_NUMBERS, _GAP = (1.3, 0.95), 0.3  # inches: the columns of numbers right of the two axes


def compare_chart(
    rows: Sequence[Mapping[str, Any]], memory_limit: int | Sequence[int] | None = None
) -> Figure:
    """Draw horizontal bars, one row per schedule: time per iteration on the left, peak memory on the right.

    The bubble is the light end of the pipeline's time; what the profile knows beside that follows it,
    hollow; a tick marks the lower bound of the pipeline. Schedules that do not fit the limit are
    hatched: their numbers are those of a replay without it. A peak far above all others has a broken
    bar, so that the others keep their length.

    Args:
        rows: as ``optpipe-sim compare --json`` gives them: ``schedule, cost_ns, makespan_ns,
            bubble_rate, bubble_rate_flush, peak_bytes, fits`` and, where known, ``iteration_ns``, ``speedup``, ``toss_up`` and
            ``lower_bound_ns``. A row without ``cost_ns`` (a schedule that could not be built) is
            named, with its ``reason`` if it has one, and has no bars.
        memory_limit: bytes, one number or one per device; None: no limit to draw.

    Raises:
        OptPipeError: where there are no rows.
    """
    if not rows:
        raise OptPipeError("nothing to compare: no rows")
    with styled():
        height = _TOP + _ROW * len(rows) + _BOTTOM
        figure = new_figure(_WIDTH, height)
        names = [str(row["schedule"]) for row in rows]
        # names and numbers take the width they need, the two axes share the rest
        left = 0.3 + max(text_inches(name, _FONT) for name in names)
        wide = (_WIDTH - left - sum(_NUMBERS) - _GAP) / 2
        bottom, tall = _BOTTOM / height, _ROW * len(rows) / height
        times = figure.add_axes((left / _WIDTH, bottom, wide / _WIDTH, tall))
        second = (left + wide + _NUMBERS[0] + _GAP) / _WIDTH
        sizes = figure.add_axes((second, bottom, wide / _WIDTH, tall))
        _times(rows, times)
        limit = min(memory_limit) if isinstance(memory_limit, Sequence) else memory_limit
        _sizes(rows, sizes, limit)
        for ax in (times, sizes):
            ax.set_ylim(len(rows) - 0.45, -0.55)
            ax.grid(axis="x")
            ax.tick_params(axis="y", length=0)
            ax.spines["left"].set_visible(False)
        times.set_yticks(range(len(rows)), names)
        sizes.set_yticks([])
        figure.legend(
            handles=_legend(rows, limit),
            loc="lower left",
            bbox_to_anchor=(left / _WIDTH, 0.08 / height),
            ncols=6,
            borderaxespad=0,
            columnspacing=1.6,
        )
    return figure


def _drawn(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the rows with numbers, and their positions."""
    return [(at, row) for at, row in enumerate(rows) if row.get("cost_ns") is not None]


def _iteration_ns(row: Mapping[str, Any]) -> int:
    """Return the time of an iteration; a table made before it had a name of its own has the pipeline's only."""
    return int(row.get("iteration_ns") or row["cost_ns"])


def _times(rows: Sequence[Mapping[str, Any]], ax: Axes) -> None:
    longest = max((_iteration_ns(row) for _, row in _drawn(rows)), default=1)
    unit, size = time_unit(longest)
    for at, row in _drawn(rows):
        pipeline, whole = row["cost_ns"] / size, _iteration_ns(row) / size
        flush = row["cost_ns"] == row["makespan_ns"]
        bubble = row["bubble_rate_flush" if flush else "bubble_rate"] * pipeline
        hatch = None if row["fits"] else _HATCH
        ax.barh(
            at, pipeline - bubble, height=0.68, color=BUSY, hatch=hatch, edgecolor="white", lw=0
        )
        ax.barh(
            at,
            bubble,
            left=pipeline - bubble,
            height=0.68,
            color=BUBBLE,
            hatch=hatch,
            edgecolor="white",
            lw=0,
        )
        if whole > pipeline:
            ax.barh(
                at,
                whole - pipeline,
                left=pipeline,
                height=0.64,
                color="none",
                edgecolor=MUTED,
                lw=0.8,
            )
        bound = row.get("lower_bound_ns")
        if bound:
            ax.plot([bound / size] * 2, [at - 0.42, at + 0.42], color=INK, lw=1.1)
        _number(ax, at, 0.62, f"{_digits(whole, longest / size)} {unit}")
        if row.get("speedup"):
            _number(ax, at, 1.16, f"{row['speedup']:.2f}×")
        if row.get("toss_up"):
            _number(ax, at, 1.3, "≈")
    for at, row in enumerate(rows):
        if row.get("cost_ns") is None:
            reason = str(row.get("reason") or "not built")
            reason = shortened(reason, points(ax)[0] / 72, _FONT)
            ax.text(
                0.005 * longest / size,
                at,
                reason,
                color=MUTED,
                fontsize=_FONT,
                va="center_baseline",
            )
    ax.set_xlim(0, 1.02 * longest / size)
    ax.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    ax.set_title("time per iteration, and speed-up over 1F1B", loc="left", pad=10)
    ax.set_xlabel(f"time ({unit})")


def _sizes(rows: Sequence[Mapping[str, Any]], ax: Axes, limit: int | None) -> None:
    peaks = {at: max(row["peak_bytes"]) for at, row in _drawn(rows)}
    largest = _reach(list(peaks.values()))
    reach = largest if limit is None or limit > 2.5 * largest else max(limit, largest)
    unit, size = size_unit(reach)
    for at, peak in peaks.items():
        fits = rows[at]["fits"]
        ax.barh(
            at,
            min(peak, 1.02 * reach) / size,
            height=0.68,
            color=HELD,
            hatch=None if fits else _HATCH,
            edgecolor="white",
            lw=0,
        )
        if peak > 1.02 * reach:
            _break(ax, at)
        text = f"{_digits(peak / size, largest / size)} {unit}"
        if peak > 20 * reach:
            text = format_size(peak)
        _number(ax, at, 0.75, text, color=INK if fits else LIMIT)
    if limit is not None and limit <= reach:
        ax.axvline(limit / size, color=LIMIT, linestyle=(0, (5, 2)), zorder=3)
    ax.set_xlim(0, 1.02 * reach / size)
    ax.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    ax.set_title("peak memory of a device", loc="left", pad=10)
    ax.set_xlabel(f"memory ({unit})")


def _reach(peaks: Sequence[int]) -> int:
    """Return the largest peak that sets the scale: at most `_OUTLIER` times the
    median one. Larger ones have broken bars."""
    middle = sorted(peaks)[(len(peaks) - 1) // 2] if peaks else 1
    return max((peak for peak in peaks if peak <= _OUTLIER * middle), default=1) or 1


def _break(ax: Axes, y: float) -> None:
    """Draw a gap near the end of a bar that is longer than the axis."""
    for left in (0.93, 0.945):
        ax.plot(
            [left, left + 0.012],
            [y + 0.42, y - 0.42],
            color="white",
            lw=2.2,
            transform=ax.get_yaxis_transform(),
            gid="break",
        )


def _number(ax: Axes, y: float, inches: float, text: str, color: str = INK) -> None:
    """Write a text that ends so many inches right of the axis, at the height of row `y`."""
    ax.annotate(
        text,
        (1, y),
        (72 * inches, 0),
        xycoords=ax.get_yaxis_transform(),
        textcoords="offset points",
        ha="right",
        va="center_baseline",
        fontsize=_FONT,
        color=color,
        annotation_clip=False,
    )


def _digits(value: float, largest: float) -> str:
    """Format `value` with as many decimals as give the largest of its column three digits."""
    return f"{value:.{max(0, 3 - len(str(int(largest))))}f}"


def _legend(rows: Sequence[Mapping[str, Any]], limit: int | None) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(color=BUSY, label="busiest device at work"),
        Patch(color=BUBBLE, label="bubble"),
    ]
    if any(_iteration_ns(row) > row["cost_ns"] for _, row in _drawn(rows)):
        beside = "gradients, update, between ops"
        handles.append(Patch(facecolor="none", edgecolor=MUTED, lw=0.8, label=beside))
    if any(row.get("lower_bound_ns") for row in rows):
        handles.append(
            Line2D([], [], color=INK, lw=1.1, marker="|", linestyle="none", label="lower bound")
        )
    if any(row.get("toss_up") for row in rows):
        handles.append(Line2D([], [], linestyle="none", label="≈ a toss-up with the fastest"))
    if limit is not None:
        handles.append(
            Line2D([], [], color=LIMIT, linestyle=(0, (5, 2)), label=f"limit {format_size(limit)}")
        )
    if not all(row["fits"] for _, row in _drawn(rows)):
        handles.append(
            Patch(facecolor="#9A9A9A", hatch=_HATCH, edgecolor="white", lw=0, label="does not fit")
        )
    return handles
