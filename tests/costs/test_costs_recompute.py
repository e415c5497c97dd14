"""Modules that a backward pass runs again: bytes and times by hand, limits, names, exports."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.layer import layer
from optpipe_sim.costs.models import Model
from optpipe_sim.costs.recompute.regions import MODULES, PARTS, RECOMPUTE, choice_of, dropped
from optpipe_sim.costs.roofline import gemm_seconds, message_seconds, op_time
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks import torchtitan
from optpipe_sim.frameworks.megatron.family import plan_for
from optpipe_sim.names import build

MOONLIGHT = Model(
    "moonlight-16b", 27, 2048, 16, 163840, ffn=11264, kv_lora=512, nope_dim=128, rope_dim=64, value_dim=128,
    experts=64, experts_per_token=6, expert_ffn=1408, shared_ffn=2816, dense_layers=1,
)  # fmt: skip
T = 4096


def saved(model: Model, dense: bool, choice: str, **work: Any) -> int:
    """Bytes that a choice drops of one layer."""
    one = layer(model, dense, Work(1, T, recompute=choice, **work))
    return one.kept_bytes("none") - one.kept_bytes()


@pytest.mark.parametrize(
    ("choice", "dense", "work", "expected"),
    [
        ("core_attn", False, {}, 4 * 16 * T),  # the log-sum-exp of its heads, in fp32
        ("core_attn", False, {"flash": False}, 2 * 16 * T * T),  # the softmax's output
        ("mla_up_proj", False, {}, 2 * T * 16 * (192 + 192 + 128)),
        ("mla_up_proj", False, {"tp": 2}, 2 * T * 8 * (192 + 192 + 128)),
        ("layernorm", False, {}, 2 * 2 * T * 2048),
        ("layernorm", True, {}, 2 * T * 2048),  # the other one is fused into the MLP
        ("mlp", True, {}, 2 * T * (2048 + 3 * 11264)),
        ("mlp", False, {}, 0),
        ("moe_act", False, {}, 2 * 6 * T * 1408),
        ("moe_act", True, {}, 0),
        ("shared_experts", False, {}, 2 * T * 3 * 2816),
        ("moe", False, {}, T * (4 * 64 + 2 * 6 * (2048 + 3 * 1408) + 2 * 3 * 2816)),
        ("moe+moe_act+shared_experts", False, {}, T * (4 * 64 + 2 * 6 * 6272 + 6 * 2816)),
    ],
)
def test_bytes_by_hand(choice: str, dense: bool, work: dict[str, Any], expected: int) -> None:
    assert saved(MOONLIGHT, dense, choice_of(choice), **work) == expected


def test_norms_of_plain_attention_and_mlps_are_fused() -> None:
    qwen = load_model("qwen3-30b-a3b")
    assert saved(load_model("llama3-8b"), True, "layernorm") == 0
    assert saved(qwen, False, "layernorm") == 2 * T * 2048
    assert saved(load_model("llama3-8b"), True, "mlp") == 2 * T * (4096 + 3 * 14336)


def test_published_savings_of_one_microbatch() -> None:
    """Moonlight on 8 H100s: the scores' sums, and the keys of 27 layers (36.618 - 36.614, - 35.902 GB)."""
    how = {"tp": 2, "ep": 8}
    each = {
        name: sum(saved(MOONLIGHT, at == 0, name, **how) for at in range(27))
        for name in ("core_attn", "mla_up_proj", "moe_act")
    }
    assert each["core_attn"] / 1e9 == pytest.approx(0.004, abs=0.001)
    # an arm that drops more ends at a floor, 0.7 GB below
    assert each["mla_up_proj"] / 1e9 == pytest.approx(0.716, rel=0.3)
    assert each["moe_act"] / 1e9 == pytest.approx(0.677, rel=0.4)


