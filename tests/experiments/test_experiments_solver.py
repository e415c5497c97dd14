"""The experiments on how good the solvers are and on what durations that are off cost: their tasks'
rules on cases small enough to work by hand, and that what is committed is what they give."""

from __future__ import annotations

from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from unit_profiles import unit_profile

from experiments import engines
from experiments.robustness import task as robustness
from optpipe_sim.errors import OptPipeError
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.solvers.milp.milp import MOST_ROWS
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.figures import draw
from optpipe_sim.study.points import Point, arguments, plan
from optpipe_sim.study.tables import load_table
from optpipe_sim.study.tasks import load_task

ROOT = Path(__file__).parents[2]
MS = 10**6
OFFLOAD = {"t_offload_ms": 1, "t_reload_ms": 1}
ENGINES, COPY = "profile.offload.copy_engines", "profile.offload.t_offload_ns"


# -- what is committed ----------------------------------------------------------------------------


def table(name: str) -> list[dict[str, Any]]:
    rows = load_table(ROOT / "results", name)
    assert len(rows) > 10
    return rows


@cache
def points_of(name: str) -> list[Point]:
    return plan(load_experiment(ROOT / "experiments" / name))


def point(name: str, **labels: Any) -> Point:
    """The first point with these labels, and whose labels they are."""
    return next(each for each in points_of(name) if labels.items() <= each.labels.items())


def again(name: str, chosen: Point, **other: Any) -> list[dict[str, Any]]:
    task = load_task(chosen.task, source=chosen.source)
    made = task.run(**arguments(task, {**chosen.parameters, **other}))
    assert isinstance(made, list)
    return made


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (
            {"part": "time", "engine": "adaoffload", "microbatches": 8},
            ("objective_ns", "lower_bound_ns", "gap", "formula_variables", "formula_constraints"),
        ),
        (
            {"part": "time", "engine": "adaoffload", "microbatches": 16},
            ("objective_ns", "lower_bound_ns", "gap", "compute_ops", "closed_form_ns"),
        ),
        (
            {"part": "size", "engine": "milp", "microbatches": 32, "memory_limit": "0.75x 1f1b"},
            ("status", "reason", "formula_variables", "formula_constraints", "closed_form_ns"),
        ),
    ],
)
def test_what_depends_on_no_clock_comes_out_again(
    labels: dict[str, Any], columns: tuple[str, ...]
) -> None:
    committed = [row for row in table("gaps") if labels.items() <= row.items()]
    made = again("gaps", point("gaps", **labels))
    assert len(made) == len(committed) >= 4
    for row, other in zip(made, committed, strict=True):
        assert [row[column] for column in columns] == [other[column] for column in columns]
        assert row["after_s"] == other["after_s"]


def test_adaoffload_comes_out_again_in_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    any_of = point("gaps")
    task = load_task(any_of.task, source=any_of.source)
    # the size of the MILP, which is tested above, takes a hundred times as long
    monkeypatch.setitem(task.run.__globals__, "model_size", lambda *_: (0, 0))  # type: ignore[attr-defined]
    rows = [row for row in table("gaps") if row["engine"] == "adaoffload" and row["part"] != "time"]
    for row in rows:
        labels = {key: row[key] for key in ("part", "engine", "case", ENGINES, COPY) if row[key]}
        if not row["case"]:
            labels |= {key: row[key] for key in ("profile.devices", "microbatches", "memory_limit")}
        (made,) = again("gaps", point("gaps", **labels))
        assert made["objective_ns"] == row["objective_ns"]
        assert [made[key] for key in ("p", "m", "limit")] == [
            row[key] for key in ("p", "m", "limit")
        ]


@pytest.mark.parametrize("kind", ["copy", "device", "straggler", "op"])
def test_plans_by_rule_come_out_again_with_the_same_durations(kind: str) -> None:
    chosen = point("robustness", kind=kind, level=0.3, memory_limit="0.75x 1f1b", seed=0)
    names = ["v-half", "v-min", "adaoffload"]
    committed = {
        row["schedule"]: row
        for row in table("robustness")
        if (row["kind"], row["level"], row["memory_limit"], row["seed"])
        == (kind, 0.3, "0.75x 1f1b", 0)
    }
    assert list(committed) == [*names, "optpipe"]
    for row in again("robustness", chosen, schedules=names):
        other = committed[row["schedule"]]
        for column in ("nominal_ns", "cost_ns", "peak_bytes", "offloaded", "samples", "fits"):
            assert row[column] == other[column]


