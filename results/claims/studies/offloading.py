"""What README.md and results/README.md say of offloading: this search beside PipeOffload, both with offloading alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from experiments.contest.figure import setting_of
from results.claims import Tables, percent, span

FEW = 3  # settings that have no median worth telling


class Pair(NamedTuple):
    """A setting: PipeOffload's time (None where it does not fit), that of each seed of the search, and the
    work of the busiest device; ns."""

    rule: int | None
    seeds: list[int]
    work: int

    @property
    def gain(self) -> float:
        assert self.rule is not None
        return self.rule / median(self.seeds) - 1

    @property
    def idle(self) -> float:
        assert self.rule is not None
        return (median(self.seeds) - self.work) / (self.rule - self.work)

    @property
    def ahead(self) -> int:
        """The number of seeds that are faster than PipeOffload."""
        assert self.rule is not None
        return sum(time < self.rule for time in self.seeds)


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("offloading")
    ways = {"one, both": _one, "as many as PipeOffload's fastest has": _same, "any number": _any}
    for name, way in ways.items():
        found = list(way(rows))
        fit = [pair for pair in found if pair.rule is not None]
        few = len(fit) < FEW
        middle = "" if few else f" (median {percent(median(pair.gain for pair in fit))})"
        yield (
            f"| {name} | {len(fit)} and {len(found)} of {len(found)} | {_ahead(fit)} |"
            f" {span((pair.gain for pair in fit), percent)}{middle} | {span((pair.idle for pair in fit), percent)} |"
        )
    free = list(_any(rows))
    same = list(_same(rows))
    change = [two.gain - one.gain for one, two in zip(same, free, strict=True)]
    most = max(range(len(free)), key=lambda at: change[at])
    apart = [
        0 if max(min(one.seeds), min(two.seeds)) <= min(max(one.seeds), max(two.seeds)) else gain
        for one, two, gain in zip(same, free, change, strict=True)
    ]
    lost = [-gain for gain in apart if gain < 0]
    yield (
        f"In PipeOffload's own number of chunks the search is ahead with every seed; free to choose another, in the same time, it gains more in {sum(gain > 0 for gain in apart)} settings"
        f" ({percent(free[most].gain)} instead of {percent(same[most].gain)} in one), less in {len(lost)}, by at most {100 * max(lost):.1f} points, and in {apart.count(0)} about as much (the same, or within the"
        f" spread of {len(free[0].seeds)} seeds)"
    )
    assert all(pair.ahead == len(pair.seeds) for pair in same)
    yield f"{percent(median(pair.gain for pair in free))} if the search has three times the time"
    both = (*free, *same)
    seeds = "every seed" if all(pair.ahead == len(pair.seeds) for pair in both) else "most seeds"
    most_gained = max(pair.gain for pair in both)
    yield f"Throughput yes, with {seeds}, by at most {percent(most_gained)} (above)"
    new = [
        pair.gain
        for key, pair in zip(dict.fromkeys(map(setting_of, rows)), free, strict=True)
        if not key.machine.startswith("a100")
    ]
    yield f"then {percent(median(new))} without the {len(free) - len(new)} settings on A100s"
    loads = [row["load"] for row in rows]
    seconds = span({row["seconds"] for row in rows}, "{:g}".format)
    yield (
        f"each search has {seconds} s, the time of the contest's search with everything, and {len(free[0].seeds)} seeds, beside other work (load {min(loads)} to {max(loads)} on"
        f" {rows[0]['cores']} cores)"
    )


def _ahead(pairs: Sequence[Pair]) -> str:
    """How many of all seeds are faster than PipeOffload."""
    return f"{sum(pair.ahead for pair in pairs)} of {sum(len(pair.seeds) for pair in pairs)}"


def _one(rows: list[dict[str, Any]]) -> Iterator[Pair]:
    return _pairs(rows, lambda chunks: chunks == 1, lambda chunks: chunks == 1)


def _same(rows: list[dict[str, Any]]) -> Iterator[Pair]:
    return _pairs(rows, lambda chunks: (chunks or 0) > 1, lambda chunks: (chunks or 0) > 1)


def _any(rows: list[dict[str, Any]]) -> Iterator[Pair]:
    return _pairs(rows, lambda chunks: (chunks or 0) > 1, lambda chunks: chunks is None)


def _pairs(rows: list[dict[str, Any]], rule: Any, ours: Any) -> Iterator[Pair]:
    """The settings with the chunks that PipeOffload and the search may have."""
    for setting in dict.fromkeys(map(setting_of, rows)):
        mine = [row for row in rows if setting_of(row) == setting]
        (theirs,) = (row for row in mine if row["method"] == "PipeOffload" and rule(row["chunks"]))
        seeds = [
            row["makespan_ns"]
            for row in mine
            if row["method"] == "this search" and ours(row["chunks"])
        ]
        assert None not in seeds
        yield Pair(theirs["makespan_ns"], seeds, theirs["work_ns"])
