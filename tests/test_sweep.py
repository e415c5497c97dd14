"""Experiments: refused key by key, run once and for all, kept point by point, drawn from results."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.figures import figure_names, save_figures
from optpipe_sim.study.points import plan
from optpipe_sim.study.run import points_folder, sweep
from optpipe_sim.study.store import Record, Store
from optpipe_sim.study.tables import (
    ENDINGS,
    load_csv,
    load_manifest,
    load_table,
    save_table,
    table_names,
)
from optpipe_sim.study.tasks import load_task, task_names

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
RESULTS = ROOT / "results"
PROFILE = {
    "name": "tiny",
    "devices": 2,
    "stages": {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 2, "w_mib": 1, "static_mib": 10},
    "offload": {"t_offload_ms": 1, "t_reload_ms": 1},
}
BASE = {"profile": PROFILE, "microbatches": 4}
# a task of one's own: logs each call, and fails, dies or sleeps where it is told to
ODD = """
import os, time

VERSION = 1

def run(x: int, log: str, wait: float = 0.0, dies: int = -1) -> dict:
    with open(log, "a") as file:
        file.write(f"{x}\\n")
    time.sleep(wait)
    if x == dies:
        os.kill(os.getpid(), 9)
    if x == 5:
        raise ValueError("five\\nis bad")
    return {"square": x * x}
