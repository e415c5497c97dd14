"""Experiments: refused key by key, run once and for all, kept point by point, drawn from results."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from experiment_cases import BASE, PROFILE

from experiments.spread import over_seeds, spread
from optpipe_sim import build, load_profile, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.points import plan
from optpipe_sim.study.run import points_folder, sweep
from optpipe_sim.study.tables import (
    ENDINGS,
    load_manifest,
    load_table,
)
from optpipe_sim.study.tasks import load_task, task_names
from optpipe_sim.study.versions import commit

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "experiments").glob("*/experiment.yaml"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes an experiment that runs `simulate` on a tiny profile, with some keys changed."""

    def write(stem: str = "trial", **changes: object) -> Path:
        data = {"name": stem, "question": "how?", "run": "simulate", "minutes": 1, "base": BASE}
        data["grid"] = {"schedule": ["1f1b", "zb-h1"]}
        data.update(changes)
        path = tmp_path / f"{stem}.yaml"
        kept = {key: value for key, value in data.items() if value is not None}
        path.write_text(yaml.safe_dump(kept, sort_keys=False))
        return path

    return write


# -- what an experiment says ----------------------------------------------------------------------

WRONG = {
    "unknown key": ({"grids": {}}, "grids: unknown key; did you mean grid?"),
    "unknown parameter": ({"base": {**BASE, "microbatch": 4}}, "base.microbatch: unknown key; did"),
    "unknown axis": (
        {"grid": {"shedule": ["1f1b"]}},
        "grid.shedule: unknown key; did you mean sch",
    ),
    "unknown override": ({"fast": {"m": 4}}, "fast.m: unknown key"),
    "no question": ({"question": None}, "question: missing"),
    "other name": ({"name": "other"}, "name: 'other' is not the file's; write 'trial'"),
    "no task": ({"run": "simulat"}, "run: 'simulat' is no task; did you mean simulate?"),
    "no module": ({"run": "no.such"}, "run: 'no.such' cannot be imported"),
    "no minutes": ({"minutes": "ten"}, "minutes: must be a number above 0, got 'ten'"),
    "no cores": ({"cores": 0}, "cores: must be a whole number from 1 to 1024, got 0"),
    "no schedule": (
        {"grid": {"schedule": ["2f2b"]}},
        "grid.schedule: '2f2b' is not a schedule; known",
    ),
    "no schedule given": ({"grid": None}, "schedule: missing; simulate needs it"),
    "no values": ({"grid": {"schedule": []}}, "grid.schedule: has no values"),
    "no size": (
        {"base": {**BASE, "memory_limit": "4XB"}},
        "base.memory_limit: '4XB' is not a size",
    ),
    "share of nothing": (
        {"base": {**BASE, "memory_limit": "0.5x 2f2b"}},
        "base.memory_limit: '2f2b' is not a schedule",
    ),
    "no count": (
        {"base": {**BASE, "microbatches": 0}},
        "base.microbatches: must be a whole number",
    ),
    "no choice": (
        {"base": {**BASE, "objective": "time"}},
        "base.objective: expected one of flush, s",
    ),
    "no file": ({"base": {**BASE, "profile": "no.yaml"}}, "no.yaml: no such file"),
    "no profile key": (
        {"base": {**BASE, "profile.offload.speed": 3}},
        "profile: offload.speed: unknown key",
    ),
    "no model": (
        {"base": {**BASE, "profile": {"estimate": {"model": "gpt-9z", "machine": "h100"}}}},
        "base.profile: estimate:",
    ),
    "unequal pairs": (
        {"grid": {"schedule, microbatches": [["1f1b", 4], ["zb-h1"]]}},
        "grid.schedule, microbatches[1]: expected a list of 2 values, got ['zb-h1']",
    ),
    "in the second grid": (
        {"grid": [{"schedule": "1f1b"}, {"schedule": "1f1b", "memory_limit": -3.5}]},
        "grid[1].memory_limit: -3.5 is not a size",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line_before_anything_runs(case, write, command_line) -> None:
    changes, complaint = WRONG[case]
    path = write(**changes)
    refused = command_line(f"sweep {path.name}")
    assert refused.code == 2
    assert f"{path.name}: " in refused.complaint
    assert complaint in refused.complaint
    assert not Path("results").exists()


def test_the_last_of_many_experiments_is_checked_before_the_first_runs(write, command_line) -> None:
    good, bad = write("good"), write("bad", grid={"schedule": ["2f2b"]})
    assert "2f2b" in command_line(f"sweep {good.name} {bad.name}").complaint
    assert not Path("results").exists()


def test_grids_are_united_and_pairs_go_together(write) -> None:
    path = write(
        grid=[
            {"schedule": ["1f1b", "zb-h1"], "profile.t_comm_ms": [0, 0.5]},
            {"schedule, microbatches": [["zb-v", 6], ["1f1b", 8]]},
            {"schedule": "1f1b", "profile.t_comm_ms": 0.5},  # said before
        ]
    )
    labels = [point.labels for point in plan(load_experiment(path))]
    found = [(at["schedule"], at["microbatches"], at.get("profile.t_comm_ms")) for at in labels]
    assert found == [
        *[(name, 4, hop) for name in ("1f1b", "zb-h1") for hop in (0, 0.5)],
        ("zb-v", 6, None),
        ("1f1b", 8, None),
    ]


def test_fast_takes_the_place_of_what_is_said_elsewhere(write) -> None:
    path = write(grid={"schedule": ["1f1b", "zb-h1"]}, fast={"schedule": "zb-v", "microbatches": 6})
    (point,) = plan(load_experiment(path, fast=True))
    assert (point.labels["schedule"], point.labels["microbatches"]) == ("zb-v", 6)
    assert len(plan(load_experiment(path))) == 2


def test_relative_limits_are_shares_of_what_a_schedule_holds_beyond_what_is_static(write) -> None:
    path = write(
        grid={"schedule": "1f1b", "memory_limit": ["0.5x 1f1b", "1x zb-h1", "12MiB", None]}
    )
    profile = load_profile(PROFILE)
    held = [
        max(simulate(build(name, profile, 4), profile).peak_bytes) - 10 * 2**20
        for name in ("1f1b", "zb-h1")
    ]
    wanted = [10 * 2**20 + held[0] // 2, 10 * 2**20 + held[1], 12 * 2**20, None]
    points = plan(load_experiment(path))
    assert [point.parameters["memory_limit"] for point in points] == wanted
    assert [point.labels["memory_limit_bytes"] for point in points] == wanted
    assert points[0].labels["memory_limit"] == "0.5x 1f1b"


def test_profiles_from_files_mappings_and_estimates_with_changes(write, tmp_path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(PROFILE))
    estimate = {"model": "qwen3-8b", "machine": "h100", "devices": 4}
    path = write(
        grid=[
            {"schedule": "1f1b", "profile": ["tiny.yaml", PROFILE, {"estimate": estimate}]},
            {
                "schedule": "1f1b",
                "profile": {"file": "tiny.yaml", "stages": {"act_mib": 3}, "offload": None},
            },
            {"schedule": "1f1b", "profile.offload.d2h_gb_per_s": 2},
        ]
    )
    file, estimated, changed, faster = plan(load_experiment(path))  # file and mapping are equal
    profiles = [
        load_profile(one.parameters["profile"]) for one in (file, estimated, changed, faster)
    ]
    assert profiles[0] == load_profile(PROFILE)
    assert profiles[1].devices == 4
    assert (profiles[2].stages[0].act_bytes, profiles[2].offload) == (3 * 2**20, None)
    assert profiles[3].stages[0].t_offload_ns == 2**20  # 2 MiB at 2 GB/s
    assert profiles[3].stages[0].t_reload_ns == 10**6


def test_keys_follow_contents(write, tmp_path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(PROFILE))
    path = write(base={"profile": "tiny.yaml", "microbatches": 4})
    before = {point.key for point in plan(load_experiment(path))}
    same = write("again", base=BASE)
    assert {point.key for point in plan(load_experiment(same))} == before
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**PROFILE, "t_comm_ms": 1}))
    assert {point.key for point in plan(load_experiment(path))}.isdisjoint(before)


