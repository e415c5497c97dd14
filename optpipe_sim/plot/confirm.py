"""Predicted against measured: both timelines of every device, one above the other, and the causes of the
difference."""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..ops import COMPUTE, OpKind
from ..sim.difference import Difference
from ..trace import Trace
from .axis import (
    BESIDE,
    BOTTOM,
    WIDTH,
    Window,
    place,
    show_devices,
    show_time,
    text_inches,
    time_unit,
)
from .lanes import RASTERISE_ABOVE, boxes
from .style import (
    COLOURS,
    IDLE,
    INK,
    KIND_NAMES,
    LIMIT,
    MUTED,
    STATIC,
    new_figure,
    styled,
)

# of a device's lane, which is 1 high: predicted above, measured below it
LANES = {"predicted": (0.08, 0.48), "measured": (0.52, 0.92)}
COPIES = 0.22  # share of a lane that copies take, at its lower edge
PALE = 0.45  # opacity of predicted ops
CAUSE_NAMES = {
    "message": "messages late",
    "copy": "copies late",
    "launch": "launches late",
    "slack": "slack of this path",
}


def confirm_figure(difference: Difference, title: str = "") -> Figure:
    """Draw both timelines of every device above, predicted ops pale and measured ops in full colour; below,
    the measured makespan as the predicted one plus the causes on the measured
    critical path (see `Difference.causes_ns`)."""
    devices = difference.measured.schedule.shape.devices
    lanes = devices * float(np.interp(devices, [2, 8, 16, 32, 64], [0.62, 0.5, 0.34, 0.22, 0.14]))
    causes = 0.26 * (len(difference.causes_ns) + 2)
    with styled():
        figure = new_figure(WIDTH, 0.35 + lanes + 0.6 + causes + BOTTOM)
        above = place(figure, 0.35, lanes)
        longest = max(difference.predicted.makespan_ns, difference.measured.makespan_ns)
        _, size = time_unit(longest)
        for name, trace in (
            ("predicted", difference.predicted),
            ("measured", difference.measured),
        ):
            _timeline(above, trace, name, size)
            above.axvline(
                trace.makespan_ns / size,
                color=INK if name == "measured" else MUTED,
                linewidth=0.9,
                linestyle="-" if name == "measured" else (0, (4, 2)),
            )
        show_time(above, Window(0, round(1.01 * longest)), longest)
        show_devices(above, devices)
        above.set_title(title or _headline(difference), loc="left")
        above.legend(handles=_legend(difference), **BESIDE)
        _waterfall(place(figure, 0.35 + lanes + 0.6, causes), difference)
    return figure


def _headline(difference: Difference) -> str:
    unit, size = time_unit(difference.measured.makespan_ns)
    predicted, measured = difference.predicted.makespan_ns, difference.measured.makespan_ns
    return (
        f"predicted {predicted / size:.1f} {unit}, measured {measured / size:.1f} {unit}"
        f" ({100 * (difference.ratio - 1):+.1f} %)"
    )


def _timeline(ax: Axes, trace: Trace, name: str, size: int) -> None:
    """One box per op in the lanes of that name."""
    top, bottom = LANES[name]
    offloads = bool(trace.offloaded)
    kinds, devices = trace.schedule.table[:, 0], trace.schedule.devices
    split = bottom - COPIES * (bottom - top) if offloads else bottom
    lanes = np.arange(trace.schedule.shape.devices)
    whole = np.full(len(lanes), trace.makespan_ns / size)
    ax.add_collection(boxes(0 * whole, whole, lanes + top, lanes + split, IDLE, zorder=0.5))
    for kind in OpKind:
        rows = np.flatnonzero(kinds == kind)
        if not len(rows):
            continue
        high, low = (top, split) if kind in COMPUTE else (split, bottom)
        ax.add_collection(
            boxes(
                trace.start_ns[rows] / size,
                trace.end_ns[rows] / size,
                devices[rows] + high,
                devices[rows] + low,
                COLOURS[kind],
                alpha=PALE if name == "predicted" else 1,
                edgecolors="white",
                linewidths=0.3,
                rasterized=len(kinds) > RASTERISE_ABOVE,
                zorder=1,
            )
        )


def _waterfall(ax: Axes, difference: Difference) -> None:
    """From the predicted makespan, cause by cause, to the measured one."""
    causes = sorted(difference.causes_ns.items(), key=lambda item: -abs(item[1]))
    ends = [difference.predicted.makespan_ns]
    for _, time in causes:
        ends.append(ends[-1] + time)
    unit, size = time_unit(max(ends))
    names = ["predicted", *(_cause_name(cause) for cause, _ in causes), "measured"]
    lefts = [0, *(min(pair) for pair in itertools.pairwise(ends)), 0]
    widths = [ends[0], *(abs(time) for _, time in causes), ends[-1]]
    colours = [MUTED, *(LIMIT if time > 0 else STATIC for _, time in causes), INK]
    notes = [ends[0], *(time for _, time in causes), ends[-1]]
    box, room = ax.get_position(), 0.2 + max(text_inches(name, 8) for name in names)
    ax.set_position((room / WIDTH, box.y0, box.x1 - room / WIDTH, box.height))
    for at, (left, width, colour, note) in enumerate(
        zip(lefts, widths, colours, notes, strict=True)
    ):
        ax.barh(at, width / size, left=left / size, height=0.62, color=colour)
        sign = "+" if 0 < at < len(names) - 1 else ""
        ax.annotate(
            f"{note / size:{sign}.1f}",
            ((left + width) / size, at),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    low, high = min(ends), max(ends)
    cut = low - 0.5 * (high - low) if high > low > 0.8 * high else 0
    ax.set_xlim(cut / size, (high + 0.08 * (high - cut)) / size)
    beginning = " (the axis does not begin at 0)" if cut else ""
    ax.set_xlabel(f"makespan ({unit}), and what the measured critical path lost or won{beginning}")
    ax.tick_params(axis="y", length=0)


def _cause_name(cause: str) -> str:
    if cause in CAUSE_NAMES:
        return CAUSE_NAMES[cause]
    return f"{cause} ops"


def _legend(difference: Difference) -> list[Patch]:
    kinds = set(difference.measured.schedule.table[:, 0].tolist())
    handles = [
        Patch(facecolor=COLOURS[kind], label=f"{kind.name}  {KIND_NAMES[kind]}")
        for kind in OpKind
        if kind in kinds
    ]
    return [
        *handles,
        Patch(facecolor=INK, alpha=PALE, label="upper lane: predicted"),
        Patch(facecolor=INK, label="lower lane: measured"),
    ]
