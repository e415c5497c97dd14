"""Styles of lines, and names of schedules."""

from __future__ import annotations

from itertools import cycle, islice, product
from typing import Any

from matplotlib.patheffects import withStroke

from ..schedules import REGISTRY

FONT = 7.5  # points, of names
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
