"""The contest: small and anew, its ranking; the committed table, against limits, bounds and the rules built again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recompute_cases import profile as uniform

from experiments.contest import figure, task
from optpipe_sim import CostProfile, build, estimate, simulate
from optpipe_sim.costs import load_machine
from optpipe_sim.study.tables import load_table

RESULTS = Path(__file__).parents[2] / "results"
LIMIT = 200
SECONDS = 0.6  # per search: at 0.3 it finds less, at 2 no more


def limited() -> CostProfile:
    """Four devices that hold two activations of two layers each, with copies as long as 1.6 F."""
    profile = replace(uniform(4), memory_limit=(LIMIT,) * 4)
    return profile.map_stages(lambda _, cost: replace(cost, layers=2))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    profile = limited()
    return [
        row
        for method in ("rules", task.MILP, *task.SEARCHES)
        for row in task.run(profile, 8, method, time_limit=SECONDS, seed=0, cores=1)  # type: ignore[arg-type]
    ]


def test_every_rule_with_every_treatment(rows: list[dict[str, Any]]) -> None:
    rules = [(name, treated) for treated in task.TREATED for name in (*task.RULES, *task.GROUPED)]
    rules += [(name, task.CHOSEN) for name in task.CHOOSING]
    found = [(row["method"], row["treated"]) for row in rows]
    assert found[: len(rules)] == rules
    assert [name for name, _ in found[len(rules) :]] == [task.MILP, *task.SEARCHES]
    assert len({tuple(row) for row in rows}) == 1  # the same columns


def test_a_page_knows_every_rule_and_search() -> None:
    assert set(figure.FAMILIES) == {*task.RULES, *task.GROUPED, *task.CHOOSING}
    assert {figure.ALL, figure.ONE, *filter(None, figure.WITHOUT.values())} == {*task.SEARCHES}


def test_what_fits_keeps_the_limit_and_is_what_its_name_says(rows: list[dict[str, Any]]) -> None:
    profile = limited()
    fitting = [row for row in rows if row["fits"]]
    assert len(fitting) > 5
    for row in fitting:
        assert row["peak_bytes"] <= LIMIT
        if row["schedule"] is None:
            assert row["makespan_ns"] >= row["lower_bound_ns"]
            continue
        trace = simulate(build(row["schedule"], profile, 8), profile)
        assert trace.makespan_ns == row["makespan_ns"]
        assert row["work_ns"] <= row["makespan_ns"] - sum(row["recompute_ns"]) / 4
        if row["treated"] != task.CHOSEN:
            assert (sum(row["recompute_ns"]) > 0) is (row["treated"] != "none")
            assert ("full" in row["schedule"]) is (row["treated"] == "full")


def test_the_ranking(rows: list[dict[str, Any]]) -> None:
    times = {(row["method"], row["treated"]): row["makespan_ns"] for row in rows if row["fits"]}
    search = {name: time for (name, _), time in times.items() if name in task.SEARCHES}
    whole = search[task.ALL]
    assert all(whole <= time for time in times.values() if time not in search.values())
    assert whole <= 1.06 * min(search.values())  # 0.98 on a quiet machine
    assert search[task.ONE_ALL] <= search[task.ONE]
    # two activations per device are too few for 1F1B, and enough for it with full recomputation
    assert ("1F1B", "none") not in times
    assert ("1F1B", "full") in times
    assert times["AdaPipe, up to 4 chunks", task.CHOSEN] <= times["1F1B", "full"]
    assert ("reconstructed MILP, 1 chunk", "keep, offload") in times


def test_rules_in_groups_are_recomputed_in_the_ways_that_are_asked_for() -> None:
    levels = uniform(4).level_names
    assert task.ways_of(levels, "none") == [None]
    assert {str(way) for way in task.ways_of(levels, "selective")} == {
        "recompute=light", "recompute=light,apart=yes",
    }  # fmt: skip
    assert {str(way) for way in task.ways_of(levels, "full")} == {
        "recompute=full", "recompute=full,apart=yes",
    }  # fmt: skip


def test_the_committed_table_keeps_limits_and_bounds() -> None:
    settings = figure.settings(load_table(RESULTS, "contest"))
    assert len(settings) > 5
    for setting, methods in settings.items():
        usable = load_machine(setting.machine).usable_bytes
        bound = figure.search(methods, figure.ALL).bound
        assert bound is not None
        for (_, treated), cell in methods.items():
            for row in cell.rows:
                assert not row["fits"] or row["peak_bytes"] <= usable
                assert row["makespan_ns"] is None or row["makespan_ns"] >= bound
                if treated == "none" and row["fits"]:
                    assert sum(row["recompute_ns"]) == 0


def test_rules_of_the_committed_table_come_out_again() -> None:
    rows = [
        row for row in load_table(RESULTS, "contest")
        if row["profile.estimate.machine"] == "gh200" and row["schedule"]
    ]  # fmt: skip
    assert len(rows) > 5
    first = rows[0]
    rows = [row for row in rows if row["profile"] == first["profile"]]
    profile = estimate(
        first["profile.estimate.model"], first["profile.estimate.machine"],
        first["profile.estimate.devices"], tp=first["profile.estimate.tp"],
        seq=first["profile.estimate.seq"], levels=True, execution="ideal",
    )  # fmt: skip
    for row in rows:
        schedule = build(row["schedule"], profile, row["microbatches"])
        assert simulate(schedule, profile).makespan_ns == row["makespan_ns"], row["schedule"]


def test_the_page_is_drawn() -> None:
    (page,) = figure.draw(load_table(RESULTS, "contest")).values()
    assert len(page.axes) == 5
    names = [label.get_text() for label in page.axes[0].get_yticklabels()]
    assert len(names) == len(figure.settings(load_table(RESULTS, "contest")))
