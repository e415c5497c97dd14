"""What results/README.md says of sapp."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.costs.published import published
from optpipe_sim.study.claims import Tables, percent


def sentences(tables: Tables) -> Iterator[str]:
    rows = {(row["plan"], row["memory"]): row for row in tables("sapp")}
    even, family, free = (rows[plan, "replay"] for plan in ("even", "family", "free"))
    as_sapp = rows["family", "sapp"]
    facts = published("sapp_llama2_70b")
    yield (
        f"On SAPP's example (a LLaMA of {facts['layers']} layers in {facts['stages']} stages of two chunks, {facts['microbatches']}"
        f" microbatches, {facts['limit_mb']:,} MB per stage) the best division of layers that we find, with the recomputation that each stage needs, takes {family['time']:,.0f} units of time in interleaved 1F1B,"
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
