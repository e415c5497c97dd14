"""What README.md and results/README.md say of robustness."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.study.claims import Row, Tables, percent, span

AMPLE, SCARCE = "1x 1f1b", "0.5x 1f1b"


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("robustness")
    cells: dict[tuple[str, str, float], dict[str, Row]] = {}
    for row in rows:
        if row["level"]:
            key = row["memory_limit"], row["kind"], row["level"]
            cells.setdefault(key, {})[row["schedule"]] = row
    ample = {key: cell for key, cell in cells.items() if key[0] == AMPLE}
    won = sum(cell["zb-v"]["cost_ns"] < cell["optpipe"]["cost_ns"] for cell in ample.values())
    nominal = {
        row["schedule"]: row for row in rows if not row["level"] and row["memory_limit"] == AMPLE
    }
    ahead = nominal["zb-v"]["cost_ns"] / nominal["optpipe"]["cost_ns"] - 1
    yield (
        f"Where memory is ample, a fixed ZB-V is faster than this search's fixed plan in {won} of {len(ample)}"
        f" perturbed cells, although as profiled it takes {percent(ahead)} longer."
    )
    off = [c["optpipe"] for key, c in cells.items() if key[1] in ("device", "straggler")]
    copies = {
        level: [c["optpipe"]["loss"] for key, c in cells.items() if key[1:] == ("copy", level)]
        for level in sorted({key[2] for key in cells})
    }
    yield (
        f"With devices off for good by up to {percent(max(key[2] for key in cells), 0)} that plan loses"
        f" {span((row['loss'] for row in off), percent)} to the best in hindsight in the mean of"
        f" {span(row['samples'] for row in off)} samples and {percent(max(row['loss_most'] for row in off))} in the worst"
        f" sample; with copies slower by"
        f" {', '.join(f'{percent(level, 0)} {span(lost, percent)}' for level, lost in copies.items())}."
    )
    scarce = [cell for key, cell in cells.items() if key[0] == SCARCE]
    best = sum(min(c, key=lambda name, c=c: c[name]["cost_ns"]) == "optpipe" for c in scarce)
    yield f"At half of the activation memory it is the fastest fixed plan in {best} of {len(scarce)} cells."
