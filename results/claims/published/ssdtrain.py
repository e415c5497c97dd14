"""What results/README.md says of ssdtrain."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.published import published
from results.claims import Tables, percent


def sentences(tables: Tables) -> Iterator[str]:
    rows = [row for row in tables("ssdtrain") if row["batch"] == 16]
    facts = published("ssdtrain")
    drives, least = facts["drives"], facts["drives"]["reached_gb_per_s"]
    claimed = facts["claims"]["reduction_of_peak"]
    fast, half = 24, 15  # GB/s at which the claim is reached, at full and at half speed

    def values(key: str, rate: float, speed: float) -> list[float]:
        return [row[key] for row in rows if (row["gb_per_s"], row["speed"]) == (rate, speed)]

    def shares(found: list[float]) -> str:
        return f"{100 * min(found):.0f} to {percent(max(found), 0)}"

    needed = [row["needed_gb_per_s"] for row in rows if row["speed"] == 1]
    years = [row["years"] for row in rows if row["gb_per_s"] == least]
    assert sum(share >= min(claimed) for share in values("reduction", fast, 1)) == 2
    yield (
        f"With {least} GB/s of drives per A100, which is what SSDTrain's code reached at least, its three shapes hold"
        f" {shares(values('reduction', least, 1))} less of activations for free at rates fitted to Megatron-LM, and"
        f" {shares(values('reduction', least, 0.5))} less on devices half as fast; SSDTrain reports {shares(claimed)}, which"
        f" two of the three shapes reach with {fast} GB/s ({shares(values('reduction', fast, 1))}), and all on half as fast devices with {half} GB/s"
        f" ({shares(values('reduction', half, 0.5))}). To hide all of it behind the forwards takes, at the fitted rates, {min(needed):.0f} to"
        f" {max(needed):.0f} GB/s; recomputing everything costs {shares([row['recompute_overhead'] for row in rows])}."
        f" At {least} GB/s the seven Optane drives, rated for {drives['writes_per_day']} writes a day, last"
        f" {min(years):.0f} to {max(years):.0f} years."
    )
