"""`torchrun -m optpipe_sim.runtime`: ranks that somebody else has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_cases import GPT, plan_of

from optpipe_sim.profile_io import save_profile
from optpipe_sim.runtime.__main__ import main
from optpipe_sim.runtime.measure.fake import fake_profile
from optpipe_sim.trace import Trace

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "gpt.yaml"
    save_profile(fake_profile(plan_of(GPT, 2), "h100-sxm"), path)
    return path


def test_two_ranks_of_torchrun(profile: Path, tmp_path: Path):
    trace = tmp_path / "trace.json"
    words = ["-m", "optpipe_sim.runtime", "zb-h1", str(profile), "-m", "4", "--mode", "gradient"]
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", *words, "--json", "--save-trace", str(trace)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["ranks"] == 2
    assert len(facts["iterations_ns"]) == 5
    assert facts["measured_makespan_ns"] == min(facts["iterations_ns"])
    assert 4 < facts["loss"] < 5  # of 96 words
    peaks = zip(facts["predicted_peak_bytes"], facts["measured_peak_bytes"], strict=True)
    for said, held in peaks:
        assert abs(held - said) <= 0.05 * said + (1 << 19)
    assert Trace.load(trace).makespan_ns == facts["measured_makespan_ns"]


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_what_cannot_run_is_refused_in_one_line(
    profile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("RANK", "0")
    message = complaint(capsys, "1f1b", str(profile), "-m", "4")
    assert "this is one rank of 2; start all of them: torchrun --nproc-per-node 2" in message
    monkeypatch.setenv("WORLD_SIZE", "3")
    message = complaint(capsys, "1f1b", str(profile), "-m", "4")
    assert "the schedule is for 2 devices, not 3 ranks" in message
    assert "-m: how many microbatches?" in complaint(capsys, "1f1b", str(profile))
    assert "no-such.yaml" in complaint(capsys, "1f1b", "no-such.yaml", "-m", "4")
    message = complaint(capsys, "1f1b", str(profile), "-m", "4", "--device", "cuda")
    assert "mode synthetic: its ops sleep on the CPU" in message
    monkeypatch.setenv("RANK", "1")  # one of them says it
    assert main(["1f1b", "no-such.yaml", "-m", "4"]) == 2
    assert capsys.readouterr().err == ""
