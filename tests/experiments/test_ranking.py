"""The settings of published tables, what a replay says of their order, and fits that see only what they may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import yaml

from experiments.published import published
from experiments.ranking.fits import GRID, IDEAL, fit
from experiments.ranking.settings import Setting, settings
from experiments.ranking.ship import FOLDER, SHIPPED, text
from experiments.ranking.summary import (
    by_families,
    by_way,
    coverage,
    differences,
    group,
    half_width,
    line,
    times,
)
from experiments.ranking.task import judged, memory_errors, run
from optpipe_sim.costs.issuing import Fit, predicted
from optpipe_sim.errors import OptPipeError
from optpipe_sim.execution import FAMILIES, load_execution
from optpipe_sim.sim import simulate
from optpipe_sim.study.tables import load_table

RESULTS = Path(__file__).parents[2] / "results"
BLOCKING = Fit("blocking", "blocking", "blocking")
TABLE_4 = [one for one in settings().values() if one.id.startswith("zb4-")]


def test_every_setting_has_runs_to_compare() -> None:
    found = settings()
    assert len(found) == 74
    for one in found.values():
        if one.rows.get("devices", 16) > 8:  # the committed table has all of them
            continue
        assert len(one.runs) > 1
        assert all(run.time > 0 and run.family in FAMILIES for run in one.runs)
    families = {run.name: run.family for run in found["mi300-7b"].runs}
    assert families == {
        "1f1b": "plain",
        "1f1b-i": "interleaved",
        "zb-2p": "split",
        "zb-v": "split-interleaved",
        "v-half": "split-interleaved",
        "v-min": "split-interleaved",
    }
    assert all(set(row) == {"source", "why"} for row in published("schedules")["not_ranked"])


def test_chunks_divide_between_layers_and_the_head_stays_on_the_last() -> None:
    runs = {run.name: run.profile for run in settings()["h800-14b-p8"].runs}
    layer, head = 21_704_000, 37_315_000
    assert [cost.t_f_ns for cost in runs["1f1b"].stages] == [2 * layer] * 7 + [2 * layer + head]
    assert [cost.t_f_ns for cost in runs["1f1b-i"].stages] == [layer] * 15 + [layer + head]
    assert runs["1f1b"].stages[0].fused_ns == 2 * 45_670_000
    assert runs["zb-h1"].stages[0].t_b_ns == 2 * 27_534_000


# of the zero-bubble paper's table 4, with its own op times: how many of the 72 pairs of schedules are the right way round (one is a
# tie as printed), in how many of the 12 settings the fastest is found, how far apart the errors of a setting are, and by how
# much the gain of 1F1B-I over 1F1B is overrated; points, median and largest
@pytest.mark.parametrize(
    ("execution", "pairs", "fastest", "spread", "interleaving"),
    [
        (IDEAL, 63, 9, (9.4, 14.2), (6.7, 9.0)),
        (Fit(), 66, 12, (5.6, 7.0), (6.7, 9.0)),
        (BLOCKING, 71, 12, (2.8, 4.1), (1.7, 4.0)),
    ],
)
def test_what_an_iteration_means_and_a_sender_waits_decide_table_4(
    execution, pairs, fastest, spread, interleaving
) -> None:
    rows = [judged(one, execution) for one in TABLE_4]
    assert sum(row["pairs"] for row in rows) == 72
    assert sum(row["pairs_right"] for row in rows) == pairs
    assert sum(row["regret"] == 0 for row in rows) == fastest
    spreads = [100 * row["spread"] for row in rows]
    assert (median(spreads), max(spreads)) == pytest.approx(spread, abs=0.1)
    gains = []
    for one in TABLE_4:
        runs = {run.name: run for run in one.runs}
        plain, many = runs["1f1b"], runs["1f1b-i"]
        simulated = predicted(plain, execution) / predicted(many, execution)
        gains.append(100 * (simulated - plain.time / many.time))
    assert (median(gains), max(gains)) == pytest.approx(interleaving, abs=0.1)


def _made(id_: str, execution: Fit) -> Setting:
    """A setting whose runs took, but for a common factor, what they take under an execution."""
    one = replace(settings()[id_])
    runs = settings()[id_].runs
    made = tuple(replace(run, time=1.07 * predicted(run, execution)) for run in runs)
    vars(one)["runs"] = made  # in place of the published ones, which it would read
    return one


@pytest.mark.parametrize(
    "execution",
    [
        Fit("blocking", "latency", "blocking", 300, 1.02),
        Fit("blocking", "blocking", "latency", 0, 1.06),
    ],
)
def test_a_fit_finds_the_execution_that_made_the_times(execution) -> None:
    assert execution in GRID
    made = (_made("zb4-1.5b-m24", execution), _made("zb6-6.2b-m48", execution))
    assert fit(made) == execution
    row = judged(made[0], execution)
    assert row["pairs"] == row["pairs_right"]
    assert row["regret"] == 0
    assert max(map(abs, row["difference_errors"])) < 1e-9
    # of a family that is left out nothing is seen
    kept = tuple(one for one in FAMILIES if not one.startswith("split"))
    assert fit(made, kept).split_factor == 1.0
    # nor chosen that must not be
    assert fit(made, choice="free-split").split_factor == 1.0
    assert fit(made, choice="overlapped").interleaved == "latency"
    with pytest.raises(
        OptPipeError, match="execution: 'best' is none; known are ideal, known, fitted"
    ):
        run("best")


def test_the_committed_rows_saw_what_they_may() -> None:
    rows = load_table(RESULTS, "ranking")
    every = {one.id: one for one in settings().values()}
    whole = [one for one in every.values() if one.compares not in ("slices", "traces")]
    usable = [one for one in whole if not one.estimated]
    for row in rows:
        if row["execution"] in ("ideal", "known"):
            assert row["settings_seen"] == 0
            continue
        own = every[row["setting"]]
        same = [one for one in whole if (one.trainer, one.machine) == (own.trainer, own.machine)]
        seen = {
            "nothing": usable,
            "family": usable,
            "others": same,
            "model": [one for one in same if one.model != own.model],
            "paper": [one for one in usable if one.paper != own.paper],
            "machine": [one for one in usable if one.machine != own.machine],
        }[row["left_out"]]
        assert row["settings_seen"] == len(seen)


def test_lines_and_intervals_by_hand() -> None:
    def row(paper: str, errors: list[float], regret: float) -> dict:
        return {
            "setting": paper, "paper": paper, "costs": "published", "compares": "schedules",
            "regret": regret, "pairs": 2, "families": ["split", "plain and split"], "pairs_right": 1, "pairs_over_2": 1, "pairs_over_2_right": 1,
            "difference_errors": errors,
        }  # fmt: skip

    rows = [row("a", [0.01, -0.03], 0.0), row("b", [0.02, 0.02], 0.03)]
    assert group({**rows[0], "costs": "estimated"}) == "figure 15"
    found = line(rows)
    assert (found.settings, found.fastest, found.right, found.worst_regret) == (2, 1, 1, 0.03)
    assert found.median_error == 0.02
    assert by_families(rows) == {"split": [0.01, 0.02], "plain and split": [-0.03, 0.02]}
    assert half_width([0.01, -0.02, 0.03, -0.04, 0.05, 0.06]) == pytest.approx(0.05)
    # a's errors within b's 0.02: one of two; b's within the 80 % of a's, 0.026: both
    assert coverage(differences(rows, "paper")) == (0.75, 4)
    assert times([{**rows[0], "error": 0.1}, {**rows[1], "error": None}], "paper") == {"a": [0.1]}


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda one: one.name)
def test_shipped_executions_are_those_of_the_table(shipped) -> None:
    rows = load_table(RESULTS, "ranking")
    written = (FOLDER / f"{shipped.name}.yaml").read_text()
    assert written == text(shipped, rows)
    data = yaml.safe_load(written)
    assert load_execution(shipped.name).between == data["error"]["between"]
    assert set(data["families"]) == set(FAMILIES)
    assert set(data["fitted_to"]) <= set(settings())
    assert (
        0 < data["error"]["between"] < data["error"]["common"] or shipped.name == "pipeoffload-a100"
    )
    # where a fit stands, it is that of every setting that it was fitted to
    fitted = [row for row in rows if row["setting"] in data["fitted_to"]]
    for row in (row for row in fitted if (row["execution"], row["left_out"]) == shipped.fit):
        assert row["op_us"] == data["families"]["plain"]["op_us"]
        assert row["split"] == data["families"]["split"]["split"]


@pytest.mark.parametrize(
    ("left_out", "key"), [("model", "paper"), ("paper", "paper"), ("machine", "machine")]
)
def test_intervals_hold_what_they_say_of_what_was_left_out(left_out, key) -> None:
    rows = by_way(load_table(RESULTS, "ranking"))["fitted", left_out]
    held, count = coverage(differences((row for row in rows if group(row) == "schedules"), key))
    assert count > 150
    assert 0.7 <= held <= 0.9


def test_op_times_of_one_picture_and_the_orders_that_ran_give_the_times_of_all_four() -> None:
    times = {run.name: predicted(run, IDEAL) / run.time for run in settings()["primus-trace"].runs}
    assert times == pytest.approx(
        dict.fromkeys(("1f1b-i", "zb-v", "v-half", "v-min"), 1), abs=0.015
    )
    # as published beside 1F1B: V-Min is slower, as B takes longer than F and W
    runs = {run.name: run for run in settings()["mi300-7b-as-traced"].runs}
    plain, least = runs["1f1b"], runs["v-min"]
    ratio = predicted(least, IDEAL) / predicted(plain, IDEAL)
    assert ratio == pytest.approx(least.time / plain.time, abs=0.01)


def test_memory_that_is_fitted_to_two_runs_is_told_of_the_others_alone() -> None:
    setting = settings()["mi300-7b"]
    held = {
        one.name: max(simulate(one.schedule, one.holds, enforce=False).peak_bytes) / 2**30
        for one in setting.runs
    }
    fitted = setting.rows["memory_fitted"]["to"]
    for one in setting.runs:
        if one.name in fitted:
            assert held[one.name] == pytest.approx(one.memory, rel=0.005)
    told = dict(zip((one.name for one in setting.runs), memory_errors(setting), strict=True))
    assert [name for name, error in told.items() if error is None] == fitted
    assert max(abs(error) for error in told.values() if error is not None) < 0.05
