"""The experiments that stand beside published numbers: run again in part, held against the tables
that are committed, and those against what was published."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from unit_profiles import unit_profile

from experiments.free_lunch import task as free_lunch
from experiments.pipeoffload_formulas import task as table_1
from experiments.pipeoffload_models import task as figure_15
from experiments.published import published
from experiments.seq1f1b import task as seq1f1b
from experiments.zb_tables import task as published_rates
from optpipe_sim import load_profile
from optpipe_sim.errors import OptPipeError, ProfileError
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.figures import draw
from optpipe_sim.study.points import arguments, plan
from optpipe_sim.study.tables import load_table, normal

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
NAMES = ("zb_tables", "pipeoffload_formulas", "free_lunch", "pipeoffload_models")


def points_of(name: str) -> tuple[Any, list[Any]]:
    """The task of an experiment and its quick points."""
    experiment = load_experiment(ROOT / "experiments" / name, fast=True)
    return experiment.task, plan(experiment)


def committed(name: str, labels: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of one point in the committed table."""
    (labels,) = normal([labels])
    return [
        row
        for row in load_table(RESULTS, name)
        if all(row[key] == value for key, value in labels.items() if not isinstance(value, str))
        and all(str(row[key]) == value for key, value in labels.items() if isinstance(value, str))
    ]


@pytest.mark.parametrize(
    "name", ["zb_tables", "free_lunch", "ssdtrain", "seq1f1b", "long_sequences"]
)
def test_a_quick_run_gives_the_committed_rows(name: str) -> None:
    task, points = points_of(name)
    assert len(points) >= 3
    for point in points:
        rows = task.run(**arguments(task, point.parameters))
        rows = normal(rows if isinstance(rows, list) else [rows])
        found = committed(name, point.labels)
        assert len(found) == len(rows)
        for ours, theirs in zip(rows, found, strict=True):
            assert {key: theirs[key] for key in ours} == pytest.approx(ours), point.labels


def test_formulas_again_for_one_shape() -> None:
    task, points = points_of("pipeoffload_formulas")
    points = [one for one in points if one.labels["profile"] == "uneven"]
    assert len(points) == 6
    for point in points:
        row = task.run(**arguments(task, point.parameters))
        keys = ("profile.devices", "profile.chunks", "schedule", "profile")
        (found,) = [
            one
            for one in load_table(RESULTS, "pipeoffload_formulas")
            if all(one[key] == point.labels[key] for key in keys)
        ]
        assert {key: found[key] for key in row} == pytest.approx(row)


@pytest.mark.parametrize("name", NAMES)
def test_figures_come_from_the_committed_tables(name: str) -> None:
    figures = draw(name, RESULTS)
    for part, figure in figures.items():
        assert figure.axes
        for ending in ("pdf", "svg", "png"):
            assert (RESULTS / f"{name}{f'-{part}' if part else ''}.{ending}").stat().st_size > 5000


# -- Seq1F1B --------------------------------------------------------------------------------------


def test_slices_as_measured() -> None:
    """From all other runs: within 5 % of a run's memory where operators are fused, within 10 % elsewhere; the same
    cells run out of memory; and more slices are faster or slower as measured."""
    rows = load_table(RESULTS, "seq1f1b")
    off = {True: 0.0, False: 0.0}
    for row in rows:
        if row["measured_gib"] is not None:
            fused = row["table"].startswith("fused")
            off[fused] = max(off[fused], abs(row["memory_error"]))
    assert off[True] < 0.05
    assert off[False] < 0.1
    known = [row for row in rows if row["measured_oom"] is not None and row["reserved_gib"]]
    assert {row["measured_oom"] for row in known} == {True, False}
    assert {row["table"] for row in rows} == {one["id"] for one in published("seq1f1b")["tables"]}
    assert all(row["out_of_memory"] == row["measured_oom"] for row in known)
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["measured_s"] is not None:
            key = row["table"], row["sequence"], row["microbatches"]
            settings.setdefault(key, []).append(row)
    several = [runs for runs in settings.values() if len(runs) > 1]
    assert len(several) == 14
    for runs in several:
        ours, theirs = (
            sorted(runs, key=lambda run: run[key]) for key in ("iteration_s", "measured_s")
        )
        assert ours == theirs


def test_the_last_stage_of_slices_counts() -> None:
    """Logs have it as the fullest at times; of the three that ran out of memory the first stage alone would fit."""
    runs = seq1f1b.runs()
    logs = [one for one in runs if one.table is None and one.gib]
    assert any(first < last for first, last in (one.gib for one in logs if one.gib))
    for one in logs:
        stages = seq1f1b.reserved_gib([other for other in runs if other is not one], one)
        if stages and one.setup.model == "1.3B" and one.setup.attention == "linear":
            assert stages == pytest.approx(one.gib, rel=0.15)
    failed = [one for one in runs if one.table is None and one.oom]
    assert len(failed) == 3
    for one in failed:
        stages = seq1f1b.reserved_gib(runs, one)
        assert stages
        assert stages[0] < seq1f1b.CAPACITY_GIB < stages[1]
    # slices of a sequence on the last stage add up to a whole one
    assert [seq1f1b.replayed(4, 8, n).held[1] for n in (1, 4, 16)] == [0.25] * 3


# -- Zero Bubble ----------------------------------------------------------------------------------


