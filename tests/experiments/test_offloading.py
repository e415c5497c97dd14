"""PipeOffload and this search with offloading alone: the committed table, against the contest's and rules built again."""

from __future__ import annotations

from pathlib import Path

from experiments.contest.figure import best_rule, setting_of, settings
from experiments.offloading import task
from optpipe_sim import estimate
from optpipe_sim.costs import load_machine
from optpipe_sim.study.tables import load_table

RESULTS = Path(__file__).parents[2] / "results"
ROWS = load_table(RESULTS, "offloading")
RULES = [row for row in ROWS if row["method"] == "PipeOffload"]


def test_the_settings_are_all_in_which_pipeoffload_fits_and_its_chunks_the_fastest() -> None:
    contest = {
        setting: best.cell.rows[0]
        for setting, methods in settings(load_table(RESULTS, "contest")).items()
        if (best := best_rule(methods, ("PipeOffload",), ("none",)))
    }
    found = {setting_of(row): row for row in RULES if row["chunks"] > 1}
    assert [*found] == [*contest]
    for setting, row in contest.items():
        again = found[setting]
        assert (again["chunks"], again["schedule"]) == (row["chunks"], row["schedule"])
        assert again["makespan_ns"] == row["makespan_ns"]


def test_every_plan_keeps_the_chunks_the_limit_and_its_bound() -> None:
    for row in ROWS:
        if not row["fits"]:
            assert (row["method"], row["chunks"]) == ("PipeOffload", 1)
            continue
        assert row["chunks"] in (None, row["used_chunks"])
        assert row["peak_bytes"] <= load_machine(row["profile.estimate.machine"]).usable_bytes
        assert (row["lower_bound_ns"] or 0) <= row["makespan_ns"]


def test_a_rule_takes_what_the_table_says() -> None:
    first = next(row for row in RULES if row["profile.estimate.model"] == "llama2-70b")
    given = [first[f"profile.estimate.{key}"] for key in ("model", "machine", "devices")]
    named = {key: first[f"profile.estimate.{key}"] for key in ("tp", "seq")}
    profile = estimate(*given, **named, levels=True, execution="ideal")
    for row in RULES:
        if row["profile"] == first["profile"]:
            again = task.run(
                profile, row["microbatches"], "PipeOffload", row["seconds"], row["chunks"]
            )
            assert again.items() <= row.items()
