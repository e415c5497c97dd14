"""Which link makes offloading pay: a subset computed again, and the direction that the page speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.which_link.figure import PAYS, cells, draw, flips
from experiments.which_link.task import ALTERNATIVES
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.run import sweep
from optpipe_sim.study.tables import load_table

ROOT = Path(__file__).parents[2]
INFINITE = float("inf")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("which_link")
    experiment = load_experiment(ROOT / "experiments" / "which_link", fast=True)
    assert sweep(experiment, folder, jobs=1).failed == 0
    return load_table(folder, "which_link")


def time(row: dict, name: str) -> float:
    found = row[f"{name}_ns"]
    return INFINITE if found is None else found


def test_no_schedule_beats_its_bound_and_more_freedom_costs_nothing(rows) -> None:
    for row in rows:
        for name, own in ALTERNATIVES.items():
            assert row[f"{name}_bound_ns"] <= time(row, name), row
            for more, wider in ALTERNATIVES.items():
                if set(own) <= set(wider):
                    assert row[f"{more}_bound_ns"] <= row[f"{name}_bound_ns"]
                    assert time(row, more) <= time(row, name)


def test_a_faster_link_takes_no_longer_and_two_engines_neither(rows) -> None:
    for slow in rows:
        for fast in rows:
            if fast["rate"] >= slow["rate"] and fast["engines"] <= slow["engines"]:
                for name in ALTERNATIVES:
                    assert time(fast, name) <= time(slow, name)
                    assert fast[f"{name}_bound_ns"] <= slow[f"{name}_bound_ns"]


def test_recomputing_is_proven_to_win_on_a_slow_link_and_offloading_on_a_fast_one(rows) -> None:
    one = {row["rate"]: row for row in rows if row["engines"] == "shared"}
    slow, fast = one[min(one)], one[max(one)]
    assert slow["recompute_ns"] < slow["offload_bound_ns"]
    assert fast["offload_ns"] < fast["recompute_bound_ns"]
    assert slow["keep_bound_ns"] > slow["recompute_ns"]


def test_one_engine_copies_for_twice_as_long_as_two(rows) -> None:
    for row in rows:
        (other,) = (
            each
            for each in rows
            if each["rate"] == row["rate"] and each["engines"] != row["engines"]
        )
        ratio = row["copy_over_work"] / other["copy_over_work"]
        assert ratio == pytest.approx(2 if row["engines"] == "shared" else 0.5, rel=1e-3)


def test_the_committed_table_has_all_cells_and_no_schedule_below_its_bound() -> None:
    table = load_table(ROOT / "results", "which_link")
    found = cells(table)
    assert len(table) == 2 * len(found)  # of two cuts
    for one in found:
        assert one.bound["all"] <= one.best["all"]
        assert (one.verdict == PAYS) == (one.least > 0 and one.most > one.toss_up)
    drawn = draw(table)
    assert len(drawn.axes) == len({one.share for one in found})


def test_cost_error_turns_a_gain_around_only_near_a_toss_up() -> None:
    found = cells(load_table(ROOT / "results", "which_link"))
    turned = [one for one in found if flips(one, found)]
    assert turned
    low, high = found[0].interval
    for one in turned:
        line = {each.rate: each.gain for each in found if each[:3] == one[:3]}
        near = [gain for rate, gain in line.items() if one.rate / 2.9 < rate < one.rate * 2.9]
        assert min(near) <= one.toss_up <= max(near)
    assert low < 1 < high
