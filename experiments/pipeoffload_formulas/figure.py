"""PipeOffload's table 1: formulas as lines, simulated schedules as markers, printed peaks beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

NAMES = {
    "1f1b": "1F1B", "1f1b-i": "1F1B-I", "gis": "GIS", "gis-h": "GIS-H", "po-h": "PO-H", "po-f": "PO-F",
}  # fmt: skip
_Rows = Sequence[Mapping[str, Any]]


def draw(rows: _Rows) -> Figure:
    """Peak and bubble over the chunks per device, at equal costs on eight devices; then the peaks
    that the authors' scheduler prints."""
    printed = [row for row in rows if row["printed_peak_chunks"] is not None]
    shown = [
        row
        for row in rows
        if row["profile"] == "equal" and row["profile.devices"] == 8 and row["schedule"] in NAMES
    ]
    with styled():
        figure = new_figure(7.2, 3.2)
        peak, bubble, official = figure.subplots(1, 3, gridspec_kw={"width_ratios": [1, 1, 1.05]})
        keys = _lines(peak, shown, "peak_chunks", "formula_peak_chunks", per_model=True)
        _lines(bubble, shown, "bubble", "formula_bubble", per_model=False)
        peak.set_ylabel("peak activations [M]")
        bubble.set_ylabel("bubble, of 1F1B's")
        bubble.set_ylim(0, 1.05)
        peak.set_yscale("log")
        peak.set_yticks([0.1, 0.2, 0.5, 1, 1.5])
        peak.yaxis.set_major_formatter(ScalarFormatter())
        peak.yaxis.set_minor_formatter(NullFormatter())
        _official(official, printed)
        (formula,) = peak.plot([], [], color=INK, linewidth=1)
        figure.legend(
            [*keys.values(), formula], [*(NAMES[key] for key in keys), "formula"],
            loc="upper center", ncols=len(keys) + 1, columnspacing=1.2, handletextpad=0.4,
        )  # fmt: skip
        figure.tight_layout(rect=(0, 0, 1, 0.92), w_pad=1.2)
    return figure


def _lines(ax: Any, rows: _Rows, own: str, formula: str, *, per_model: bool) -> dict[str, Any]:
    base = {row["profile.chunks"]: row["bubble"] for row in rows if row["schedule"] == "1f1b"}
    names = [name for name in NAMES if any(row["schedule"] == name for row in rows)]
    keys = {}
    for name, look in zip(names, line_styles(len(names)), strict=True):
        line = sorted(
            (row for row in rows if row["schedule"] == name), key=lambda row: row["profile.chunks"]
        )
        scale = [
            row["profile.chunks"] * row["profile.devices"] if per_model else base[row["profile.chunks"]]
            for row in line
        ]  # fmt: skip
        x = [row["profile.chunks"] for row in line]
        (keys[name],) = ax.plot(
            x, [row[own] / by for row, by in zip(line, scale, strict=True)], linestyle="",
            marker=look["marker"], color=look["color"], markersize=5,
        )  # fmt: skip
        if all(row[formula] is not None for row in line):
            y = [row[formula] / by for row, by in zip(line, scale, strict=True)]
            ax.plot(x, y, color=look["color"], linestyle=look["linestyle"], zorder=1)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted(base), [str(v) for v in sorted(base)])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("chunks per device")
    ax.grid(axis="y")
    return keys


def _official(ax: Any, rows: _Rows) -> None:
    """Peaks in chunk activations: filled ours, hollow the authors'."""
    look = line_styles(1)[0]
    x = range(len(rows))
    ax.plot(x, [row["peak_chunks"] for row in rows], "o", color=look["color"], markersize=4,
            label="simulated")  # fmt: skip
    ax.plot(x, [row["printed_peak_chunks"] for row in rows], "o", markerfacecolor="none",
            markeredgecolor=INK, markersize=9, markeredgewidth=0.7, label="the authors' code")  # fmt: skip
    labels = [
        NAMES.get(row["schedule"], row["schedule"].replace(":offloaded=", " ").replace("po", "PO"))
        for row in rows
    ]
    ax.set_xticks(x, labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    for at in range(1, len(rows)):
        if rows[at]["profile.chunks"] != rows[at - 1]["profile.chunks"]:
            ax.axvline(at - 0.5, color=MUTED, linewidth=0.5)
    for v in sorted({row["profile.chunks"] for row in rows}):
        places = [at for at, row in enumerate(rows) if row["profile.chunks"] == v]
        middle = sum(places) / len(places)
        ax.annotate(f"v = {v}", (middle, 45), ha="center", fontsize=8, color=INK)
    ax.set_ylim(0, 64)
    ax.set_ylabel("peak [chunk activations]")
    ax.legend(loc="upper center", handletextpad=0.2)
    ax.set_xlabel("schedule, chunks offloaded", fontsize=8)
    ax.grid(axis="y")
