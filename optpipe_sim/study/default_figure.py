"""The figure of an experiment without its own figure: a measure over an axis of its grid.

The axis with the most numbers is x; the next one gives lines, the next panels. Over the others
(seeds, further axes) a line shows the medians, with whiskers from the least to the largest value.
Rows that failed or do not fit are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import OptPipeError
from ..plot.axis import shortened, size_unit, text_inches, time_unit
from ..plot.labels import line_styles, schedule_label
from ..plot.style import MUTED, new_figure, styled

Row = Mapping[str, Any]
# preferred measures if a table has several; else the first column of numbers
MEASURES = (
    "cost_ns",
    "makespan_ns",
    "objective_ns",
    "iteration_ns",
    "bubble_rate_flush",
    "bubble_rate",
    "gap",
)
NO_MEASURES = ("seed", "time_limit", "point_s", "cpu_s", "load", "chunks", "offloaded")
LINES, PANELS, COLUMNS = 14, 9, 3  # at most
PANEL_INCHES = (3.4, 2.6)


class _Axis(NamedTuple):
    """An axis of the grid: its column, the column of its numbers (or none), and its values."""

    name: str
    numbers: str | None
    values: tuple[Any, ...]


def draw_default(name: str, rows: Sequence[Row], manifest: Mapping[str, Any]) -> Figure:
    """Draw the figure from the rows of a table and the grid in its manifest.

    Raises:
        OptPipeError: if no column of the table has numbers that vary.
    """
    ran = [row for row in rows if not isinstance(row.get("error"), str)]  # a measure's name, too
    sound = [row for row in ran if row.get("fits") is not False]
    axes = _axes(sound, manifest)
    measure = _measure(sound, axes)
    if measure is None:
        raise OptPipeError(f"{name}: nothing to draw: no column of numbers besides its grid")
    sound = [row for row in sound if _number(row.get(measure))]
    axes = _axes(sound, manifest)  # of what is drawn
    by_number = [axis for axis in axes if axis.numbers]
    x = max(by_number or axes, key=lambda axis: len(axis.values), default=_Axis("", None, ("",)))
    others = sorted((axis for axis in axes if axis != x), key=lambda axis: -len(axis.values))
    lines = next((axis for axis in others if len(axis.values) <= LINES), None)
    panels = next((a for a in others if a != lines and len(a.values) <= PANELS), None)
    spread = [axis.name for axis in others if axis not in (lines, panels)]
    notes = [f"medians, with the least and the most over {', '.join(spread)}"] if spread else []
    notes += ["what does not fit is left out"] if len(sound) < len(ran) else []
    with styled():
        return _figure(name, sound, measure, x, lines, panels, "; ".join(notes))


def _axes(rows: Sequence[Row], manifest: Mapping[str, Any]) -> list[_Axis]:
    """Return the axes of the grid that vary, in its order; columns that change together count once."""
    grids = manifest.get("config", {}).get("grid", [])
    keys = [part.strip() for grid in grids for key in grid for part in key.split(",")]
    found: list[_Axis] = []
    for key in dict.fromkeys(keys):
        if not rows or key not in rows[0] or key == "seed":
            continue
        values = tuple(dict.fromkeys(_plain(row.get(key)) for row in rows))
        if len(values) < 2:
            continue
        numbers = next((c for c in (key, f"{key}_bytes") if _all_numbers(rows, c)), None)
        axis = _Axis(key, numbers, values)
        if not any(_together(rows, axis.name, other.name) for other in found):
            found.append(axis)
    return found


def _together(rows: Sequence[Row], one: str, other: str) -> bool:
    """Whether two columns always change together, so that one determines the other."""
    pairs = {(_plain(row.get(one)), _plain(row.get(other))) for row in rows}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def _measure(rows: Sequence[Row], axes: Sequence[_Axis]) -> str | None:
    """Choose the measure: one known by name, or the first column of numbers that varies."""
    taken = {axis.name for axis in axes} | {axis.numbers for axis in axes} | {*NO_MEASURES}
    columns = [column for column in (rows[0] if rows else {}) if column not in taken]
    for column in (*(name for name in MEASURES if name in columns), *columns):
        values = {row.get(column) for row in rows if _number(row.get(column))}
        if len(values) > 1:
            return column
    return None


def _figure(
    name: str,
    rows: Sequence[Row],
    measure: str,
    x: _Axis,
    lines: _Axis | None,
    panels: _Axis | None,
    note: str,
) -> Figure:
    parts = panels.values if panels else (None,)
    across = min(COLUMNS, len(parts))
    down = -(-len(parts) // across)
    width, height = PANEL_INCHES
    figure = new_figure(across * width + 1.9, down * (height + _label_inches(x)) + 0.75)
    names = lines.values if lines else (None,)
    looks = dict(zip(names, line_styles(len(names)), strict=True))
    unit, size = _unit(measure, max((row[measure] for row in rows), default=1))
    shared = None
    for at, part in enumerate(parts):
        ax = figure.add_subplot(down, across, at + 1, sharey=shared)
        shared = shared or ax
        here = [row for row in rows if panels is None or _plain(row.get(panels.name)) == part]
        for value, look in looks.items():
            some = [row for row in here if lines is None or _plain(row.get(lines.name)) == value]
            _line(ax, some, measure, size, x, look, _text(value, lines))
        _dress(ax, x, rows, f"{measure.removesuffix('_ns').removesuffix('_bytes')}{unit}")
        if panels is not None:
            title = shortened(f"{panels.name} {_text(part, panels)}", width - 0.9, 10)
            ax.set_title(title, loc="left")
    figure.suptitle(name, x=0.02, y=0.985, ha="left", fontweight="bold", fontsize=10)
    handles = {
        text: handle
        for ax in figure.axes
        for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if lines is not None and handles:
        figure.legend(
            handles.values(), handles, title=lines.name, loc="upper right", alignment="left"
        )
    if note:
        figure.text(0.02, 0.012, note, color=MUTED, fontsize=7.5)
    total = figure.get_size_inches()
    figure.subplots_adjust(
        left=0.75 / total[0],
        right=1 - (1.6 if lines is not None else 0.25) / total[0],
        top=1 - (0.62 if panels is not None else 0.45) / total[1],
        bottom=(0.62 + _label_inches(x)) / total[1],
        wspace=0.28,
        hspace=0.5 + _label_inches(x) / height,
    )
    return figure


def _line(
    ax: Axes, rows: Sequence[Row], measure: str, size: float, x: _Axis, look: Any, label: str
) -> None:
    """Draw a line through the medians, with whiskers if there are several values."""
    groups: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        at = row.get(x.numbers) if x.numbers else x.values.index(_plain(row.get(x.name, "")))
        if at is not None:
            groups[at].append(row[measure] / size)
    if not groups:
        return
    at = sorted(groups)
    middle = [median(groups[one]) for one in at]
    if not x.numbers:  # nothing lies between names
        look = {**look, "linestyle": ""}
    ax.plot(at, middle, label=label, **look)
    several = [one for one in at if len(groups[one]) > 1]
    if several:
        low, high = ([edge(groups[one]) for one in several] for edge in (min, max))
        ax.vlines(several, low, high, color=look["color"], lw=0.8, alpha=0.6)


def _dress(ax: Axes, x: _Axis, rows: Sequence[Row], y: str) -> None:
    """Scales, ticks and names of an axis."""
    ax.grid(axis="y")
    ax.set_ylabel(y)
    ax.set_xlabel(x.name)
    if not x.numbers:
        ax.set_xticks(range(len(x.values)), [str(_text(value, x)) for value in x.values])
        ax.set_xlim(-0.5, len(x.values) - 0.5)
        if _label_inches(x):
            ax.tick_params(axis="x", labelrotation=90)
        return
    at = sorted({row[x.numbers] for row in rows if _number(row.get(x.numbers))})
    margin = 0.04 * (at[-1] - at[0]) if at else 0.0
    if at and at[0] > 0 and at[-1] / at[0] > 20 and _geometric(at):
        ax.set_xscale("log", base=2)
        ax.set_xlim(at[0] / 1.15, at[-1] * 1.15)
    elif len(at) > 1:
        ax.set_xlim(at[0] - margin, at[-1] + margin)
    if x.numbers.endswith("_bytes") and x.numbers != x.name and at:
        name, size = size_unit(at[-1])
        ax.set_xlabel(f"{x.name} ({name})")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value / size:.4g}")
    if len(at) <= 8:
        ax.set_xticks(at)
        if not x.numbers.endswith("_bytes"):
            ax.set_xticklabels([f"{value:g}" for value in at])
        ax.minorticks_off()


def _label_inches(x: _Axis) -> float:
    """Return the height that upright tick labels need below an axis; 0 if they fit horizontally."""
    texts = [_text(value, x) for value in x.values]
    if x.numbers or sum(map(len, texts)) <= 40:
        return 0.0
    return max(text_inches(text, 8) for text in texts)


def _geometric(values: Sequence[float]) -> bool:
    """Whether steps grow rather than stay."""
    steps = [b - a for a, b in pairwise(values)]
    return len(steps) > 1 and steps[-1] > 3 * steps[0]


def _unit(measure: str, most: float) -> tuple[str, float]:
    """Return the unit after the measure's name, and the divisor of its values."""
    if measure.endswith("_ns"):
        name, size = time_unit(most)
        return f" ({name})", size
    if measure.endswith("_bytes"):
        name, size = size_unit(most)
        return f" ({name})", size
    return "", 1.0


def _text(value: Any, axis: _Axis | None) -> str:
    if axis is not None and axis.name == "schedule" and isinstance(value, str):
        return schedule_label(value)
    return "none" if value is None else str(value)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _all_numbers(rows: Sequence[Row], column: str) -> bool:
    values = [row.get(column) for row in rows]
    return any(map(_number, values)) and all(v is None or _number(v) for v in values)
