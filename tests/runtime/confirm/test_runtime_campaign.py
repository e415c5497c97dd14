"""The command for the first minutes on a GPU, rehearsed on the CPU: with what a GPU machine has, and
whatever fails on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_cases import copies_made_up

from benchmarks.gpu import campaign as campaigns
from benchmarks.gpu.campaign import Campaign, Runner, Work
from benchmarks.gpu.parts import LOST, crashed, hung, kept_in
from benchmarks.gpu.report import verdicts
from optpipe_sim import build, load_profile
from optpipe_sim.costs.models import Model, parameters
from optpipe_sim.errors import OutOfMemory
from optpipe_sim.execution import load_execution
from optpipe_sim.profile import CostProfile, Offload
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.measure.profiler import measure
from optpipe_sim.stage_cost import RecomputeLevel, StageCost

ROOT = Path(__file__).parents[3]
ABSENT = (
    "simpy",
    "pyomo",
    "highspy",
    "ortools",
    "rich",
    "matplotlib",
    "pyarrow",
    "joblib",
    "bokeh",
)
TINY = Model("tiny", 2, 32, 4, 50, kv_heads=2, ffn=48)
WORK = Work(
    TINY,
    devices=2,
    seq=16,
    dtype="fp32",
    microbatches=4,
    samples=2,
    iterations=1,
    sweeps=2,
    replays=("1f1b",),
    loops=("1f1b",),
)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Copies are timed where the command runs as a user would run it."""
    with copies_made_up():
        yield


def confirm_gpu() -> Any:
    """The command's module."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return import_module("confirm_gpu")
    finally:
        sys.path.pop(0)


def without(folder: Path, *names: str) -> dict[str, str]:
    """An environment whose Python finds none of these packages."""
    for name in names:
        (folder / f"{name}.py").write_text(
            f"raise ModuleNotFoundError('no {name}', name='{name}')\n"
        )
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def test_the_command_needs_torch_numpy_scipy_and_yaml_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    absent = tmp_path / "absent"
    absent.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "confirm_gpu.py"),
            "--rehearse",
            "--no-tests",
            *("--seconds", "1000", "--write", str(out)),
        ],
        env=without(absent, *ABSENT),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "results.json").read_text())
    (work,) = found["works"].values()
    assert set(work["confirmed"]) == {"replay of 1f1b", "loop of adaoffload"}
    assert set(work["basics"]["copies_gb_per_s"]) == {"alone", "together", "loaded", "all"}
    assert set(work["basics"]["issue_us"]) == {"F", "B", "W", "BW"}
    assert any("message" in text for text in work["basics"]["beside"])
    # schedules are ranked under limits, and an execution is fitted to them
    names = [one[0] for one in confirm_gpu().RANKED]
    assert list(work["ranking"]) == ["200%", "60%"]
    for one in work["ranking"].values():
        assert [row["schedule"] for row in one["rows"]] == names
        for row in one["rows"]:
            assert (row["measured_ns"] > 0) if row["fits"] else row["why"]
    roomy = work["ranking"]["200%"]
    assert all(row["fits"] and row["peak_bytes"] <= roomy["limit"] for row in roomy["rows"])
    for row in roomy["rows"]:
        assert row["gradients"]["bitwise"] == row["gradients"]["parameters"]
    assert set(load_execution(out / "execution-tiny-s32.yaml").fitted_to) == set(names)
    text = (out / "report.md").read_text()
    assert "What decides most between schedules:" in text
    assert "pairs in the right order" in text
    assert [part["problem"] for part in found["parts"]] == [None] * len(found["parts"])
    for one in work["confirmed"].values():
        assert one["gradients"]["bitwise"] == one["gradients"]["parameters"]
    files = {path.name for path in out.iterdir()}
    assert {"report.md", "profile-tiny-s32.yaml", "trace-adaoffload.json"} <= files
    assert len(files) <= 8
    assert load_profile(out / "profile-tiny-s32.yaml").meta["model"]["name"] == "tiny"
    assert found["meta"]["by"].endswith(str(out))
    assert found["probes"]["repeats"]["different"] == 0
    assert [round(0.95 * cap) for cap in work["caps"]] == pytest.approx(work["limits"], abs=1)
    static = load_profile(out / "profile-tiny-s32.yaml").static_bytes
    tight = work["confirmed"]["loop of adaoffload"]["memory"]
    for limit, fixed, peak in zip(work["limits"], static, tight, strict=True):
        assert fixed + peak["predicted_bytes"] <= limit


def test_the_order_of_parts_and_tests_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What decides most is measured first; the tests come when all is measured."""
    command = confirm_gpu()

    def run_tests(more: dict[str, str], seconds: float) -> dict[str, Any]:
        assert 0 < seconds <= campaigns.TESTS_S
        return {"status": len(more), "end": ["1 failed"]}

    monkeypatch.setattr(campaigns, "_run_tests", run_tests)
    monkeypatch.setattr(command, "works", lambda long, rehearse: (replace(WORK, loops=()),))
    line = ["confirm_gpu.py", "--rehearse", "--write", str(tmp_path), "--goes-on", "no"]
    monkeypatch.setattr(sys, "argv", line)
    assert command.main() == command.PROBLEMS
    found = json.loads((tmp_path / "results.json").read_text())
    names = [part["name"] for part in found["parts"]]
    assert names[:2] == ["probes", "tiny-s16: profile"]
    assert names[-3:] == ["tiny-s16: replay of 1f1b", "tests, plain", "tests, sanitizer"]
    assert "Tests for GPUs, sanitizer: status 1" in (tmp_path / "report.md").read_text()


