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
from experiments.throughput import figure as throughput_figure
from experiments.throughput import task as contest
from experiments.zb_tables import task as published_rates
from optpipe_sim import build, load_profile, simulate
from optpipe_sim.errors import OptPipeError, ProfileError
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.figures import draw
from optpipe_sim.study.points import arguments, plan
from optpipe_sim.study.tables import load_table, normal

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
NAMES = ("zb_tables", "pipeoffload_formulas", "free_lunch", "pipeoffload_models", "throughput")


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


@pytest.mark.parametrize("name", ["zb_tables", "free_lunch"])
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
    assert ("claims" in figures) == (name == "throughput")


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


# -- OptPipe --------------------------------------------------------------------------------------


def test_contest_at_equal_memory() -> None:
    stages = {"t_f_ms": 10, "t_b_ms": 11, "t_w_ms": 9, "act_mib": 100, "w_mib": 50}
    profile = load_profile(
        {
            "name": "small",
            "devices": 4,
            "stages": stages,
            "t_comm_ms": 1,
            "offload": {"t_offload_ms": 10, "t_reload_ms": 10},
        }
    )
    limit = 250 * 2**20
    rows = {row["method"]: row for row in contest.run(profile, 8, limit, time_limit=0.6, cores=1)}
    assert set(contest.PUBLISHED) < set(rows)
    assert not rows["1F1B"]["fits"]
    assert rows["1F1B"]["peak_bytes"] == 400 * 2**20  # reported all the same
    assert rows["1F1B"]["makespan_ns"] == rows["1F1B"]["reference_ns"]
    able = [row for row in rows.values() if row["fits"]]
    ours = rows["this search"]
    assert ours in able
    for row in able:
        assert row["peak_bytes"] <= limit
        assert row["makespan_ns"] >= ours["lower_bound_ns"]
    assert rows["PipeOffload"]["chunks"] <= contest.MOST_CHUNKS
    assert {"AdaOffload", "this search, 1 chunk", "no offload", "1F1B-I"} < set(rows)


def test_best_pipeoffload_is_the_fastest_that_fits() -> None:
    profile = unit_profile(4, offload={"t_offload_ms": 1, "t_reload_ms": 1})
    limit = 300
    names = tuple(contest.pipeoffload_names(4, [1, 2, 3]))
    limited = load_profile({**_plain(profile), "memory_limit_bytes": limit})
    found = contest.best_of(names, limited, 8)
    assert found["fits"]
    makespans = []
    for name in names:
        try:
            trace = simulate(build(name, profile, 8), profile, limit)
        except OptPipeError:
            continue
        makespans.append(trace.makespan_ns)
    assert len(makespans) > 3
    assert found["makespan_ns"] == min(makespans)
    assert contest.best_of(("gpipe",), limited, 8)["fits"] is False


def test_everyone_may_have_a_layer_per_stage() -> None:
    layers = load_profile(
        {**_plain(unit_profile(4)), "stages": [_layered(n) for n in (2, 3, 3, 2)]}
    )
    assert layers.most_chunks == 2
    assert contest.chunk_counts(layers) == [1, 2]
    assert contest.chunk_counts(unit_profile(4)) == list(range(1, contest.MOST_CHUNKS + 1))
    names = list(contest.pipeoffload_names(4, [1, 2]))
    assert "po:chunks=2,group=4,offloaded=2" in names
    assert not any("chunks=3" in name for name in names)


def _layered(count: int) -> dict[str, Any]:
    return {"t_f_ms": 6, "t_b_ms": 6, "t_w_ms": 6, "act_bytes": 60, "layers": count}


def _plain(profile: Any) -> dict[str, Any]:
    from optpipe_sim.profile_io import profile_to_json

    return dict(profile_to_json(profile))


def test_the_contest_keeps_its_limits_and_its_bounds() -> None:
    rows = load_table(RESULTS, "throughput")
    for row in rows:
        assert row["memory_limit_bytes"] <= row["machine_bytes"]
        assert not row["fits"] or row["peak_bytes"] <= row["memory_limit_bytes"]
    for methods in throughput_figure.settings(rows).values():
        ours = methods[throughput_figure.OURS]
        assert ours.bound is not None
        for method in methods.values():
            assert not method.fits or method.makespan.least >= ours.bound


def _method(
    share: str, method: str, makespans: list[int], idle: int, fits: bool = True
) -> list[dict[str, Any]]:
    """The rows of a method in a setting, a seed each."""
    where = {
        "profile.estimate.model": "M", "profile.estimate.devices": 4,
        "profile.estimate.machine": "A", "microbatches": 12, "memory_limit": f"{share}x 1f1b",
    }  # fmt: skip
    return [
        {
            **where, "method": method, "seed": seed, "makespan_ns": ns, "idle_ns": idle,
            "fits": fits, "lower_bound_ns": 80 + seed,
        }
        for seed, ns in enumerate(makespans)
    ]  # fmt: skip


def test_gains_are_counted_the_right_way_round() -> None:
    ours, po = throughput_figure.OURS, "PipeOffload"
    cells = throughput_figure.settings(
        [
            *_method("0.25", ours, [90, 100, 130], 10),
            *_method("0.25", po, [150, 150, 150], 40),
            *_method("1", ours, [120], 30),
            *_method("1", po, [100], 10),
            *_method("1.5", ours, [100], 10),
            *_method("1.5", po, [90], 5, fits=False),
        ]
    )
    found = [
        [(key.share, gain) for key, gain in throughput_figure.gains(cells, po, how)]
        for how in (throughput_figure.faster, throughput_figure.less_idle, throughput_figure.room)
    ]
    assert found == [
        [(0.25, 0.5), (1.0, pytest.approx(-1 / 6))],  # slower is said, too
        [(0.25, 0.75), (1.0, -2.0)],
        [(0.25, pytest.approx(150 / 82 - 1)), (1.0, 0.25)],  # by the best bound of the seeds
    ]
    assert next(iter(cells.values()))[ours].makespan == (100, 90, 130, 3)
