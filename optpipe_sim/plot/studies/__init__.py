"""The figures of experiments: ``draw(rows)`` in the module of the experiment's name."""

from __future__ import annotations

from itertools import cycle, islice, product
from typing import Any

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; black last
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#222222")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")


def line_styles(count: int) -> list[dict[str, Any]]:
    """So many looks of lines that differ in more than their colour, for ``ax.plot(**look)``."""
    looks = zip(
        cycle(COLOURS), cycle(MARKERS), (d for d, _ in product(DASHES * 9, COLOURS)), strict=False
    )
    return [
        {"color": colour, "marker": marker, "linestyle": dash, "markersize": 4}
        for colour, marker, dash in islice(looks, count)
    ]
