"""Cost of shared copy engines and links for plans that know of them, and for plans that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from optpipe_sim.plot.labels import COLOURS, MARKERS
from optpipe_sim.plot.style import INK, LIMIT, new_figure, styled
from optpipe_sim.spread import over_seeds

Row = Mapping[str, Any]
OWN = "own links"
TITLES = {
    OWN: "own link, two engines",
    "one engine": "own link, one engine",
    "pairs": "link for two, two engines",
    "pairs, one engine": "link for two, one engine",
    "pairs, half duplex": "link for two, half duplex",
    "fours": "link for four, two engines",
}
FAMILIES = (("po:", "PipeOffload"), ("adaoffload", "AdaOffload"), ("optpipe", "this search"))


def draw(rows: Sequence[Row]) -> Figure:
    """A panel per memory limit; per kind of link and schedule, from the time of a plan made for
    links of one's own to that of one made for these; of several seeds the medians."""
    rows = over_seeds(
        rows, ("memory_limit", "profile.name", "schedule", "planned_for"), ("makespan_ns",)
    )
    limits = list(dict.fromkeys(row["memory_limit"] for row in rows))
    with styled():
        figure = new_figure(9.0, 4.4)
        axes: list[Axes] = []
        for at in range(len(limits)):
            place = (0.17 + 0.415 * at, 0.115, 0.395, 0.74)
            axes.append(figure.add_axes(place, sharex=axes[0] if axes else None))
        for at, (ax, limit) in enumerate(zip(axes, limits, strict=True)):
            _panel(ax, [row for row in rows if row["memory_limit"] == limit])
            share = limit.split("x")[0]
            ax.set_title(f"{float(share):.0%} of 1F1B's activation memory", loc="left", fontsize=9)
            if at:
                ax.tick_params(labelleft=False)
        _legend(figure, rows)
    return figure


def _panel(ax: Axes, rows: Sequence[Row]) -> None:
    wirings = [name for name in TITLES if any(row["profile.name"] == name for row in rows)]
    for at, wiring in enumerate(wirings):
        if at % 2:
            ax.axhspan(at - 0.5, at + 0.5, color="#F4F4F4", lw=0)
        here = [row for row in rows if row["profile.name"] == wiring]
        for number, (prefix, _) in enumerate(FAMILIES):
            y = at + 0.27 * (number - 1)
            blind, knowing = _times([r for r in rows if r["schedule"].startswith(prefix)], here)
            colour, marker = COLOURS[number], MARKERS[number]
            if blind and knowing:
                ax.plot([knowing, blind], [y, y], color=colour, lw=1.6, alpha=0.55, zorder=2)
            if blind:
                ax.plot(blind, y, marker, ms=5.5, mfc="white", mec=colour, mew=1.3, zorder=3)
            if knowing:
                ax.plot(knowing, y, marker, ms=5.5, color=colour, zorder=4)
            if blind and not knowing:
                ax.annotate(
                    "made for it: does not fit", (blind, y), (6, 0), textcoords="offset points",
                    va="center", fontsize=6.5, color=LIMIT,
                )  # fmt: skip
    ax.set_yticks(range(len(wirings)), [TITLES[name] for name in wirings])
    ax.set_ylim(len(wirings) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.1)
    ax.grid(axis="x")
    ax.set_xlabel("time per iteration [s]")


def _times(family: Sequence[Row], here: Sequence[Row]) -> tuple[float | None, float | None]:
    """Seconds of the variant that is fastest on links of one's own, run here; and of the fastest
    that is made for what is here."""

    def seconds(rows: Sequence[Row]) -> dict[str, float]:
        return {row["schedule"]: row["makespan_ns"] / 1e9 for row in rows if row["fits"]}

    ideal = seconds([r for r in family if r["profile.name"] == OWN and r["planned_for"] == "assumed"])  # fmt: skip
    names = {row["schedule"] for row in family}
    blind = seconds([r for r in here if r["planned_for"] == "assumed"])
    true = seconds([r for r in here if r["planned_for"] == "true" and r["schedule"] in names])
    chosen = min(ideal, key=lambda name: ideal[name]) if ideal else None
    return blind.get(chosen or ""), min(true.values(), default=None)


def _legend(figure: Figure, rows: Sequence[Row]) -> None:
    x = 0.02
    for (prefix, name), colour in zip(FAMILIES, COLOURS, strict=False):
        fits = any(row["fits"] for row in rows if row["schedule"].startswith(prefix))
        text = figure.text(
            x,
            0.955,
            name if fits else f"{name} (does not fit)",
            color=colour,
            fontsize=9,
            weight="bold",
            va="center",
        )
        x += 0.016 + text.get_window_extent().width / figure.dpi / figure.get_size_inches()[0]
    figure.text(
        x + 0.02, 0.955, "hollow: planned for links of one's own;  filled: for these",
        fontsize=8, color=INK, va="center",
    )  # fmt: skip