@pytest.mark.parametrize("name", ["llama3-8b", "gpt-14.6b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("flash", [True, False])
def test_no_modules_free_more_than_full(name: str, flash: bool) -> None:
    model = load_model(name)
    for dense in (True, False) if model.experts else (True,):
        whole = layer(model, dense, Work(1, 2048, flash=flash))
        names = {kept.name for kept in whole.kept}
        for some in (*combinations(MODULES, 1), *combinations(MODULES, 2), tuple(MODULES)):
            choice = choice_of(some)
            kept = whole.kept_bytes(choice)
            assert whole.kept_bytes("full") <= kept <= whole.kept_bytes("none")
            for one in some:
                assert kept <= whole.kept_bytes(one)
        assert whole.kept_bytes("full") <= whole.kept_bytes("norms")
        # everything in the tables has a place, here or in another model
        assert names & dropped("norms") <= set(PARTS["norms"].drops) | {
            "score dropout mask", "dropped scores",
        }  # fmt: skip


def test_every_name_of_the_tables_is_kept_somewhere() -> None:
    kept: set[str] = set()
    for name in ("gpt-14.6b", "qwen3-30b-a3b", "deepseek-v3"):
        model = load_model(name)
        for dense in (True, False) if model.experts else (True,):
            for work in (
                Work(1, 2048),
                Work(1, 2048, flash=False),
                Work(1, 2048, cp=2, context="heads"),
            ):
                one = layer(model, dense, work)
                kept |= {tensor.name for tensor in one.kept}
                kept |= {gemm.name for gemm in (*one.gemms, *one.score_gemms)}
    moonlight = layer(MOONLIGHT, False, Work(1, 2048))  # its queries are not compressed
    kept |= {gemm.name for gemm in moonlight.gemms}
    for region in (*PARTS.values(), *MODULES.values()):
        assert {*region.drops, *region.gemms} - {"projection input"} <= kept


def test_times_by_hand() -> None:
    machine = load_machine("h100-sxm")
    bandwidth = machine.memory_gb_per_s * 1e9 * machine.rates.bandwidth

    def added(model: Model, dense: bool, choice: str, **how: Any) -> float:
        none, again = (
            op_time(layer(model, dense, work), "B", machine, model, work).total
            for work in (Work(1, T, **how), Work(1, T, recompute=choice, **how))
        )
        return again - none

    def gemms(model: Model, dense: bool, *names: str, **how: Any) -> float:
        one = layer(model, dense, Work(1, T, **how))
        chosen = [gemm for gemm in one.gemms if gemm.name in names]
        assert len(chosen) == len(names)
        return sum(gemm_seconds(gemm, "F", machine, "bf16", 2) for gemm in chosen)

    up = (
        gemms(MOONLIGHT, False, "q", "kv up")
        + 2 * saved(MOONLIGHT, False, "mla_up_proj") / bandwidth
    )
    assert added(MOONLIGHT, False, "mla_up_proj") == pytest.approx(up)
    assert added(MOONLIGHT, False, "moe_act") == pytest.approx(4 * 6 * T * 1408 / bandwidth)
    llama = load_model("llama3-8b")
    attention = op_time(layer(llama, True, Work(1, T)), "F", machine, llama, Work(1, T)).attention
    sums = 2 * 4 * 32 * T / bandwidth
    assert added(llama, True, "core_attn") == pytest.approx(attention + sums)
    # of the four collectives of F the two around the MLP are sent again
    sent = next(
        one
        for one in layer(llama, True, Work(1, T, tp=2)).messages
        if (one.group, one.op) == ("tp", "F")
    )
    messages = message_seconds(sent, machine, llama, Work(1, T, tp=2)) / 2
    mlp = gemms(llama, True, "mlp in", "mlp out", tp=2)
    mlp += 2 * saved(llama, True, "mlp", tp=2) / bandwidth
    assert added(llama, True, "mlp", tp=2) == pytest.approx(mlp + messages)
    # collectives that hide behind its linears do so again
    hidden = added(llama, True, "mlp", tp=2, overlap=("tp-comm",))
    assert mlp <= hidden * (1 + 1e-9) < mlp + messages
    # a whole layer with its experts takes longer than these alone, and these longer than the shared ones
    times = [added(MOONLIGHT, False, one, ep=8) for one in ("full", "moe", "shared_experts")]
    assert times == sorted(times, reverse=True)
    assert times[2] > 0


def test_choices() -> None:
    assert choice_of("mlp, core_attn") == choice_of(["mlp", "core_attn"]) == "core_attn+mlp"
    assert [choice_of(one) for one in RECOMPUTE] == list(RECOMPUTE)
    for given, problem in (
        ("core_atn", "some of core_attn, mla_up_proj, .*; got 'core_atn'"),
        ("norms,mlp", "norms goes with nothing else"),
        ("", "expected none, norms, full, or some of"),
    ):
        with pytest.raises(OptPipeError, match=problem):
            choice_of(given)
    for name, options, problem in (
        ("llama3-8b", {"recompute": "mla_up_proj"}, "has no latent attention"),
        ("llama3-8b", {"recompute": "moe_act"}, "has no experts"),
        (
            "qwen3-30b-a3b",
            {"recompute": "moe", "ep": 4, "dp": 4, "exchange": "overlapped"},
            "excludes",
        ),
        ("deepseek-v3", {"recompute": ["mla_up_proj"], "slices": 2}, "later slices read"),
    ):
        with pytest.raises(OptPipeError, match=problem):
            estimate(name, "h100-sxm", 4, **options)


def test_doubt_and_plans_know_modules() -> None:
    profile = estimate("llama3-8b", "h100-sxm", 4, recompute=["mlp", "core_attn"])
    assert profile.meta["work"]["recompute"] == "core_attn+mlp"
    runs = "recomputation of modules"
    assert runs in profile.meta["doubt"]["unmeasured"]  # in bf16
    assert (
        runs
        not in estimate(
            "llama3-70b", "h100-sxm", 16, tp=4, dp=2, zero=1, dtype="fp8", recompute="mlp"
        ).meta["doubt"]["unmeasured"]
    )
    schedule = build("1f1b", profile, 8)
    plan, _ = plan_for(schedule, profile)
    assert plan.options()["recompute-modules"] == ["core_attn", "mlp"]
    with pytest.raises(OptPipeError, match="torchtitan's checkpointing does not do"):
        torchtitan.options(schedule, profile, None)
    full = estimate("llama3-8b", "h100-sxm", 4, recompute="full")
    assert torchtitan.options(schedule, full, None)["activation_checkpoint"] == "full"


def test_commands_take_modules(command_line) -> None:
    words = "--model llama3-8b --machine h100-sxm --recompute mlp,core_attn"
    answer = command_line(f"estimate {words} --devices 4 --json")
    assert answer.code == 0
    assert answer.json["profile"]["meta"]["work"]["recompute"] == "core_attn+mlp"
    answer = command_line(
        "estimate --model llama3-8b --machine h100-sxm --devices 4 --recompute mpl"
    )
    assert answer.code == 2
    assert "expected none, norms, full, or some of core_attn" in answer.complaint


def test_fp8_keeps_what_only_linears_need_in_one_byte() -> None:
    """LLaMA-3 70B, h 8192, f 28672, keys 1024 wide, over tp 4; per token, bytes of each tensor."""
    model, h, f, keys = load_model("llama3-70b"), 8192, 28672, 1024
    one = layer(model, True, Work(1, T, tp=4, dtype="fp8"))
    norms = 2 * h + h + 2 * h + h  # two inputs in bf16, two outputs as qkv and the MLP take them
    attention = 2 * (h + 2 * keys) + 2 * h + 4 * 64  # its output is what its backward pass needs
    mlp = 2 * 2 * f + f  # the activation function's input, and the output as mlp out takes it
    assert one.kept_bytes("none") == T * (norms + attention + mlp) // 4
    assert one.kept_bytes("none") - one.kept_bytes("mlp") == T * (h + mlp) // 4
    assert one.kept_bytes("none") - one.kept_bytes("norms") == T * (2 * h + f) // 4
    assert one.kept_bytes("full") == T * 2 * h // 4
    # inputs and output gradients of qkv, out, mlp in and mlp out
    assert one.held_for_w == T * (h + h + 2 * keys + h + h + h + 2 * f + f + h) // 4


def test_fp8_keeps_tokens_of_experts_in_one_byte_and_those_of_the_router_in_two() -> None:
    one, wide = (
        layer(MOONLIGHT, False, Work(1, T, ep=8, dtype=dtype)) for dtype in ("fp8", "bf16")
    )
    routed = 6 * T
    fewer = {
        "latent norms": T * 512,
        "expert inputs": routed * 2048,
        "expert activation output": routed * 1408,
        "shared activation output": T * 2816,
    }
    assert wide.kept_bytes("none") - one.kept_bytes("none") == sum(fewer.values())
    assert {kept.name: kept.cast for kept in one.kept if kept.cast} == fewer
    assert [kept.computed for kept in one.kept] == [kept.size for kept in wide.kept]
    assert 2 * one.held_for_w == wide.held_for_w + T * 2 * 2048  # the router's


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "tf32"])
def test_only_fp8_casts_what_is_kept(dtype: str) -> None:
    for dense in (True, False):
        assert not any(kept.cast for kept in layer(MOONLIGHT, dense, Work(1, T, dtype=dtype)).kept)


