"""Styles of lines, and names beside them instead of a legend, without overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice, product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from ..schedules import REGISTRY

FONT = 7.5  # points
SEARCH = "this search"  # what `optpipe` is called
# Okabe and Ito's colours, which people with any kind of colour vision tell apart; black last
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#222222")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
OUTLINE = [withStroke(linewidth=2.5, foreground="white")]


def line_styles(count: int) -> list[dict[str, Any]]:
    """Return styles of lines that differ in more than their colour, for ``ax.plot(**style)``."""
    looks = zip(
        cycle(COLOURS), cycle(MARKERS), (d for d, _ in product(DASHES * 9, COLOURS)), strict=False
    )
    return [
        {"color": colour, "marker": marker, "linestyle": dash, "markersize": 4}
        for colour, marker, dash in islice(looks, count)
    ]


def schedule_label(name: str) -> str:
    """Return a schedule's name as papers write it, with its number of chunks, if given: ``GIS, v = 2``."""
    base, _, options = name.partition(":")
    given = dict(part.partition("=")[::2] for part in options.split(",") if part)
    chunks = f", v = {given['chunks']}" if given.get("chunks", "any") != "any" else ""
    entry = REGISTRY.get(base)
    title = SEARCH if base == "optpipe" else (entry.title if entry else "") or base.upper()
    return f"{title}{chunks}"


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Move places apart to a distance of at least `gap`, in the same order, each as little as
    its neighbours allow."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    # neighbours that touch form a group around their common middle; a group: (sum of places, members)
    groups: list[tuple[float, list[int]]] = []
    for at in order:
        total, members = places[at], [at]
        while groups:
            before, others = groups[-1]
            reach = before / len(others) + gap * len(others) / 2
            if reach <= total / len(members) - gap * len(members) / 2:
                break
            groups.pop()
            total, members = before + total, others + members
        groups.append((total, members))
    made = list(places)
    for total, members in groups:
        first = total / len(members) - gap * (len(members) - 1) / 2
        for step, at in enumerate(members):
            made[at] = first + step * gap
    return made


def name_ends(
    ax: Axes, ends: Sequence[tuple[float, float, str, str]], x: float, shift: float = 6.0
) -> None:
    """Write names, (x, y, text, colour) of the ends of lines, in a column at `x` (in data), with a
    thin line from each end to its name; `shift` points right of it.

    Call it after the limits and the scale of the axis are final.
    """
    height = ax.get_window_extent().height * 72 / ax.figure.dpi
    unit = ax.transData + ax.transAxes.inverted()
    at = [float(unit.transform((px, py))[1]) * height for px, py, _, _ in ends]
    right = float(unit.transform((x, ends[0][1]))[0])
    for place, (px, py, text, colour) in zip(apart(at, FONT + 1.5), ends, strict=True):
        ax.annotate(
            text,
            (px, py),
            (right, place / height),
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=FONT,
            color=colour,
            path_effects=OUTLINE,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "lw": 0.5,
                "color": colour,
                "alpha": 0.5,
                "relpos": (0, 0.5),
                "shrinkA": 0,
                "shrinkB": shift / 2,
            },
        )
