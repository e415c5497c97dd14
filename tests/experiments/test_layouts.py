"""The contest on layouts that people train: a pair computed again, and the direction that the page speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.expressiveness.pairs import ROOM, pairs
from experiments.layouts.figure import SEARCH, contests
from optpipe_sim.costs import load_machine
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.run import sweep
from optpipe_sim.study.tables import load_table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "layouts"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("layouts")
    assert sweep(load_experiment(FOLDER, fast=True), folder, jobs=1).failed == 0
    return load_table(folder, "layouts")


def test_every_method_has_a_plan_that_keeps_the_margin(rows) -> None:
    assert sorted(row["method"] for row in rows) == ["AdaOffload", "rules", SEARCH]
    for row in rows:
        machine = load_machine(row["machine"])
        assert row["peak_bytes"] <= row["limit_bytes"] == int(machine.limit_bytes() * (1 - ROOM))
        assert row["execution"] != "ideal"
        assert len(row["drawn_ns"]) == 16


def test_a_search_is_no_slower_than_the_others_and_no_plan_beats_its_bound(rows) -> None:
    (one,) = contests(rows)
    (ours,) = one.seeds
    assert ours["bound_ns"] <= ours["iteration_ns"]
    assert one.rival is not None
    assert ours["iteration_ns"] <= one.rival["iteration_ns"]


def test_the_layouts_are_published_ones_with_every_kind_of_parallelism() -> None:
    known = pairs()
    asked = {given["pair"] for _, given in load_experiment(FOLDER).settings()}
    layouts = [known[name].layout for name in asked]
    assert len(asked) == 12
    for key in ("tp", "dp", "cp", "ep"):
        assert any(layout.get(key, 1) > 1 for layout in layouts), key
