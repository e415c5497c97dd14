"""Gaps of the atlas: over memory, and how many instances are within which gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

Row = Mapping[str, Any]
# what may be done with activations: label, colour, marker
LOOKS = {
    "neither": ("kept", "#6B6B6B", "o"),
    "offload": ("kept, offloaded", "#5E2D79", "^"),
    "recompute": ("kept, recomputed", "#D55E00", "s"),
    "both": ("kept, offloaded, recomputed", "#0072B2", "D"),
}
CLOSE = 0.01
FLOOR = 1e-4  # gaps below count as none, and are drawn below the line


def draw(rows: Sequence[Row]) -> Figure:
    """Left: each instance's gap over its memory. Right: the share of instances within a gap."""
    rows = [row for row in rows if row["kind"] != "small"]
    known = [row for row in rows if row["gap"] is not None]
    with styled():
        figure = new_figure(9.6, 4.3)
        left = figure.add_axes((0.075, 0.13, 0.49, 0.72))
        right = figure.add_axes((0.655, 0.13, 0.33, 0.72))
        _over_memory(left, known)
        _within(right, known)
        left.legend(
            loc="upper right", bbox_to_anchor=(1, 0.97), title="activations may be (area: devices)",
            title_fontsize=7.5, handletextpad=0.3, borderpad=0.2,
        )  # fmt: skip
        none = len(rows) - len(known)
        ample, tight = (
            [row["gap"] for row in known if (row["share"] >= 1) == full] for full in (True, False)
        )
        middles = " and ".join(
            f"{median(gaps):.1%} {words}".replace("%", " %")
            for gaps, words in ((ample, "with 1F1B's memory or more"), (tight, "with less"))
            if gaps
        )
        shut = sum(row["gap"] <= CLOSE for row in known)
        more = f"; no schedule is known of {none}" if none else ""
        figure.text(
            0.075,
            0.955,
            f"{shut} of {len(rows)} instances are solved to within {100 * CLOSE:g} %{more}; half of the gaps are at most {middles}",
            fontsize=9,
            color=INK,
        )
    return figure


def _over_memory(ax: Axes, rows: Sequence[Row]) -> None:
    for may, (label, colour, marker) in LOOKS.items():
        mine = [row for row in rows if row["may"] == may]
        ax.scatter(
            [row["share"] for row in mine],
            [max(row["gap"], FLOOR / 2) for row in mine],
            s=[9 + 0.6 * row["devices"] for row in mine],
            c=colour,
            marker=marker,
            alpha=0.65,
            linewidths=0,
            label=f"{label} ({len(mine)})",
            clip_on=False,
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(FLOOR / 3, max(1, 1.2 * max(row["gap"] for row in rows)))
    ax.axhline(FLOOR, color=MUTED, lw=0.6, ls=(0, (4, 3)))
    ax.text(0.995, FLOOR * 0.9, "solved (below 0.01 %)", fontsize=7.5, color=MUTED, ha="right", va="top",
            transform=ax.get_yaxis_transform())  # fmt: skip
    ax.axvline(1, color=MUTED, lw=0.6)
    ax.text(1.03, 0.985, "what 1F1B needs", fontsize=7.5, color=MUTED, va="top",
            transform=ax.get_xaxis_transform())  # fmt: skip
    ax.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.grid()
    ax.set_xlabel("memory limit for activations, as a share of what 1F1B's take")
    ax.set_title(
        "gap between the best schedule known and the best bound proven", loc="left", fontsize=9
    )


def _within(ax: Axes, rows: Sequence[Row]) -> None:
    for may, (_, colour, _) in LOOKS.items():
        gaps = sorted(max(row["gap"], FLOOR) for row in rows if row["may"] == may)
        if not gaps:
            continue
        shares = [at / len(gaps) for at in range(1, len(gaps) + 1)]
        ax.step([*gaps, 1], [*shares, 1], where="post", color=colour, lw=1.6)
    ax.set_xscale("log")
    ax.set_xlim(FLOOR, 1)
    ax.set_ylim(0, 1)
    ax.set_xticks([1e-4, 1e-3, 1e-2, 1e-1])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    ax.grid()
    ax.set_xlabel("gap of at most")
    ax.set_title("share of instances within a gap", loc="left", fontsize=9)
