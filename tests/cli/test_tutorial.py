"""The tutorial runs as it is printed, and prints what it says; what README shows is understood."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from optpipe_sim import Schedule, check, load_profile
from optpipe_sim.cli.parser import parse

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """The calls of optpipe-sim in the code blocks of a page."""
    found = []
    for kind, block in FENCE.findall(text):
        if kind in ("", "sh", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                call = line.partition("#")[0].strip().removeprefix("$ ")
                if call.startswith("optpipe-sim "):
                    found.append(shlex.split(call)[1:])
    return found


def test_commands_on_the_first_pages_are_understood() -> None:
    for page in ("README.md", "docs/tutorial.md"):
        calls = commands((ROOT / page).read_text())
        assert len(calls) >= 5, page
        for call in calls:
            assert parse(call).command == call[0]


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path) -> None:
    """Each block in a shell of its own, all in one folder, where nothing else is."""
    bin_, work = tmp_path / "bin", tmp_path / "work"
    bin_.mkdir()
    work.mkdir()
    program = bin_ / "optpipe-sim"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m optpipe_sim "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    printed, ran, compared = "", 0, 0
    for kind, block in FENCE.findall(TUTORIAL):
        if kind == "sh":
            done = subprocess.run(
                ["bash", "-e", "-c", block],
                cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=400,
            )  # fmt: skip
            assert done.returncode == 0, f"{block}\n{done.stderr}"
            printed, ran = done.stdout, ran + 1
        elif kind == "text":
            for line in filter(None, map(str.strip, block.splitlines())):
                assert line in printed, f"not printed: {line}\n{printed}"
                compared += 1
    assert ran >= 7
    assert compared >= 5
    profile = load_profile(work / "plan.yaml")
    best = Schedule.load(work / "best.json")
    assert check(best, profile, "60GiB") == []
    for name in ("best.png", "warm-up.png", "compare.png", "best.csv", "best.trace.json"):
        assert (work / name).stat().st_size > 1000, name
