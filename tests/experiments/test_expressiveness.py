"""The price of expressiveness: a pair computed again, the direction that the page speaks of, and what the pairs are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.expressiveness.pairs import MOST, MOST_PER_DEVICE, ROOM, pairs
from experiments.expressiveness.task import SEARCHED, _by_name
from optpipe_sim.costs import load_machine
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.run import sweep
from optpipe_sim.study.tables import load_table

ROOT = Path(__file__).parents[2]
OPTIONS = [f"megatron+{name}" for name in ("split", "V", "levels", "stages", "order")]
KINDS = ("megatron", *OPTIONS, "torchtitan", *SEARCHED)
FOLDER = ROOT / "experiments" / "expressiveness"


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("expressiveness")
    assert sweep(load_experiment(FOLDER, fast=True), folder, jobs=1).failed == 0
    (found,) = load_table(folder, "expressiveness")
    return found


def test_more_freedom_costs_nothing_and_no_plan_beats_the_bound(row) -> None:
    assert row["bound_ns"] <= row["free_ns"]
    for wider, narrower in (
        ("free", "torchtitan+levels"),
        ("free", "torchtitan+offload"),
        ("torchtitan+levels", "torchtitan"),
        ("torchtitan+offload", "torchtitan"),
        ("megatron+order", "torchtitan"),
        ("megatron+stages", "megatron+levels"),
        *((name, "megatron") for name in OPTIONS),
    ):
        assert row[f"{wider}_ns"] <= row[f"{narrower}_ns"], (wider, narrower)


def test_every_plan_keeps_the_limit(row) -> None:
    for kind in KINDS:
        assert row[f"{kind}_peak_bytes"] <= row["limit_bytes"], kind


def test_published_schedules_that_hold_too_much_are_no_plans() -> None:
    profile = pairs()["megatron-7b-8xh100-pp4-8k"].profile().rechunk(2, "vee")
    (roomy,) = _by_name(("v-half",), profile, 4)
    limit = max(roomy.peak_bytes) - 1
    assert list(_by_name(("v-half",), replace(profile, memory_limit=(limit,) * 4), 4)) == []


def test_an_order_of_its_own_is_what_megatron_lacks_most(row) -> None:
    lost = row["megatron_ns"] / row["free_ns"] - 1
    order = row["megatron_ns"] / row["megatron+order_ns"] - 1
    assert lost > 0.05
    assert order > lost / 2
    assert all(
        row[f"megatron+{name}_ns"] >= row["megatron+order_ns"] for name in ("split", "stages")
    )


def test_every_plan_has_a_time_at_all_drawn_costs(row) -> None:
    for kind in ("megatron", "torchtitan", "free"):
        assert len(row[f"{kind}_drawn_ns"]) == 8
        assert all(row[f"{kind}_drawn_ns"])


def test_fifty_pairs_of_published_runs_with_a_pipeline() -> None:
    known = pairs()
    assert len(known) == 50
    for name, pair in known.items():
        assert pair.layout["pp"] > 1
        assert pair.compared <= min(MOST, pair.microbatches, MOST_PER_DEVICE * pair.layout["pp"])
        replica = pair.layout["pp"] * pair.layout.get("tp", 1) * pair.layout.get("cp", 1)
        assert pair.gpus == replica * pair.layout.get("dp", 1), name
    one = known["llama3-405b-8192xh100-pp16-tp8-8k"]
    assert (one.microbatches, one.compared) == (32, 32)
    profile = one.profile()
    most = load_machine("h100-sxm").limit_bytes() * (1 - ROOM)
    assert profile.memory_limit == (int(most),) * 16
