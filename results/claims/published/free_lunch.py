"""What README.md and results/README.md say of free_lunch."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from results.claims import Tables


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("free_lunch")
    even = 1  # copies keep up with compute
    free = [row["slowdown_percent"] for row in rows if row["k"] <= even]
    measured = [row for row in rows if row["published_slowdown_percent"] is not None]

    def errors(paired: bool) -> list[float]:
        return [
            abs(row["slowdown_percent"] - row["published_slowdown_percent"])
            for row in measured
            if row["paired"] == paired and row["k"] > even
        ]

    both, alone = errors(True), errors(False)
    yield (
        f"Where k is at most {even}, offloading all of 1F1B costs {max(free):.1f} % in each of {len(free)}"
        f" simulations; above, the {len(both)} measured slowdowns come out to {median(both):.1f} points in the"
        f" median and {max(both):.1f} at worst with paired switches and with the share of time that is in no op;"
        f" without these two {median(alone):.1f} and {max(alone):.1f}."
    )
    small = [row["published_slowdown_percent"] for row in measured if row["k"] <= even]
    rising = max(row["k"] - row["published_k"] for row in rows if row["published_k"] is not None)
    yield (
        f"where k is at most {even}, full offload was measured from {-min(small):.1f} % faster to {max(small):.1f} % slower than 1F1B, which no"
        f" property of a schedule explains;"
        f" k by the formula is up to {rising:.2f} above the printed one."
    )
