"""What README.md and results/README.md say of adaoffload_quality."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from experiments.adaoffload_quality.figure import ENGINES, over
from results.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("adaoffload_quality")
    found = {
        engines: [over(row) for row in rows if row[ENGINES] == engines]
        for engines in ("separate", "shared")
    }
    own, shared = found["separate"], found["shared"]
    yield (
        f"Reconstructed AdaOffload takes {span(own, percent)} longer than the proven best in the {len(own)} reference"
        f" cells (median {percent(median(own))}); where one engine copies both ways {span(shared, percent)} longer than"
        f" the best with two (median {percent(median(shared))})."
    )
