"""What docs/how-true.md says of second_measurement."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from results.claims import Tables, percent

NEAR, POINT = 0.001, 0.01  # smaller changes count as none; what is much


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("second_measurement")
    change = [row["both_mean"] - row["one_mean"] for row in rows]
    yield (
        f"three of five runs that the calibration has not seen are {percent(mean(row['one_mean'] for row in rows))} off with one measurement and"
        f" {percent(mean(row['both_mean'] for row in rows))} with two, over {len(rows)} pairs of {len({row['seed'] for row in rows})} drawn machines"
    )
    yield (
        f"They come nearer in {sum(one < -NEAR for one in change)} of these, stay in {sum(abs(one) <= NEAR for one in change)} and are further off in"
        f" {sum(one > NEAR for one in change)}, in {sum(one > POINT for one in change)} by more than a point and in one by {100 * max(change):.1f}"
    )
