"""The atlas's maker and its table: what is there is left alone, Ctrl-C ends it, only what is better is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.atlas import figure, make, task
from experiments.atlas.grid import settings
from optpipe_sim import load_profile
from optpipe_sim.atlas.instances import read_library, write_instance

NAME = "small-p2-m3"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(folder: Path, *words: str) -> int:
    return make.main(["--library", str(folder), "--seconds", "4", *words, NAME])


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    before = files(tmp_path)
    known = read_library(tmp_path)
    assert [one.name for one in known] == [f"{NAME}@4GiB", f"{NAME}@2GiB"]
    assert all(one.best is not None and one.bound is not None for one in known)
    assert run(tmp_path) == 0
    assert files(tmp_path) == before


def test_again_keeps_only_what_is_better(tmp_path: Path) -> None:
    run(tmp_path)
    one, other = read_library(tmp_path)
    assert one.gap == other.gap == 0
    poor = replace(one, bound=replace(one.bound, ns=one.bound.ns - 2000))
    write_instance(poor)
    run(tmp_path, "--again", "--wider", "0.5")  # not as wide
    assert read_library(tmp_path)[0] == poor
    run(tmp_path, "--again", "--seed", "1")
    again, same = read_library(tmp_path)
    assert (again.best, again.bound.ns, again.bound.seed) == (one.best, one.bound.ns, 1)
    assert same == other


def test_ctrl_c_ends_it_between_instances(tmp_path: Path, monkeypatch, capsys) -> None:
    solve, calls = make.solve, []

    def interrupted(*given, **options):
        found = solve(*given, **options)
        calls.append(found)
        return (
            found if len(calls) == 1 else replace(found, info={**found.info, "interrupted": True})
        )

    monkeypatch.setattr(make, "solve", interrupted)
    assert run(tmp_path) == 1
    assert "the same command goes on" in capsys.readouterr().err
    assert [one.name for one in read_library(tmp_path)] == [f"{NAME}@4GiB"]
    monkeypatch.setattr(make, "solve", solve)
    assert run(tmp_path) == 0
    assert len(read_library(tmp_path)) == 2


def test_settings_have_names_of_their_own() -> None:
    names = [one.name for one in settings()]
    assert len(names) == len(set(names)) >= 150
    assert {one.microbatches for one in settings() if "p128" in one.name} == {128, 256}


def test_the_table_says_what_1f1b_needs() -> None:
    stage = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_gib": 2, "static_gib": 1}
    profile = load_profile({"devices": 3, "stages": stage, "name": "x"})
    # the first device holds three activations of 1F1B's, the last one
    assert task.share_of_1f1b(profile, 8, 7 * 2**30) == 1
    assert task.share_of_1f1b(profile, 2, 7 * 2**30) == 1.5
    assert task.share_of_1f1b(profile.rechunk(2), 8, 4 * 2**30) == 0.5


def test_rows_and_their_figure() -> None:
    rows = task.run("zb-")
    assert len(rows) >= 9
    assert {row["kind"] for row in rows} == {"published"}
    assert {row["may"] for row in rows} == {"neither", "offload"}
    for row in rows:
        assert row["gap"] == pytest.approx(row["best_ns"] / row["bound_ns"] - 1)
    drawn = figure.draw(rows)
    assert f"of {len(rows)} instances" in drawn.texts[0].get_text()
