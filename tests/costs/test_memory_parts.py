"""What a rank's memory is made of, by hand: 2 bytes a weight, 4 a gradient, 12 of optimizer states."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_cases import LLAMA

from optpipe_sim import build, estimate, load_profile, save_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.trace.memory_parts import PARTS

MODEL = {"name": "by-hand", "layers": 4, "hidden": 1024, "heads": 8, "vocab": 8000, "ffn": 4096, "kv_heads": 8}  # fmt: skip


@pytest.mark.parametrize(
    ("zero", "shared"),
    [(0, (1, 1, 1)), (1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4))],
)
def test_zero_shards_the_parts_in_its_order(zero: int, shared: tuple[int, int, int]) -> None:
    profile = estimate(MODEL, "h100", devices=2, dp=4, zero=zero, seq=1024)
    trace = simulate(build("1f1b", profile, 4), profile)
    parts = trace.memory_parts
    assert parts is not None
    for device, weights in enumerate(profile.meta["parameters_per_device"]):
        own = parts[device]
        assert tuple(own) == PARTS
        sizes = [
            -(-weights * each // copies) for each, copies in zip((2, 4, 12), shared, strict=True)
        ]
        assert [own["weights"], own["gradients"], own["optimizer"]] == sizes
        assert sum(own.values()) == trace.peak_bytes[device]
        assert own["reserve"] >= 0
    # 1F1B holds two microbatches on the first of two devices, one on the last
    held = [cost.act_bytes for cost in profile.stages]
    assert [one["activations"] for one in parts] == [2 * held[0], held[1]]


def test_a_v_has_its_own_devices(tmp_path: Path) -> None:
    profile = estimate(MODEL, "h100", devices=2, chunks=2, placement="vee", seq=1024)
    trace = simulate(build("zb-v", profile, 4), profile)
    assert trace.memory_parts is not None
    first, _ = trace.memory_parts
    by_stage = profile.meta["static_by_stage"]
    # stages 0 and 3: embedding and head
    assert first["weights"] == by_stage[0][0] + by_stage[3][0]
    save_profile(profile, str(tmp_path / "p.yaml"))
    again = load_profile(str(tmp_path / "p.yaml"))
    assert simulate(build("zb-v", again, 4), again).memory_parts == trace.memory_parts


def test_stages_that_are_others_by_now_are_not_told_apart() -> None:
    profile = estimate(MODEL, "h100", devices=2, chunks=2, seq=1024)
    assert simulate(build("1f1b", profile.rechunk(1), 4), profile).memory_parts is None
    by_hand = load_profile({"devices": 2, "stages": {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 1}})  # fmt: skip
    trace = simulate(build("1f1b", by_hand, 4), by_hand)
    assert (trace.memory_parts, trace.tokens_per_s, trace.flops_per_s) == (None, None, None)


def test_throughput_is_that_of_the_iteration() -> None:
    found = evaluate(MODEL, "h100", 8, 1024, microbatches=4, pp=2)
    row, trace = found.row, found.row.trace
    assert trace.tokens_per_s == pytest.approx(row.tokens_per_s)
    # 4 replicas x 4 microbatches x 1024 tokens
    assert trace.tokens_per_s == pytest.approx(16 * 1024 / row.iteration_ns * 1e9)
    peak = row.profile.meta["iteration"]["peak_flops_per_device"]
    assert trace.flops_per_s == pytest.approx(row.mfu * peak)


def test_the_answers_have_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["evaluate", *LLAMA]
    assert main([*run, "--save-profile", str(tmp_path / "p.yaml"), "--json"]) == 0
    today = json.loads(capsys.readouterr().out)
    # 8 layers of 202,383,360 weights and the embedding's 32,000 x 4,096
    assert today["memory_parts"][0]["weights"] == 2 * (8 * 202_383_360 + 32_000 * 4096)
    for device, own in enumerate(today["memory_parts"]):
        assert sum(own.values()) == today["peak_bytes_by_device"][device]
    assert main(run) == 0
    said = capsys.readouterr().out
    assert (
        "memory of rank 0, the fullest: weights 3.26 GiB, gradients 6.52 GiB, optimizer 9.78 GiB"
        in said
    )
    assert re.search(rf"TFLOP/s per GPU +{today['flops_per_s'] / 1e12:.0f} ", said)
    assert main(["simulate", str(tmp_path / "p.yaml"), "--schedule", "1f1b", "-m", "8"]) == 0
    said = capsys.readouterr().out
    assert f"{today['tokens_per_s']:,.0f} tokens/s over all replicas" in said
    assert "of device 0       weights 3.26 GiB" in said
