"""Positions of axes on a figure in inches, the part of a trace they show, and their units."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from ..errors import OptPipeError
from ..trace import Trace
from ..units import format_time, format_times, parse_instant
from .style import figure_of

WIDTH, LEFT, RIGHT, BOTTOM = 12.0, 0.72, 1.75, 0.5  # legends are in the right margin

# of a legend in the right margin
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.005, 1), "borderaxespad": 0}

_TIMES = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))

Instant = int | str  # nanoseconds, ``120ms``, or a share of the iteration: ``10%``


class Window(NamedTuple):
    """From one instant to another, in ns."""

    from_ns: int
    to_ns: int

    @property
    def length_ns(self) -> int:
        return self.to_ns - self.from_ns


def window_of(trace: Trace, start: Instant | None = None, end: Instant | None = None) -> Window:
    """Return the part of a trace between two instants; by default all of it.

    Raises:
        OptPipeError: for anything but an instant, a beginning after the last op ends, or an end that is
            not later than the beginning.
    """
    whole = trace.makespan_ns
    first = 0 if start is None else _instant(start, whole)
    last = whole if end is None else min(_instant(end, whole), whole)
    if first >= whole:
        raise OptPipeError(
            f"from {start}: the iteration ends at {format_time(whole)}; begin before that"
        )
    if first >= last:
        begin, until = format_times(first, last)
        raise OptPipeError(f"from {start} to {end}: {until} is not later than {begin}")
    return Window(first, last)


def _instant(value: Instant, whole_ns: int) -> int:
    number, is_share = parse_instant(value)
    if not is_share and 0 < number * 10**5 < whole_ns and str(value).strip().isdigit():
        raise OptPipeError(
            f"{value}: is {value} ns of {format_time(whole_ns)}; did you mean {value}ms? (if not, write the unit)"
        )
    return int(number * whole_ns) if is_share else int(number)


def place(figure: Figure, top: float, height: float, share: Axes | None = None) -> Axes:
    """Add an axis `top` inches below the figure's top edge, with the usual margins at its sides;
    `share`: the axis whose x it shares."""
    width, total = figure.get_size_inches()
    box = (LEFT / width, 1 - (top + height) / total, 1 - (LEFT + RIGHT) / width, height / total)
    return figure.add_axes(box, sharex=share)


def show_time(ax: Axes, window: Window, longest_ns: int) -> None:
    """Let an axis show a part of the time, in the unit of all of it."""
    unit, size = time_unit(longest_ns)
    ax.set_xlim(window.from_ns / size, window.to_ns / size)
    ax.set_xlabel(f"time ({unit})")
    ax.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]))


def show_devices(ax: Axes, devices: int, middle: float = 0.5) -> None:
    """Let an axis show devices from the top, each 1 high, with its number at the `middle` of its lane."""
    ax.set_ylim(devices, 0)
    ax.set_ylabel("device")
    ticks = range(0, devices, 1 if devices <= 16 else 4 if devices <= 64 else 8)
    ax.set_yticks([device + middle for device in ticks], [str(device) for device in ticks])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def points(ax: Axes) -> tuple[float, float]:
    """Width and height of an axis in points (1/72 inch)."""
    box, dpi = ax.get_window_extent(), figure_of(ax).dpi
    return box.width * 72 / dpi, box.height * 72 / dpi


def time_unit(longest_ns: float) -> tuple[str, int]:
    """Return the unit of a time axis that ends at `longest_ns`, and its ns: ms up to five seconds."""
    return next((name, size) for name, size in _TIMES if longest_ns >= 5 * size or size == 1)


def size_unit(largest_bytes: float) -> tuple[str, int]:
    """Return the unit of an axis of bytes that ends at `largest_bytes`, and its bytes."""
    return next((name, size) for name, size in _SIZES if largest_bytes >= 2 * size or size == 1)


# the outlines of letters take their time, and names are those of the next panel again
@lru_cache(maxsize=4096)
def text_inches(text: str, points: float, **font: str) -> float:
    """Return the width of a text in inches."""
    if not text:
        return 0.0
    prop = FontProperties(family="DejaVu Sans", **font)  # type: ignore[arg-type]
    return float(TextPath((0, 0), text, size=points, prop=prop).get_extents().width) / 72


def shortened(text: str, inches: float, points: float, **font: str) -> str:
    """Return `text`, or as much of its beginning as fits, with an ellipsis."""
    whole = text_inches(text, points, **font)
    if whole <= inches:
        return text
    text = text[
        : int(1.1 * len(text) * max(inches, 0) / whole)
    ]  # first an estimate, then letter by letter
    while text and text_inches(f"{text}…", points, **font) > inches:
        text = text[:-1]
    return f"{text.rstrip()}…"