def test_every_task_says_what_it_takes() -> None:
    assert {"simulate", "solve", "compare"} <= set(task_names())
    for task in map(load_task, task_names()):
        assert task.run.__doc__
        assert set(task.needed) <= set(task.kinds)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.parent.name)
def test_committed_experiments_are_sound(path) -> None:
    experiment = load_experiment(path)
    points = plan(experiment)
    assert len({point.key for point in points}) == len(points) > 0
    quick = plan(load_experiment(path, fast=True))
    assert 0 < len(quick) <= len(points)
    assert {point.key for point in quick} != {point.key for point in points}


# -- sweeps ---------------------------------------------------------------------------------------


def test_what_is_known_is_not_computed_again(write, command_line) -> None:
    path = write()
    first = command_line(f"sweep {path.name} --json")
    assert (first.code, first.json["ran"], first.json["reused"], first.json["failed"]) == (
        0,
        2,
        0,
        0,
    )
    assert first.json["files"] == [f"results/trial{ending}" for ending in ENDINGS]
    assert first.err == ""
    table = Path("results/trial.csv").read_bytes()
    rows = load_table("results", "trial")
    profile = load_profile(PROFILE)
    wanted = [simulate(build(name, profile, 4), profile) for name in ("1f1b", "zb-h1")]
    assert [row["makespan_ns"] for row in rows] == [trace.makespan_ns for trace in wanted]
    assert [row["peak_bytes"] for row in rows] == [max(trace.peak_bytes) for trace in wanted]
    again = command_line(f"sweep {path.name} --resume --json").json
    assert (again["ran"], again["reused"]) == (0, 2)
    assert Path("results/trial.csv").read_bytes() == table
    wider = write("wider", grid={"schedule": ["zb-v", "zb-h1", "1f1b"]})
    answer = command_line(f"sweep {wider.name}")
    assert "3 points: 1 ran, 2 reused, 0 failed" in answer.out
    assert command_line(f"sweep {path.name} --fresh --json").json["ran"] == 2
    kept = next(points_folder("results").glob("*/*.json"))
    kept.write_text("half a po")
    assert "1 kept file was not whole and ran again" in command_line(f"sweep {wider.name}").out