"""


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
    "no minutes": ({"minutes": "ten"}, "minutes: must be a number, got 'ten'"),
    "no cores": ({"cores": 0}, "cores: must be a whole number of at least 1, got 0"),
    "no schedule": (
        {"grid": {"schedule": ["2f2b"]}},
        "grid.schedule: '2f2b' is no schedule; known",
    ),
    "no schedule given": ({"grid": None}, "schedule: missing; simulate needs it"),
    "no values": ({"grid": {"schedule": []}}, "grid.schedule: has no values"),
    "no size": (
        {"base": {**BASE, "memory_limit": "4XB"}},
        "base.memory_limit: '4XB' is not a size",
    ),
    "share of nothing": (
        {"base": {**BASE, "memory_limit": "0.5x 2f2b"}},
        "base.memory_limit: '2f2b' is no schedule",
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


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_committed_experiments_are_sound(path) -> None:
    experiment = load_experiment(path)
    points = plan(experiment)
    assert len({point.key for point in points}) == len(points) > 1
    quick = plan(load_experiment(path, fast=True))
    assert 0 < len(quick) <= len(points)
    assert {point.key for point in quick} != {point.key for point in points}


# -- tables ---------------------------------------------------------------------------------------


def test_both_files_hold_the_same_table_exactly(tmp_path) -> None:
    rows = [
        {"name": 'a, "b"\nc', "x": 0.1 + 0.2, "n": 2**53 + 1, "fits": True, "at": [1, [2.5, None]]},
        {"name": None, "x": 3, "n": None, "fits": False, "late": float("inf"), "at": {"k": "v"}},
    ]
    paths = save_table(tmp_path, "t", rows, {"seed": 0, "seconds": [1.5, 2], "none": []})
    assert [path.name for path in paths] == ["t.parquet", "t.csv", "t.manifest.json"]
    loaded = load_table(tmp_path, "t")
    columns = ["name", "x", "n", "fits", "at", "late"]
    assert loaded == [{key: row.get(key) for key in columns} for row in rows]
    texts = load_csv(paths[1])
    assert [list(row) for row in texts] == [columns, columns]
    kinds = {"x": float, "n": int, "late": float, "fits": "true".__eq__, "at": json.loads}
    read = [
        {key: kinds.get(key, str)(text) if text else None for key, text in row.items()}
        for row in texts
    ]
    assert read == loaded
    assert load_manifest(tmp_path, "t") == {"seed": 0, "seconds": [1.5, 2], "none": []}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)


def test_truncated_files_are_one_line(tmp_path) -> None:
    rows = [{"name": f"row {at}", "value": at} for at in range(100)]
    for path in save_table(tmp_path, "t", rows, {"seed": 0}):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3 + 2])
    readers = (load_table, lambda *at: load_csv(tmp_path / "t.csv"), load_manifest)
    for reader, ending in zip(readers, ENDINGS, strict=True):
        with pytest.raises(OptPipeError) as caught:
            reader(tmp_path, "t")
        assert f"t{ending}: " in str(caught.value)
        assert "truncated?" in str(caught.value)


def test_results_that_cannot_be_written_leave_those_of_before(tmp_path, monkeypatch) -> None:
    save_table(tmp_path, "t", [{"a": 1}], {"seed": 0})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write, written = os.fdopen, []

    def full(handle, mode):
        written.append(handle)
        if len(written) == 3:
            os.close(handle)
            raise OSError(28, "No space left on device")
        return write(handle, mode)

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(
        OptPipeError, match="the results cannot be written: No space left on device"
    ):
        save_table(tmp_path, "t", [{"a": 2}], {"seed": 1})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_kept_point_that_is_not_whole_counts_as_none(tmp_path) -> None:
    store = Store(tmp_path)
    record = Record([{"a": 0.1}], None, 1.5, "2026-01-01")
    store.put("abc", record)
    store.put("abd", record)
    path = tmp_path / "ab" / "abc.json"
    whole = path.read_bytes()
    assert store.find(["abc", "abd", "none"]) == ({"abc": record, "abd": record}, 0)
    for damaged in (whole[:20], b"", b"\xff\xfe", b"[]", b"{}", whole.replace(b"abc", b"abd")):
        path.write_bytes(damaged)
        assert store.find(["abc", "abd"]) == ({"abd": record}, 1)


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path) -> None:
    store = Store(tmp_path)
    store.put("abc", Record([], None, 0.0, "2026-01-01"))
    old, new = tmp_path / "ab" / ".abc.json.x1", tmp_path / "ab" / ".abc.json.x2"
    for path in (old, new):
        path.write_text("half a po")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    store.tidy()
    assert sorted(path.name for path in (tmp_path / "ab").iterdir()) == [new.name, "abc.json"]


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
    told = command_line(f"sweep {wider.name}")
    assert "3 points: 1 ran, 2 reused, 0 failed" in told.out
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
        base={**BASE, "memory_limit": "13MiB", "time_limit": 2},
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
    text = (tmp_path / "out" / "trial.manifest.json").read_text()
    assert str(tmp_path) not in text
    assert os.uname().nodename not in text.replace("optpipe_sim", "")


def test_only_the_shortest_within_the_minutes(write, command_line) -> None:
    names = [write(f"e{minutes}", minutes=minutes).name for minutes in (5, 2, 4)]
    told = command_line(f"sweep {' '.join(names)} --under 7 --json").json
    assert [one["name"] for one in told["experiments"]] == ["e2", "e4"]
    assert told["left_out"] == ["e5"]


def test_fast_results_lie_apart(write, command_line) -> None:
    path = write(fast={"schedule": "1f1b"})
    told = command_line(f"sweep {path.name} --fast --json").json
    assert told["files"][0] == "out/fast/trial.parquet"
    assert not Path("results").exists()
    lacking = write("lacking")
    assert "lacking.yaml: fast: missing" in command_line(f"sweep {lacking.name} --fast").complaint


# -- what goes wrong on the way -------------------------------------------------------------------


class Running:
    """`sweep` in a process of its own, with a task of one's own."""

    def __init__(self, folder: Path, *options: str, limit_bytes: int = 0, **values: object) -> None:
        (folder / "mine").mkdir(exist_ok=True)
        (folder / "mine" / "__init__.py").touch()
        (folder / "mine" / "odd.py").write_text(ODD)
        self.log = folder / "log.txt"
        data = {"name": "odd", "question": "?", "run": "mine.odd", "minutes": 1}
        grid = {"x": list(range(12)), "log": str(self.log), **values}
        (folder / "odd.yaml").write_text(yaml.safe_dump({**data, "grid": grid}))

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if limit_bytes:  # no file may grow beyond: what a full disk is like
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "optpipe_sim", "sweep", "odd.yaml", "--jobs", "2", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=prepare,
        )
        self.store = folder / "results" / ".points"

    def finished(self) -> int:
        return len(list(self.store.glob("*/*.json")))

    def until(self, points: int) -> None:
        ends = time.monotonic() + 30
        while self.finished() < points:
            assert time.monotonic() < ends
            assert self.process.poll() is None
            time.sleep(0.01)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err
        return self.process.returncode, out, err

    def calls(self) -> list[int]:
        return sorted(map(int, self.log.read_text().split()))


