"""What README.md and results/README.md say of costs_tables."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from results.claims import Tables, percent


def sentences(tables: Tables) -> Iterator[str]:
    cells = [cell for cell in tables("costs_cells") if cell["role"] == "check"]

    def errors(table: str, quantity: str) -> list[float]:
        return [
            abs(cell["after_error"])
            for cell in cells
            if cell["table"].startswith(table) and cell["quantity"].split()[-1] == quantity
        ]

    pairs = {
        (table, quantity): errors(table, quantity)
        for table in ("Zero Bubble, table 4", "PipeOffload")
        for quantity in ("iteration_ms", "peak_gib", "activation_gib")
    }
    zb, zb_gib = (
        pairs["Zero Bubble, table 4", "iteration_ms"],
        pairs["Zero Bubble, table 4", "peak_gib"],
    )
    po, po_gib = pairs["PipeOffload", "iteration_ms"], pairs["PipeOffload", "activation_gib"]
    yield (
        f"Held-out runs after calibration, median (worst): time {percent(median(zb))} ({percent(max(zb))}) and"
        f" memory {percent(median(zb_gib))} ({percent(max(zb_gib))}) of the zero-bubble papers' {len(zb)} and"
        f" {len(zb_gib)}, {percent(median(po))} ({percent(max(po))}) and {percent(median(po_gib))}"
        f" ({percent(max(po_gib))}) of PipeOffload's {len(po)}"
    )
