"""What README.md and results/README.md say of links."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.spread import Spread, spread
from optpipe_sim.study.claims import Tables, percent, span

SHARES = {"0.75x 1f1b": "three quarters", "0.5x 1f1b": "half"}


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("links")

    def ours(limit: str, links: str, planned: str = "true") -> Spread:
        return spread(
            row["makespan_ns"]
            for row in rows
            if row["schedule"] == "optpipe"
            and (row["memory_limit"], row["profile.name"], row["planned_for"])
            == (limit, links, planned)
        )

    own = "own links"
    shared = sorted({row["profile.name"] for row in rows} - {own})
    parts, apart = [], 0
    for limit, words in SHARES.items():
        found = [ours(limit, links) for links in shared]
        apart += sum(each.differs(ours(limit, own)) for each in found)
        costs = [each.median / ours(limit, own).median - 1 for each in found]
        parts.append(f"{span(costs, percent)} at {words}")
    cells = len(shared) * len(SHARES)
    blindly = [
        (ours(limit, links, "assumed"), ours(limit, links)) for limit in SHARES for links in shared
    ]
    blind = [plan.median / known.median - 1 for plan, known in blindly]
    worst = max(plan.most / known.median - 1 for plan, known in blindly)
    told = sum(plan.differs(known) for plan, known in blindly)
    yield (
        f"Engines and links that devices share cost this search (medians of"
        f" {ours(limit, own).seeds} seeds) {' and '.join(parts)} of 1F1B's activation memory where it"
        f" plans with them, more than its spread in {apart} of {cells} cells; a plan made for"
        f" unshared links takes {span(blind, percent)} longer than that (one seed {percent(worst)}), more than the spread in {told}."
    )
    mine = [row for row in rows if row["schedule"] == "optpipe" and row["planned_for"] == "true"]
    activations = {8 * row["chunks"] * row["microbatches"] for row in mine}  # eight stages
    yield (
        f"Copies at the measured rate are too slow for more: these plans offload"
        f" {span({row['offloaded'] for row in mine})} of {span(activations)} activations."
    )
    rival = [row for row in rows if row["schedule"].startswith("po:")]
    keys = {(row["profile.name"], row["memory_limit"]) for row in rival}
    fitting = {(row["profile.name"], row["memory_limit"]) for row in rival if row["fits"]}
    yield (
        f"PipeOffload with two chunks fits in {len(fitting)} of these {len(keys)} cells, with links of its own or shared ones"
    )
