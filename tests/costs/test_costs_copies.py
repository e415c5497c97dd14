"""Memory beside weights and activations: copies of weights in fp8, buffers of overlapped collectives, the optimizer's step; by hand."""

from __future__ import annotations

from typing import Any

import pytest

from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.layer import layer
from optpipe_sim.costs.layout import Layout
from optpipe_sim.costs.parallelism import step_bytes
from optpipe_sim.costs.roofline import fp8_copy_bytes, userbuffer_bytes
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError

H100 = load_machine("h100")
PLAIN: dict[str, Any] = {"offload": False, "levels": False}
# LLaMA-3 8B: qkv 4096 x 6144, out 4096 x 4096, a gated MLP of 14336
LINEARS = 4096 * (6144 + 4096 + 3 * 14336)


def test_weights_in_bf16_have_two_copies_in_fp8() -> None:
    own, both = (
        estimate("llama3-8b", H100, 4, dtype="fp8", fp8_weights=how, dp=2, **PLAIN)
        for how in ("primary", "cached")
    )
    counts = own.meta["layers_per_stage"]
    assert sum(counts) == 32  # neither the head nor the embedding has any
    for before, after, layers in zip(own.stages, both.stages, counts, strict=True):
        assert after.static_bytes - before.static_bytes == 2 * LINEARS * layers
        assert (after.t_f_ns, after.act_bytes) == (before.t_f_ns, before.act_bytes)
    assert both.meta["work"]["fp8_weights"] == "cached"
    assert "fp8_weights" not in own.meta["work"]


def test_copies_are_of_a_devices_part_and_the_router_has_none() -> None:
    work = Work(dtype="fp8", fp8_weights="cached", tp=2, seq=4096)
    assert fp8_copy_bytes(layer(load_model("llama3-8b"), True, work), work) == LINEARS
    qwen = load_model("qwen3-30b-a3b")  # 128 experts of 3 x 2048 x 768 on 8 devices
    work = Work(dtype="fp8", fp8_weights="cached", ep=8, seq=4096)
    attention = 2048 * (32 + 2 * 4) * 128 + 32 * 128 * 2048
    experts = 16 * 3 * 2048 * 768
    assert fp8_copy_bytes(layer(qwen, False, work), work) == 2 * (attention + experts)
    for other in (Work(), Work(dtype="fp8")):
        assert fp8_copy_bytes(layer(qwen, False, other), other) == 0


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 10 * 2), ("fp8", 6 * 1 + 4 * 2)])
def test_ten_buffers_of_a_microbatchs_hidden_states(dtype: str, size: int) -> None:
    """LLaMA-3 70B, 2 sequences of 8192 over two devices each: 8192 tokens of 8192."""
    options: dict[str, Any] = {"dtype": dtype, "seq": 8192, "microbatch": 2, "tp": 4, "cp": 2, "overlap": ["tp-comm"], **PLAIN}  # fmt: skip
    for chunks in (1, 2):
        bare, more = (
            estimate("llama3-70b", H100, 64, userbuffers=given, chunks=chunks, **options)
            for given in (False, True)
        )
        for ours, theirs in zip(bare.static_bytes, more.static_bytes, strict=True):
            assert theirs - ours == size * 8192 * 8192
    model = load_model("llama3-70b")
    assert userbuffer_bytes(model, Work(overlap=("tp-comm",), userbuffers=True)) == 0  # tp 1


def test_the_optimizers_step_holds_four_bytes_of_each_weight_that_it_updates() -> None:
    n, work = 10**9, Work(grad_reduce_in_bf16=True, step_copy=True)
    for layout, held in (
        (Layout(1), 2 + 2 + 12 + 4),
        (Layout(1, dp=4, zero=1), 2 + 2 + 3 + 1),
        (Layout(1, dp=4, zero=2), 2 + 0.5 + 3 + 1),
    ):
        assert step_bytes((n, 0), layout, work) == held * n


def test_the_step_is_the_peak_where_little_else_is_held() -> None:
    """A public run of 70B on 32 GPUs, tp 4, pp 8, full recomputation: on every stage but the first 7675 MiB above what is held
    between iterations, 4 bytes of each of 2.013e9 weights, however many microbatches are in flight."""
    options: dict[str, Any] = {"pp": 8, "tp": 4, "recompute": "full", "microbatches": 16}
    for given in (False, True):
        asked = evaluate("llama2-70b", "a100-80gb", 32, 4096, step_copy=given, **options)
        trace, profile = asked.row.trace, asked.row.profile
        between = profile.meta["weights_bytes_per_device"]
        told = any("optimizer's step" in sentence for sentence in asked.findings())
        assert told is given
        if not given:
            assert asked.row.peak_bytes == max(trace.peak_bytes)
            continue
        step = profile.meta["step_bytes_per_device"]
        assert asked.row.peak_bytes == max(step) > max(trace.peak_bytes)
        counts = profile.meta["parameters_per_device"]
        assert [a - b for a, b in zip(step, between, strict=True)] == [4 * one for one in counts]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fp8_weights": "cached"}, "fp8_weights: cached needs dtype fp8, got bf16"),
        ({"fp8_weights": "both", "dtype": "fp8"}, "fp8_weights: expected primary, cached, got"),
        (
            {"userbuffers": True},
            "userbuffers: those of overlapped tensor parallelism; give overlap",
        ),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptPipeError, match=message):
        estimate("llama3-8b", H100, 4, **given)
