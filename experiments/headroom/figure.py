"""How far published schedules are from the bounds on anything in their memory: in their own cut, in any cut, and where
activations can be offloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

Row = Mapping[str, Any]
# by schedule: label, colour, marker
LOOKS = {
    "1f1b": ("1F1B", "#6B6B6B", "o"),
    "1f1b-i:chunks=2": ("1F1B-I, 2 chunks", "#9A9A9A", "s"),
    "1f1b-i:chunks=4": ("1F1B-I, 4 chunks", "#9A9A9A", "D"),
    "zb-h1": ("ZB-H1", "#56B4E9", "^"),
    "zb-v": ("ZB-V", "#0072B2", "v"),
    "dualpipe-v": ("DualPipe-V", "#6A3D9A", "P"),
    "v-half": ("V-Half", "#009E73", "<"),
    "v-min": ("V-Min", "#009E73", ">"),
    "gis": ("GIS", "#E69F00", "X"),
    "po:chunks=2": ("PipeOffload, 2 chunks", "#D55E00", "p"),
    "po:chunks=4": ("PipeOffload, 4 chunks", "#D55E00", "h"),
}
FLOOR = 3e-4
DEVICES, TIMES, PER_DEVICE = 8, [10, 10, 8], 4
PANELS = (
    ("own_gap", "in their own cut", "microbatches per device"),
    ("any_gap", "in any cut (1 to 8 chunks, or a V)", "microbatches per device"),
    ("any_gap", f"the same where copies are possible,\n{PER_DEVICE} microbatches per device", "copy of an activation, in F"),
)  # fmt: skip


def draw(rows: Sequence[Row]) -> Figure:
    """Three panels, each a curve per schedule on 8 devices: what any schedule in the same memory could gain at most."""
    mine = [row for row in rows if row["devices"] == DEVICES and row["times"] == TIMES]
    devices = max((row["devices"] for row in rows), default=DEVICES)
    if not mine:  # a subset
        mine = [row for row in rows if row["devices"] == devices]
    with styled():
        figure = new_figure(10.2, 4.2)
        for at, (gap, title, label) in enumerate(PANELS):
            ax = figure.add_axes((0.07 + 0.25 * at, 0.12, 0.225, 0.7))
            if at < 2:
                _curves(ax, [row for row in mine if row["copy"] is None], "per_device", gap)
            else:
                some = [row for row in mine if row["per_device"] == PER_DEVICE]
                _curves(ax, [row for row in some if row["copy"] is not None], "copy", gap)
            ax.set_title(title, loc="left", fontsize=9)
            ax.set_xlabel(label)
            if at:
                ax.tick_params(labelleft=False)
            else:
                ax.set_ylabel("time above the bound for the same memory")
        shown = dict.fromkeys(row["schedule"] for row in mine)
        handles = [handle for ax in figure.axes for handle in ax.get_lines() if handle.get_label() in {LOOKS[s][0] for s in shown if s in LOOKS}]  # fmt: skip
        unique = {str(handle.get_label()): handle for handle in handles}
        figure.legend(
            list(unique.values()), list(unique), loc="center left", bbox_to_anchor=(0.815, 0.47)
        )
        figure.text(
            0.07,
            0.945,
            f"What is left to gain at most, by any schedule in the same memory ({mine[0]['devices']} devices, F = B, W = 0.8 F);"
            " below the red line: 1 %",
            fontsize=9,
            color=INK,
        )
    return figure


def _curves(ax: Axes, rows: Sequence[Row], over: str, gap: str) -> None:
    for name, (label, colour, marker) in LOOKS.items():
        mine = sorted((row for row in rows if row["schedule"] == name), key=lambda row: row[over])
        ax.plot(
            [row[over] for row in mine],
            [max(row[gap], FLOOR) for row in mine],
            color=colour, marker=marker, ms=4.5, lw=1.2, label=label, clip_on=False,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(FLOOR, 1)
    ax.axhline(0.01, color="#C1121F", lw=0.8)
    if any(row[gap] <= FLOOR for row in rows):
        ax.text(0.98, FLOOR * 1.12, "lowest line: optimal", fontsize=7, color=MUTED, ha="right",
                transform=ax.get_yaxis_transform())  # fmt: skip
    ticks = sorted({row[over] for row in rows})
    ax.set_xticks(ticks)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_yticks([1e-3, 1e-2, 1e-1, 1])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    ax.grid()
