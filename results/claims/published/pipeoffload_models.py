"""What README.md and results/README.md say of pipeoffload_models."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from results.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("pipeoffload_models")
    tried = [row for row in rows if row["published_outcome"] != "skip"]
    alike = [row for row in tried if row["outcome"] == row["published_outcome"]]
    checks = [row for row in tried if row["published_outcome"] == "ran" and row["role"] == "check"]
    off = [abs(row["mfu_percent"] / row["published_mfu_percent"] - 1) for row in checks]

    def held(schedule: str, key: str = "activation_gib") -> str:
        found = [
            row[key] / row["published_activation_gib"]
            for row in tried
            if row["schedule"] == schedule
            and row[key] and row["published_activation_gib"]
        ]  # fmt: skip
        return f"{span(found, lambda x: f'{x:.2f}')} times (n = {len(found)})"

    yield (
        f"{len(alike)} of the {len(tried)} runs of PipeOffload's figure 15 end as measured, out of memory or not"
        f" ({sum(row['role'] == 'check' for row in alike)} of the {sum(row['role'] == 'check' for row in tried)} of models that the fit did not see)."
        f" MFU of the {len(checks)} runs that the fit did not see is {percent(median(off))} off in the median and"
        f" {percent(max(off))} at worst; PO-F holds {held('po-f')} and PO-H {held('po-h')} the"
        " activations that were measured, runs of the fit included."
    )
    yield f"Were each device to have a link of its own, PO-F would hold {held('po-f', 'unshared_gib')} of it and PO-H {held('po-h', 'unshared_gib')}"
