"""The first line of an answer says whether it fits, by how much it does not, and the status agrees."""

from __future__ import annotations

import json
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
    assert "would fit" in said[1]
    assert "a limit of 8GiB; 1f1b:recompute=full: 200 ms" in said[1]
    # of one schedule alone the line is no longer
    one = lines(capsys, *words[:5], "1f1b", "--treatments", "keep", "--memory-limit", "6GiB")[1]
    assert (
        one[0]
        == "Nothing fits. 1f1b does not fit: 8 GiB on device 0, 2 GiB above the limit of 6 GiB"
    )


def test_evaluate_says_where_no_such_device_has_the_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "evaluate",
        "--model",
        "llama3-8b",
        "--machine",
        "a100-40gb",
        "--gpus",
        "4",
        "--pp",
        "4",
    ]
    status, said = lines(capsys, *words, "--seq", "8192", "--global-batch", "8")
    assert status == 1
    assert said[0].startswith("1f1b does not fit: ")
    assert ", more than this device has" in said[1]


def test_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = lines(capsys, *RUN.split())
    assert status == 0
    assert said[0].startswith("1f1b fits: ")
    status, said = lines(capsys, *RUN.split(), "--memory-limit", "30GiB")
    assert status == 1
    assert re.match(r"1f1b does not fit: .* GiB on device 0, .* above the limit of 30 GiB", said[0])
    assert "--recompute " in said[1]


SEVEN = ["-m", "4", "--memory-limit", "7GiB"]  # 1F1B holds 8 GiB
FULL = "1f1b:recompute=full: 200 ms, "  # (m + 1) x 40 ms


def test_check_explain_and_report(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = str(tmp_path / "p.html")
    for words in (["check", "1f1b", path], ["explain", "1f1b", path], ["report", "1f1b", path, "-o", page]):  # fmt: skip
        status, said = lines(capsys, *words, "-m", "4", "--memory-limit", "8GiB")
        assert status == 0
        assert said[0].startswith(("1f1b fits: 150 ms per iteration", "✓ 1f1b is valid"))
        status, said = lines(capsys, *words, *SEVEN)
        assert status == 1
        assert said[0] == "1f1b does not fit: 8 GiB on device 0, 1 GiB above the limit of 7 GiB"
        assert "a limit of 8GiB" in said[1]
        assert FULL in said[1]


def test_report_of_two_that_do_not_fit(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = str(tmp_path / "p.html")
    status, said = lines(capsys, "report", "1f1b", path, "--against", "gpipe", "-o", page, *SEVEN)
    assert status == 1
    assert [line for line in said if "does not fit" in line] == [
        "1f1b does not fit: 8 GiB on device 0, 1 GiB above the limit of 7 GiB",
        "gpipe does not fit: 16 GiB on device 0, 9 GiB above the limit of 7 GiB",
    ]


def test_check_of_what_is_wrong_besides(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "s.json"
    shape = {"devices": 2, "chunks": 1, "microbatches": 1, "placement": "loop"}
    programs = [["F0.0", "BW0.0"], ["BW1.0", "F1.0"]]
    data = {"format": "optpipe-schedule", "version": 1, "shape": shape, "programs": programs}
    broken.write_text(json.dumps(data))
    status, said = lines(capsys, "check", str(broken), path)
    assert status == 1
    assert said[0] == f"✗ {broken} is not valid on by-hand: 1 problem"


def test_the_reason_in_json_is_the_memory(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", path, "--schedule", "1f1b", *SEVEN]
    assert main([*words, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["reason"].startswith(
        "does not fit: 8 GiB on device 0, 1 GiB above the limit of 7 GiB; it fits with a limit of 8GiB,"
        " or with recompute=full (200 ms, "
    )
    assert [what.partition(":")[0] for what in answer["would_fit"][:2]] == ["a limit of 8GiB", "1f1b"]  # fmt: skip


def test_frontier(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["frontier", path, "-m", "4", "--time-limit", "2", "--chunks", "profile", "--no-cache", "--limits"]  # fmt: skip
    status, said = lines(capsys, *words, "5GiB,64GiB")
    assert status == 0
    # with room for all the busiest device never waits once it has begun: 4 x 30 ms, and one F before or a B after
    assert re.match(r"130 ms per iteration from a limit of 64 GiB on; .* in 5 GiB", said[0])
    status, said = lines(capsys, *words, "900MiB")
    assert status == 1
    assert said[0].startswith("no schedule fits: with 1 chunk per device none exists below ")


@pytest.mark.parametrize(
    ("limit", "asked", "way"),
    [
        ("3GiB", ["--treatments", "keep", "--chunks", "1"], r"without --treatments \("),
        ("100MiB", [], r"with --memory-limit (\S+) \("),
    ],
)
def test_a_refusal_of_solve_ends_in_what_fits(
    path: str, capsys: pytest.CaptureFixture[str], limit: str, asked: list[str], way: str
) -> None:
    words = ["solve", path, "-m", "4", "--time-limit", "0.5", "--no-cache", "--memory-limit"]
    assert main([*words, limit, *asked]) == 1
    said = capsys.readouterr().err
    assert "does not fit: " in said
    told = re.search(way, said.partition(". It fits ")[2])
    assert told is not None
    # what is told is so
    assert main([*words, *(told.groups() or (limit,))]) == 0
