"""Training as on GPUs: the executor for CUDA, NCCL's messages and the switch, on GPUs that are only models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from train_cases import M, kinds, losses, one_by_one, rows_after, scripted, task, until
from virtual_training import OnVirtualGpus

from optpipe_sim import build
from optpipe_sim.errors import OptPipeError, RuntimeFault
from optpipe_sim.ops import O
from optpipe_sim.runtime.train import train as training
from optpipe_sim.runtime.train.task import Slow
from optpipe_sim.runtime.train.train import train, unpipelined


def test_training_switches_on_gpus_as_it_does_on_cpus(profile, two, monkeypatch) -> None:
    """Two switches: no race, no memory that is reused too early, losses of the unpipelined model."""
    monkeypatch.setattr(training, "RankTraining", OnVirtualGpus)
    script = [(2, build("zb-h1", profile, M)), (7, one_by_one())]
    job = scripted(profile, 5000, script, device="cuda")
    result = train(job, until(lambda seen: rows_after(seen, "switched", 2) >= 4), two)
    assert kinds(result).count("switched") == 2
    assert [phase["offloaded"] for phase in result.phases] == [M, 0, M]
    assert losses(result) == unpipelined(replace(job, device="cpu"), len(result.rows))
    for phase in result.phases:
        for held, most in zip(phase["held_bytes"], phase["predicted_bytes"], strict=True):
            assert 0 < held <= 1.05 * most + 2**19


def test_a_race_in_training_is_found(profile, two, monkeypatch) -> None:
    monkeypatch.setattr(training, "RankTraining", partial(OnVirtualGpus, forgetful=True))
    job = task(profile, 2, device="cuda")
    assert any(op.kind is O for op in job.schedule.programs[0])
    with pytest.raises(RuntimeFault, match=r"rank 0: AssertionError: race: .* reads"):
        train(job, ranks=two)


def test_what_there_is_no_gpu_for_is_refused(profile, command_line, tmp_path) -> None:
    with pytest.raises(OptPipeError, match=r"^slow: delays the ops of CPU ranks"):
        task(profile, slow=Slow(0, 1, 1), device="cuda")
    (tmp_path / "tiny.yaml").write_text("{layers: 2, hidden: 16, heads: 2, ffn: 32, vocab: 24}")
    line = "train --model tiny.yaml --stages 2 -m 2 --seq 8 --microbatch 1 --steps 2"
    assert (
        "--device cuda: this torch is built without CUDA"
        in command_line(f"{line} --device cuda").complaint
    )
