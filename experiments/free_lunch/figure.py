"""k over hidden size and sequence, and the cost of offloading all of 1F1B at each k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Left: k by the formula and as published. Right: slowdown over k, simulated and measured."""
    with styled():
        figure = new_figure(7.2, 3.3)
        left, right = figure.subplots(1, 2)
        _ratios(left, [row for row in rows if not row["paired"]])
        _slowdowns(right, rows)
        for ax in (left, right):
            ax.grid(visible=True)
        figure.tight_layout(w_pad=2)
    return figure


def _ratios(ax: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    sequences = sorted({row["seq"] for row in rows})
    for seq, look in zip(sequences, line_styles(len(sequences)), strict=True):
        line = sorted((row for row in rows if row["seq"] == seq), key=lambda row: row["hidden"])
        x = [row["hidden"] for row in line]
        ax.plot(
            x, [row["k"] for row in line], color=look["color"], linestyle=look["linestyle"],
            marker=look["marker"], markersize=4, label=f"s = {seq}",
        )  # fmt: skip
        ax.plot(
            x, [row["published_k"] for row in line], linestyle="", marker=look["marker"],
            markersize=8, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=0.7,
        )  # fmt: skip
    hollow = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 8}
    ax.plot([], [], "o", label="published", markeredgewidth=0.7, **hollow)
    ax.axhline(1, color=MUTED, linewidth=0.8)
    ax.annotate("free below", (10240, 1), (0, -3), textcoords="offset points", ha="right",
                va="top", color=MUTED, fontsize=8)  # fmt: skip
    ax.set_xlabel("hidden size")
    ax.set_ylabel("k: round trip over compute")
    ax.set_ylim(0, 1.8)
    ax.legend()


def _slowdowns(ax: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    looks = line_styles(4)
    for (paired, text), look in zip(
        ((False, "a link per device"), (True, "paired switches,\n7.8 % overhead")),
        (looks[3], looks[0]), strict=True,
    ):  # fmt: skip
        line = sorted(
            (row["k"], row["slowdown_percent"]) for row in rows if row["paired"] == paired
        )
        ax.plot(*zip(*line, strict=True), label=f"simulated, {text}", **look)
    measured = [
        (row["k"], row["published_slowdown_percent"])
        for row in rows
        if not row["paired"] and row["published_slowdown_percent"] is not None
    ]
    ax.plot(
        *zip(*measured, strict=True), "o", color=INK, markerfacecolor="none", markersize=6,
        label="measured (published)",
    )  # fmt: skip
    ax.axvline(1, color=MUTED, linewidth=0.8)
    ax.set_xlabel("k")
    ax.set_ylabel("slowdown of fully offloaded 1F1B [%]")
    ax.set_ylim(-10, 62)
    ax.legend(loc="upper left")