def test_what_does_not_fit_is_a_row(write, tmp_path) -> None:
    grid = {
        "schedule": ["1f1b", "1f1b-i"],
        "microbatches": [4, 3],
        "memory_limit": ["13MiB", "11MiB"],
    }
    sweep(load_experiment(write(grid=grid)), tmp_path / "out")
    rows = {
        (row["schedule"], row["microbatches"], row["memory_limit"]): row
        for row in load_table(tmp_path / "out", "trial")
    }
    assert all("error" not in row for row in rows.values())
    assert [row["fits"] for row in rows.values()].count(True) == 0
    assert rows["1f1b", 4, "13MiB"]["makespan_ns"] > 0  # without the limit
    assert "multiple of the devices" in rows["1f1b-i", 3, "13MiB"]["reason"]
    assert rows["1f1b-i", 3, "13MiB"]["makespan_ns"] is None


def test_solver_points(write, tmp_path) -> None:
    path = write(
        run="solve",
        cores=2,
        base={**BASE, "memory_limit": "13MiB", "time_limit": 2, "chunks": "own"},
        grid={
            "engine": ["search", "cpsat"],
            "solver": ["highs"],
            "memory_limit": ["13MiB", "11MiB"],
        },
    )
    done = sweep(load_experiment(path), tmp_path / "out")
    rows = load_table(tmp_path / "out", "trial")
    assert (done.ran, done.failed) == (4, 0)
    assert [row["fits"] for row in rows] == [True, False, True, False]
    for row in rows[::2]:
        assert row["lower_bound_ns"] <= row["objective_ns"] == row["makespan_ns"]
        assert row["incumbents"][-1][1] == row["objective_ns"]
        assert row["peak_bytes"] <= 13 * 2**20
        assert row["cores"] == 2
    manifest = load_manifest(tmp_path / "out", "trial")
    assert manifest["jobs"] == max(1, len(os.sched_getaffinity(0)) // 2)
    assert manifest["engine"] == ["search", "cpsat"]


def test_compare_gives_a_row_per_schedule(write, tmp_path) -> None:
    path = write(
        run="compare",
        base={**BASE, "schedules": ["1f1b", "zb-h1", "1f1b-i"]},
        grid={"microbatches": 3},
    )
    sweep(load_experiment(path), tmp_path / "out")
    rows = load_table(tmp_path / "out", "trial")
    assert {row["schedule"]: row["fits"] for row in rows} == {
        "zb-h1": True,
        "1f1b": True,
        "1f1b-i": False,
    }
    assert rows[0]["speedup"] > 1


def test_the_manifest_says_what_a_table_was_made_of_and_not_where(write, tmp_path) -> None:
    path = write(base={**BASE, "memory_limit": "20MiB"})
    sweep(load_experiment(path), tmp_path / "out", jobs=1)
    manifest = load_manifest(tmp_path / "out", "trial")
    assert manifest["task"] == {"name": "simulate", "version": 1}
    assert manifest["config"]["base"]["memory_limit"] == "20MiB"
    assert manifest["config"]["grid"] == [{"schedule": ["1f1b", "zb-h1"]}]
    assert manifest["versions"]["python"]
    assert manifest["versions"]["ortools"]
    assert (manifest["points"], manifest["ran"], manifest["jobs"]) == (2, 2, 1)
    assert len(manifest["point_seconds"]) == 2
    assert manifest["commits"] == [of for of in [commit()] if of]
    text = (tmp_path / "out" / "trial.manifest.json").read_text()
    assert str(tmp_path) not in text
    assert os.uname().nodename not in text.replace("optpipe_sim", "")


def test_only_the_shortest_within_the_minutes(write, command_line) -> None:
    names = [write(f"e{minutes}", minutes=minutes).name for minutes in (5, 2, 4)]
    answer = command_line(f"sweep {' '.join(names)} --under 7 --json").json
    assert [one["name"] for one in answer["experiments"]] == ["e2", "e4"]
    assert answer["left_out"] == ["e5"]


def test_fast_results_lie_apart(write, command_line) -> None:
    path = write(fast={"schedule": "1f1b"})
    answer = command_line(f"sweep {path.name} --fast --json").json
    assert answer["files"][0] == "out/fast/trial.parquet"
    assert not Path("results").exists()
    lacking = write("lacking")
    assert "lacking.yaml: fast: missing" in command_line(f"sweep {lacking.name} --fast").complaint


# -- seeds ----------------------------------------------------------------------------------------

SOLVED = {
    "run": "solve",
    "base": {**BASE, "engine": "search", "time_limit": 0.2},
    "grid": {"memory_limit": ["30MiB", "40MiB"]},
}


def test_seeds_vary_fastest_and_searches_say_how_they_were_run(write, tmp_path) -> None:
    experiment = load_experiment(write(seeds=2, **SOLVED))
    limits = [30 * 2**20, 30 * 2**20, 40 * 2**20, 40 * 2**20]
    assert [point.parameters["memory_limit"] for point in plan(experiment)] == limits
    sweep(experiment, tmp_path / "results")
    rows = load_table(tmp_path / "results", "trial")
    assert [row["seed"] for row in rows] == [0, 1, 0, 1]
    for row in rows:
        assert (row["cores"], row["time_limit"]) == (1, 0.2)
        assert row["point_s"] > 0
        assert row["cpu_s"] > 0
        assert row["load"] >= 0
        assert row["commit"] is None or len(row["commit"].rstrip("+")) == 10


def test_fast_takes_one_seed_and_what_does_not_search_says_nothing_of_the_machine(
    write, tmp_path
) -> None:
    fast = load_experiment(write(seeds=5, fast={"time_limit": 0.1}, **SOLVED), fast=True)
    assert {point.parameters["seed"] for point in plan(fast)} == {0}
    sweep(load_experiment(write("plain")), tmp_path / "results")
    assert not {"load", "commit", "point_s", "cpu_s"} & set(
        load_table(tmp_path / "results", "plain")[0]
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({**SOLVED, "seeds": 0}, "seeds: must be a whole number from 1 to 100000, got 0"),
        ({"seeds": 3}, "seeds: simulate takes no seed; leave it out"),
        ({**SOLVED, "seeds": 3, "grid": {"seed": [1, 2]}}, "grid.seed: is given by seeds already"),
    ],
)
def test_seeds_that_make_no_sense_are_one_line(changes, complaint, write) -> None:
    with pytest.raises(OptPipeError, match=complaint):
        load_experiment(write(**changes))


def test_a_difference_within_the_spread_is_no_finding() -> None:
    one = spread([10, 12, 11])
    assert one == (11, 10, 12, 3)
    assert one.share == pytest.approx(2 / 11)
    assert not one.differs(spread([12, 13]))
    assert one.differs(spread([12.5, 13]))
    assert spread([12.5, 13]).differs(one)
    with pytest.raises(ValueError, match="no values"):
        spread([])
    rows = [{"at": 1, "ns": 5}, {"at": 2, "ns": None}, {"at": 1, "ns": 7}]
    assert over_seeds(rows, ["at"], ["ns"]) == [{"at": 1, "ns": 6}, {"at": 2, "ns": None}]
    rows = [{"at": 1, "fits": True, "seed": 0}, {"at": 1, "fits": False, "seed": 1}]
    assert over_seeds(rows, ["at"], []) == [{"at": 1, "fits": False, "seed": 0}]