def test_every_published_rate_is_there_and_matches() -> None:
    rows = load_table(RESULTS, "zb_tables")
    assert [sum(row["table"] == table for row in rows) for table in (5, 8)] == [72, 45]
    assert all(row["match"] for row in rows)
    for path in {row["profile"] for row in rows}:
        profile = load_profile(ROOT / "experiments" / "profiles" / f"{path}.yaml")
        here = {row["schedule"]: row["published"] for row in rows if row["profile"] == path}
        assert here == profile.meta["published_bubble_rate"]
    equal = [row for row in rows if row["simulated"] == row["published"]]
    assert len(equal) == 93
    other = {row["schedule"] for row in rows if row["expected"] != row["published"]}
    assert other == {"1F1B-I"}


def test_a_wrong_rate_does_not_match() -> None:
    right = published_rates.matches
    assert right("1F1B", 0.24312, 0.2431, 1, None)
    assert not right("1F1B", 0.2432, 0.2431, 1, None)
    assert not right("1F1B", 0.2430, 0.2431, 1, None)  # better is no match either
    assert right("ZB-2p", 0.01, 0.0433, 10, 10)
    assert not right("ZB-2p", 0.0436, 0.0433, 10, 10)
    assert not right("ZB-2p", 0.0433, 0.0433, 11, 10)
    with pytest.raises(ProfileError, match=r"meta\.microbatches: missing"):
        published_rates.run(unit_profile(4))


# -- PipeOffload ----------------------------------------------------------------------------------


def test_table_1_holds_to_the_last_digit() -> None:
    rows = load_table(RESULTS, "pipeoffload_formulas")
    bubbles = [row for row in rows if row["formula_bubble"] is not None]
    assert len(bubbles) == 4 * 18
    for row in bubbles:
        assert row["bubble"] == pytest.approx(row["formula_bubble"])
        assert row["peak_chunks"] == row["formula_peak_chunks"]
    printed = [row for row in rows if row["printed_peak_chunks"] is not None]
    assert len(printed) == 9
    assert all(row["peak_chunks"] <= row["printed_peak_chunks"] for row in printed)
    assert sum(row["peak_chunks"] == row["printed_peak_chunks"] for row in printed) == 8
    # "about (v + 2) / (8 v) M" leaves out what is being copied: two or three chunks
    halves = [row for row in rows if row["schedule"] == "po-h"]
    assert {row["peak_chunks"] - row["formula_peak_chunks"] for row in halves} == {2, 3}
    assert {row["peak_chunks"] for row in rows if row["schedule"] == "po-f"} == {4, 5, 6}


def test_table_1_is_about_equal_stages() -> None:
    stages = [{"t_f_ms": 1 + at, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 1} for at in range(2)]
    profile = load_profile({"name": "x", "devices": 2, "stages": stages})
    with pytest.raises(OptPipeError, match="differ"):
        table_1.run(profile, 4, "1f1b")


def test_offloading_is_free_where_k_says_so() -> None:
    rows = load_table(RESULTS, "free_lunch")
    assert len(rows) == 48
    for row in rows:
        if row["k"] <= 1:
            assert row["slowdown_percent"] == pytest.approx(0, abs=0.1)
        if row["k"] > 1.15:
            assert row["slowdown_percent"] > 1
        assert row["peak_bytes"] <= row["peak_bytes_without"]
    measured = [row for row in rows if row["published_slowdown_percent"] is not None]
    assert len(measured) == 40

    def error(paired: bool) -> float:
        return median(
            abs(row["slowdown_percent"] - row["published_slowdown_percent"])
            for row in measured
            if row["paired"] == paired and row["k"] > 1
        )

    assert error(True) < 2 < error(False)


def test_full_offload_is_checked_like_any_schedule() -> None:
    row = free_lunch.run(2048, 512, devices=4, microbatches=8)
    assert row["published_k"] is None
    assert row["published_slowdown_percent"] is None
    assert row["k"] > 2
    # the last device's activations never live long enough, those of the others hardly
    assert 0 <= row["offloaded"] < 4 * 8


def test_a_cell_of_figure_15_again() -> None:
    row = figure_15.run("gpt-10.5b", 4096, "po-h")
    (found,) = [
        one
        for one in load_table(RESULTS, "pipeoffload_models")
        if (one["model"], one["seq"], one["schedule"]) == ("gpt-10.5b", 4096, "po-h")
    ]
    assert {key: found[key] for key in row} == pytest.approx(row)
    assert row["published_activation_gib"] == 3
    assert row["unshared_gib"] < row["activation_gib"]
    with pytest.raises(OptPipeError, match=r"has no gis of gpt-10\.5b at sequence 1000"):
        figure_15.run("gpt-10.5b", 1000, "gis")


def test_who_runs_out_of_memory_is_as_measured() -> None:
    rows = load_table(RESULTS, "pipeoffload_models")
    tried = [row for row in rows if row["published_outcome"] != "skip"]
    assert (len(rows), len(tried)) == (72, 68)
    other = [row for row in tried if row["outcome"] != row["published_outcome"]]
    assert [(row["model"], row["schedule"]) for row in other] == [("gpt-42.9b", "po-f")]
    ran = [row for row in tried if row["published_outcome"] == "ran" and row["role"] == "check"]
    errors = [abs(row["mfu_percent"] / row["published_mfu_percent"] - 1) for row in ran]
    assert median(errors) < 0.02
