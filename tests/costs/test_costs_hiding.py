"""What hides behind compute, by hand-worked numbers, and what Megatron-LM's options for it are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.costs_runs.fit import fit_fp8
from experiments.published import published
from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.layer import Gemm, Layer, layer
from optpipe_sim.costs.layout import Layout
from optpipe_sim.costs.machines import Machine, MachineError, Rates
from optpipe_sim.costs.provenance import exposed_sync, iteration_ns, sync_seconds
from optpipe_sim.costs.roofline import exposed_exchange, gemm_seconds, op_time
from optpipe_sim.costs.work import Message, Work, token_exchange
from optpipe_sim.errors import OptPipeError

# 10 TFLOP/s, 1 GB/s within a node and between nodes; only GEMMs take time, and half of it can hide something
H100 = load_machine("h100")
BARE = replace(
    H100,
    peak_tflops={"bf16": 10.0, "fp8": 20.0},
    units=1,
    memory_gb_per_s=1e9,
    link_gb_per_s=1.0,
    network_gb_per_s=1.0,
    rates=Rates(
        gemm=1, attention=1, bandwidth=1, collective=1, network_collective=1, all_to_all=1,
        half_inner=0, half_waves=0, half_rows=0, expert_us=0, gemm_overlap=0.5,
    ),
)  # fmt: skip
MS = 1e-3


def _layer(messages: tuple[Message, ...], recompute: str = "none") -> Layer:
    """3.36 ms of attention and router, 1.38 ms of experts, in each of F, B and W."""
    gemms = (
        Gemm("qkv", 12800, 512, 1280),
        Gemm("out", 12800, 512, 1280 // 2),
        Gemm("router", 12800, 512, 1280 // 2),
        Gemm("experts in", 1280, 512, 1280, 8),
        Gemm("experts out", 1280, 512, 256, 1),
    )
    seconds = [gemm.flops / 10e12 / MS for gemm in gemms]
    assert seconds == pytest.approx([1.678, 0.839, 0.839, 1.342, 0.034], abs=5e-4)
    return Layer(
        gemms=gemms, score_gemms=(), attention_flops=0, executed_share=1.0, elementwise_f=0,
        elementwise_b=0, kept=(), input_bytes=0, held_for_w=0, messages=messages,
        recompute=recompute, flash=False,
    )  # fmt: skip


REST, EXPERTS = 3.3554432 * MS, 1.375731712 * MS


def _messages(layer: Layer, op: str, work: Work, machine: Machine = BARE) -> float:
    return op_time(layer, op, machine, None, work).messages  # type: ignore[arg-type]


@pytest.mark.parametrize("milliseconds", [1, 2, 4])
def test_tokens_hide_behind_the_other_microbatch(milliseconds: int) -> None:
    """To the experts behind the other one's experts, back behind the rest of its layer; F behind B and W, B
    behind F; half of each."""
    work = Work(1, 1024, ep=2, exchange="overlapped")
    one = milliseconds * MS
    layer = _layer(token_exchange(work, milliseconds * 10**6))
    assert _messages(layer, "F", work) == pytest.approx(
        max(0.0, one - EXPERTS) + max(0.0, one - REST)
    )
    assert _messages(layer, "B", work) == pytest.approx(
        max(0.0, one - EXPERTS / 2) + max(0.0, one - REST / 2)
    )
    plain = replace(work, exchange="plain")
    bare = _layer(token_exchange(plain, milliseconds * 10**6))
    assert [_messages(bare, op, plain) for op in "FB"] == pytest.approx([2 * one, 2 * one])
    # what is recomputed exchanges tokens again, hidden by nothing
    again = replace(layer, recompute="full")
    more = _messages(again, "B", work) - _messages(layer, "B", work)
    assert more == pytest.approx(2 * one)
    # nothing runs beside the first F and the last B
    alone = exposed_exchange(layer, BARE, None, work)  # type: ignore[arg-type]
    assert alone == pytest.approx(4 * one - sum(_messages(layer, op, work) for op in "FB"))
    assert exposed_exchange(bare, BARE, None, plain) == 0  # type: ignore[arg-type]


def test_the_first_f_and_the_last_b_of_an_iteration_are_counted_once() -> None:
    options: dict[str, Any] = {"ep": 16, "dp": 16, "exchange": "overlapped"}
    profile = estimate("qwen3-30b-a3b", "h100", 1, **options)
    plain = estimate("qwen3-30b-a3b", "h100", 1, **{**options, "exchange": "plain"})
    once = profile.meta["iteration"]["exposed_exchange_ms"]
    longer = sum(
        slow.t_f_ns + slow.t_b_ns - fast.t_f_ns - fast.t_b_ns
        for slow, fast in zip(plain.stages, profile.stages, strict=True)
    )
    assert once == pytest.approx(longer / 1e6, rel=1e-5)
    assert "exposed_exchange_ms" not in plain.meta["iteration"]
    update = profile.meta["iteration"]
    rest = update["optimizer_ms"] + update["gradient_sync_ms"] + update["fixed_ms"]
    assert iteration_ns(profile, 0) / 1e6 == pytest.approx(rest + once / (1 - update["overhead"]))


def test_gradients_hide_behind_the_last_backward_passes() -> None:
    """Of 2 * 10^9 weights on 4 stages with 2 replicas: 4 s for the gradients, 2 s for the weights, over 1 GB/s; a bucket is a
    fiftieth of them."""
    layout, counts = Layout(8, tp=2, dp=2, zero=1), (2 * 10**9, 0)
    assert sync_seconds(counts, layout, BARE) == pytest.approx((4.0, 2.0))
    assert layout.pipeline == 4

    def exposed(overlap: tuple[str, ...], forward: list[float], backward: list[float]) -> float:
        return exposed_sync(counts, layout, BARE, overlap, forward, backward)

    both = ("grad-reduce", "param-gather")
    assert exposed((), [1.0], [2.0]) == pytest.approx(6.0)
    # one chunk: half of the last backward pass of 2 s hides 1 s
    assert exposed(both[:1], [1.0], [2.0]) == pytest.approx(4 - 1 + 2)
    assert exposed(both, [1.0], [2.0]) == pytest.approx(4 - 1 + 2 - 0.5)
    assert exposed(both, [9.0], [9.0]) == pytest.approx((4 + 2) / 50)  # but the last bucket
    # two chunks: the half that is ready first has four passes of 1 s, the other one its own
    assert exposed(both[:1], [1.0] * 2, [2.0] * 2) == pytest.approx(4 / 2 - 1 + 2)
    assert exposed(both[:1], [0.1] * 2, [0.4] * 2) == pytest.approx(max(2 - 0.2, 4 - 5 * 0.2) + 2)
    # without replicas, or with ZeRO 3, nothing is left to hide
    assert exposed_sync(counts, Layout(8, tp=2), BARE, both, [1.0], [2.0]) == 0


def test_gradients_that_zero_0_reduces_are_hidden_and_its_weights_need_no_gather() -> None:
    times = [
        estimate("llama3-8b", "h100", 8, tp=4, dp=4, zero=0, overlap=overlap)
        for overlap in ((), ("grad-reduce",), ("grad-reduce", "param-gather"))
    ]
    found = [one.meta["iteration"]["gradient_sync_ms"] for one in times]
    assert found[0] > found[1] == found[2]


def test_each_collective_of_tensor_parallelism_hides_behind_its_gemm() -> None:
    """F: half of the GEMM it feeds or follows. B: the gradients gathered behind `out` and `mlp out`, the inputs once more
    behind `qkv` and `mlp in`, their gradients scattered behind the same two in W."""
    work = Work(1, 4096, 4, overlap=("tp-comm",))
    step = 2 * 4096 * 4096 * 3 // 4 / 1e9

    def shown(model: str, op: str, names: list[tuple[str, str]], bare: int) -> None:
        shape = load_model(model)
        one = layer(shape, not shape.experts, work)
        width = shape.hidden / 4096
        by_name = {gemm.name: gemm for gemm in one.gemms}
        expected = bare * step * width + sum(
            max(0.0, step * width - gemm_seconds(by_name[name], of, BARE, "bf16", 2) / 2)
            for name, of in names
        )
        found = op_time(one, op, BARE, shape, work).messages
        assert found == pytest.approx(expected)

    dense = ["qkv", "out", "mlp in", "mlp out"]
    shown("llama3-8b", "F", [(name, "F") for name in dense], 0)
    behind = [(name, "B") for name in dense] + [("qkv", "W"), ("mlp in", "W")]
    shown("llama3-8b", "B", behind, 0)


def test_experts_and_devices_without_sequence_parallelism_hide_no_tensor_parallelism() -> None:
    def time(model: str, **options: Any) -> int:
        return sum(c.t_f_ns for c in estimate(model, "h100", 8, tp=8, **options).stages)

    for model, rest in (("mixtral-8x7b", {}), ("llama3-8b", {"sequence_parallel": False})):
        whole, hidden = (time(model, overlap=one, **rest) for one in ((), ("tp-comm",)))
        # attention of layers with experts does; all of a dense layer without sequence parallelism does not
        assert (hidden < whole) == (model == "mixtral-8x7b")
    assert time("llama3-8b", overlap=("tp-comm",)) < time("llama3-8b")
    latent = [time("deepseek-v3", overlap=one, ep=8) for one in ((), ("tp-comm",))]
    assert latent[0] >= latent[1]


def test_unknown_overlap_and_a_gather_alone_are_refused() -> None:
    with pytest.raises(
        OptPipeError, match="overlap: expected some of grad-reduce, param-gather, tp-comm"
    ):
        estimate("llama3-8b", "h100", 2, overlap=("all",))
    with pytest.raises(OptPipeError, match="param-gather needs grad-reduce"):
        estimate("llama3-8b", "h100", 2, overlap=("param-gather",))


def test_fp8_has_a_share_of_its_own_that_other_runs_were_fitted_to() -> None:
    gemm = Gemm("qkv", 1280, 512, 1280)
    own = replace(BARE, rates=replace(BARE.rates, gemm_fp8=0.5))
    assert gemm_seconds(gemm, "F", BARE, "fp8", 2) == pytest.approx(gemm.flops / 20e12)
    assert gemm_seconds(gemm, "F", own, "fp8", 2) == pytest.approx(gemm.flops / 10e12)
    assert gemm_seconds(gemm, "F", own, "bf16", 2) == pytest.approx(gemm.flops / 10e12)
    with pytest.raises(MachineError, match="gemm_fp8: must be from 0 to 1"):
        Rates(gemm=1, attention=1, bandwidth=1, gemm_fp8=1.2)
    shipped = [load_machine(name).rates.gemm_fp8 for name in ("gb200", "b200")]
    assert shipped == [fit_fp8()] * 2
    data = published("runs")
    rows = [{**data["sources"][row["source"]]["options"], **row} for row in data["rows"]]
    fitted = [row for row in rows if row["machine"] == "gb200" and row.get("role") == "fit"]
    assert len(fitted) == 4
    assert all(row["dtype"] == "fp8" and "tp" not in row for row in fitted)
    assert not [row for row in rows if row["machine"] == "b200-sxm" and "role" in row]


def test_all_of_an_iteration_is_told_and_what_could_be_hidden() -> None:
    options: dict[str, Any] = {"pp": 4, "chunks": 2, "tp": 2, "ep": 8, "microbatches": 8}
    for exchange, overlap in (("plain", ()), ("overlapped", ("grad-reduce", "tp-comm"))):
        found = evaluate(
            "qwen3-30b-a3b", "h100", 64, 4096, exchange=exchange, overlap=overlap, **options
        )
        assert sum(found.advice.parts(found.row).values()) == pytest.approx(1, abs=1e-6)
        told = {text.split(" is")[0].split(" are")[0] for text in found.advice.doubts(found.row)}
        exposed = {"the exchange of tokens", "tensor parallelism's collectives"}
        assert told & exposed == (exposed if exchange == "plain" else set())


def test_a_level_that_recomputes_whole_layers_exchanges_tokens_in_the_open() -> None:
    options: dict[str, Any] = {"ep": 8, "dp": 8, "levels": True, "layers": [12] * 4}
    again = [
        estimate("qwen3-30b-a3b", "h100", 4, exchange=how, **options).stages[1].recompute[-1]
        for how in ("plain", "overlapped")
    ]
    assert {level.name for level in again} == {"full"}
    assert again[0].t_ns == again[1].t_ns