def test_kill_9_loses_no_finished_point(tmp_path) -> None:
    running = Running(tmp_path, wait=0.2)
    running.until(3)
    running.process.kill()
    running.process.communicate(timeout=60)  # its workers end with it, and close its pipes
    kept = running.finished()
    assert 3 <= kept < 12
    assert not (tmp_path / "results" / "odd.parquet").exists()
    before = running.calls()
    code, out, _ = Running(tmp_path, wait=0.2).end()
    assert f"12 points: {12 - kept} ran, {kept} reused, 1 failed" in out
    assert code == 1
    assert len(running.calls()) == len(before) + 12 - kept
    assert [row["square"] for row in load_table(tmp_path / "results", "odd")] == [
        None if x == 5 else x * x for x in range(12)
    ]


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path) -> None:
    running = Running(tmp_path, wait=0.2)
    running.until(3)
    os.killpg(running.process.pid, signal.SIGINT)
    code, out, err = running.end()
    assert (code, out) == (130, "")
    assert "of 12 points of odd are finished and kept; the same command goes on from there" in err
    assert err.count("\n") == 1
    assert running.finished() >= 3


def test_a_point_that_fails_or_kills_its_process_does_not_stop_the_others(tmp_path) -> None:
    code, out, _ = Running(tmp_path, dies=3).end()
    assert code == 1
    assert "12 points: 12 ran, 0 reused, 2 failed" in out
    rows = load_table(tmp_path / "results", "odd")
    assert [row["x"] for row in rows] == list(range(12))
    assert [row["square"] for row in rows if row["error"] is None] == [
        x * x for x in range(12) if x not in (3, 5)
    ]
    assert "its process died" in rows[3]["error"]
    assert rows[5]["error"] == "ValueError: five is bad"
    again = Running(tmp_path, "--json", dies=3)
    found = json.loads(again.end()[1])
    assert (found["ran"], found["reused"], found["failed"]) == (0, 12, 2)
    calls = again.calls()
    found = json.loads(Running(tmp_path, "--json", "--retry-failed", dies=3).end()[1])
    assert (found["ran"], found["reused"], found["failed"]) == (2, 10, 2)
    assert set(again.calls()[len(calls) :]) <= set(range(12))
    assert found["experiments"][0]["errors"][1]["error"] == "ValueError: five is bad"


def test_a_full_disk_is_one_line(tmp_path) -> None:
    code, out, err = Running(tmp_path, limit_bytes=64).end()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "cannot be written: File too large" in err
    assert "results/.points/" in err
    code, out, _ = Running(tmp_path).end()
    assert "12 ran, 0 reused" in out


# -- figures, and what is committed ---------------------------------------------------------------


def test_a_committed_experiment_gives_the_committed_table(tmp_path) -> None:
    experiment = load_experiment(ROOT / "experiments" / "schedules_sweep.yaml")
    sweep(experiment, tmp_path)
    ours, theirs = ((at / "schedules_sweep.csv").read_text() for at in (tmp_path, RESULTS))
    assert ours == theirs
    assert load_table(tmp_path, "schedules_sweep") == load_table(RESULTS, "schedules_sweep")
    assert ours.count("\n") == len(plan(experiment)) + 1


@pytest.mark.parametrize("name", table_names(RESULTS))
def test_committed_tables_are_whole_and_of_the_committed_experiment(name) -> None:
    rows = load_table(RESULTS, name)
    with (RESULTS / f"{name}.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows) > 0
    experiment = load_experiment(ROOT / "experiments" / f"{name}.yaml")
    manifest = load_manifest(RESULTS, name)
    assert manifest["points"] == len(plan(experiment))
    assert manifest["failed"] == 0


def test_every_figure_is_drawn_from_the_results_alone(tmp_path, command_line) -> None:
    told = command_line(f"figures --from {RESULTS} --to new --json").json["files"]
    names = [name for name in table_names(RESULTS) if name in figure_names()]
    assert names
    assert {Path(path).name.split(".")[0].split("-")[0] for path in told} == set(names)
    assert {Path(path).suffix for path in told} == {".pdf", ".svg", ".png"}
    assert b"/FontFile2" in Path("new/schedules_sweep.pdf").read_bytes()
    again = save_figures(["schedules_sweep"], RESULTS, tmp_path / "again")
    for path in again:  # no dates in them
        assert path.read_bytes() == Path("new", path.name).read_bytes()


def test_figures_that_cannot_be_drawn_are_one_line(command_line) -> None:
    save_table("bad", "schedules_sweep", [{"schedule": "1f1b"}], {})
    cases = {
        "figures": "results: no tables with a figure here",
        "figures schedules_sweep": "results/schedules_sweep.parquet: no such table; make it again",
        "figures no_such": "no_such: no such figure; known are ",
        "figures --from bad": "bad/schedules_sweep.parquet: the figure needs a column 'fits'",
        "figures --format gif": "argument --format: 'gif' is none of pdf, svg, png",
    }
    for line, complaint in cases.items():
        assert complaint in command_line(line).complaint
