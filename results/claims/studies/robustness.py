"""What README.md and results/README.md say of robustness."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.robustness.figure import medians
from optpipe_sim.spread import spread
from optpipe_sim.study.claims import Row, Tables, percent, span

AMPLE, SCARCE = "75.6GiB", "0.75x 1f1b"


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("robustness")
    cells: dict[tuple[str, str, float], dict[str, Row]] = {}
    for row in medians(rows):
        if row["level"]:
            key = row["memory_limit"], row["kind"], row["level"]
            cells.setdefault(key, {})[row["schedule"]] = row
    ample = [cell for key, cell in cells.items() if key[0] == AMPLE]
    won = sum(cell["zb-v"]["cost_ns"] < cell["optpipe"]["cost_ns"] for cell in ample)
    nominal = {
        name: spread(
            row["cost_ns"]
            for row in rows
            if not row["level"] and (row["memory_limit"], row["schedule"]) == (AMPLE, name)
        )
        for name in ("zb-v", "optpipe")
    }
    ahead = nominal["zb-v"].median / nominal["optpipe"].median - 1
    yield (
        f"In all memory of the devices a fixed ZB-V is faster than this search's fixed plan in {won} of {len(ample)}"
        f" perturbed cells (medians of {nominal['optpipe'].seeds} seeds); as profiled it takes {percent(ahead)} longer."
    )
    own = [row for row in rows if row["schedule"] == "optpipe" and row["level"]]
    off = [row for row in own if row["kind"] in ("device", "straggler")]
    copies = {
        level: [row["loss"] for row in own if (row["kind"], row["level"]) == ("copy", level)]
        for level in sorted({key[2] for key in cells})
    }
    yield (
        f"With devices off for good by up to {percent(max(key[2] for key in cells), 0)} that plan loses"
        f" {span((row['loss'] for row in off), percent)} to the best in hindsight in the mean of"
        f" {span(row['samples'] for row in off)} samples and {percent(max(row['loss_most'] for row in off))} in the worst"
        f" sample; with copies slower by"
        f" {', '.join(f'{percent(level, 0)} {span(lost, percent)}' for level, lost in copies.items())} (all seeds)."
    )
    anew = [row["replanned_loss"] for row in medians(rows) if row["schedule"] == "optpipe"]
    yield (
        f"Planned anew for the durations as they are, or for their scatter, it stays within {percent(max(anew))} of"
        f" the best in hindsight (medians)."
    )
    scarce = [cell for key, cell in cells.items() if key[0] == SCARCE]
    best = sum(min(c, key=lambda name, c=c: c[name]["cost_ns"]) == "optpipe" for c in scarce)
    yield f"With three quarters of 1F1B's activations it is the fastest fixed plan in {best} of {len(scarce)} cells."