def test_costs_of_a_stage_follow_in_fp8() -> None:
    def stage(dtype: str, recompute: str = "none", levels: bool = True):
        return estimate(
            "llama3-70b", "h100-sxm", 16, tp=4, dtype=dtype, recompute=recompute, levels=levels,
            offload=True, layers=[20, 20, 20, 20],
        ).stages[1]  # fmt: skip

    h, f = 8192, 28672
    cost, wide = stage("fp8"), stage("bf16")
    fewer = 20 * T * (2 * h + f) // 4
    factor = load_machine("h100-sxm").rates.memory_factor
    assert wide.act_bytes - cost.act_bytes == pytest.approx(fewer * factor, abs=2)
    assert wide.offloadable - cost.offloadable == fewer
    norms = {level.name: level for level in cost.recompute}["norms"]
    assert cost.act_bytes - norms.keep_bytes == pytest.approx(fewer * factor, abs=2)
    assert norms.keep_bytes == {level.name: level for level in wide.recompute}["norms"].keep_bytes
    # what one layer needs besides, gradients and all, stays: none of them is in fp8
    assert cost.static_bytes == wide.static_bytes
    dropped_mlp = stage("fp8", "mlp", levels=False)
    assert cost.act_bytes - dropped_mlp.act_bytes == pytest.approx(
        20 * T * (h + 5 * f) // 4 * factor, abs=2
    )
