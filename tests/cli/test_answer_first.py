"""The first line of an answer says whether it fits, by how much it does not, and the status agrees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from optpipe_sim.cli import main
from optpipe_sim.profile_io import load_profile, save_profile

PROFILE = {
    "name": "by-hand",
    "devices": 2,
    "stages": {"t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 10, "act_gib": 4, "recompute": [{"name": "full", "t_ms": 10, "keep_gib": 1, "work_gib": 0}]},
}  # fmt: skip
RUN = "evaluate --model llama2-7b --machine h100 --gpus 8 --seq 4096 -m 8 --pp 4"


@pytest.fixture
def path(tmp_path: Path) -> str:
    save_profile(load_profile(PROFILE), str(tmp_path / "p.yaml"))
    return str(tmp_path / "p.yaml")


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    status = main(list(words))
    return status, capsys.readouterr().out.splitlines()


def test_simulate(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", path, "--schedule", "1f1b", "-m", "4", "--memory-limit"]
    # 1F1B holds 2 x 4 GiB on the first device
    assert lines(capsys, *words, "8GiB")[1][0] == "1f1b fits: 150 ms per iteration, 8 GiB of 8 GiB"
    status, said = lines(capsys, *words, "6GiB")
    assert status == 1
    assert said[0] == "1f1b does not fit: 8 GiB on device 0, 2 GiB above the limit of 6 GiB"
    assert "a limit of 8GiB; 1f1b:recompute=full: " in said[1]


def test_compare_where_nothing_fits(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", path, "-m", "4", "--schedules", "1f1b,gpipe", "--treatments", "keep"]
    assert lines(capsys, *words, "--memory-limit", "8GiB")[1][0].startswith("Fastest that fits")
    status, said = lines(capsys, *words, "--memory-limit", "6GiB")
    assert status == 1
    assert said[0].startswith("Nothing fits. 1f1b does not fit: 8 GiB on device 0, 2 GiB above")


def test_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = lines(capsys, *RUN.split())
    assert status == 0
    assert said[0].startswith("1f1b fits: ")
    status, said = lines(capsys, *RUN.split(), "--memory-limit", "30GiB")
    assert status == 1
    assert re.match(r"1f1b does not fit: .* GiB on device 0, .* above the limit of 30 GiB", said[0])
    assert "--recompute " in said[1]
