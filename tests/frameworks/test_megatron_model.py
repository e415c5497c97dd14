"""A model in Megatron-LM's options, accepted by the grammar, and read back from the arguments that it prints."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from megatron_grammar import accept, printed

from optpipe_sim.costs import estimate, load_model
from optpipe_sim.costs.megatron_arguments import arguments_in, model_of
from optpipe_sim.costs.model_files import model_names
from optpipe_sim.costs.models import Model, ModelError, parameters
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.megatron.family import Choice, plan_of
from optpipe_sim.frameworks.megatron.launch import script
from optpipe_sim.frameworks.megatron.model import model_in, model_options, unsaid
from optpipe_sim.frameworks.megatron.options import words


def line_of(model: Model) -> str:
    """The options of a model as a command line."""
    found = {"num-layers": model.layers, "pipeline-model-parallel-size": 1}
    found |= {"mtp-num-layers": model.mtp} if model.mtp else {}
    return " ".join(words(found | dict(model_options(model, 1024))))


@pytest.mark.parametrize("name", model_names())
def test_options_of_a_model_read_back_as_the_same_model(name: str) -> None:
    model = load_model(name)
    given = accept(line_of(model), 8)
    read = model_of(arguments_in(printed(given)), model.name)
    alike = replace(
        model,
        source="",
        left_out="",
        published_parameters=0.0,
        published_active=0.0,
        context=read.context,
        rotary_base=read.rotary_base,
        activation=read.activation,
        qk_norm=model.qk_norm or model.qk_norm_whole or model.latent,
        qk_norm_whole=False,
        qkv_bias=model.qkv_bias and model.gated,
    )
    if model.latent:  # both mean nothing there
        alike = replace(alike, kv_heads=read.kv_heads, head_dim=read.head_dim)
    assert read == alike
    if not (model.qk_norm_whole or model.latent):
        assert parameters(read) == parameters(model)


def test_patterns_of_experts() -> None:
    moe = load_model("deepseek-v3")
    assert dict(model_options(moe, 1))["moe-layer-freq"] == "([0]*3+[1]*58)"
    every = replace(moe, dense_layers=0, experts_every=2, layers=60)
    assert dict(model_options(every, 1))["moe-layer-freq"] == "([0]*1+[1]*1)*30"
    odd = printed(accept(line_of(moe), 8), moe_layer_freq=[1, 1, 0] + [1] * 58)
    with pytest.raises(ModelError, match=r"moe_layer_freq: \[1, 1, 0, "):
        model_of(arguments_in(odd), "odd")


def test_an_estimated_profile_says_the_whole_line() -> None:
    profile = estimate("qwen3-30b-a3b", "h100", 16, tp=2, ep=8, dp=4, zero=1, seq=4096)
    assert model_in(profile) == replace(load_model("qwen3-30b-a3b"), source="", left_out="",
                                        published_parameters=0.0, published_active=0.0)  # fmt: skip
    plan, notes = plan_of(Choice(1), profile, 8)
    read = accept(plan.command(), 8)
    assert (read.hidden_size, read.num_experts, read.moe_router_topk) == (2048, 128, 8)
    assert (read.num_query_groups, read.kv_channels, read.vocab_size) == (4, 128, 151_936)
    assert (read.swiglu, read.add_bias_linear, read.hidden_dropout) == (True, False, 0)
    assert any("tokenizer, learning rate" in note for note in notes)
    assert plan.environment() == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    newer = estimate("qwen3-30b-a3b", "b200", 16, tp=2, ep=8, dp=4, zero=1)
    assert plan_of(Choice(1), newer, 8)[0].environment() == {}
    bare = replace(profile, meta={**profile.meta, "model": {"kind": "experts"}})
    plan, notes = plan_of(Choice(1), bare, 8)
    assert "hidden-size" not in plan.options()
    told = {"work": {**profile.meta["work"], "seq": None}, "machine": None}
    assert (
        "hidden-size"
        not in plan_of(Choice(1), replace(profile, meta={**profile.meta, **told}), 8)[0].options()
    )
    assert any("not in the profile" in note for note in notes)


def test_a_script_starts_the_plan_on_every_node(tmp_path: Path) -> None:
    """Run with stand-ins for torchrun and Slurm that print what they are given."""
    profile = estimate("llama3-8b", "h100", 8, tp=2, dp=2, zero=1, seq=4096)
    plan, _ = plan_of(Choice(1), profile, 8)
    path = tmp_path / "run.sh"
    path.write_text(script(plan, profile, ["of a test"]))
    tools = {
        "torchrun": 'printf "%s\\n" "$@"',
        "srun": 'echo srun; "$@"',
        "scontrol": "echo n1; echo n2",
    }
    for name, does in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    where = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(**more: str) -> list[str]:
        command = ["bash", str(path), "--mock-data", "--lr", "1e-4 x"]
        done = subprocess.run(command, env=where | more, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    alone = run()
    at = alone.index("pretrain_gpt.py")
    assert alone[:4] == ["--nnodes", "2", "--nproc-per-node", "8"]
    assert alone[at - 1] == "localhost:29500"
    assert accept(shlex.join(alone[at + 1 : -3]), 8).num_layers == 32
    assert alone[-3:] == ["--mock-data", "--lr", "1e-4 x"]
    assert run(MASTER_ADDR="a", MASTER_PORT="1")[at - 1] == "a:1"
    slurm = run(SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-2]")
    assert (slurm[0], slurm[at]) == ("srun", "n1:29500")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in path.read_text()
    bare = replace(profile, meta={})
    with pytest.raises(OptPipeError, match="a script needs the model and the machine"):
        script(plan_of(Choice(1), bare, 8, [8] * 4)[0], bare, [])


def test_a_rack_of_gb200s_is_started_host_by_host() -> None:
    profile = estimate(
        "llama3-8b", "gb200", 16, tp=4, dp=16, zero=1
    )  # 256 GPUs: no whole racks of 72
    text = script(plan_of(Choice(1), profile, 8)[0], profile, [])
    assert "--nodes=64 --ntasks-per-node=1 --gpus-per-node=4" in text


def test_what_options_cannot_say() -> None:
    reward = load_model({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"],
                         "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128,
                         "num_attention_heads": 4, "vocab_size": 512, "num_labels": 1})  # fmt: skip
    assert "not one per sequence" in next(unsaid(reward))
    (gemma,) = (note for note in unsaid(load_model("gemma3-12b")) if "MLP" in note)
    assert "has gelu, and the options have SiLU and quick GeLU alone" in gemma
    quick = replace(load_model("llama3-8b"), activation="quick_gelu")
    assert "--quick-geglu" in line_of(quick)
    assert "--swiglu" not in line_of(quick)
    assert len(list(unsaid(quick))) == 1
    whole = replace(load_model("llama3-8b"), qk_norm_whole=True)
    assert "head by head" in next(unsaid(whole))
    based = replace(load_model("llama3-8b"), rotary_base=500_000)
    asks = ["--rotary-base" in list(unsaid(each))[-1] for each in (load_model("llama3-8b"), based)]
    assert asks == [True, False]


def test_a_log_is_a_model(tmp_path: Path) -> None:
    model = load_model("llama3-8b")
    log = tmp_path / "run.log"
    given = accept(line_of(model), 8)
    log.write_text(printed(given, vocab_size=None))
    with pytest.raises(ModelError, match=r"run.log: model run: vocab_size: the log does not say"):
        load_model(log)
    with log.open("a") as file:
        file.write(" > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)\n")
    read = load_model(log)
    assert (read.name, parameters(read)) == ("run", parameters(model))
    log.write_text(printed(given, num_layers=None))
    with pytest.raises(ModelError, match=r"num_layers: the log does not say"):
        load_model(log)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"add_bias_linear": True}, "biases of linears are left out"),
        ({"normalization": "LayerNorm"}, "norms are taken as RMSNorm"),
        ({"swiglu": False}, "norms are taken as LayerNorm"),
        ({"window_size": "(128, 0)"}, "not over a sliding window"),
    ],
)
def test_what_of_the_arguments_is_not_in_the_shape(more: dict, sentence: str) -> None:
    given = accept(line_of(load_model("llama3-8b")), 8)
    assert sentence in model_of(arguments_in(printed(given, **more)), "m").left_out
