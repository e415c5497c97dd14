"""What results/README.md says of sapp."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.published import published
from experiments.spread import Spread, grouped, spread
from results.claims import Row, Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = grouped(tables("sapp"), ["plan", "memory"])
    times = {key: spread(row["time"] for row in runs) for key, runs in rows.items()}
    (even,) = rows["even", "replay"]
    family, free = (least(rows[plan, "replay"]) for plan in ("family", "free"))
    as_sapp = least(rows["family", "sapp"])
    found = [row["time"] for row in rows["family", "replay"]]
    facts = published("sapp_llama2_70b")
    yield (
        f"On SAPP's example (a LLaMA of {facts['layers']} layers in {facts['stages']} stages of two chunks, {facts['microbatches']}"
        f" microbatches, {facts['limit_mb']:,} MB per stage) the best division of layers that {seeds(times['family', 'replay'])} find, with the"
        f" recomputation that each stage needs, takes {family['time']:,.0f} units of time in interleaved 1F1B;"
        f" the seeds' take {span((1 - time / even['time'] for time in found), percent)} less than three layers in each chunk, and"
        f" {span((time / family['bound'] - 1 for time in found), percent)} more than the bound on this family."
    )
    over = spread(row["time"] / row["bound"] - 1 for row in rows["free", "replay"])
    yield (
        f"With free order, and treatments of single activations, the best of {seeds(times['free', 'replay'])} takes {free['time']:,.0f};"
        f" each is {span((over.least, over.most), percent)} over the bound for its division."
    )
    yield (
        f"Where memory is counted as SAPP does, {as_sapp['time']:,.0f} are the least of {seeds(times['family', 'sapp'])}, of a plan that holds"
        f" {as_sapp['peak_mb']:,.0f} MB in the replay, {as_sapp['peak_mb'] - facts['limit_mb']:,.0f} above the limit."
    )


def least(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: row["time"])


def seeds(times: Spread) -> str:
    """How many seeds there were, and how far their times are apart."""
    return f"{times.seeds} seeds ({times.least:,.0f} to {times.most:,.0f})"
