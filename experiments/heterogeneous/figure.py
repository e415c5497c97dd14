"""Loss of patterns where stages or devices differ, and of plans made for equal devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.spread import over_seeds
from optpipe_sim.plot.labels import FONT, schedule_label
from optpipe_sim.plot.style import LIMIT, MUTED, new_figure, styled

Row = Mapping[str, Any]
CASES = {
    "balanced": "layers balanced",
    "head heavy": "layers even, head heavy",
    "slow first": "first device 1.3 times slower",
    "slow middle": "fifth device 1.3 times slower",
    "half A100": "last four devices A100s",
    "half A100, layers moved": "the same, layers moved",
}
LOOKS = {  # colour and marker
    "1f1b": ("#56B4E9", "v"),
    "zb-h1": ("#E69F00", "^"),
    "1f1b-i": ("#009E73", "P"),
    "zb-v": ("#CC79A7", "D"),
    "v-half": ("#8A8A8A", "X"),
    "adaoffload": ("#0072B2", "s"),
    "optpipe": ("#000000", "o"),
}
WIDE = 0.29  # end of the axis; larger values are drawn at its end


def draw(rows: Sequence[Row]) -> Figure:
    """Per case, for one chunk per device and for two, how much longer than the busiest device's
    work an iteration takes."""
    rows = over_seeds(
        (row for row in rows if row.get("schedule")),
        ("profile.name", "chunks", "placement", "schedule", "planned_for"),
        ("makespan_ns", "bubble_rate_flush"),
    )
    with styled():
        figure = new_figure(8.6, 5.2)
        ax = figure.add_axes((0.29, 0.095, 0.62, 0.78))
        _panel(ax, rows)
        _legend(figure, list(dict.fromkeys(row["schedule"] for row in rows)))
    return figure


def _panel(ax: Axes, rows: Sequence[Row]) -> None:
    cases = [case for case in CASES if any(row["profile.name"] == case for row in rows)]
    ticks, names = [], []
    for at, case in enumerate(cases):
        if at % 2 == 0:
            ax.axhspan(2 * at - 0.5, 2 * at + 1.5, color="#F5F5F5", lw=0)
        for chunks in (1, 2):
            y = 2 * at + chunks - 1
            ticks.append(y)
            names.append(f"{CASES[case]}   1 chunk" if chunks == 1 else "2 chunks")
            here = [r for r in rows if r["profile.name"] == case and r["chunks"] == chunks]
            _line(ax, y, here)
    ax.set_yticks(ticks, names)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(ticks[-1] + 0.5, -0.5)
    ax.set_xlim(-0.005, WIDE)
    ax.xaxis.set_major_formatter("{x:.0%}")
    ax.grid(axis="x")
    ax.annotate(
        "this search", (1, 1), (4, 4), xycoords="axes fraction", textcoords="offset points",
        fontsize=FONT,
    )  # fmt: skip
    ax.set_xlabel("time per iteration over the work of the busiest device")


def _line(ax: Axes, y: float, rows: Sequence[Row]) -> None:
    def over(row: Row) -> float:
        rate = float(row["bubble_rate_flush"])
        return min(WIDE, rate / (1 - rate))

    for row in rows:
        base = row["schedule"].split(":")[0]
        colour, marker = LOOKS[base]
        solved = base in ("optpipe", "adaoffload")
        if (not solved and row["planned_for"] == "assumed") or row["bubble_rate_flush"] is None:
            continue
        x = over(row)
        if not row["fits"]:
            if row["planned_for"] == "true":
                ax.plot(x, y, "x", color=colour, ms=6, mew=1.6, zorder=3)
            elif base == "optpipe":
                ax.plot(x, y, "x", color=LIMIT, ms=6, mew=1.6, zorder=3)
            continue
        hollow = row["planned_for"] == "assumed"
        if hollow and base == "adaoffload":
            continue
        ax.plot(
            x, y, marker, ms=8.5 if base == "adaoffload" else 6.5, mec=colour, mew=1.3, zorder=4,
            mfc="white" if hollow else colour,
        )  # fmt: skip
        if base == "optpipe" and not hollow:
            ax.annotate(
                f"{row['makespan_ns'] / 1e9:.2f} s", (WIDE, y), (4, 0), textcoords="offset points",
                va="center", fontsize=FONT, annotation_clip=False,
            )  # fmt: skip
    pair = [over(r) for r in rows if r["schedule"].startswith("optpipe") and r["fits"]]
    if len(pair) == 2:
        ax.plot(pair, [y, y], color=LOOKS["optpipe"][0], lw=1, alpha=0.6, zorder=2)


def _legend(figure: Figure, names: Sequence[str]) -> None:
    x, y = 0.29, 0.955
    for name in names:
        base = name.split(":")[0]
        colour, marker = LOOKS[base]
        ax = figure.add_axes((x, y - 0.015, 0.014, 0.03))
        ax.plot(0.5, 0.5, marker, color=colour, ms=6)
        ax.set_axis_off()
        text = figure.text(
            x + 0.018, y, schedule_label(base), color=colour, fontsize=8.5, va="center"
        )
        x += 0.03 + text.get_window_extent().width / figure.dpi / figure.get_size_inches()[0]
    figure.text(
        0.29, 0.905,
        "hollow: this search's plan for eight equal devices;  ×: does not fit there (red: that plan)",
        fontsize=8, color=MUTED, va="center",
    )  # fmt: skip
