"""What results/README.md says of sapp."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.study.claims import Tables, percent


def sentences(tables: Tables) -> Iterator[str]:
    rows = {(row["plan"], row["memory"]): row for row in tables("sapp")}
    even, family, free = (rows[plan, "replay"] for plan in ("even", "family", "free"))
    as_sapp = rows["family", "sapp"]
    yield (
        f"On SAPP's example (LLaMA-2-70B in 16 stages of two chunks, 32 microbatches, 56,000 MB) the best division of layers that"
        f" we find, with the recomputation that each stage needs, takes {family['time']:,.0f} units of time in interleaved 1F1B,"
        f" {percent(1 - family['time'] / even['time'])} less than three layers in each chunk, and {percent(family['time'] / family['bound'] - 1)}"
        f" more than the bound on this family."
    )
    yield (
        f"With free order, and treatments of single activations, that division takes {free['time']:,.0f},"
        f" {percent(free['time'] / free['bound'] - 1)} over the bound for it."
    )
    yield (
        f"Where memory is counted as SAPP does, {as_sapp['time']:,.0f} are the least we find, of a plan that holds"
        f" {as_sapp['peak_mb']:,.0f} MB in the replay."
    )
