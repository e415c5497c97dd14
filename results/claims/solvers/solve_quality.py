"""What README.md and results/README.md say of solve_quality."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.study.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    everything = tables("solve_quality")
    reference = [row for row in everything if row["table"] == "reference"]
    large = [row for row in everything if row["table"] == "large"]
    proven = sum(row["status"] == "optimal" for row in reference)
    yield (
        f"Of {len(reference)} reference cells (p = {span({row['p'] for row in reference})}, one seed,"
        f" {span({row['seconds'] for row in reference})} s) `solve` proves {proven} optimal; with p ="
        f" {' and '.join(str(p) for p in sorted({row['p'] for row in large}))} it leaves at most"
        f" {percent(max(row['ours'] / row['bound'] - 1 for row in large), 2)} to the bound in"
        f" {span({row['seconds'] for row in large})} s"
    )
    rows = [row for row in everything if row["table"] == "other"]
    long = tables("best_known")
    best: dict[str, int] = {}
    for row in [*rows, *long]:
        best[row["case"]] = min(row["ours"], best.get(row["case"], row["ours"]))
    over = [row["ours"] / best[row["case"]] - 1 for row in rows]
    optimal = [row for row in rows if row["status"] == "optimal"]
    gaps = [row["ours"] / row["bound"] - 1 for row in rows if row["status"] != "optimal"]
    yield (
        f"`solve` (one seed, {span({row['seconds'] for row in rows})} s) proves {len(optimal)} of {len(rows)} problems with"
        f" other costs optimal and leaves {span(gaps, percent)} to the bound in the others; it is at most"
        f" {percent(max(over))} above the best of our own runs of up to {max(row['seconds'] for row in long)} s, which is all"
        f" that *best known* means there"
    )
