"""The figure of an experiment without one of its own: a measure over the axes of its grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe_sim.errors import OptPipeError
from optpipe_sim.study.default_figure import draw_default
from optpipe_sim.study.tables import load_manifest, load_table

RESULTS = Path(__file__).parents[2] / "results"
PROFILE = {
    "name": "tiny",
    "devices": 4,
    "stages": {"t_f_ms": 3, "t_b_ms": 4, "t_w_ms": 2, "act_mib": 2, "w_mib": 1},
    "memory_limit_gib": 1,
}


def table(grid: dict[str, list[Any]], rows: list[dict[str, Any]]) -> Any:
    return draw_default("mine", rows, {"config": {"grid": [grid]}})


def test_numbers_on_x_names_as_lines_the_rest_as_panels() -> None:
    rows = [
        {"schedule": name, "m": m, "links": links, "chunks": 1, "cost_ns": 10**9 * m + bonus}
        for name, bonus in (("1f1b", 0), ("zb-h1", -(10**8)), ("zb-h2", -2 * 10**8))
        for m in (4, 8, 16)
        for links in ("serial", "latency")
    ]
    figure = table({"schedule": [], "m": [], "links": []}, rows)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["links serial", "links latency"]
    first = figure.axes[0]
    assert (first.get_xlabel(), first.get_ylabel()) == ("m", "cost (s)")
    assert [list(line.get_xdata()) for line in first.get_lines()] == [[4, 8, 16]] * 3
    assert list(first.get_lines()[1].get_ydata()) == [3.9, 7.9, 15.9]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["1F1B", "ZB-H1", "ZB-H2"]


def test_sizes_are_numbers_and_what_does_not_fit_is_left_out() -> None:
    rows = [
        {
            "memory_limit": f"{gib}GiB",
            "memory_limit_bytes": gib * 2**30,
            "fits": gib > 20,
            "cost_ns": 10**9 + gib,
        }
        for gib in (20, 30, 40)
    ]
    figure = table({"memory_limit": []}, rows)
    ax = figure.axes[0]
    assert list(ax.get_lines()[0].get_xdata()) == [30 * 2**30, 40 * 2**30]
    assert ax.get_xlabel() == "memory_limit (GiB)"
    assert "what does not fit is left out" in [text.get_text() for text in figure.texts]


def test_seeds_become_a_median_with_whiskers_and_failures_are_left_out() -> None:
    rows: list[dict[str, Any]] = [
        {"m": m, "seed": seed, "gap": m * (1 + seed / 10), "error": None}
        for m in (1, 2)
        for seed in range(5)
    ]
    rows.append({"m": 2, "seed": 9, "gap": None, "error": "failed"})
    figure = table({"m": [], "seed": []}, rows)
    ax = figure.axes[0]
    assert list(ax.get_lines()[0].get_ydata()) == pytest.approx([1.2, 2.4])
    ends = [[point[1] for point in path.vertices] for path in ax.collections[0].get_paths()]
    assert ends[0] == pytest.approx([1.0, 1.4])


def test_names_alone_are_points_and_no_numbers_are_refused() -> None:
    rows = [{"solver": name, "seconds": at + 0.5} for at, name in enumerate(("highs", "gurobi"))]
    ax = table({"solver": []}, rows).axes[0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["highs", "gurobi"]
    assert ax.get_lines()[0].get_linestyle() == "None"
    with pytest.raises(OptPipeError, match="mine: nothing to draw: no column of numbers"):
        table({"solver": []}, [{"solver": "a", "note": "x"}, {"solver": "b", "note": "y"}])


def test_every_committed_table_has_a_default_figure() -> None:
    manifests = sorted(RESULTS.glob("*.manifest.json"))
    assert len(manifests) > 10
    for path in manifests:
        name = path.name.removesuffix(".manifest.json")
        figure = draw_default(name, load_table(RESULTS, name), load_manifest(RESULTS, name))
        assert any(ax.get_lines() for ax in figure.axes), name


def test_figures_draws_a_users_own_experiment(command_line, tmp_path) -> None:
    data = {
        "name": "own",
        "question": "?",
        "run": "simulate",
        "minutes": 1,
        "base": {"profile": PROFILE},
        "grid": {"schedule": ["1f1b", "zb-h1"], "microbatches": [4, 8]},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(data))
    assert command_line("sweep own.yaml").code == 0
    files = command_line("figures --format png --json").json["files"]
    assert files == ["results/own.png"]
    assert Path("results/own.png").read_bytes().startswith(b"\x89PNG")
    assert command_line("figures own.yaml --format png --json").json["files"] == files
    Path("mine").mkdir()
    Path("mine/experiment.yaml").write_text(yaml.safe_dump({**data, "name": "mine"}))
    assert command_line("sweep mine").code == 0
    for spelling in ("mine", "mine/", "mine/experiment.yaml"):
        files = command_line(f"figures {spelling} --format png --json").json["files"]
        assert files == ["results/mine.png"]
    assert (
        "none/experiment.yaml: no such figure"
        in command_line("figures none/experiment.yaml").complaint
    )
