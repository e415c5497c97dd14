"""Experiments as folders: a task and a figure of their own, profiles beside them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from experiment_cases import PROFILE

from optpipe_sim.study.compute import compute
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.points import plan
from optpipe_sim.study.tables import (
    load_table,
)

TASK = """
from optpipe_sim.study.tasks import Count, Row

VERSION = 1


def run(side: Count) -> Row:
    return {"area": side * side}
"""
FIGURE = """
from optpipe_sim.plot.style import new_figure


def draw(rows):
    figure = new_figure(2, 2)
    figure.add_subplot().plot([row["area"] for row in rows])
    return figure
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment with a task and a figure of its own, and profiles beside it."""
    made = tmp_path / "mine" / "squares"
    made.mkdir(parents=True)
    (made / "experiment.yaml").write_text(
        "{name: squares, question: how?, run: task.py, minutes: 1, grid: {side: [1, 2, 3]}}"
    )
    (made / "task.py").write_text(TASK)
    (made / "figure.py").write_text(FIGURE)
    return made


@pytest.mark.parametrize(
    "spelling", ["mine/squares", "mine/squares/experiment.yaml", "mine/squares.yaml"]
)
def test_a_folder_is_an_experiment_by_any_spelling(spelling, folder, command_line) -> None:
    assert command_line(f"sweep {spelling}").code == 0
    assert [row["area"] for row in load_table("results", "squares")] == [1, 4, 9]
    drawn = command_line("figures mine/squares --format png --json").json["files"]
    assert drawn == ["results/squares.png"]
    assert Path(drawn[0]).stat().st_size > 1000


def test_a_task_of_a_folder_runs_where_its_file_is_not(folder: Path) -> None:
    """As on the workers of a cluster."""
    points = plan(load_experiment(folder))
    shutil.rmtree(folder)
    assert [compute(point)[1].rows for point in points] == [[{"area": n * n}] for n in (1, 2, 3)]


def test_a_raised_version_of_a_folders_task_is_computed_again(folder, command_line) -> None:
    assert command_line("sweep mine/squares --json").json["ran"] == 3
    assert command_line("sweep mine/squares --json").json["reused"] == 3
    (folder / "task.py").write_text(
        TASK.replace("VERSION = 1", "VERSION = 2").replace("side * side", "-side")
    )
    assert command_line("sweep mine/squares --json").json["ran"] == 3
    assert [row["area"] for row in load_table("results", "squares")] == [-1, -2, -3]


def test_profiles_may_lie_beside_the_folders(folder: Path) -> None:
    (folder.parent / "profiles").mkdir()
    (folder.parent / "profiles" / "tiny.yaml").write_text(yaml.safe_dump(PROFILE))
    experiment = {"name": "squares", "question": "how?", "run": "simulate", "minutes": 1}
    base = {"profile": "profiles/tiny.yaml", "microbatches": 4, "schedule": "1f1b"}
    (folder / "experiment.yaml").write_text(yaml.safe_dump({**experiment, "base": base}))
    (point,) = plan(load_experiment(folder))
    assert point.parameters["profile"]["devices"] == 2


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("task.py", "run = 1 // 0", "run: .*task.py: cannot be run: ZeroDivisionError"),
        ("task.py", "VERSION = 1", "run: 'squares' is no task; it lacks a function run"),
        ("experiment.yaml", "{name: other}", "question: missing"),
        (
            "experiment.yaml",
            "{name: other, question: how?, run: task.py, minutes: 1}",
            "name: 'other' is not the folder's; write 'squares'",
        ),
    ],
)
def test_a_folder_that_is_wrong_is_one_line(file, text, complaint, folder, command_line) -> None:
    (folder / file).write_text(text)
    assert re.search(complaint, command_line("sweep mine/squares").complaint)


def test_a_folder_without_an_experiment_is_refused(tmp_path, command_line) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty/experiment.yaml" in command_line("sweep empty").complaint
