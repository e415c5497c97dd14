"""How far each predicted difference between two schedules is from the measured one, by way to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.ranking.summary import LEVEL, WAYS, by_way, group, half_width, line
from optpipe_sim.plot.labels import COLOURS, MARKERS
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

# by the source of the settings' costs: colour and marker
LOOKS = {
    "published": ("op times published", COLOURS[0], MARKERS[0]),
    "assumed": ("something is assumed", COLOURS[5], MARKERS[1]),
    "estimated": ("op times estimated (PipeOffload)", COLOURS[3], MARKERS[2]),
}
_WIDE = 0.5  # of the strip of a way
_EDGE = 15  # points


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A strip per way to predict, a mark per pair of schedules; the bar holds 80 % of the pairs with published or assumed op
    times. Right of it, how often the fastest schedule is found."""
    ways = {key: name for key, name in WAYS.items() if key in by_way(rows)}
    with styled():
        figure = new_figure(7.6, 0.9 + 0.52 * len(ways))
        ax = figure.subplots()
        for at, key in enumerate(ways):
            _strip(ax, at, by_way(rows)[key])
        ax.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
        ax.set_yticks(range(len(ways)), ways.values())
        ax.set_ylim(len(ways) - 0.5, -0.5)
        ax.set_xlim(-_EDGE, _EDGE)
        ax.set_xlabel("predicted less measured gain of the faster schedule (points)")
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=True, axis="x")
        ax.text(
            1.02,
            1.02,
            "fastest found, or\nat most 2 % slower",
            transform=ax.transAxes,
            va="bottom",
            fontsize=8,
        )
        for label, colour, marker in LOOKS.values():
            ax.plot([], [], marker, color=colour, markersize=4, label=label)
        ax.plot([], [], color=INK, linewidth=3, alpha=0.35, label=f"{LEVEL:.0%} of the first two")
        figure.legend(
            *ax.get_legend_handles_labels(), loc="upper center", ncols=4, columnspacing=1.2
        )
        figure.tight_layout(rect=(0, 0, 1, 0.92))
    return figure


def _strip(ax: Any, at: int, rows: Sequence[Mapping[str, Any]]) -> None:
    for place, (costs, (_, colour, marker)) in enumerate(LOOKS.items()):
        # positive where the faster schedule is predicted to gain too much
        errors = [
            -100 * error
            for row in rows
            if row["costs"] == costs and group(row) in ("schedules", "figure 15")
            for error in row["difference_errors"]
        ]
        y = at + _WIDE * (place + 0.5) / len(LOOKS) - _WIDE / 2
        ax.plot(errors, [y] * len(errors), marker, color=colour, markersize=3, alpha=0.45, zorder=3)
    found = line(rows)
    width = 100 * half_width(found.errors)
    ax.plot(
        [-width, width],
        [at, at],
        color=INK,
        linewidth=9,
        alpha=0.15,
        zorder=2,
        solid_capstyle="butt",
    )
    ax.text(
        1.02, at, f"{found.right} of {found.settings}", transform=ax.get_yaxis_transform(), va="center", fontsize=8
    )  # fmt: skip
