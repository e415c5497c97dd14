"""What README.md and results/README.md say of memory_frontier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.memory_frontier.figure import GIB, bound_by_limit, solved_by_limit
from results.claims import Row, Tables, percent, span


def _between(rows: Sequence[Row], ours: dict[float, float]) -> str:
    """What the figure shows below the line of the search."""
    found = []
    for row in rows:
        held, time = row["peak_bytes"], row["cost_ns"]
        if row["part"] != "alone" or held / GIB >= max(ours) or row["schedule"].startswith("po:"):
            continue
        limit = max(limit for limit in ours if limit <= held / GIB)
        if time / 1e9 < ours[limit]:
            found.append((row["schedule"], held / GIB, time / 1e9, limit))
    below = [
        f"`{name}` with {held:.1f} GiB takes {time:.2f} s beside {ours[limit]:.2f} s, found for {limit:g} GiB"
        for name, held, time, limit in sorted(found, key=lambda one: one[1])
    ]
    return (
        f"The search ran at {len(ours)} limits only, and between two of them its line is that of the lower one, below which rules can lie: "
        + "; ".join(below)
    )


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("memory_frontier")
    ours, bounds = solved_by_limit(rows), bound_by_limit(rows)
    least, scarce, ample = min(ours), 12.5, max(ours)
    chunks = max(row["chunks"] for row in rows if row["part"] == "solved")
    base = tables("memory_frontier.manifest")[0]["config"]["base"]
    yield (
        f"On `{rows[0]['profile']}` with copies at {base['profile']['offload']['d2h_gb_per_s']} GB/s this search (median of {ours[ample].seeds} seeds,"
        f" {base['time_limit']} s per limit and shape; at most {chunks} chunks, which is a layer"
        f" per stage) takes {percent(ours[scarce].median / ours[ample].median - 1)} longer in {scarce}"
        f" GiB per device than in {ample:g} GiB, and {percent(ours[least].median / ours[ample].median - 1)} in {least:g}, the least that was tried; its seeds differ by up to"
        f" {percent(max(each.share for each in ours.values()))}."
    )
    po = {
        row["limit_bytes"] / GIB: row["cost_ns"] / 1e9
        for row in rows
        if row["part"] == "family" and row["cost_ns"] and row["schedule"].startswith("po:")
    }
    slower = [po[limit] / ours[limit].median - 1 for limit in po]
    apart = sum(po[limit] > ours[limit].most for limit in po)
    greedy: dict[float, float] = {}
    for row in rows:
        if row["part"] == "family" and row["cost_ns"] and row["schedule"].startswith("adaoffload"):
            limit = row["limit_bytes"] / GIB
            greedy[limit] = min(row["cost_ns"] / 1e9, greedy.get(limit, float("inf")))
    yield (
        f"AdaOffload, in the chunks that suit it, fits at {len(greedy)} and takes"
        f" {span((greedy[limit] / ours[limit].median - 1 for limit in greedy), percent)} longer"
    )
    yield (
        f"The best PipeOffload fits at {len(po)} of {len(ours)} limits and needs"
        f" {span(slower, percent)} more time there, at {apart} of them more than every seed"
    )
    yield _between(rows, {limit: each.median for limit, each in ours.items()})
    gaps = [ours[limit].median / bounds[limit] - 1 for limit in ours]
    wide = 0.1
    yield (
        f"the gap to the bound on these chunks is {span(gaps, percent)}, above {percent(wide, 0)} at"
        f" {sum(gap > wide for gap in gaps)} limits"
    )
