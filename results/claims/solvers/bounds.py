"""What docs/bounds.md says of the bounds on published profiles."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from experiments.spread import grouped
from results.claims import Tables, percent

PROFILE = "zb-14.6b-p16-m48"  # whose levels the page gives


def sentences(tables: Tables) -> Iterator[str]:
    other = (row for row in tables("gaps") if (row["part"], row["engine"]) == ("other", "auto"))
    for (case,), cell in grouped(other, ["case"]).items():
        if case.startswith("zb"):
            yield _case(cell)
    rows = [
        row
        for row in tables("treatments")
        if (row["part"], row["profile"]) == ("published", PROFILE)
    ]
    for limit in dict.fromkeys(row["memory_limit"] for row in rows):
        yield _limit(limit, [row for row in rows if row["memory_limit"] == limit])


def _case(cell: list[dict[str, Any]]) -> str:
    first, bound = cell[0], max(row["lower_bound_ns"] for row in cell)
    by = next(row["bound"] for row in cell if row["lower_bound_ns"] == bound)
    ours = median(row["objective_ns"] for row in cell)
    return (
        f"| {first['case']} | {first['p']}, {first['m']} | {_ms(first['closed_form_ns'])} | {_ms(bound)} ({by}) | {_ms(ours)} |"
        f" {percent(ours / bound - 1)} |"
    )


def _limit(limit: str, rows: list[dict[str, Any]]) -> str:
    (bound,) = {row["lower_bound_ns"] for row in rows if row["method"] == "bound"}
    ours = [row["cost_ns"] for row in rows if row["method"] == "all"]
    rule = min(row["cost_ns"] for row in rows if row["method"].startswith("rule"))
    assert bound <= min(ours)
    return (
        f"| {limit.replace('GiB', ' GiB')} | {_ms(bound)} | {_ms(median(ours))} | {_ms(rule)} |"
        f" {percent(median(ours) / bound - 1)} |"
    )


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.1f}"
