"""What README.md and results/README.md say of division."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from experiments.contest.figure import best_rule, search, setting_of, settings
from optpipe_sim.spread import Spread, spread
from optpipe_sim.study.claims import Tables, percent, span


class Both(NamedTuple):
    """A setting in the contest's division of layers and in the new one; times in ns.

    Attributes:
        rule, again: the contest's fastest rule, in each division.
        ours, anew: this search, in each.
        bound: the contest's.
    """

    rule: float
    again: float
    ours: Spread
    anew: Spread
    bound: float

    @property
    def best(self) -> tuple[float, float]:
        """The rule and this search, each in the division that suits it."""
        return min(self.rule, self.again), min(self.ours.median, self.anew.median)


def sentences(tables: Tables) -> Iterator[str]:
    rows, found = list(tables("division")), []
    for setting, methods in settings(tables("contest")).items():
        mine = [row for row in rows if setting_of(row) == setting]
        (again,) = (row["makespan_ns"] for row in mine if row["method"] == "rule")
        anew = spread(row["makespan_ns"] for row in mine if row["method"] != "rule")
        best, ours = best_rule(methods), search(methods)
        assert best is not None
        assert ours.time is not None
        assert ours.bound is not None
        found.append(Both(best.cell.ns, again, ours.time, anew, ours.bound))
    changes = [each.anew.median / each.ours.median - 1 for each in found]
    faster = sum(each.anew.most < each.ours.least for each in found)
    slower = sum(each.anew.least > each.ours.most for each in found)
    yield (
        f"With layers, embedding and head distributed anew over as many stages, as `estimate --chunks` does, this search is faster"
        f" than in the contest, every seed than every seed, in {faster} of {len(found)} settings, and slower in {slower}:"
        f" it takes {span(changes, percent)} longer (median {percent(median(changes))})"
    )
    rules = [each.again / each.rule - 1 for each in found]
    yield f"The contest's fastest rules take {span(rules, percent)} longer than there (median {percent(median(rules))})"
    gains = [rule / ours - 1 for rule, ours in (each.best for each in found)]
    yield (
        f"where each gets the better of both divisions, this search (median of {found[0].ours.seeds} seeds) is {span(gains, percent)} faster than these rules"
        f" (median {percent(median(gains))})"
    )
    below = sum(each.anew.least < each.bound for each in found)
    yield (
        f"which holds for the chunks that were tried, cut from the same stages: with layers distributed anew there are plans below it in"
        f" {below} of {len(found)}"
    )