def test_verdicts_by_hand() -> None:
    def row(predicted: int, measured: int) -> dict[str, Any]:
        return {"fits": True, "predicted_ns": predicted, "measured_ns": measured}

    rows = [row(100, 110), row(105, 108), row(120, 130), {"fits": False}]
    found = verdicts(rows)
    # the first two are predicted the wrong way round, and differ by less than 2 %
    assert (found["pairs"], found["right"], found["far"], found["far_right"]) == (3, 2, 2, 2)
    assert found["regret"] == pytest.approx(110 / 108 - 1)
    off = [100 / 105 - 110 / 108, 100 / 120 - 110 / 130, 105 / 120 - 108 / 130]
    assert found["worst_difference"] == pytest.approx(max(map(abs, off)))
    assert verdicts([{"fits": False}]) == {
        "pairs": 0, "right": 0, "far": 0, "far_right": 0, "regret": None, "worst_difference": None,
        "median_difference": None,
    }  # fmt: skip


def test_what_breaks_its_cap_is_measured_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator may need more than a plan; the times of the plan count all the same."""
    real, runs = campaigns.confirm, []

    def confirm(case: Case, mode: str) -> object:
        runs.append(case.cap_memory)
        if case.cap_memory:
            raise OutOfMemory("rank 0: F0.3: out of memory\nmore of it")
        return real(case, mode)

    monkeypatch.setattr(campaigns, "confirm", confirm)
    plan = campaigns._plan(WORK)
    profile = measure(plan, "cpu", 2, 1)
    case = Case(build("1f1b", profile, 2), profile, plan=plan, sweeps=1, cap_memory=True)
    found = campaigns._confirmed(case, "loop")
    assert runs == [True, False]
    assert not found.holds
    said = "measured without the cap, under which it failed: rank 0: F0.3: out of memory"
    assert said in found.problems
    assert found.to_json()["measured_makespan_ns"] > 0


def test_loops_run_without_a_compiler_as_well(tmp_path: Path) -> None:
    """Where numba is missing, or refuses the numpy that is there."""
    code = (
        "import sys, optpipe_sim.compiled as c; assert c.njit is None;"
        "from optpipe_sim import build, load_profile, simulate;"
        "p = load_profile({'name': 'u', 'devices': 2, 'stages': {'t_f_ms': 1, 't_b_ms': 1, 't_w_ms': 1,"
        " 'act_bytes': 100, 'w_bytes': 50}, 'offload': {'t_offload_ms': 1, 't_reload_ms': 1},"
        " 'memory_limit_bytes': 150});"
        "print(*[simulate(build(n, p, 4), p, engine='replay', enforce=n != 'zb-h1').makespan_ns"
        " for n in ('zb-h1', 'adaoffload')])"
    )
    shown = []
    for names in (("numba",), ()):
        folder = tmp_path / "-".join(("absent", *names))
        folder.mkdir()
        line = code if names else code.replace("assert c.njit is None", "assert c.njit")
        done = subprocess.run(
            [sys.executable, "-c", line],
            env=without(folder, *names),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0] == shown[1]
    assert len(shown[0].split()) == 2


def test_a_deadlock_is_one_where_nothing_can_explain_it(tmp_path: Path) -> None:
    code = (
        "from optpipe_sim import build, load_profile, simulate;"
        "p = load_profile({'name': 'u', 'devices': 2, 'stages': {'t_f_ms': 1, 't_b_ms': 1, 't_w_ms': 1,"
        " 'act_bytes': 100, 'w_bytes': 50}, 'memory_limit_bytes': 150});"
        "simulate(build('zb-h1', p, 4), p, engine='replay')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=without(tmp_path, "simpy"),
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.splitlines()[-1]
    assert said.startswith(
        "optpipe_sim.errors.Deadlock: does not fit: 200 B on device 0, 50 B above"
    )
    assert "(deadlock (install simpy" in said


def test_a_part_that_fails_is_reported_and_the_rest_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = campaigns.confirm

    def confirm(case: object, mode: str) -> object:
        if mode == "replay":
            raise RuntimeError("the first is broken\nat length")
        return real(case, mode)

    monkeypatch.setattr(campaigns, "confirm", confirm)
    campaign = Campaign((WORK,), "cpu", seconds=600, tests=False)
    found = Runner(campaign, tmp_path).run()
    problems = {part["name"]: part["problem"] for part in found["parts"] if part["problem"]}
    assert problems == {"tiny-s16: replay of 1f1b": "RuntimeError: the first is broken"}
    assert "at length" in (tmp_path / "failures.txt").read_text()
    assert "loop of 1f1b" in found["works"]["tiny-s16"]["confirmed"]
    assert "the first is broken" in (tmp_path / "report.md").read_text()


CRASHING = """
import os, sys, time
from pathlib import Path
from benchmarks.gpu.parts import Parts

