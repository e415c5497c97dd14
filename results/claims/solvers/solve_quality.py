"""What README.md and results/README.md say of solve_quality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from experiments.solve_quality.cases import cells_of
from experiments.spread import spread
from results.claims import Row, Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    everything = tables("solve_quality")
    reference, large, other = (
        cells_of(everything, name) for name in ("reference", "large", "other")
    )
    greedy = sum(
        row["cost_ns"] == row["profile.meta.best_ns"]
        for row in tables("adaoffload_quality")
        if row["profile.offload.copy_engines"] == "separate"
    )
    proven = sum(all(row["status"] == "optimal" for row in cell) for cell in reference)
    yield (
        f"Of {len(reference)} reference cells of uniform costs (p = {span(every(reference, 'p'))},"
        f" {span(every(reference, 'seconds'))} s; AdaOffload alone finds {greedy} of their optima) `solve` proves {proven} optimal with each of {len(reference[0])} seeds; with p ="
        f" {' and '.join(str(p) for p in sorted(every(large, 'p')))} it leaves at most"
        f" {percent(max(gap(cell, 'most') for cell in large), 2)} to the bound in"
        f" {span(every(large, 'seconds'))} s"
    )
    opened = [cell for cell in other if not all(row["status"] == "optimal" for row in cell)]
    open_gaps = span((gap(cell) for cell in opened), percent)
    yield f"of **{proven}** of {len(reference)} problems with equal stages, with each of {len(reference[0])} seeds"
    yield f"of other costs and links it proves {len(other) - len(opened)} of {len(other)}"
    long = tables("best_known")
    best: dict[str, int] = {}
    for row in [*(row for cell in other for row in cell), *long]:
        best[row["case"]] = min(row["ours"], best.get(row["case"], row["ours"]))
    over = [row["ours"] / best[row["case"]] - 1 for cell in other for row in cell]
    yield (
        f"`solve` ({len(other[0])} seeds, {span(every(other, 'seconds'))} s) proves {len(other) - len(opened)} of {len(other)} problems with"
        f" other costs optimal with every seed and leaves {open_gaps} to the bound in the others"
        f" (medians); it is at most {percent(max(over))} above the best of our own runs of up to"
        f" {max(row['seconds'] for row in long)} s, which is all that *best known* means there"
    )


def every(cells: Iterable[Iterable[Row]], column: str) -> set[float]:
    return {row[column] for cell in cells for row in cell}


def gap(cell: Iterable[Row], which: str = "median") -> float:
    """Of the median, or the worst, seed to the best bound that any has."""
    rows = list(cell)
    return (
        getattr(spread(row["ours"] for row in rows), which) / max(row["bound"] for row in rows) - 1
    )
