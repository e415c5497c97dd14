"""What README.md and results/README.md say of pipeoffload_formulas."""

from __future__ import annotations

from collections.abc import Iterator

from results.claims import Tables, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("pipeoffload_formulas")
    bubbles = [row for row in rows if row["formula_bubble"] is not None]
    exact = [
        row
        for row in bubbles
        if abs(row["bubble"] - row["formula_bubble"]) < 1e-9 * row["formula_bubble"]
        and row["peak_chunks"] == row["formula_peak_chunks"]
    ]
    halves = {
        row["peak_chunks"] - row["formula_peak_chunks"] for row in rows if row["schedule"] == "po-h"
    }
    names = sorted({row["schedule"].split(":")[0].upper() for row in bubbles})
    yield (
        f"Bubble and peak of PipeOffload's table 1 come out as its formulas say in {len(exact)} of"
        f" {len(bubbles)} cells of {', '.join(names)} ({span({r['profile.devices'] for r in rows})} devices,"
        f" {span({r['profile.chunks'] for r in rows})} chunks); PO-H holds {span(halves, lambda x: f'{x:g}')}"
        " chunk activations more than its approximate formula, which leaves out those that are being copied."
    )
    printed = [row for row in rows if row["printed_peak_chunks"] is not None]
    equal = [row for row in printed if row["peak_chunks"] == row["printed_peak_chunks"]]
    (other,) = (row for row in printed if row["peak_chunks"] != row["printed_peak_chunks"])
    yield (
        f"{len(equal)} of the {len(printed)} peaks that the authors' code prints are equal; the other is"
        f" {other['peak_chunks']:g} chunk activations here and {other['printed_peak_chunks']:g} there."
    )