NAMES = ("gaps", "proofs", "robustness")


@pytest.mark.parametrize("name", NAMES)
def test_no_point_failed(name: str) -> None:
    rows = table(name)
    assert len(rows) > 20
    assert not [row["error"] for row in rows if row.get("error")]


def instance(row: dict[str, Any]) -> tuple[Any, ...]:
    of = ("p", "m", "limit", "case", ENGINES, COPY, "profile.offload.d2h_gb_per_s")
    return tuple(row[key] for key in of)


def test_engines_only_ever_get_better() -> None:
    """And none finds anything below what another proves."""
    rows = table("gaps")
    for _, same in groupby(
        rows, lambda row: (row["part"], *instance(row), row["engine"], row["start"], row["seed"])
    ):
        for before, after in pairwise(same):
            assert before["after_s"] < after["after_s"]
            assert before["objective_ns"] is None or after["objective_ns"] <= before["objective_ns"]
            if before["status"] != "refused":
                assert after["lower_bound_ns"] >= before["lower_bound_ns"]
    for row in rows:
        if row["objective_ns"] is not None:
            bounds = [r["lower_bound_ns"] or 0 for r in rows if instance(r) == instance(row)]
            assert row["objective_ns"] >= max(bounds)
        if row["objective_ns"] is not None and row["lower_bound_ns"] is not None:
            assert row["gap"] == pytest.approx(row["objective_ns"] / row["lower_bound_ns"] - 1)


def test_who_starts_from_adaoffload_never_does_worse() -> None:
    rows = [row for row in table("gaps") if row["part"] == "time"]
    alone = {instance(row): row["objective_ns"] for row in rows if row["engine"] == "adaoffload"}
    assert len(alone) == 2
    warm = [row for row in rows if row["start"] == "adaoffload"]
    assert {row["engine"] for row in warm} == {"adaoffload", "auto", "search", "cpsat", "milp"}
    assert all(row["objective_ns"] <= alone[instance(row)] for row in warm)


def test_large_models_are_refused_with_their_size() -> None:
    rows = [row for row in table("gaps") if row["part"] == "size"]
    refused = [row for row in rows if row["status"] == "refused"]
    assert {row["profile.devices"] for row in refused} >= {16, 32, 64}
    for row in rows:
        if row["engine"] == "milp":
            assert (row["status"] == "refused") == (row["formula_constraints"] > MOST_ROWS)
            if row["status"] != "refused":
                assert row["variables"] <= row["formula_variables"]
                assert row["constraints"] <= row["formula_constraints"]


def test_hindsight_is_never_beaten() -> None:
    for row in table("robustness"):
        assert row["fits"]
        assert row["loss"] >= row["replanned_loss"] >= 0
        assert row["loss_most"] is None or row["loss_most"] >= row["loss"]
        assert row["kind"] == "op" or row["cost_ns"] >= row["replanned_ns"] >= row["reference_ns"]


@pytest.mark.parametrize("name", NAMES)
def test_figures_say_what_they_show(name: str) -> None:
    for figure in draw(name, ROOT / "results").values():
        texts = [text.get_text() for text in figure.findobj(Text)]
        words = {"gaps": "AdaOffload", "proofs": "MILP", "robustness": "this search"}
        assert any(words[name] in text for text in texts)


# -- engines --------------------------------------------------------------------------------------


