"""What the rows of the experiment say together: one line per way to predict, and intervals with their coverage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

Row = Mapping[str, Any]
LEVEL = 0.8  # of the intervals
LITTLE = 0.02  # regret that counts as none

# how an execution was chosen, and what that is called in pages and figures
WAYS = {
    ("ideal", ""): "ideal",
    ("known", ""): "ideal, iterations chained where they were",
    ("fitted", "model"): "fitted to other models of its trainer and machine",
    ("fitted", "paper"): "fitted, its paper left out",
    ("fitted", "machine"): "fitted, its machine left out",
    ("fitted", "family"): "fitted, one family of schedules left out",
}
IN_SAMPLE = {
    ("fitted", "others"): "fitted to its trainer and machine, itself among them",
    ("fitted", "nothing"): "fitted to everything",
}
# fits with one number fewer
ABLATIONS = {
    ("unblocked", "paper"): "messages never block",
    ("no-op-time", "paper"): "nothing per op",
    ("free-split", "paper"): "B and W apart cost nothing",
}
# settings that are not counted together
GROUPS = ("schedules", "figure 15", "slices", "divisions", "optimizers", "traces")


def group(row: Row) -> str:
    """Return which of `GROUPS` a row belongs to."""
    return "figure 15" if row["costs"] == "estimated" else str(row["compares"])


class Line(NamedTuple):
    """How well one way to predict does over some settings.

    `right`: the fastest is found, or one less than 2 % slower; of `settings`. `errors`: the absolute error of every
    difference, as a share of the slower schedule's time.
    """

    settings: int
    fastest: int
    right: int
    worst_regret: float
    pairs: int
    pairs_right: int
    pairs_over_2: int
    pairs_over_2_right: int
    errors: tuple[float, ...]

    @property
    def median_error(self) -> float:
        """Of all differences."""
        return median(self.errors)


def line(rows: Iterable[Row], of: Sequence[str] = ("schedules",)) -> Line:
    """Return what the rows of some `GROUPS` say together."""
    used = [row for row in rows if group(row) in of]

    def total(key: str) -> int:
        return sum(row[key] for row in used)

    return Line(
        len({row["setting"] for row in used}),
        sum(row["regret"] == 0 for row in _each(used)),
        sum(row["regret"] <= LITTLE for row in _each(used)),
        max((row["regret"] for row in used), default=0.0),
        total("pairs"),
        total("pairs_right"),
        total("pairs_over_2"),
        total("pairs_over_2_right"),
        tuple(abs(error) for row in used for error in row["difference_errors"]),
    )


def _each(rows: Sequence[Row]) -> list[Row]:
    """Return one row per setting: of several, with a family left out each, the one with the largest regret."""
    worst: dict[str, Row] = {}
    for row in rows:
        if row["setting"] not in worst or row["regret"] > worst[row["setting"]]["regret"]:
            worst[row["setting"]] = row
    return list(worst.values())


def by_way(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each way, by execution and what was left out."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["execution"], row["left_out"] or ""), []).append(row)
    return found


def half_width(errors: Iterable[float]) -> float:
    """Return what `LEVEL` of the absolute errors are at most."""
    return float(np.quantile(np.abs(list(errors)), LEVEL))


def by_families(rows: Iterable[Row]) -> dict[str, list[float]]:
    """Return the errors of differences by the families of the two schedules."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for families, error in zip(row["families"], row["difference_errors"], strict=True):
            found.setdefault(families, []).append(error)
    return found


def coverage(errors: Mapping[str, Sequence[float]]) -> tuple[float, int]:
    """Return the share of all errors that lie within the half-width of the other groups' errors, and how many errors there are."""
    inside = total = 0
    for name, own in errors.items():
        rest = [error for other, each in errors.items() if other != name for error in each]
        if rest:
            width = half_width(rest)
            inside += sum(abs(error) <= width for error in own)
            total += len(own)
    return inside / total, total


def differences(rows: Iterable[Row], key: str) -> dict[str, list[float]]:
    """Return the errors of differences by the value of `key`."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row[key], []).extend(row["difference_errors"])
    return found


def times(rows: Iterable[Row], key: str) -> dict[str, list[float]]:
    """Return the mean errors of settings whose times are known, by the value of `key`."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["error"] is not None:
            found.setdefault(row[key], []).append(row["error"])
    return found
