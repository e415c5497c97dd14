"""What README.md and results/README.md say of robustness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from experiments.robustness.figure import medians
from optpipe_sim.plot.labels import schedule_label
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
    nominal = {
        name: spread(
            row["cost_ns"]
            for row in rows
            if not row["level"] and (row["memory_limit"], row["schedule"]) == (AMPLE, name)
        )
        for name in ("zb-v", "optpipe")
    }
    ahead = nominal["zb-v"].median / nominal["optpipe"].median - 1
    won = Counter(map(fastest, ample))
    assert won["optpipe"] == max(won.values()) < len(ample)
    others = ", ".join(
        f"{schedule_label(name)} in {count}"
        for name, count in won.most_common()
        if name != "optpipe"
    )
    behind = [cell["optpipe"]["cost_ns"] / cell["zb-v"]["cost_ns"] - 1 for cell in ample]
    (m,) = {row["microbatches"] for row in rows}
    yield (
        f"On `{rows[0]['profile']}` (m = {m}), in all memory of the devices, this search's fixed plan is the fastest of {len(ample[0])} fixed plans in"
        f" {won['optpipe']} of {len(ample)} perturbed cells (medians of {nominal['optpipe'].seeds} seeds), {others}; a fixed ZB-V is faster than it in"
        f" {sum(lost > 0 for lost in behind)}, by at most {percent(max(behind))}; as profiled ZB-V takes {percent(ahead)} longer."
    )
    own = [row for row in rows if row["schedule"] == "optpipe" and row["level"]]
    off = [row for row in own if row["kind"] in ("device", "straggler")]
    copies = [row for row in own if row["kind"] == "copy"]
    scarce_copies = {
        level: [
            row["loss"] for row in copies if (row["memory_limit"], row["level"]) == (SCARCE, level)
        ]
        for level in sorted({key[2] for key in cells})
    }
    ample_copies = max(row["loss"] for row in copies if row["memory_limit"] == AMPLE)
    copied = [row["offloaded"] for row in copies if row["memory_limit"] == AMPLE]
    yield (
        f"With devices off for good by up to {percent(max(key[2] for key in cells), 0)} this search's fixed plan, in all memory or with three quarters of 1F1B's activations, loses"
        f" {span((row['loss'] for row in off), percent)} to the best in hindsight in the mean of"
        f" {span(row['samples'] for row in off)} samples and {percent(max(row['loss_most'] for row in off))} in the worst"
        f" sample. With copies slower by"
        f" {', '.join(f'{percent(level, 0)} {span(lost, percent)}' for level, lost in scarce_copies.items())} with three quarters of these"
        f" activations, and at most {percent(ample_copies)} in all memory, where it offloads {span(copied)} of its activations (all seeds)."
    )
    anew = [row["replanned_loss"] for row in medians(rows) if row["schedule"] == "optpipe"]
    seeds = [row["replanned_loss"] for row in rows if row["schedule"] == "optpipe" and row["level"]]
    yield (
        f"Planned anew for the durations as they are, or for their scatter, it stays within {percent(max(anew))} of"
        f" the best in hindsight (medians; {percent(max(seeds))} with the worst seed)."
    )
    scarce = {key: fastest(cell) for key, cell in cells.items() if key[0] == SCARCE}
    others = {key: name for key, name in scarce.items() if name != "optpipe"}
    assert {(kind, name) for (_, kind, _), name in others.items()} == {("copy", "v-half")}
    yield (
        f"With three quarters of 1F1B's activations it is the fastest of four fixed plans in {len(scarce) - len(others)} of"
        f" {len(scarce)} cells; where copies are slower by {span((key[2] for key in others), lambda x: percent(x, 0))}, V-Half is."
    )


def fastest(cell: dict[str, Row]) -> str:
    return min(cell, key=lambda name: cell[name]["cost_ns"])
