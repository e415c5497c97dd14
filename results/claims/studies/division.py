"""What README.md and results/README.md say of division."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from experiments.contest.figure import best_rule, search, setting_of, settings
from optpipe_sim.spread import spread
from optpipe_sim.study.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    contest, rows = settings(tables("contest")), list(tables("division"))
    longer, gains, ahead, better = [], [], 0, 0
    for setting, methods in contest.items():
        best, before = best_rule(methods), search(methods)
        assert best is not None
        assert before.time is not None
        mine = [row for row in rows if setting_of(row) == setting]
        (rule,) = (row for row in mine if row["method"] == "rule")
        if not rule["fits"]:
            continue
        ns, ours = (
            rule["makespan_ns"],
            spread(row["makespan_ns"] for row in mine if row is not rule),
        )
        longer.append(ns / best.cell.ns - 1)
        gains.append(ns / ours.median - 1)
        ahead += ns < before.time.least
        better += ours.most < before.time.least
    yield (
        f"With layers, embedding and head distributed anew over as many stages, as `estimate --chunks` does, the same rules fit in"
        f" {len(longer)} of {len(contest)} settings, take {span(longer, percent)} longer than in the contest, and are faster than this"
        f" search with every seed there in {ahead}"
    )
    yield (
        f"where both get that division, this search (median of {ours.seeds} seeds) is {span(gains, percent)} faster than those rules"
        f" (median {percent(median(gains))})"
    )
    yield f"it is faster than in the contest, every seed than every seed, in {better}"
