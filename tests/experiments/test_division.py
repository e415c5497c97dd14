"""The contest's fastest rules with layers distributed anew: the committed table, against the contest's and rules built again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.contest.figure import best_rule, setting_of, settings
from experiments.division import task
from optpipe_sim import estimate
from optpipe_sim.costs import load_machine
from optpipe_sim.study.tables import load_table

RESULTS = Path(__file__).parents[2] / "results"
ROWS = load_table(RESULTS, "division")
QUICK = ("llama2-7b", "llama2-70b")  # models whose rules are built in a moment


def test_the_rules_are_the_contests_fastest() -> None:
    contest = settings(load_table(RESULTS, "contest"))
    found = {setting_of(row): row for row in ROWS if row["method"] == "rule"}
    assert [*found] == [*contest]
    for setting, methods in contest.items():
        best = best_rule(methods)
        assert best is not None
        (row,) = best.cell.rows
        again = found[setting]
        assert (again["rule"], again["profile.estimate.chunks"]) == (row["schedule"], row["chunks"])


@pytest.mark.parametrize(
    "row",
    [r for r in ROWS if r["method"] == "rule" and r["profile.estimate.model"] in QUICK],
    ids=lambda row: row["profile"],
)
def test_a_rule_takes_what_the_table_says(row: dict[str, Any]) -> None:
    keys = ("model", "devices", "tp", "seq", "chunks", "placement")
    given = {key: row[f"profile.estimate.{key}"] for key in keys}
    machine = load_machine(row["profile.estimate.machine"])
    given |= {"levels": True, "execution": "ideal"}
    profile = estimate(given.pop("model"), machine, given.pop("devices"), **given)
    again = task.run(profile, row["microbatches"], "rule", row["rule"], row["seconds"])
    assert again["fits"] is row["fits"]
    assert again["makespan_ns"] == row["makespan_ns"]
    assert again["peak_bytes"] == row["peak_bytes"]


def test_no_schedule_is_below_its_bound_nor_loses_to_the_rule_by_much() -> None:
    rules = {setting_of(row): row for row in ROWS if row["method"] == "rule"}
    searched = [row for row in ROWS if row["method"] != "rule"]
    assert len(searched) == 5 * len(rules)
    for row in searched:
        assert row["lower_bound_ns"] <= row["makespan_ns"]
        rule = rules[setting_of(row)]
        if rule["fits"]:  # found in half of the time, or told as untried
            assert row["makespan_ns"] <= 1.1 * rule["makespan_ns"]