def test_curves_are_cut_at_each_time() -> None:
    found, proven = [(0.5, 20), (1.0, 30), (1.5, 12)], [(0.0, 5), (2.0, 10)]
    first = engines.by_then(found, proven, -1.0, 1.0)
    assert first == {
        "objective_ns": 20, "best_s": 0.5, "lower_bound_ns": 5, "gap": 3.0, "incumbents": [[0.5, 20]],
        "bounds": [[0.0, 5]],
    }  # fmt: skip
    second = engines.by_then(found, proven, 1.0, 2.0)
    assert second == {
        "objective_ns": 12, "best_s": 1.5, "lower_bound_ns": 10, "gap": pytest.approx(0.2),
        "incumbents": [[1.5, 12]], "bounds": [[2.0, 10]],
    }  # fmt: skip
    nothing = engines.by_then([], proven, -1.0, 1.0)
    assert (nothing["objective_ns"], nothing["gap"]) == (None, None)


def test_only_improvements_are_kept() -> None:
    assert engines.improving([(2.0, 7), (1.0, 9), (3.0, 8)], down=True) == [(1.0, 9), (2.0, 7)]
    assert engines.improving([(1.0, 9), (2.0, 7), (3.0, 10)], down=False) == [(1.0, 9), (3.0, 10)]


@pytest.mark.parametrize("start", ["adaoffload", "none"])
@pytest.mark.parametrize("engine", ["search", "cpsat", "milp"])
def test_every_engine_finds_a_small_optimum(engine: str, start: str) -> None:
    """p = 2, m = 4, one activation per device, each copied in the time of an op: 4 F + B + W and one F
    before the last device begins are no longer enough; all engines agree."""
    rows = engines.run(
        engine, [0.001, 60], unit_profile(2, offload=OFFLOAD), 4, 200, start=start  # type: ignore[arg-type]
    )  # fmt: skip
    last = rows[-1]
    assert last["objective_ns"] == 13 * MS
    assert last["status"] == "optimal"
    assert last["gap"] == 0
    assert [row["after_s"] for row in rows] == [0.001, 60]
    assert last["first_ns"] >= 13 * MS


def test_the_best_published_schedule_of_a_case_is_named() -> None:
    (row,) = engines.run("published", [10.0], case="vee, half")
    assert row["found_by"] in REGISTRY
    assert row["objective_ns"] <= 2144  # v-min
    assert (row["p"], row["m"], row["limit"]) == (8, 24, 800)


def test_accelerations_of_the_milp_are_switched_one_by_one() -> None:
    """Whatever is switched off, the optimum stays."""
    profile = unit_profile(2, offload=OFFLOAD)
    (best,) = engines.run("cpsat", [60.0], profile, 3, 200)
    for switched in ([], ["bounds"], ["bounds", "fix", "in_order"], ["fifo"]):
        (row,) = engines.run("milp", [60.0], profile, 3, 200, start="everything", switched=switched)
        assert row["objective_ns"] == best["objective_ns"]
        assert ("bounds" in switched) <= (row["bound"] == "highs")


def test_nothing_means_nothing() -> None:
    """CP-SAT from nothing begins above AdaOffload, which is found in no time."""
    profile = unit_profile(4, offload=OFFLOAD)
    alone = engines.run("adaoffload", [5.0], profile, 8, 250)[0]
    cold = engines.run("cpsat", [1.0], profile, 8, 250, start="none")[0]
    warm = engines.run("cpsat", [1.0], profile, 8, 250)[0]
    assert warm["first_ns"] == alone["objective_ns"]
    # on a busy machine a second may be too short for a first schedule
    assert cold["first_ns"] is None or cold["first_ns"] >= alone["objective_ns"]
    assert warm["objective_ns"] <= alone["objective_ns"]


def test_a_model_too_large_is_a_row_with_its_size() -> None:
    rows = engines.run("milp", [1.0, 2.0], unit_profile(16, offload=OFFLOAD), 32, 800)
    assert [row["status"] for row in rows] == ["refused", "refused"]
    assert rows[0]["formula_constraints"] > MOST_ROWS
    assert str(rows[0]["formula_constraints"]) in rows[0]["reason"]


def test_what_is_no_refusal_is_an_error() -> None:
    with pytest.raises(OptPipeError, match="limit"):
        engines.run("cpsat", [1.0], unit_profile(2), 4, 50)
    with pytest.raises(OptPipeError, match="no_such_solver"):
        engines.run("milp", [1.0], unit_profile(2), 4, 200, solver="no_such_solver")


# -- robustness -----------------------------------------------------------------------------------


