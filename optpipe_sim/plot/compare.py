"""Schedules side by side: time per iteration and peak memory, with the limit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..errors import OptPipeError
from ..units import format_size, format_time
from .axis import size_unit, time_unit
from .style import INK, LIMIT, MUTED, check_ending, new_figure, save, styled

BUSY, BUBBLE, HELD = "#3F7FBF", "#C9DCEE", "#7A6FA8"
_HATCH = "/////"
_WIDTH, _ROW, _TOP, _BOTTOM = 11.0, 0.3, 0.62, 0.85  # inches


def compare_chart(
    rows: Sequence[Mapping[str, Any]], memory_limit: int | Sequence[int] | None = None
) -> Figure:
    """Horizontal bars, a schedule a row: time per iteration on the left, peak memory on the right.

    The bubble is the light end of a time bar; a tick marks the lower bound. Schedules that do not
    fit the limit are hatched: their numbers are those of a replay without it.

    Args:
        rows: as ``optpipe-sim compare --json`` gives them: ``schedule, cost_ns, makespan_ns,
            bubble_rate, bubble_rate_flush, peak_bytes, fits`` and, where known, ``speedup`` and
            ``lower_bound_ns``. A row without ``cost_ns`` (a schedule that could not be built) is
            named, with its ``error`` if it has one, and has no bars.
        memory_limit: bytes, one number or one per device; None: no limit to draw.

    Raises:
        OptPipeError: where there are no rows.
    """
    if not rows:
        raise OptPipeError("nothing to compare: no rows")
    with styled():
        height = _TOP + _ROW * len(rows) + _BOTTOM
        figure = new_figure(_WIDTH, height)
        bottom, tall = _BOTTOM / height, _ROW * len(rows) / height
        names = max(len(str(row["schedule"])) for row in rows)
        left = min(0.25, (0.3 + 0.085 * names) / _WIDTH)
        wide = (1 - left - 0.14) / 2
        times = figure.add_axes((left, bottom, 1.08 * wide, tall))
        sizes = figure.add_axes((left + 1.08 * wide + 0.04, bottom, 0.92 * wide, tall))
        _times(rows, times)
        limit = _limit(rows, memory_limit)
        _sizes(rows, sizes, limit)
        for ax in (times, sizes):
            ax.set_ylim(len(rows) - 0.45, -0.55)
            ax.grid(axis="x")
            ax.tick_params(axis="y", length=0)
            ax.spines["left"].set_visible(False)
        times.set_yticks(range(len(rows)), [str(row["schedule"]) for row in rows])
        sizes.set_yticks([])
        figure.legend(
            handles=_legend(rows, limit),
            loc="lower left",
            bbox_to_anchor=(left, 0.06 / height),
            ncols=6,
            borderaxespad=0,
            columnspacing=1.6,
        )
    return figure


def save_compare_chart(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str],
    memory_limit: int | Sequence[int] | None = None,
) -> Path:
    """Draw `compare_chart` into a .png, .svg or .pdf file, whole or not at all.

    Raises:
        OptPipeError: for another ending, no rows, or a path that cannot be written.
    """
    check_ending(path)
    return save(compare_chart(rows, memory_limit), path)


def _drawn(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows with numbers, and where they stand."""
    return [(at, row) for at, row in enumerate(rows) if row.get("cost_ns") is not None]


def _times(rows: Sequence[Mapping[str, Any]], ax: Axes) -> None:
    longest = max((row["cost_ns"] for _, row in _drawn(rows)), default=1)
    unit, size = time_unit(longest)
    for at, row in _drawn(rows):
        whole = row["cost_ns"] / size
        flush = row["cost_ns"] == row["makespan_ns"]
        bubble = row["bubble_rate_flush" if flush else "bubble_rate"] * whole
        hatch = None if row["fits"] else _HATCH
        ax.barh(at, whole - bubble, height=0.68, color=BUSY, hatch=hatch, edgecolor="white", lw=0)
        ax.barh(
            at,
            bubble,
            left=whole - bubble,
            height=0.68,
            color=BUBBLE,
            hatch=hatch,
            edgecolor="white",
            lw=0,
        )
        bound = row.get("lower_bound_ns")
        if bound:
            ax.plot([bound / size] * 2, [at - 0.42, at + 0.42], color=INK, lw=1.1)
        text = format_time(row["cost_ns"])
        if row.get("speedup"):
            text += f"   {row['speedup']:.2f}×"
        _beside(ax, whole, at, text)
    for at, row in enumerate(rows):
        if row.get("cost_ns") is None:
            reason = str(row.get("error") or "not built")
            reason = reason if len(reason) <= 60 else f"{reason[:59]}…"
            _beside(ax, 0, at, reason, color=MUTED, style="italic")
    ax.set_xlim(0, 1.28 * longest / size)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set_title("time per iteration, and speed-up over 1F1B", loc="left", pad=10)
    ax.set_xlabel(f"time ({unit})")


def _sizes(rows: Sequence[Mapping[str, Any]], ax: Axes, limit: int | None) -> None:
    peaks = {at: max(row["peak_bytes"]) for at, row in _drawn(rows)}
    largest = max(peaks.values(), default=1) or 1
    reach = largest if limit is None or limit > 2.5 * largest else max(limit, largest)
    unit, size = size_unit(reach)
    for at, peak in peaks.items():
        fits = rows[at]["fits"]
        ax.barh(
            at,
            peak / size,
            height=0.68,
            color=HELD,
            hatch=None if fits else _HATCH,
            edgecolor="white",
            lw=0,
        )
        _beside(ax, peak / size, at, format_size(peak), color=INK if fits else LIMIT)
    if limit is not None and limit <= reach:
        ax.axvline(limit / size, color=LIMIT, linestyle=(0, (5, 2)), zorder=3)
    ax.set_xlim(0, 1.22 * reach / size)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set_title("peak memory of a device", loc="left", pad=10)
    ax.set_xlabel(f"memory ({unit})")


def _beside(ax: Axes, x: float, y: float, text: str, **settings: Any) -> None:
    """A text a little to the right of a point."""
    settings = {"color": INK, **settings}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
    ax.annotate(
        text,
        (x, y),
        (4, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=8,
        bbox=box,
        zorder=4,
        **settings,
    )


def _limit(
    rows: Sequence[Mapping[str, Any]], memory_limit: int | Sequence[int] | None
) -> int | None:
    """The limit to draw: the least, where devices differ."""
    if memory_limit is None or isinstance(memory_limit, int):
        return memory_limit
    return min(memory_limit)


def _legend(rows: Sequence[Mapping[str, Any]], limit: int | None) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(color=BUSY, label="busiest device at work"),
        Patch(color=BUBBLE, label="bubble"),
    ]
    if any(row.get("lower_bound_ns") for row in rows):
        handles.append(
            Line2D([], [], color=INK, lw=1.1, marker="|", linestyle="none", label="lower bound")
        )
    if limit is not None:
        handles.append(
            Line2D([], [], color=LIMIT, linestyle=(0, (5, 2)), label=f"limit {format_size(limit)}")
        )
    if not all(row["fits"] for _, row in _drawn(rows)):
        handles.append(
            Patch(facecolor="#9A9A9A", hatch=_HATCH, edgecolor="white", lw=0, label="does not fit")
        )
    return handles
