"""Tables, finished points and figures as files; and those that are committed."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from pathlib import Path

import pytest

from optpipe_sim.errors import OptPipeError
from optpipe_sim.study.code import module_of
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.figures import draw, figure_names, save_figures
from optpipe_sim.study.points import plan
from optpipe_sim.study.run import sweep
from optpipe_sim.study.store.store import Record, Store
from optpipe_sim.study.tables import (
    load_manifest,
    load_table,
    save_table,
    table_names,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


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
    with paths[1].open(newline="") as file:
        texts = list(csv.DictReader(file))
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
    for reader, ending in ((load_table, ".parquet"), (load_manifest, ".manifest.json")):
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


def test_a_committed_experiment_gives_the_committed_table(tmp_path) -> None:
    experiment = load_experiment(ROOT / "experiments" / "schedules_sweep")
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
    experiment = load_experiment(ROOT / "experiments" / name)
    manifest = load_manifest(RESULTS, name)
    assert manifest["points"] == len(plan(experiment))
    assert manifest["failed"] == 0


def test_every_figure_is_drawn_from_the_results_alone(tmp_path, command_line) -> None:
    found = command_line(f"figures --from {RESULTS} --to new --format png --json").json["files"]
    names = table_names(RESULTS)
    assert set(figure_names()) & set(names)
    assert {Path(path).name.split(".")[0].split("-")[0] for path in found} == set(names)
    line = f"figures schedules_sweep --from {RESULTS} --to new --json"
    assert {Path(path).suffix for path in command_line(line).json["files"]} == {
        ".pdf",
        ".svg",
        ".png",
    }
    assert b"/FontFile2" in Path("new/schedules_sweep.pdf").read_bytes()
    again = save_figures(["schedules_sweep"], RESULTS, tmp_path / "again")
    for path in again:  # no dates in them
        assert path.read_bytes() == Path("new", path.name).read_bytes()


def test_files_of_experiments_import_one_another_wherever_the_command_runs(
    tmp_path, monkeypatch
) -> None:
    """The installed command has neither its folder nor the clone among the places to import from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [at for at in sys.path if Path(at).resolve() != ROOT])
    for name in [name for name in sys.modules if name.split(".")[0] == "experiments"]:
        monkeypatch.delitem(sys.modules, name)
    module_of.cache_clear()
    assert draw("which_link", RESULTS)


def test_figures_that_cannot_be_drawn_are_one_line(command_line) -> None:
    save_table("bad", "schedules_sweep", [{"schedule": "1f1b"}], {})
    cases = {
        "figures": "results: no tables here",
        "figures schedules_sweep": "results/schedules_sweep.parquet: no such table; make it again",
        "figures no_such": "no_such: no such figure, and no such table in results; known are ",
        "figures --from bad": "bad/schedules_sweep.parquet: the figure needs a column 'fits'",
        "figures --format gif": "argument --format: 'gif' is none of pdf, svg, png",
    }
    for line, complaint in cases.items():
        assert complaint in command_line(line).complaint