def test_changes_are_what_they_are_called() -> None:
    assert list(robustness.changes("copy", 0.3, 2, 5, 0)) == [((1.0, 1.0), 1.3)]
    slow = list(robustness.changes("straggler", 0.2, 4, 3, 0))
    assert [compute.index(1.2) for compute, _ in slow] == [0, 2, 3]
    assert all(sorted(compute) == [1, 1, 1, 1.2] and copy == 1 for compute, copy in slow)
    drift = list(robustness.changes("device", 0.1, 4, 500, 7))
    assert drift == list(robustness.changes("device", 0.1, 4, 500, 7))
    logs = np.log([compute for compute, _ in drift])
    assert logs.std() == pytest.approx(0.1, rel=0.05)
    assert logs.mean() == pytest.approx(-0.005, abs=0.01)


def test_slower_devices_and_copies() -> None:
    profile = unit_profile(3, offload=OFFLOAD)
    made = robustness.slower(profile, (1.0, 1.5, 1.0), 2.0)
    assert [cost.t_f_ns for cost in made.stages] == [MS, 1.5 * MS, MS]
    assert {cost.t_offload_ns for cost in made.stages} == {2 * MS}
    vee = robustness.slower(profile.rechunk(2, "vee"), (1.0, 1.0, 3.0), 1.0)
    assert [cost.t_b_ns / MS for cost in vee.stages] == [0.5, 0.5, 1.5, 1.5, 0.5, 0.5]


def test_one_device_loses_nothing_and_takes_as_long_as_it_is_slow() -> None:
    rows = robustness.run(
        unit_profile(1), 4, ["1f1b", "zb-h1"], "straggler", 0.5, samples=1, chunks=1
    )
    for row in rows:
        assert (row["nominal_ns"], row["cost_ns"]) == (12 * MS, 18 * MS)
        assert row["loss"] == row["replanned_loss"] == 0


def test_a_slow_last_device_by_hand() -> None:
    """1F1B on two devices, two microbatches, B and W one op of 2: F0 F1 on the first, then F B F B on the
    second from 1 on: 1 + 2 (1 + 2) and the last B of the first, 2. With the second 50 % slower its
    part takes 9."""
    rows = robustness.run(unit_profile(2), 2, ["1f1b"], "straggler", 0.5, samples=2, chunks=1)
    (row,) = rows
    assert row["nominal_ns"] == 9 * MS
    # the first device slower: 1.5 + 2 (1 + 2) + 3; the second: 1 + 2 (1.5 + 3) + 2
    assert row["cost_ns"] == (10.5 + 12) / 2 * MS


def test_what_does_not_fit_says_so_and_the_others_go_on() -> None:
    refused, row = robustness.run(
        unit_profile(4, offload=OFFLOAD), 8, ["1f1b", "adaoffload"], "copy", 0.3, 250, chunks=1
    )
    assert not refused["fits"]
    assert "memory" in refused["reason"]
    assert row["fits"]
    assert row["peak_bytes"] <= 250
    assert row["cost_ns"] >= row["nominal_ns"]


def test_solving_anew_gives_back_what_was_lost() -> None:
    profile = unit_profile(4, offload=OFFLOAD)
    (row,) = robustness.run(
        profile, 8, ["optpipe"], "copy", 1.0, 250, chunks=1, evaluations=2000, time_limit=0.5
    )
    assert row["loss"] > row["replanned_loss"] == 0
    assert row["replanned_ns"] == row["reference_ns"] < row["cost_ns"]


def test_no_scatter_is_no_change_and_scatter_costs() -> None:
    profile = unit_profile(4, offload=OFFLOAD)
    names = ["1f1b", "zb-h1"]
    still = robustness.run(profile, 8, names, "op", 0.0, samples=3, chunks=1)
    assert all(row["cost_ns"] == row["nominal_ns"] for row in still)
    noisy = robustness.run(profile, 8, names, "op", 0.2, samples=300, chunks=1)
    assert all(row["cost_ns"] > row["nominal_ns"] for row in noisy)
    assert noisy == robustness.run(profile, 8, names, "op", 0.2, samples=300, chunks=1)
    assert min(row["loss"] for row in noisy) >= 0
