"""Models: parameter counts, closed forms of a layer, configs and their refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from optpipe_sim.costs import estimate, load_model, machine_names, model_names
from optpipe_sim.costs.layer import LSE_BYTES, layer
from optpipe_sim.costs.models import ModelError, active_parameters, beyond_context, parameters
from optpipe_sim.costs.parallelism import check_work
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError


@pytest.mark.parametrize("name", model_names())
def test_parameter_count_is_the_published_one(name: str) -> None:
    model = load_model(name)
    error = parameters(model) / model.published_parameters - 1
    if name == "gpt-1.5b":  # published with two digits, which is 3 % wide
        assert round(parameters(model) / 1e9, 1) == 1.5
        assert abs(error) < 0.015
    else:
        assert abs(error) < 0.01


def test_active_parameters() -> None:
    deepseek = load_model("deepseek-v3")
    assert active_parameters(deepseek, embedding=False) == pytest.approx(36.7e9, rel=0.005)
    assert parameters(deepseek) == pytest.approx(671e9, rel=0.001)
    for name in ("mixtral-8x7b", "mixtral-8x22b", "qwen2-57b-a14b", "qwen3-235b-a22b"):
        model = load_model(name)
        assert active_parameters(model) == pytest.approx(model.published_active, rel=0.01), name
    dense = load_model("qwen3-8b")
    assert active_parameters(dense) == parameters(dense)


def test_maverick_has_experts_in_every_other_layer() -> None:
    maverick = load_model("llama4-maverick")
    assert maverick.dense[:4] == (True, False, True, False)
    assert parameters(maverick) == pytest.approx(400.7e9, rel=0.001)
    assert active_parameters(maverick) == pytest.approx(17.2e9, rel=0.01)
    profile = estimate(maverick, "h100", 16, tp=8, ep=16, dp=16, seq=8192)
    assert sum(profile.meta["layers_per_stage"]) == 48


def test_llama4_from_its_config() -> None:
    text = {
        "model_type": "llama4_text",
        "num_hidden_layers": 48,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 202048,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "max_position_embeddings": 1048576,
        "rope_scaling": {"factor": 16.0, "original_max_position_embeddings": 8192},
    }
    found = load_model({"model_type": "llama4", "text_config": text, "_name_or_path": "mine"})
    known = load_model("llama4-maverick")
    said = ("name", "published_parameters", "published_active", "source", "left_out")
    assert replace(found, **{key: getattr(known, key) for key in said}) == known
    assert replace(load_model(text), name="mine") == found


@pytest.mark.parametrize(
    ("name", "seq", "context"),
    [("llama3-70b", 8192, None), ("llama3-70b", 8193, 8192), ("gpt-1.5b", 2048, 1024)],
)
def test_beyond_the_context_is_warned_about(name: str, seq: int, context: int | None) -> None:
    sentence = beyond_context(load_model(name), seq)
    assert (
        sentence is None if context is None else f"context of {name}, {context} tokens" in sentence
    )
    warnings = [] if sentence is None else [sentence]
    devices = 8 if name.startswith("llama") else 2
    meta = estimate(name, "h100", devices, seq=seq).meta
    assert meta.get("warnings", []) == warnings


def test_context_of_a_config() -> None:
    config = {
        "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "vocab_size": 100, "intermediate_size": 128, "max_position_embeddings": 32768,
    }  # fmt: skip
    assert load_model(config).context == 32768
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert load_model({**config, "rope_scaling": yarn}).context == 131072


@pytest.mark.parametrize(("name", "b", "s"), [("gpt-1.5b", 6, 1024), ("gpt-28.3b", 2, 2048)])
def test_closed_forms_of_a_gpt_layer(name: str, b: int, s: int) -> None:
    """34 h + 5 a s, 32 h, 24 h + 4 s and the rest, exactly."""
    model = load_model(name)
    h, a = model.hidden, model.heads
    unfused = layer(model, True, Work(b, s, flash=False))
    assert unfused.kept_bytes() == s * b * (34 * h + 5 * a * s)
    assert unfused.held_for_w == 32 * s * b * h
    for fused in (False, True):
        one = layer(model, True, Work(b, s, flash=fused))
        assert one.flops("F") == s * b * h * (24 * h + 4 * s)
        assert one.flops("B") == s * b * h * (24 * h + 8 * s)
        assert one.flops("W") == 24 * s * b * h * h


def test_recompute_of_norms_and_gelu_saves_forty_percent() -> None:
    model = load_model("gpt-14.6b")
    b, s, h, a = 1, 4096, model.hidden, model.heads
    one = layer(model, True, Work(b, s))
    statistics = LSE_BYTES * a * s * b  # a thousandth: what flash attention keeps of its scores
    assert one.kept_bytes("none") == 34 * s * b * h + statistics
    assert one.kept_bytes("norms") == 20 * s * b * h + statistics
    assert 1 - one.kept_bytes("norms") / one.kept_bytes("none") == pytest.approx(0.41, abs=0.005)
    assert one.kept_bytes("full") == 2 * s * b * h


def test_grouped_queries_keep_less() -> None:
    model = load_model("gpt-10.5b")  # 8 of 40 heads have keys of their own
    s, h, a = 4096, model.hidden, model.heads
    one = layer(model, True, Work(1, s, recompute="norms"))
    keys = 2 * 2 * h * 8 // 40
    assert one.kept_bytes() == s * (20 * h - 4 * h + keys) + LSE_BYTES * a * s


def test_tensor_parallelism_divides_a_layer() -> None:
    model = load_model("llama3-70b")
    whole, part = (layer(model, True, Work(1, 8192, tp=tp)) for tp in (1, 8))
    assert part.kept_bytes() * 8 == whole.kept_bytes()
    assert sum(g.flops for g in part.gemms) * 8 == sum(g.flops for g in whole.gemms)
    step = 2 * 8192 * model.hidden * 7 // 8
    assert {(m.group, m.op, m.size, m.behind) for m in part.messages} == {
        ("tp", "F", 4 * step, ""),
        ("tp", "B", 4 * step, ""),
        ("tp", "B", 2 * step, "gemm"),
    }
    assert whole.messages == ()


def test_only_the_experts_of_a_token_count_as_compute() -> None:
    model = load_model("mixtral-8x7b")
    one = layer(model, False, Work(1, 4096))
    routed = sum(g.flops for g in one.gemms if g.name.startswith("experts"))
    assert routed == 2 * 4096 * 2 * 3 * model.hidden * model.expert_ffn
    spread = layer(model, False, Work(1, 4096, ep=8))
    assert sum(m.size for m in spread.messages if m.group == "ep" and m.op == "F") == (
        2 * (2 * 4096 * 2 * model.hidden * 7 // 8)
    )


def test_hugging_face_configs(tmp_path) -> None:
    qwen = {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "rope_theta": 1000000,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(qwen))
    assert parameters(load_model(path)) == parameters(load_model("qwen3-8b"))
    deepseek = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18432,
        "vocab_size": 129280,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
    }
    assert parameters(load_model(deepseek)) == parameters(load_model("deepseek-v3"))
    assert load_model(deepseek).mtp == 1
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    gpt2["n_positions"] = 1024
    assert parameters(load_model(gpt2)) == 124_439_808
    for key, problem in (("vocab_size", "vocab_size: missing"), ("model_type", "'bert'")):
        with pytest.raises(ModelError, match=problem):
            load_model(
                {k: v for k, v in qwen.items() if k != key}
                | ({"model_type": "bert"} if key == "model_type" else {})
            )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"layers": 2, "hidden": 64, "heads": 4}, "vocab: missing"),
        ({"layers": 2, "hidden": 64, "heads": 4, "vocab": 9, "hiden": 1}, "did you mean hidden"),
        ({"layers": 2, "hidden": 64, "heads": 0, "vocab": 9}, "heads"),
        ({"layers": 2.5, "hidden": 64, "heads": 4, "vocab": 9, "ffn": 8}, "whole number"),
        ({"layers": 2, "hidden": 64, "heads": 4, "vocab": 9, "ffn": 8, "kv_heads": 3}, "divide"),
        ({"layers": 2, "hidden": 64, "heads": 4, "vocab": 9, "experts": 4}, "experts_per_token"),
        ({"layers": 2, "hidden": 64, "heads": 4, "vocab": 9, "style": "rnn"}, "gpt or llama"),
    ],
)
def test_bad_models_are_refused_in_one_line(data, problem) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        load_model(data)
    assert "\n" not in str(caught.value)


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(ModelError, match=r"did you mean .*qwen3-8b"):
        load_model("qwen3-9b")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tp": 3}, "tp: 3 does not divide the 32 heads"),
        ({"ep": 2}, "has no experts"),
        ({"cp": 3}, "4096 tokens cannot be shared"),
        ({"recompute": "some"}, "none, norms, full"),
        ({"dtype": "int3"}, "bf16"),
        ({"microbatch": 0}, "microbatch"),
    ],
)
def test_work_that_cannot_be_divided(options, problem) -> None:
    with pytest.raises(OptPipeError, match=problem):
        check_work(load_model("qwen3-8b"), Work(**{"microbatch": 1, "seq": 4096} | options))


def test_every_model_names_its_source() -> None:
    assert len(model_names()) > 10
    for name in model_names():
        model = load_model(name)
        assert model.source, name
        assert math.isfinite(model.published_parameters), name


def test_context_parallelism_shares_the_sequence() -> None:
    model = load_model("llama3-8b")
    whole, part = (layer(model, True, Work(1, 32768, cp=cp)) for cp in (1, 4))
    assert part.kept_bytes() * 4 == whole.kept_bytes()
    assert part.attention_flops * 4 == whole.attention_flops
    keys = 2 * 2 * (32768 // 4) * model.kv_heads * model.head_dim  # of one device's tokens
    assert {(m.op, m.size, m.behind) for m in part.messages} == {
        ("F", 3 * keys, "attention"),
        ("B", 6 * keys, "attention"),
    }


def test_a_hubs_name_a_folder_and_near_matches(tmp_path) -> None:
    for theirs, ours in (
        ("Qwen/Qwen2.5-32B-Instruct", "qwen2.5-32b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("google/gemma-3-27b-it", "gemma3-27b"),
    ):
        assert load_model(theirs) == load_model(ours)
    with pytest.raises(ModelError, match=r"did you mean .*qwen2\.5-32b") as error:
        load_model("Qwen/Qwen2.5-33B")
    assert "\n" not in str(error.value)
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
    }
    folder = tmp_path / "gpt-oss-20b"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"this folder has no config\.json"):
        load_model(folder)
    (folder / "config.json").write_text(json.dumps(config))
    assert parameters(load_model(folder)) == parameters(load_model("gpt-oss-20b"))


def test_lists_of_models_and_machines(command_line) -> None:
    found = command_line("models qwen3 --json").json["models"]
    assert {one["name"] for one in found} == {name for name in model_names() if "qwen3" in name}
    assert all(one["source"] and one["parameters"] for one in found)
    assert "qwen3-8b" in command_line("models qwen3 --sources").out
    assert command_line("models nosuchmodel").code == 1
    machines = command_line("machines --json").json["machines"]
    assert {one["name"] for one in machines} == set(machine_names())
    by_name = {one["name"]: one for one in machines}
    assert by_name["h100-sxm"]["compared"] > 30
    assert by_name["mi300x"]["median_error"] is None
    assert "achieved.gemm: " in command_line("machines b200 --sources").out
