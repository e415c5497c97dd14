"""A training run: loss and iteration times, with switches of the schedule marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..ops import B, F, W
from .axis import time_unit
from .style import COLOURS, INK, LIMIT, MUTED, new_figure, styled

_Rows = Sequence[Mapping[str, Any]]


def training_chart(
    rows: _Rows,
    phases: _Rows,
    events: _Rows = (),
    unpipelined: Sequence[float] | None = None,
    floor: float | None = None,
) -> Figure:
    """Loss over steps above, iteration times below.

    Args:
        rows, phases, events: of a training run, as ``optpipe-sim train --json`` gives them.
        unpipelined: the losses of the same run without a pipeline.
        floor: the least loss that the text allows.
    """
    with styled():
        figure = new_figure(8.0, 5.2)
        loss, times = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _loss(loss, rows, unpipelined, floor)
        _times(times, rows, phases)
        for event in events:
            if event["event"] in ("switched", "drift"):
                _mark((loss, times), event)
        times.set_xlabel("step")
        figure.subplots_adjust(left=0.09, right=0.98, top=0.94, bottom=0.1, hspace=0.12)
    return figure


def _loss(ax: Axes, rows: _Rows, unpipelined: Sequence[float] | None, floor: float | None) -> None:
    steps = [row["step"] for row in rows]
    ax.plot(steps, [row["loss"] for row in rows], color=COLOURS[F], lw=2.4, label="pipelined")
    if unpipelined is not None:
        ax.plot(range(len(unpipelined)), unpipelined, color=INK, lw=0.8, label="unpipelined")
    if floor is not None:
        ax.axhline(floor, color=MUTED, lw=0.8, ls=":", label="entropy of the text")
    ax.set_ylabel("loss (nats per token)")
    ax.legend(frameon=False, loc="upper right")


def _times(ax: Axes, rows: _Rows, phases: _Rows) -> None:
    usual = [row for row in rows if row["usual"]]
    unit, per_unit = time_unit(max((row["makespan_ns"] for row in rows), default=1))
    times = [row["makespan_ns"] / per_unit for row in usual]
    ax.plot([row["step"] for row in usual], times, ".", color=COLOURS[W], ms=3, label="measured")
    for at, phase in enumerate(phases):
        span = (phase["from_step"], phase["to_step"])
        level = phase["predicted_ns"] / per_unit
        ax.plot(span, (level, level), color=COLOURS[B], lw=1.6, label=None if at else "predicted")
    if times:
        ax.set_ylim(0, max(2.0 * median(times), 1.2 * sorted(times)[int(0.95 * len(times))]))
    ax.set_ylabel(f"iteration ({unit})")
    ax.legend(frameon=False, loc="lower right", ncols=2)


def _mark(axes: Sequence[Axes], event: Mapping[str, Any]) -> None:
    drift = event["event"] == "drift"
    for ax in axes:
        ax.axvline(event["step"], color=LIMIT if drift else MUTED, lw=0.9, ls="--")
    text = f"drift, stage {event['stage']}" if drift else "switch"
    # switches are named above the loss, drift above the times: they may lie close together
    axes[drift].annotate(
        text,
        (event["step"], 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
        color=LIMIT if drift else MUTED,
        fontsize=8,
    )
