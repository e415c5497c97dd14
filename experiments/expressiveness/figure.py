"""What two frameworks lose by what they cannot express, pair by pair, and what one option more wins back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

Row = Mapping[str, Any]
# by kind of plan: label, colour, marker
LOOKS = {
    "megatron": ("Megatron-LM", "#D55E00", "s"),
    "torchtitan": ("torchtitan", "#0072B2", "o"),
}
OPTIONS = {
    "megatron+order": ("megatron", "any order from a file"),
    "megatron+V": ("megatron", "V-shaped schedules"),
    "megatron+split": ("megatron", "ZB-H1 and ZB-H2"),
    "megatron+levels": ("megatron", "finer levels of recomputation"),
    "megatron+stages": ("megatron", "a level for each stage"),
    "torchtitan+levels": ("torchtitan", "recompute by activation"),
    "torchtitan+offload": ("torchtitan", "offload by activation"),
}
RIGHT = 0.6  # longer times are drawn here, with an arrow


def price(row: Row, kind: str) -> float | None:
    """Return how much longer the plan of a kind takes than the free one; None where none fits."""
    return _longer(row[f"{kind}_ns"], row["free_ns"])


def _longer(slow: int | None, fast: int | None) -> float | None:
    return slow / fast - 1 if slow and fast else None


def gain(row: Row, option: str) -> float | None:
    """Return how much longer a framework's plan takes than with this option as well; None where it has no plan."""
    base = OPTIONS[option][0]
    return _longer(row[f"{base}_ns"], row[f"{option}_ns"])


def drawn_ratio(row: Row, slow: str, fast: str) -> float | None:
    """Return the median, over costs that may be true as well, of how much longer the one plan takes than the other; None where one has no time."""
    times = list(zip(row[f"{slow}_drawn_ns"] or (), row[f"{fast}_drawn_ns"] or (), strict=False))
    found = [first / second - 1 for first, second in times if first and second]
    return median(found) if found else None


def pressed(row: Row) -> bool:
    """Whether memory makes Megatron-LM's plan recompute, or leaves it none."""
    return row["megatron_ns"] is None or bool(row["megatron_recomputed"])


def draw(rows: Sequence[Row]) -> Figure:
    """Left: a line per pair, the frameworks' plans and the bound beside the free plan. Right: what each option gains, a mark per pair."""
    order = sorted(
        rows, key=lambda row: (price(row, "megatron") is None, price(row, "megatron") or 0)
    )
    with styled():
        figure = new_figure(10.6, max(3.6, 1.1 + 0.135 * len(order)))
        tall = figure.get_figheight()
        bottom, height = 0.5 / tall, 1 - 1.05 / tall
        left = figure.add_axes((0.27, bottom, 0.33, height))
        _pairs(left, order)
        right = figure.add_axes((0.76, bottom + height * 0.4, 0.23, height * 0.6))
        _options(right, rows)
        handles = [
            Line2D([], [], color=colour, marker=marker, ls="", ms=4.5, label=label)
            for label, colour, marker in LOOKS.values()
        ]
        handles += [
            Line2D([], [], color=INK, marker="|", ls="", ms=7, label="without a framework"),
            Line2D([], [], color=MUTED, lw=2.5, label="what the bound leaves open"),
            Line2D([], [], color=MUTED, marker="|", mew=2, ls="", ms=9, label="right: median at the costs"),
            Line2D([], [], color=MUTED, marker="d", ls="", ms=5, label="right: median at drawn costs"),
            Line2D([], [], color=MUTED, marker="s", ls="", ms=4, label="right: Megatron-LM's plan recomputes"),
            Line2D([], [], color=MUTED, marker="s", mfc="none", ls="", ms=4, label="right: it does not"),
        ]  # fmt: skip
        figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.64, 0.01), fontsize=8)
        figure.text(
            0.01, 1 - 0.22 / tall,
            f"What {len(rows)} published layouts lose by what a framework cannot express: time of an iteration's pipeline",
            fontsize=9, color=INK,
        )  # fmt: skip
    return figure


def _pairs(ax: Axes, order: Sequence[Row]) -> None:
    for at, row in enumerate(order):
        if row["free_ns"] is None:
            ax.text(0, at, "nothing fits", fontsize=6, color=MUTED, va="center")
            continue
        ax.plot(
            [row["bound_ns"] / row["free_ns"] - 1, 0],
            [at, at],
            color=MUTED,
            lw=2.5,
            solid_capstyle="butt",
        )
        ax.plot([0], [at], marker="|", color=INK, ms=7)
        for kind, (_, colour, marker) in LOOKS.items():
            found = price(row, kind)
            if found is None:
                ax.text(
                    RIGHT, at, "does not fit", fontsize=5.5, color=colour, va="center", ha="right"
                )
            else:
                ax.plot([min(found, RIGHT)], [at], marker=marker, color=colour, ms=4, clip_on=False)
                if found > RIGHT:
                    ax.text(
                        RIGHT * 1.03,
                        at,
                        f"{100 * found:.0f} %",
                        fontsize=5.5,
                        color=colour,
                        va="center",
                    )
    ax.set_yticks(range(len(order)), [row["pair"] for row in order], fontsize=5.5)
    ax.set_ylim(len(order) - 0.3, -0.7)
    ax.set_xlabel("longer than the best plan found without a framework")
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    ax.grid(axis="x")


def _options(ax: Axes, rows: Sequence[Row]) -> None:
    for at, (option, (base, label)) in enumerate(OPTIONS.items()):
        _, colour, marker = LOOKS[base]
        for tight, below in ((True, -0.2), (False, 0.2)):
            own = [row for row in rows if pressed(row) == tight]
            found = sorted(each for row in own if (each := gain(row, option)) is not None)
            true = [each for row in own if (each := drawn_ratio(row, base, option)) is not None]
            style: dict[str, Any] = {"color": colour, "ls": "", "mfc": colour if tight else "none"}
            ax.plot(found, [at + below] * len(found), marker=marker, ms=3, alpha=0.6, **style)
            ax.plot([median(found)], [at + below], marker="|", mew=2, ms=11, **style)
            ax.plot([median(true)], [at + below + 0.13], marker="d", ms=5.5, **style)
        ax.text(
            -0.02, at, label, ha="right", va="center", fontsize=7.5, color=colour,
            transform=ax.get_yaxis_transform(),
        )  # fmt: skip
    ax.set_yticks([])
    ax.set_ylim(len(OPTIONS) - 0.4, -0.6)
    ax.set_xlabel("what the option gains")
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    ax.set_title("one option more", loc="left", fontsize=9)
    ax.grid(axis="x")
