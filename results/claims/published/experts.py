"""What results/README.md and docs/how-true.md say of experts."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from experiments.experts.fit import BASE, CASE
from experiments.published import published
from optpipe_sim.costs.imbalance import UNKNOWN
from results.claims import Tables, percent, span

NEAR = 5  # points
FITTED = "h100-sxm-megatron"


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("experts")
    found = {
        (how, machine): [row for row in rows if (row["how"], row["machine"]) == (how, machine)]
        for how, machine in (("alike", BASE), ("pairs", BASE), ("pairs", FITTED), ("uneven", BASE))
    }
    alike, pairs, fitted, uneven = found.values()
    assert all(row["estimated"] * row["measured"] > 0 for row in rows)
    near, near_alike = (sum(abs(row["points"]) <= NEAR for row in each) for each in (pairs, alike))
    worst = max(pairs, key=lambda row: abs(row["points"]))
    assert worst["case"] == "qwen3-235b, DeepEP"
    graphs = next(one for one in published("experts")["overlap"] if one["id"] == worst["case"])
    yield (
        f"What hiding the exchange of tokens gains has the right sign in all {len(pairs)} published pairs of runs; replayed as pairs on two streams it is within {NEAR} points in"
        f" {near} of them, credited to every op alike in {near_alike}."
    )
    saved = 1 - graphs["graphs_ms"] / graphs["ms"]["without"]
    yield (
        f"Against it speaks Qwen3-235B on {graphs['run']['devices'] * graphs['run']['dp']} H100s: {percent(-worst['measured'])} shorter as measured, {percent(-worst['estimated'])} as estimated; with"
        f" CUDA graphs of its router as well it is {percent(saved)} shorter than without overlap, so the host held the rest back."
    )
    yield from _times(pairs, fitted, graphs)
    others = [abs(row["points"]) for row in fitted if row["case"] != CASE]
    assert max(others) <= NEAR
    yield (
        f"At these rates each of the {len(others)} pairs that they are not fitted to is within {NEAR} points, {max(others):.1f} at most."
    )
    lengths = " and ".join(
        f"{one['run']['seq'] // 1024}k" for one in published("experts")["balance"]
    )
    implied = span([row["implied"] for row in uneven], lambda value: f"{value:.2f}")
    assert max(row["implied"] for row in uneven) <= UNKNOWN[1] + 0.005
    yield (
        f"Without balance by force two runs of Qwen3-235B took {span([row['measured'] for row in uneven], percent)} longer, at {lengths} tokens; the imbalance that either implies,"
        f" {implied}, gives the other's to {max(abs(row['points']) for row in uneven):.1f} points."
    )
    yield "| run | measured | in every op alike | in pairs | off by, in points | with the host fitted |"
    for own, apart, host in zip(pairs, alike, fitted, strict=True):
        told = [percent(one) for one in (own["measured"], apart["estimated"], own["estimated"])]
        last = f"{percent(host['estimated'])}{' (fitted to it)' if own['case'] == CASE else ''}"
        yield f"| {own['case']} | {' | '.join(told)} | {own['points']:+.1f} | {last} |"


def _times(
    pairs: list[dict[str, Any]], fitted: list[dict[str, Any]], graphs: dict[str, Any]
) -> Iterator[str]:
    """How far times themselves are off, of runs to which nothing was fitted."""

    def errors(rows: list[dict[str, Any]]) -> list[float]:
        runs = [row for row in rows if row["case"] != CASE]
        found = [row["estimated_ms"] / row["measured_ms"] - 1 for row in runs]
        return found + [
            row["after_ms"] / (row["measured_ms"] * (1 + row["measured"])) - 1 for row in runs
        ]

    before, after = errors(pairs), errors(fitted)
    own = next(row for row in fitted if row["case"] == graphs["id"])
    yield (
        f"With what the host takes for a layer fitted to the first of them (`{FITTED}`), the times of the other {len(after)} runs come out {percent(median(map(abs, after)))} off in the median and"
        f" {percent(max(map(abs, after)))} at worst, without {percent(median(map(abs, before)))} and {percent(max(map(abs, before)))}; that run of Qwen3-235B with CUDA graphs of its router takes"
        f" {own['graphs_ms'] / 1e3:.1f} s as estimated, {graphs['graphs_ms'] / 1e3:.1f} s as published."
    )
