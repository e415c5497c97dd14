"""Rows that differ only in their seed, as one number with its spread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any, NamedTuple, TypeVar

_Row = TypeVar("_Row", bound=Mapping[str, Any])


class Spread(NamedTuple):
    """A number over seeds: median, least, largest, and how many there are."""

    median: float
    least: float
    most: float
    seeds: int

    @property
    def share(self) -> float:
        """The difference between the largest and the least, over the median."""
        return (self.most - self.least) / self.median if self.median else 0.0

    def differs(self, other: Spread) -> bool:
        """Whether the ranges of two numbers do not overlap; a smaller difference is no finding."""
        return self.most < other.least or other.most < self.least


def spread(values: Iterable[float]) -> Spread:
    """Return the spread of some values.

    Raises:
        ValueError: where there are none.
    """
    found = sorted(values)
    if not found:
        raise ValueError("a spread of no values")
    return Spread(median(found), found[0], found[-1], len(found))


def grouped(rows: Iterable[_Row], same: Sequence[str]) -> dict[tuple[Any, ...], list[_Row]]:
    """Return the rows by what they have in the columns `same`, in the order in which each comes first."""
    found: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in same), []).append(row)
    return found


def over_seeds(
    rows: Iterable[Mapping[str, Any]], same: Sequence[str], numbers: Sequence[str]
) -> list[dict[str, Any]]:
    """Merge rows with equal values in the columns `same`: the median of each column in `numbers`
    (None where no row has a value), ``fits`` if all fit, all else as in the first row."""
    made = []
    for group in grouped(rows, same).values():
        one = dict(group[0])
        for key in numbers:
            values = [row[key] for row in group if row[key] is not None]
            one[key] = median(values) if values else None
        if "fits" in one:
            one["fits"] = all(row["fits"] for row in group)
        made.append(one)
    return made


def middle_runs(rows: Iterable[_Row], same: Sequence[str]) -> list[_Row]:
    """Return the rows of one run for each value of the columns `same`, from rows of the task ``engines``: of
    several seeds the one in the middle by its final value, then by the time of reaching it."""

    def rank(run: Sequence[_Row]) -> tuple[float, float]:
        improved = [at for row in run for at, _ in row["incumbents"] or ()]
        return run[-1]["objective_ns"] or inf, max(improved, default=inf)

    middle = []
    for group in grouped(rows, same).values():
        runs = sorted(grouped(group, ["seed"]).values(), key=rank)
        middle += runs[len(runs) // 2]
    return middle
