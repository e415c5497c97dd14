"""How much is left: a subset computed again, and the directions that the page speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.points import plan
from optpipe_sim.study.run import sweep
from optpipe_sim.study.tables import load_table

ROOT = Path(__file__).parents[2]
KEYS = ("devices", "microbatches", "copy", "schedule")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("headroom")
    experiment = load_experiment(ROOT / "experiments" / "headroom", fast=True)
    assert len(plan(experiment)) == 6
    assert sweep(experiment, folder, jobs=1).failed == 0
    return load_table(folder, "headroom")


def gaps(rows: list[dict], schedule: str, gap: str, copy: float | None = None) -> list[float]:
    found = [row for row in rows if row["schedule"] == schedule and row["copy"] == copy]
    return [row[gap] for row in sorted(found, key=lambda row: row["microbatches"])]


def test_no_schedule_beats_a_bound_and_all_cuts_are_no_harder_than_one(rows) -> None:
    for row in rows:
        assert row["own_bound_ns"] <= row["makespan_ns"], row
        assert row["any_bound_ns"] <= row["own_bound_ns"], row


def test_more_microbatches_leave_less(rows) -> None:
    for schedule in ("1f1b", "zb-v", "v-half", "v-min", "gis"):
        found = gaps(rows, schedule, "own_gap")
        assert len(found) == 3
        assert found == sorted(found, reverse=True), schedule


def test_zb_v_is_close_in_its_cut_and_1f1b_is_not(rows) -> None:
    assert max(gaps(rows, "zb-v", "own_gap")[1:]) < 0.01
    assert gaps(rows, "zb-h1", "own_gap")[1:] == [0, 0]
    assert min(gaps(rows, "1f1b", "own_gap")) > 0.1
    assert min(gaps(rows, "v-min", "own_gap")) > 0.1


def test_copies_lower_the_bound_and_only_a_little(rows) -> None:
    for schedule in ("zb-v", "v-half", "1f1b"):
        pairs = zip(
            gaps(rows, schedule, "own_gap"), gaps(rows, schedule, "own_gap", 1), strict=True
        )
        assert all(without <= copies for without, copies in pairs), schedule


def test_the_committed_table_has_the_subset(rows) -> None:
    kept = {_key(row): row for row in load_table(ROOT / "results", "headroom")}
    same = [row for row in rows if _key(row) in kept]
    assert len(same) > 40
    for row in same:
        other = kept[_key(row)]
        for column in ("makespan_ns", "own_bound_ns", "any_bound_ns", "peak"):
            assert other[column] == row[column], row


def _key(row: dict) -> tuple:
    return (*map(row.get, KEYS), *row["times"])
