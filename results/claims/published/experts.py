"""What results/README.md and docs/how-true.md say of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optpipe_sim.costs.imbalance import UNKNOWN
from optpipe_sim.costs.published import published
from optpipe_sim.study.claims import Tables, percent, span

NEAR = 5  # points


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("experts")
    hidden = {how: [row for row in rows if row["how"] == how] for how in ("alike", "pairs")}
    uneven = [row for row in rows if row["kind"] == "balance"]
    assert all(row["estimated"] * row["measured"] > 0 for row in rows)
    near = {how: sum(abs(row["points"]) <= NEAR for row in each) for how, each in hidden.items()}
    worst = max(hidden["pairs"], key=lambda row: abs(row["points"]))
    assert worst["case"] == "qwen3-235b, DeepEP"
    yield (
        f"What hiding the exchange of tokens gains has the right sign in all {len(hidden['pairs'])} published pairs of runs; replayed as pairs on two streams it is within {NEAR} points in"
        f" {near['pairs']} of them, credited to every op alike in {near['alike']}."
    )
    graphs = next(one for one in published("experts")["overlap"] if one["id"] == worst["case"])
    saved = 1 - graphs["graphs_ms"] / graphs["ms"]["without"]
    yield (
        f"Against it speaks Qwen3-235B on {graphs['run']['devices'] * graphs['run']['dp']} H100s: {percent(-worst['measured'])} shorter as measured, {percent(-worst['estimated'])} as estimated; with CUDA graphs of its router as"
        f" well it is {percent(saved)} shorter than without overlap, so that the host, which no estimate here knows, held the rest back."
    )
    lengths = " and ".join(
        f"{one['run']['seq'] // 1024}k" for one in published("experts")["balance"]
    )
    found = span([row["implied"] for row in uneven], lambda value: f"{value:.2f}")
    assert max(row["implied"] for row in uneven) <= UNKNOWN[1] + 0.005
    yield (
        f"Without balance by force two runs of Qwen3-235B took {span([row['measured'] for row in uneven], percent)} longer, at {lengths} tokens; the imbalance that either implies,"
        f" {found}, gives the other's to {max(abs(row['points']) for row in uneven):.1f} points."
    )
    yield "| run | measured | in every op alike | in pairs | off by, in points |"
    for row in hidden["pairs"]:
        alike = next(one for one in hidden["alike"] if one["case"] == row["case"])
        yield _line(row, alike)


def _line(row: dict[str, Any], alike: dict[str, Any]) -> str:
    told = [percent(one) for one in (row["measured"], alike["estimated"], row["estimated"])]
    return f"| {row['case']} | {' | '.join(told)} | {row['points']:+.1f} |"
