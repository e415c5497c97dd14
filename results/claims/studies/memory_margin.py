"""What README.md and results/README.md say of memory_margin."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from results.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("memory_margin")
    least = [row for row in rows if row["part"] == "least"]
    exact = [row for row in least if row["share"] == 1]
    yield (
        f"{len(exact)} of {len(least)} schedules deadlock one byte below the memory that they hold,"
        f" PipeOffload's and AdaOffload's among them."
    )
    noise = [row for row in rows if row["part"] == "noise"]
    enough = [row for row in noise if row["margin"] >= row["spread"]]
    held = [row for row in enough if row["fits_share"] == 1]
    yield (
        f"For sizes off by up to x % a margin of x % held in all samples of {len(held)} of the {len(enough)} cells"
        f" that have such a margin."
    )
    by_seed: dict[str, dict[float, dict[str, int]]] = {}
    for row in noise:
        name = "ours" if row["schedule"].startswith("optpipe") else row["schedule"]
        at = by_seed.setdefault(name, {}).setdefault(row["margin"], {})
        at[row["schedule"]] = row["makespan_ns"]
    costs = {
        name: {margin: list(found.values()) for margin, found in at.items()}
        for name, at in by_seed.items()
    }
    seeds = len({row["schedule"] for row in noise if row["schedule"].startswith("optpipe")})
    margin = 0.1
    ten = {name: median(at[margin]) / median(at[0]) - 1 for name, at in costs.items()}
    ours = ten.pop("ours")
    apart = min(costs["ours"][margin]) > max(costs["ours"][0])
    yield (
        f"A margin of {percent(margin, 0)} costs {span(ten.values(), percent)} with AdaOffload in {len(ten)} numbers"
        f" of chunks, and {percent(ours)} with this search (medians of {seeds} seeds,"
        f" {'which do not overlap' if apart else 'which overlap, so that this is no finding'}), at half of"
        f" 1F1B's activation memory."
    )
