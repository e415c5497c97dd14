"""What README.md and docs/how-true.md say of differences between schedules, which plans are chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean, median
from typing import Any

from optpipe_sim.study.claims import Tables, span

Cells = dict[str, dict[str, Any]]  # of one model and number of microbatches, by schedule


def sentences(tables: Tables) -> Iterator[str]:
    cells = list(_table_4(tables("costs_cells")))
    off = [100 * (_gain(one, "after") - _gain(one, "published")) for one in cells]
    assert min(off) > 0
    yield (
        f"simulated 1F1B-I gains {span(off, '{:.1f}'.format)} points more over 1F1B than measured (median {median(off):.1f}; {len(cells)} of {len(cells)} cells"
        f" of the zero-bubble paper's table 4)"
    )
    yield f"the simulated gain of interleaved 1F1B over 1F1B is {median(off):.1f} points above the measured one (median of {len(off)})"
    held = [one for one in cells if one["1f1b"]["role"] == "check"]
    wrong = sum(_fastest(one, "after") != _fastest(one, "published") for one in held)
    yield f"In {wrong} of the {len(held)} of these cells that no rate was fitted to the simulated fastest schedule is not the measured one"
    shares = list(_figure_15(tables("pipeoffload_models")))
    yield (
        f"gains over 1F1B in PipeOffload's figure 15 are off by {mean(map(abs, shares)):.1f} points in the mean of {len(shares)} runs and {max(map(abs, shares)):.1f}"
        f" at worst, {sum(share < 0 for share in shares)} of them too small"
    )


def _table_4(rows: list[dict[str, Any]]) -> Iterator[Cells]:
    """The cells of the zero-bubble paper's table 4 with all of its schedules; a model has one per number of microbatches."""
    cells: dict[tuple[str, int], Cells] = {}
    for row in rows:
        schedule, _, quantity = row["quantity"].partition(" ")
        if row["table"] == "Zero Bubble, table 4" and quantity == "iteration_ms":
            at = sum(schedule in one for (model, _), one in cells.items() if model == row["model"])
            cells.setdefault((row["model"], at), {})[schedule] = row
    yield from cells.values()


def _gain(cells: Cells, column: str) -> float:
    """By how much 1F1B takes longer than 1F1B-I."""
    return float(cells["1f1b"][column] / cells["1f1b-i"][column] - 1)


def _fastest(cells: Cells, column: str) -> str:
    return min(cells, key=lambda schedule: cells[schedule][column])


def _figure_15(rows: list[dict[str, Any]]) -> Iterator[float]:
    """Simulated less measured gain of throughput over 1F1B, in points, of each run beside which that ran."""
    ran = [row for row in rows if row["outcome"] == row["published_outcome"] == "ran"]
    first = {(row["model"], row["seq"]): row for row in ran if row["schedule"] == "1f1b"}
    for row in ran:
        base = first.get((row["model"], row["seq"]))
        if base is not None and base is not row:
            shares = (row[key] / base[key] for key in ("mfu_percent", "published_mfu_percent"))
            yield 100 * (next(shares) - next(shares))
