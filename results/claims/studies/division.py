"""What README.md and results/README.md say of division."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from experiments.contest.figure import best_rule, search, settings
from optpipe_sim.spread import spread
from optpipe_sim.study.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    anew, ours = {}, {}
    rows = list(tables("division"))
    for setting in settings(tables("contest")):
        mine = [row for row in rows if _setting(row) == setting]
        (rule,) = (row for row in mine if row["method"] == "rule")
        if rule["fits"]:
            anew[setting] = rule["makespan_ns"]
            times = [row["makespan_ns"] for row in mine if row["method"] != "rule"]
            ours[setting] = spread(times)
    contest = settings(tables("contest"))
    longer, gains, ahead, better = [], [], 0, 0
    for setting, ns in anew.items():
        best, before = best_rule(contest[setting]), search(contest[setting])
        assert best is not None
        assert before.time is not None
        longer.append(ns / best.cell.ns - 1)
        gains.append(ns / ours[setting].median - 1)
        ahead += ns < before.time.least
        better += ours[setting].most < before.time.least
    yield (
        f"With layers, embedding and head distributed anew over as many stages, as `estimate --chunks` does, the same rules fit in"
        f" {len(anew)} of {len(contest)} settings, take {span(longer, percent)} longer than in the contest, and are faster than this"
        f" search with every seed there in {ahead}"
    )
    yield (
        f"given that division, too, this search (median of {len(mine) - 1} seeds) is {span(gains, percent)} faster than those rules"
        f" (median {percent(median(gains))})"
    )
    yield f"it is faster than in the contest, every seed than every seed, in {better}"


def _setting(row: dict) -> tuple:
    """As in the contest."""
    keys = ("machine", "model", "devices", "tp", "seq")
    return (*(row[f"profile.estimate.{key}"] for key in keys), row["microbatches"])
