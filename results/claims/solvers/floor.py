"""What results/README.md says of floor."""

from __future__ import annotations

from collections.abc import Iterator

from results.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("floor")
    fits = [row for row in rows if row["best_ns"] is not None]
    behind = sum(row["start_ns"] is None or row["start_ns"] > row["best_ns"] for row in fits)
    ahead = [row["best_ns"] / row["start_ns"] - 1 for row in fits if row["start_ns"]]
    more = [gain for gain in ahead if gain > 0]
    yield (
        f"Of {sum(row['tried'] for row in rows):,} pairs of a published schedule, with each value of its options, and one of"
        f" {len(rows)} settings, {sum(row['fit'] for row in rows):,} fit; what `solve` starts from is slower than the"
        f" best of them in {behind} of the {len(fits)} settings that any fits, as fast in {len(ahead) - len(more)}, and {span(more, percent)} faster in {len(more)}"
    )
