"""What README.md and results/README.md say of robustness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from experiments.robustness.figure import medians
from experiments.spread import spread
from results.claims import Row, Tables, percent, span

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
    changed = {key: cell for key, cell in cells.items() if key[0] == AMPLE and key[1] != "copy"}
    unmoved = [cell for key, cell in cells.items() if key[0] == AMPLE and key[1] == "copy"]
    assert all(len({cell[name]["cost_ns"] for cell in unmoved}) == 1 for name in ample[0])
    won = Counter(fastest(cell) for cell in changed.values())
    assert {*won} == {"optpipe", "zb-v", "adaoffload:chunks=2"}
    assert {key[1] for key, cell in changed.items() if fastest(cell) == "optpipe"} == {"op"}
    behind = [cell["optpipe"]["cost_ns"] / cell["zb-v"]["cost_ns"] - 1 for cell in changed.values()]
    scatter = [key[2] for key, cell in changed.items() if fastest(cell) == "optpipe"]
    (m,) = {row["microbatches"] for row in rows}
    yield (
        f"On `{rows[0]['profile']}` (m = {m}), in all memory of the devices, slower copies change none of {len(ample[0])} fixed plans. In the {len(changed)} cells that do change them this search's is the"
        f" fastest in {won['optpipe']} (ops that scatter by {span(scatter, lambda x: percent(x, 0))}), ZB-V in {won['zb-v']}, AdaOffload with two chunks in {won['adaoffload:chunks=2']} (medians of"
        f" {nominal['optpipe'].seeds} seeds); ZB-V is faster than it in {sum(lost > 0 for lost in behind)}, by at most {percent(max(behind))}, and takes {percent(ahead)} longer as profiled."
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
        f" sample. With copies slower by {', '.join(percent(level, 0) for level in scarce_copies)} it loses"
        f" {', '.join(span(lost, percent) for lost in scarce_copies.values())} with three quarters of these activations (all seeds), and nothing in all memory, where it offloads none."
    )
    assert max(copied) == 0
    assert ample_copies == 0
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
