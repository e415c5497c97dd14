"""The tutorial runs as it is printed, and prints what it says; what README shows is understood."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from optpipe_sim import Schedule, check, load_profile, simulate
from optpipe_sim.cli.parser import parse
from optpipe_sim.costs.provenance import iteration_ns
from optpipe_sim.units import format_size, format_time

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


def test_commands_on_the_first_pages_are_understood(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, block in FENCE.findall(TUTORIAL):
        if kind == "sh":
            calls_of(block)  # the files that are read
    for page in ("README.md", "docs/tutorial.md"):
        calls = commands((ROOT / page).read_text())
        assert len(calls) >= 5, page
        for call in calls:
            assert parse(call).command == call[0]


def test_the_first_page_shows_what_the_tutorial_prints() -> None:
    lines = [line for line in block_after("docs/index.md", "# optpipe_sim") if line != "..."]
    assert len(lines) == 5
    tutorial = TUTORIAL.replace("\\\n ", "")
    for line in lines:
        assert line.removeprefix("$ ") in tutorial or "advise" in line, line
    (advise,) = (line for line in lines if "advise" in line)
    said = {word for call in commands(TUTORIAL) if call[0] == "advise" for word in call}
    assert set(shlex.split(advise)[2:]) <= said


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


def calls_of(block: str) -> list[list[str]]:
    """The calls of optpipe-sim in a shell block, after running what else is in it: files that it writes."""
    for name, text in re.findall(
        r"cat > (\S+) <<'END'\n(.*?)^END$", block, re.DOTALL | re.MULTILINE
    ):
        Path(name).write_text(text)
    lines = block.replace("\\\n", " ").splitlines()
    called = (line for line in lines if line.startswith("optpipe-sim "))
    return [shlex.split(line, comments=True)[1:] for line in called]


def test_the_tutorial_in_short_runs_in_order_and_agrees(cli, monkeypatch) -> None:
    """Each command as it is printed, but for shorter searches; each answer goes on from the one before."""
    from optpipe_sim.frameworks import advised

    monkeypatch.setattr(advised, "FREE_S", 0.2)
    monkeypatch.setattr(sys, "argv", ["optpipe-sim"])
    said: dict[str, list[str]] = {}
    printed, calls = "", []
    for kind, block in FENCE.findall(TUTORIAL):
        if kind == "sh":
            printed = ""
            for call in calls_of(block):
                if call[0] == "solve":
                    call[call.index("--time-limit") + 1] = "1"
                answer = cli(shlex.join(call))
                assert answer.code == 0, f"{call}\n{answer.err}"
                printed += answer.out
                calls.append(call)
                said.setdefault(call[0], []).append(answer.out)
        elif kind == "text":
            for line in filter(None, map(str.strip, block.splitlines())):
                assert line in printed, f"not printed: {line}\n{printed}"
    assert len(calls) >= 11

    def time(answer: str) -> str:
        """The time per iteration that the first line of an answer gives."""
        found = re.search(r"([\d.]+ m?s) per iteration", answer.splitlines()[0])
        assert found is not None, answer
        return found[1]

    # calibrated, today's run takes what was measured
    today, calibrated = said["evaluate"]
    assert time(calibrated) == "11 s" != time(today)
    # the plan that advise tells is what is replayed and exported, with the microbatches that follow
    profile, plan = load_profile("plan.yaml"), Schedule.load("plan.json")
    replayed = simulate(plan, profile)
    assert (
        time(said["advise"][0]) == time(said["simulate"][0]) == format_time(replayed.iteration_ns)
    )
    assert replayed.iteration_ns < 11e9
    asked = {call[call.index("-m") + 1] for call in calls if "-m" in call}
    assert asked == {str(plan.shape.microbatches)}
    options = re.search(r"^--tensor-model-parallel-size .*$", said["advise"][0], re.MULTILINE)
    assert options is not None
    assert options[0] in said["export"][-1]
    # the plan that solve saves is what is checked, explained and drawn
    best = Schedule.load("best.json")
    found = simulate(best, profile, "60GiB")
    assert check(best, profile, "60GiB") == []
    assert {format_time(found.iteration_ns)} == {
        time(said[name][-1]) for name in ("solve", "explain", "simulate")
    }
    fitting = re.search(r"Fastest that fits: \S+, ([\d.]+) s per iteration", said["compare"][0])
    assert fitting is not None
    if "not tried" not in said["solve"][0]:
        assert found.iteration_ns <= float(fitting[1]) * 1e9 * 1.001
    for name in (
        "plan.png",
        "best.png",
        "warm-up.png",
        "compare.png",
        "best.csv",
        "best.trace.json",
    ):
        assert Path(name).stat().st_size > 1000, name


def block_after(page: str, heading: str) -> list[str]:
    """The lines of the first code block under a heading."""
    text = (ROOT / page).read_text()
    found = FENCE.search(text, text.index(heading))
    assert found is not None
    return found[2].strip().splitlines()


def printed_next(text: str) -> list[list[str]]:
    """The commands that an answer ends in."""
    lines = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("next: ")]
    return [shlex.split(line)[1:] for line in lines if line.split()[0].endswith("optpipe-sim")]


def test_the_five_minutes_of_readme_run_and_agree(cli, monkeypatch) -> None:
    """Each line as it is printed, but for shorter searches, in order: a plan that advise tells is what simulate
    replays, m is what it says, and no order that is searched for on its costs is slower."""
    from optpipe_sim.frameworks import advised

    monkeypatch.setattr(advised, "FREE_S", 0.2)
    monkeypatch.setattr(sys, "argv", ["optpipe-sim"])
    said = {}
    for line in block_after("README.md", "### My cluster in five minutes"):
        call = shlex.split(line, comments=True)[1:]
        if call[0] == "solve":
            call[call.index("--time-limit") + 1] = "2"
        if call[0] == "advise":
            call += ["--time-limit", "6"]
        answer = cli(shlex.join(call))
        assert answer.code == 0, f"{line}\n{answer.err}"
        said[call[0]] = answer.out
    assert list(said) == ["estimate", "advise", "simulate", "solve", "export"]
    profile, plan, best = (
        load_profile("plan.yaml"),
        Schedule.load("plan.json"),
        Schedule.load("best.json"),
    )
    planned, found = (simulate(one, profile.for_shape(one.shape)) for one in (plan, best))
    told = iteration_ns(profile, planned.makespan_ns)
    assert f": {format_time(round(told))}, MFU" in said["advise"]
    assert f"{format_size(max(planned.peak_bytes))} on device" in said["simulate"]
    assert planned.fits
    assert found.fits
    assert found.makespan_ns <= planned.makespan_ns
    m = f"-m {plan.shape.microbatches}"
    assert all(m in shlex.join(call) for call in printed_next(said["advise"]) if call[0] == "solve")
    assert any(m in line for line in block_after("README.md", "### My cluster in five minutes"))


ADVISE = (
    "advise --model qwen3-0.6b --machine h100 --gpus 4 --global-batch 8 --seq 2048 --time-limit 2"
)


@pytest.mark.parametrize(
    "more",
    [
        "--pp 2 --microbatch 1",
        "--pp 2 --microbatch 1 --no-flash --treatments keep --dtype fp16",
        "--pp 1",
        "--pp 2 --family megatron",
        "--pp 2 --family megatron --execution megatron-lm",
        "--pp 4 --family torchtitan --chunks 1",
        "--pp 2 --tp 2 --recompute full --save-profile p.yaml --save s.json",
        "--pp 2 --schedules 1f1b,optpipe",
    ],
)
def test_advise_ends_in_lines_that_run_as_printed(cli, monkeypatch, more: str) -> None:
    """And the plan that is replayed then is the plan that was told."""
    from optpipe_sim.frameworks import advised

    monkeypatch.setattr(advised, "FREE_S", 0.3)
    monkeypatch.setattr(sys, "argv", ["optpipe-sim"])
    answer = cli(f"{ADVISE} {more} --json").json
    told = answer.get("told_iteration_ns", answer["rows"][0]["iteration_ns"])
    assert answer["next"]
    for line in answer["next"]:
        call = shlex.split(line)
        if call[0] == "solve":
            call += ["--time-limit", "0.5"]
        ran = cli(f"{shlex.join(call)} --json")
        assert ran.code == 0, f"{line}\n{ran.err}"
        if call[0] == "simulate":
            assert ran.json["fits"]
            profile = load_profile(call[1])
            assert round(iteration_ns(profile, ran.json["makespan_ns"])) == pytest.approx(
                told, rel=1e-6
            )