folder, run = Path(sys.argv[1]), int(sys.argv[2])

def alive():
    if run == 2 and len(made.entries) == 5:
        raise RuntimeError("CUDA error: unspecified launch failure")

say = lambda text: print(text, flush=True)
made = Parts(folder, 600, say, alive, resume=run > 0, least_s=0.3)
print([made.run("one", 1, lambda: {"ran": run}),
       made.run("crashes", 1, os.abort),
       made.run("hangs", 0, lambda: time.sleep(60)),
       made.run("raises", 1, lambda: 1 / 0),
       made.run("takes the device along", 1, lambda: 2),
       made.run("last", 1, lambda: {"ran": run})])
"""


def test_another_process_goes_on_after_a_crash_and_a_hang(tmp_path: Path) -> None:
    """As the command does it: each process runs the parts that none before it has run."""
    said = []
    for run, (status, how) in enumerate(((-6, "SIGABRT"), (1, "hung"), (LOST, "lost"), (0, ""))):
        done = subprocess.run(
            [sys.executable, "-c", CRASHING, str(tmp_path), str(run)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        assert hung(tmp_path) is (how == "hung")
        said.append(done.stdout)
        if how:
            assert crashed(tmp_path, how) == (2, 3, 5)[run]
    assert "the device answers no more" in said[2]
    assert said[3].splitlines()[1] == "[{'ran': 0}, None, None, None, 2, {'ran': 3}]"
    state = json.loads((kept_in(tmp_path) / "state.json").read_text())
    ended = "the process ended while it ran: "
    assert {part["name"]: part["problem"] for part in state["parts"]} == {
        "one": None,
        "crashes": f"{ended}SIGABRT",
        "hangs": f"{ended}hung",
        "raises": "ZeroDivisionError: division by zero",
        "takes the device along": None,
        "last": None,
    }
    failures = (tmp_path / "failures.txt").read_text()
    assert "## hangs\nTimeout (" in failures
    assert "in <lambda>" in failures
    assert "ZeroDivisionError" in failures


@pytest.mark.parametrize("name", ["torch", "yaml"])
def test_what_the_command_lacks_is_one_line(name: str, tmp_path: Path) -> None:
    line = [sys.executable, str(ROOT / "benchmarks" / "confirm_gpu.py"), "--write", "out"]
    done = subprocess.run(
        line, env=without(tmp_path, name), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"confirm_gpu: no {name}; it needs Python 3.11, torch, numpy, scipy and yaml"
    ]


def test_a_machine_without_a_gpu_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = ["confirm_gpu.py", "--write", str(tmp_path), "--goes-on", "no"]
    monkeypatch.setattr(sys, "argv", line)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    assert confirm_gpu().main() == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("confirm_gpu: --device cuda: ")


def test_levels_of_recomputation_are_timed(tmp_path: Path) -> None:
    """What the long run does on a GPU, with the tiny model."""
    (work,) = confirm_gpu().works(long=True, rehearse=True)
    work = replace(work, model=TINY, seq=16, iterations=1, sweeps=2, samples=2)
    found = Runner(Campaign((work,), "cpu", seconds=600, tests=False), tmp_path).run()
    assert [part["problem"] for part in found["parts"]] == [None] * len(found["parts"])
    (entry,) = found["works"].values()
    assert set(entry["confirmed"]) == {f"loop of {name}" for name in work.loops}
    for one in entry["confirmed"].values():
        assert one["gradients"]["bitwise"] == one["gradients"]["parameters"]
    assert [set(levels) for levels in entry["levels"]] == [set(work.levels)] * 2
    text = (tmp_path / "report.md").read_text()
    assert "| recomputed | stage 0 | stage 1 |" in text
    assert "% of F, keeps " in text
    assert (tmp_path / "trace-1f1b-recompute-full.json").is_file()


def test_the_limit_leaves_room_for_what_does_not_recompute() -> None:
    """Levels lower what a schedule that uses them needs, and AdaOffload here uses none."""
    level = RecomputeLevel("stage", 1_000_000, keep_bytes=0)
    stage = StageCost(9, 9, 9, 1000, 500, t_offload_ns=9, t_reload_ns=9, recompute=(level,))
    profile = CostProfile("any", 2, (stage,) * 2, offload=Offload())
    limits = campaigns.limit_of(WORK, profile)
    assert limits == (1200, 1000)
    assert campaigns._schedule(WORK, profile, "adaoffload", limits)


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path) -> None:
    found = Runner(Campaign((WORK,), "cpu", seconds=0, tests=False), tmp_path).run()
    assert all("left out" in part["problem"] for part in found["parts"])
    assert found["works"]["tiny-s16"]["confirmed"] == {}


def test_the_models_of_the_campaign_have_their_stated_sizes() -> None:
    """About 2 billion parameters; every model of the long run has the positions that it needs."""
    works = confirm_gpu().works
    (first,) = works(long=False, rehearse=False)
    assert 1.8e9 < parameters(first.model) < 2.2e9
    for work in works(long=True, rehearse=False):
        campaigns._plan(work)
    long = works(long=True, rehearse=False)
    assert len(long) == 5
    # recomputation at the shortest length of each model, which come first
    assert [bool(work.levels) for work in long] == [True, True, False, False, False]
    assert [work.seq for work in long] == [2048, 1024, 4096, 2048, 8192]
