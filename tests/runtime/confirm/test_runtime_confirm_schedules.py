"""`make confirm-schedules`: what it keeps, what it writes, and that the committed page is its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import schedule_page
from optpipe_sim.files import read_text

ROOT = Path(__file__).parents[3]
LINE = ["confirm_schedules.py", "--devices", "2", "--schedules", "gpipe", "1f1b", "zb-h1"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command's module, with runs and faults made up, in the order of `asked`; one whose schedule is in `ends` ends
    as that says."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = import_module("confirm_schedules")
    monkeypatch.setenv("PYTHONPATH", "")  # which it changes
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "MODELS", {"decoder": None, "own modules": None})
    monkeypatch.setattr(module, "version", lambda name: "5.0")
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", [*LINE, "--write", str(tmp_path / "page")])
    module.asked, module.ends = [], {}

    def run_one(ranks: Any, *key: Any) -> Any:
        module.asked.append(key)
        how = module.ends.get(key[2])
        if how is KeyboardInterrupt:
            raise how
        return module.Run(*key, 7, 7, peak=1.0, ranks_peak=1.02, failed=how)

    monkeypatch.setattr(module, "run_one", run_one)
    monkeypatch.setattr(module, "broken", lambda p, name: module.Fault(p, name, "rank 1: why", 0))
    return module


def test_ctrl_c_keeps_what_is_done(command: Any, tmp_path: Path, capsys: Any) -> None:
    command.ends = {"zb-h1": KeyboardInterrupt}
    assert command.main() == 130
    assert "2 of 9 runs are done; the same command goes on" in capsys.readouterr().out
    assert not (tmp_path / "page.md").exists()
    first, command.asked, command.ends = command.asked, [], {}
    assert command.main() == 0
    assert [*first[:-1], *command.asked] == [
        (model, 2, name) for model in command.MODELS for name in LINE[4:]
    ]
    text = (tmp_path / "page.md").read_text()
    assert "6 of 6 runs are as predicted; 6 of them bit by bit" in text
    assert "| zb-h1 | = 100.0% (102%) | = 100.0% (102%) |" in text
    command.asked = []
    assert command.main() == 0
    assert command.asked == []
    sys.argv.append("--fresh")
    assert command.main() == 0
    assert len(command.asked) == 6


def test_what_failed_is_on_the_page_and_tried_again(command: Any, tmp_path: Path) -> None:
    command.ends = {"1f1b": "rank 0: why"}
    assert command.main() == 1
    text = (tmp_path / "page.md").read_text()
    assert "| 1f1b | FAILED: rank 0: why | FAILED: rank 0: why |" in text
    assert "4 of 6 runs are as predicted" in text
    command.ends, command.asked = {}, []
    assert command.main() == 0
    assert [name for *_, name in command.asked] == ["1f1b", "1f1b"]
    assert "6 of 6 runs" in (tmp_path / "page.md").read_text()


def test_what_other_code_found_does_not_count(tmp_path: Path) -> None:
    key = ("Hugging Face", 2, "1f1b")
    kept = schedule_page.Kept(tmp_path, "Python 3.11")
    kept.put(key, replace(RUN, model=key[0]), 1.5)
    assert schedule_page.Kept(tmp_path, "Python 3.11").get(key) == (replace(RUN, model=key[0]), 1.5)
    assert schedule_page.Kept(tmp_path, "Python 3.12").get(key) is None


def test_versions_of_torch_have_a_section_each(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("2.11.0", "2.13.0", "2.11.0"):
        monkeypatch.setattr(command.torch, "__version__", version)
        assert command.main() == 0
    text = (tmp_path / "page.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## torch 2.13.0",
        "## torch 2.11.0",
    ]


RUN = schedule_page.Run("decoder", 2, "1f1b", 7, 7, peak=1.0, ranks_peak=1.1)


@pytest.mark.parametrize(
    ("changed", "good", "text"),
    [
        ({}, True, "= 100.0% (110%)"),
        ({"bitwise": 5, "rounded": 2, "relative": 2e-7}, True, "≈ (2e-07) 100.0% (110%)"),
        ({"bitwise": 5, "rounded": 1, "relative": 0.5}, False, "OFF by 5e-01 100.0% (110%)"),
        ({"loss": 1.01}, False, "= LOSS x 1.010000 100.0% (110%)"),
        ({"peak": 1.02, "above": True}, False, "= 102.0% ABOVE (110%)"),
    ],
)
def test_what_counts_as_predicted(changed: dict[str, Any], good: bool, text: str) -> None:
    run = replace(RUN, **changed)
    assert (run.good, run.text) == (good, text)


def test_a_fault_has_to_be_reported_in_one_line() -> None:
    fault: Callable[..., Any] = schedule_page.Fault
    assert fault(2, "SIGKILL", "rank 1 died", 0).good
    for said, left in ((None, 0), ("two\nlines", 0), ("rank 1 died", 1)):
        assert not fault(2, "SIGKILL", said, left).good


def test_the_committed_page_is_what_was_found() -> None:
    every = json.loads(read_text(ROOT / "results" / "confirm_schedules.json"))
    found = [schedule_page.Found.read(one) for one in every]
    assert schedule_page.page(found) == read_text(ROOT / "results" / "confirm_schedules.md")
    assert all(one.good for one in found)
