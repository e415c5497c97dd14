"""How each engine improves AdaOffload's schedule, or starts from none: strips over time, darker where
better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.spread import middle_runs
from optpipe_sim.plot.labels import FONT
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled, text_colour

Row = Mapping[str, Any]
# engine, start, label, and position from the top
LINES = (
    ("adaoffload", "adaoffload", "AdaOffload alone", 0.0),
    ("milp", "adaoffload", "MILP", 1.6),
    ("cpsat", "adaoffload", "CP-SAT", 2.6),
    ("search", "adaoffload", "search", 3.6),
    ("auto", "adaoffload", "all at once (auto)", 4.6),
    ("milp", "none", "MILP", 6.2),
    ("cpsat", "none", "CP-SAT", 7.2),
    ("search", "none", "search", 8.2),
)
HEADS = ((1.6, "from AdaOffload"), (6.2, "from nothing"))
FIRST_S = 0.03
TICKS = (0.1, 1, 5, 20, 60, 300)
SHADES = colormaps[
    "YlGnBu"
]  # lightness falls monotonically: readable in grey and with any colour vision
LOW, HIGH = (
    0.003,
    3.0,
)  # shares above the best known: darkest up to the first, lightest from the last
PROVEN = 1e-6  # gap up to which a solver's tolerances count as none


def draw(rows: Sequence[Row]) -> Figure:
    """Draw a panel per instance, a strip per engine and start."""
    rows = middle_runs(rows, ("profile.devices", "engine", "start"))
    sizes = sorted({(row["profile.devices"], row["microbatches"]) for row in rows})
    with styled():
        figure = new_figure(10.4, 4.5)
        for at, (devices, microbatches) in enumerate(sizes):
            here = [row for row in rows if row["profile.devices"] == devices]
            ax = figure.add_axes((0.125 + 0.435 * at, 0.11, 0.375, 0.67))
            _panel(ax, here, names=not at)
            share = float(str(here[0]["memory_limit"]).split("x")[0])
            rate = here[0]["profile.offload.d2h_gb_per_s"]
            best = min(row["objective_ns"] for row in here if row["objective_ns"])
            bound = max(row["lower_bound_ns"] for row in here)
            least = (
                "the best is proven optimal"
                if best / bound - 1 < PROVEN
                else f"the best is proven to within {best / bound - 1:.1%}"
            )
            ax.set_title(
                f"p = {devices}, m = {microbatches}; {share:.0%} of 1F1B's activations, copies of"
                f" {rate:g} GB/s\n{least}",
                loc="left", fontsize=8.5, pad=12,
            )  # fmt: skip
        figure.text(
            0.125, 0.96, "numbers: over the best known, after 1, 5, 20, 60 and 300 s; of five seeds the middle one\n"
            "dark: good;  hatched: no schedule yet;  star: proven optimal;  gap: to the engine's own bound",
            fontsize=8, color=INK, va="center",
        )  # fmt: skip
    return figure


def curves(rows: Iterable[Row], engine: str, start: str) -> tuple[list[Row], list[list[float]]]:
    """The rows of an engine by time, and its improvements [seconds, ns] joined."""
    mine = sorted(
        (row for row in rows if row["engine"] == engine and row["start"] == start),
        key=lambda row: float(row["after_s"]),
    )
    return mine, [entry for row in mine for entry in row["incumbents"] or ()]


def _panel(ax: Axes, rows: Sequence[Row], names: bool) -> None:
    best = min(row["objective_ns"] for row in rows if row["objective_ns"])
    last = max(row["after_s"] for row in rows)
    ax.set_xscale("log")
    ax.set_xlim(FIRST_S, last)
    ax.set_ylim(9.0, -0.5)
    ax.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if tick <= last]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_xlabel("seconds")
    ax.spines[["left"]].set_visible(False)
    ax.set_yticks([y for *_, y in LINES], [name for *_, name, _ in LINES] if names else [])
    ax.tick_params(axis="y", length=0)
    right = ax.get_yaxis_transform()  # x in shares of the width, y in data
    ax.text(1.02, -0.75, "gap", transform=right, fontsize=FONT, color=MUTED)
    for y, text in HEADS:
        ax.text(0, y - 0.62, text, transform=right, fontsize=FONT, color=MUTED, style="italic")
    for engine, start, _, y in LINES:
        mine, found = curves(rows, engine, start)
        if mine:
            _strip(ax, y, mine, found, best)
            gap = _gap(mine[-1])
            label = "-" if gap is None else "0" if gap < PROVEN else f"{gap:.0%}"
            ax.text(1.02, y, label, transform=right, fontsize=FONT + 0.5, va="center")


def _strip(
    ax: Axes, y: float, rows: Sequence[Row], found: Sequence[Sequence[float]], best: int
) -> None:
    # a run that ended by itself keeps its value; one that was stopped early has none later
    last = rows[-1]["after_s"]
    gap = _gap(rows[-1])
    proven = gap is not None and gap < PROVEN
    ended = proven or rows[0]["engine"] == "adaoffload"
    stop = last if ended else min(rows[0]["time_limit"] or last, last)
    ax.add_patch(
        Rectangle(
            (FIRST_S, y - 0.4), stop - FIRST_S, 0.8, fc="white", ec="#BDBDBD", hatch="////", lw=0.5
        )
    )
    ends = [*(max(FIRST_S, at) for at, _ in found[1:]), stop]
    for (at, ns), end in zip(found, ends, strict=False):
        begin = max(FIRST_S, at)
        colour = _shade(ns / best - 1)
        ax.add_patch(Rectangle((begin, y - 0.4), end - begin, 0.8, fc=colour, lw=0))
    for row in rows:
        if row["after_s"] <= stop:
            excess = None if row["objective_ns"] is None else row["objective_ns"] / best - 1
            ax.text(
                row["after_s"] / 1.06, y, _told(excess), ha="right", va="center", fontsize=FONT,
                color=INK if excess is None else text_colour(_shade(excess)),
                bbox={"fc": "white", "ec": "none", "pad": 1} if excess is None else None,
            )  # fmt: skip
            ax.plot([row["after_s"]] * 2, [y - 0.4, y + 0.4], color="white", lw=1.2)
    if proven:
        ax.plot(rows[-1]["seconds"], y, "*", ms=9, mfc="#F0E442", mec=INK, mew=0.5, zorder=5)


def _gap(row: Row) -> float | None:
    return None if row["gap"] is None else float(row["gap"])


def _shade(excess: float) -> str:
    """From dark (the best known) to light (some times as long)."""
    if excess < LOW:
        return to_hex(SHADES(0.95))
    part = log10(min(excess, HIGH) / LOW) / log10(HIGH / LOW)
    return to_hex(SHADES(0.8 - 0.75 * part))


def _told(excess: float | None) -> str:
    if excess is None:
        return "none"
    if excess < 0.0005:
        return "best"
    return f"+{excess:.1%}" if excess < 1 else f"{1 + excess:.1f} x"
