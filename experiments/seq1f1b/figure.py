"""Predicted and measured memory and speed over the number of slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import MUTED, new_figure, styled

SHOWN = (("fused_2.7B_pp8", 16), ("gbs8_2.7B_pp8", 8))
CAPACITY_GIB = 77.0


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a column per table; reserved memory above, tokens per second below; a line per sequence.
    Lines where nothing was measured come from all runs, elsewhere from all others."""
    with styled():
        figure = new_figure(8.2, 5.6)
        axes = figure.subplots(2, 2, sharex=True, sharey="row")
        for (table, m), (memory, speed) in zip(SHOWN, axes.T, strict=True):
            mine = [row for row in rows if (row["table"], row["microbatches"]) == (table, m)]
            sequences = sorted({row["sequence"] for row in mine})
            memory.axhline(CAPACITY_GIB, color=MUTED, linewidth=0.8)
            memory.set_title(f"{table.replace('_', ' ')}, m = {m}")
            for sequence, look in zip(sequences, line_styles(len(sequences)), strict=True):
                line = [row for row in mine if row["sequence"] == sequence]
                _line(memory, line, "reserved_gib", "measured_gib", look, sequence)
                fits = [row for row in line if not row["out_of_memory"]]
                _line(speed, fits, "rate", "measured_rate", look, sequence)
            speed.set_xscale("log", base=2)
            speed.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
            speed.set_xlabel("slices")
        axes[0, 0].set_ylim(0, 135)
        axes[0, 0].annotate(
            "80 GB",
            (16, CAPACITY_GIB),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            color=MUTED,
        )
        axes[0, 0].set_ylabel("reserved, fullest stage (GiB)")
        axes[1, 0].set_ylabel("1000 tokens/s")
        axes[0, 1].legend(title="tokens", loc="upper left", bbox_to_anchor=(1.02, 1))
        figure.tight_layout()
    return figure


def _line(
    ax: Any,
    rows: Sequence[Mapping[str, Any]],
    key: str,
    measured: str,
    look: Mapping[str, Any],
    sequence: int,
) -> None:
    """Predicted as a line, measured as marks."""
    rows = sorted(rows, key=lambda row: row["slices"])

    def value(row: Mapping[str, Any], key: str) -> Any:
        seconds = {"rate": row["iteration_s"], "measured_rate": row["measured_s"]}.get(key)
        if key in ("rate", "measured_rate"):
            return row["microbatches"] * row["sequence"] / (1000 * seconds) if seconds else None
        return row[key]

    ax.plot(
        [row["slices"] for row in rows], [value(row, key) for row in rows],
        color=look["color"], linestyle=look["linestyle"], label=f"{sequence // 1024}k",
    )  # fmt: skip
    for row in rows:
        found = value(row, measured)
        if found is not None:
            ax.plot(row["slices"], found, marker=look["marker"], linestyle="", color=look["color"])
    ax.grid(visible=True, axis="y")
