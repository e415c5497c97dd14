"""The floor under `solve`: no published schedule of the committed table is faster, and it comes out again."""

from __future__ import annotations

from pathlib import Path

from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.points import arguments, plan
from optpipe_sim.study.tables import load_table

ROOT = Path(__file__).parents[2]
ROWS = load_table(ROOT / "results", "floor")


def test_what_solve_starts_from_is_never_slower_than_a_published_schedule() -> None:
    for row in ROWS:
        assert row["start_ns"] is not None  # AdaOffload fits where nothing else does
        assert row["best_ns"] is None or row["start_ns"] <= row["best_ns"]
        assert row["lower_bound_ns"] <= row["start_ns"]
        assert row["covers"].startswith("1 to ")
    assert sum(row["fit"] > 0 for row in ROWS) > 5


def test_a_quick_part_of_the_table_comes_out_again() -> None:
    experiment = load_experiment(ROOT / "experiments" / "floor")
    wanted = {"profile.estimate.machine": "h100-sxm", "memory_limit": "0.5x 1f1b"}
    points = [point for point in plan(experiment) if wanted.items() <= point.labels.items()]
    assert len(points) == 1
    for point in points:
        row = experiment.task.run(**arguments(experiment.task, point.parameters))
        assert isinstance(row, dict)
        (found,) = [
            other
            for other in ROWS
            if all(other[key] == value for key, value in point.labels.items())
        ]
        for key in ("tried", "fit", "best", "best_ns", "covers"):
            assert found[key] == row[key]
        assert row["start_ns"] <= row["best_ns"]  # AdaOffload may have become better
