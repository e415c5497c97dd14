"""Gradients of weights in bf16 (Megatron-LM's --grad-reduce-in-bf16): bytes and times by hand, commands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optpipe_sim.costs import estimate, load_machine
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.layer import Gemm
from optpipe_sim.costs.parallelism import Layout, static_bytes, zero_seconds
from optpipe_sim.costs.provenance import sync_seconds
from optpipe_sim.costs.roofline import gemm_seconds
from optpipe_sim.errors import OptPipeError

H100 = load_machine("h100")
N = 10**9


def test_weights_with_gradients_in_bf16_take_two_bytes_less() -> None:
    for zero, whole, less in ((0, 18, 2), (1, 2 + 4 + 3, 2), (2, 2 + 1 + 3, 0.5), (3, 4.5, 0.5)):
        layout = Layout(1, dp=4, zero=zero)
        assert static_bytes((N, 0), layout) == whole * N
        assert static_bytes((N, 0), layout, 2, 2) == (whole - less) * N
    options = {"devices": 32, "tp": 8, "dp": 2, "zero": 1, "offload": False}
    wide, half = (
        estimate("llama3-70b", H100, grad_reduce_in_bf16=given, **options)
        for given in (False, True)
    )
    held = wide.meta["parameters_per_device"]
    assert half.meta["parameters_per_device"] == held
    for ours, theirs, count in zip(half.stages, wide.stages, held, strict=True):
        assert theirs.static_bytes - ours.static_bytes == 2 * count
        assert (
            replace(ours, static_bytes=theirs.static_bytes) == theirs
        )  # its GEMMs are bound by compute
    bytes_of = [one.meta["weights_bytes_per_device"] for one in (wide, half)]
    assert [a - b for a, b in zip(*bytes_of, strict=True)] == [2 * count for count in held]
    assert half.meta["work"]["grad_reduce_in_bf16"] is True
    assert "grad_reduce_in_bf16" not in wide.meta["work"]


def test_half_the_bytes_are_reduced_and_as_many_weights_gathered() -> None:
    layout = Layout(1, dp=4, zero=1)
    (reduce, gather), (half, same) = (sync_seconds((N, 0), layout, H100, size) for size in (4, 2))
    assert reduce == pytest.approx(2 * half)
    assert gather == same == pytest.approx(half)  # two bytes of each weight either way
    for zero in (2, 3):
        wide, less = (
            zero_seconds((N, 0), replace(layout, zero=zero), H100, size) for size in (4, 2)
        )
        assert wide["W"] == pytest.approx(2 * less["W"])
        assert (wide["F"], wide["B"]) == (less["F"], less["B"])


def test_a_weight_gradient_in_bf16_passes_memory_in_half_the_time() -> None:
    """One row: 2 bytes of each operand, and 2 * 4 or 2 * 2 bytes of each weight's gradient."""
    gemm = Gemm("qkv", 1, 4096, 4096)
    rate = H100.memory_gb_per_s * 1e9 * H100.rates.bandwidth
    bare = replace(H100, rates=replace(H100.rates, exposed_sums=0))
    for size in (4, 2):
        seconds = gemm_seconds(gemm, "W", bare, "bf16", 2, size)
        assert seconds == pytest.approx((2 * 2 * 4096 + 2 * size * 4096**2) / rate)


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "tf32"])
def test_only_bf16_and_fp8_have_gradients_in_bf16(dtype: str) -> None:
    with pytest.raises(OptPipeError, match="grad_reduce_in_bf16: needs dtype bf16 or fp8, got"):
        estimate("llama3-8b", "a100", 4, dtype=dtype, grad_reduce_in_bf16=True)


def test_commands_have_the_option(command_line) -> None:
    words = "--model llama3-8b --machine h100-sxm --grad-reduce-in-bf16"
    answer = command_line(f"estimate {words} --devices 4 --json")
    assert answer.json["profile"]["meta"]["work"]["grad_reduce_in_bf16"] is True
    asked = evaluate("llama3-8b", "h100", 4, 4096, microbatches=8, pp=4, grad_reduce_in_bf16=True)
    assert asked.row.profile.meta["work"]["grad_reduce_in_bf16"] is True
