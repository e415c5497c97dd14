"""`confirm` on ranks that torchrun has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runtime_cases import GPT, plan_of

from optpipe_sim.cli import main
from optpipe_sim.profile_io import save_profile
from optpipe_sim.runtime.measure.fake import fake_profile
from optpipe_sim.trace import Trace

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("profile") / "gpt.yaml"
    save_profile(fake_profile(plan_of(GPT, 2), "h100-sxm"), path)
    return str(path)


def test_two_ranks_of_torchrun(profile: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = ["-m", "optpipe_sim", "confirm", "zb-h1", profile, "-m", "4", "--mode", "gradient"]
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", *words, "--json", "--save-trace", str(trace)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)  # of the first rank: the other one is silent
    assert facts["holds"]
    assert len(facts["makespans_ns"]) == 5
    assert facts["measured_makespan_ns"] == min(facts["makespans_ns"])
    gradients = facts["gradients"]
    assert gradients["bitwise"] == gradients["parameters"]
    assert 4 < gradients["loss"] < 5  # of 96 words
    assert len(facts["memory"]) == 2
    for peak in facts["memory"]:
        said, held = peak["predicted_bytes"], peak["measured_bytes"]
        assert abs(held - said) <= 0.05 * said + (1 << 19)
    assert any(text.startswith("time: the ranks share") for text in facts["not_confirmed"])
    assert Trace.load(trace).makespan_ns == facts["measured_makespan_ns"]


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What torchrun tells the first of two ranks of this machine."""
    for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(key, "2")
    for key in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(key, "0")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "any")
    return monkeypatch


def test_what_cannot_run_is_refused_in_one_line(
    profile: str, torchrun: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*words: str) -> str:
        assert main(["confirm", *words]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err

    plan = ("1f1b", profile, "-m", "4")
    assert "--mode loop: runs in one process" in complaint(*plan, "--mode", "loop")
    torchrun.setenv("WORLD_SIZE", "3")
    message = complaint(*plan, "--mode", "synthetic")
    assert "the schedule is for 2 devices, not 3 ranks" in message
    assert "torchrun --nproc-per-node 2" in message
    torchrun.setenv("WORLD_SIZE", "2")
    torchrun.setattr(torch.cuda, "is_available", lambda: True)
    torchrun.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    message = complaint(*plan, "--mode", "synthetic", "--device", "cuda")
    assert "mode synthetic: its ops sleep on the CPU" in message
    missing = ["confirm", "1f1b", "no-such.yaml", "-m", "4", "--mode", "synthetic"]
    assert "no-such.yaml" in complaint(*missing[1:])
    torchrun.setenv("RANK", "1")  # the first one says it
    assert main(missing) == 2
    assert capsys.readouterr().err == ""


def test_a_rank_without_a_gpu_says_so_in_one_line(
    profile: str, torchrun: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    torchrun.setenv("RANK", "1")
    torchrun.setenv("LOCAL_RANK", "1")
    torchrun.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    torchrun.setattr(os, "_exit", leave)
    torchrun.setattr(torch.cuda, "is_available", lambda: True)
    torchrun.setattr(torch.cuda, "device_count", lambda: 1)
    words = ["1f1b", profile, "-m", "2", "--mode", "gradient", "--device", "cuda"]
    assert main(["confirm", *words]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "optpipe-sim: rank 1: --device cuda: 2 ranks need a GPU each, here are 1"
    ]
