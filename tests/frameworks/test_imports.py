"""Configs of Hugging Face and logs of Megatron-LM, read back; what is not read is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe_sim import build, simulate
from optpipe_sim.costs import load_model
from optpipe_sim.costs.models import Model, parameters
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.imports.hf_config import model_data, read_config
from optpipe_sim.frameworks.imports.megatron_log import parse_log, read_log

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32,
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
CONFIGS: dict[str, tuple[dict[str, Any], float, list[str]]] = {
    # its config, its stated billions of parameters, what is not read
    "llama-3-8b": (LLAMA, 8.03, []),
    "mistral-7b": (
        {**LLAMA, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}, 7.24,
        ["sliding_window"],
    ),
    "qwen2.5-7b": (
        {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
         "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
         "intermediate_size": 18944, "use_sliding_window": False, "sliding_window": 131072},
        7.62, [],
    ),
    "deepseek-v3": (DEEPSEEK, 671.0, ["num_nextn_predict_layers", "quantization_config"]),
    "gpt2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257,
         "n_positions": 1024}, 0.124, [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(tmp_path: Path, name: str) -> None:
    config, billions, lost = CONFIGS[name]
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(config))
    model, unread = read_config(path)
    assert parameters(model) / 1e9 == pytest.approx(billions, rel=0.005)
    assert [sentence.partition(":")[0] for sentence in unread] == lost
    short = tmp_path / "short.yaml"
    short.write_text(yaml.safe_dump(model_data(model)))
    assert load_model(short) == model


def test_model_data_is_what_is_not_as_usual() -> None:
    model = Model("x", 4, 64, 4, 100, ffn=128)
    data = model_data(model)
    assert data == {"name": "x", "layers": 4, "hidden": 64, "heads": 4, "vocab": 100, "kv_heads": 4,
                    "head_dim": 16, "ffn": 128}  # fmt: skip


# -- Megatron-LM's logs ---------------------------------------------------------------------------

ARGUMENTS = """
------------------------ arguments ------------------------
  data_parallel_size .............................. 2
  global_batch_size ............................... 16
  micro_batch_size ................................ 1
  num_layers ...................................... 16
  pipeline_model_parallel_size .................... 4
  recompute_granularity ........................... None
  virtual_pipeline_model_parallel_size ............ None
  world_size ...................................... 8
-------------------- end of arguments ---------------------
"""
ITERATION = (
    " [2026-01-01 00:00:00] iteration {0:8d}/      10 | consumed samples: 16 | elapsed time per"
    " iteration (ms): {1:.1f} | throughput per GPU (TFLOP/s/GPU): 180.2 | lm loss: 1.0E+01 |"
)
SLOWEST = """
(min, max) time across ranks (ms):
    forward-backward ...............................: (320.00, 321.00)
    forward-compute ................................: (70.00, {0:.2f})
    backward-compute ...............................: (150.00, {1:.2f})
    optimizer ......................................: (3.00, 3.10)
"""
EACH = """times across ranks (ms):
  forward-compute:
     rank  0: 80.00
     rank  2: 88.00
     rank  4: 96.00
     rank  6: 104.00
  backward-compute:
     rank  0: 160.00
     rank  2: 168.00
     rank  4: 176.00
     rank  6: 184.00
"""
MEMORY = "[Rank {0}] (after 1 iterations) memory (MB) | allocated: {1:.1f} | max allocated: {2:.1f} | reserved: 1.0 | max reserved: 1.0\n"


def log_file(folder: Path, *parts: str) -> Path:
    path = folder / "train.log"
    path.write_text("".join(parts))
    return path


def test_a_log_with_the_slowest_rank(tmp_path: Path) -> None:
    # the first iteration warms up
    rounds = [
        ITERATION.format(at, ms) for at, ms in ((1, 900.0), (2, 330.0), (3, 332.0), (4, 331.0))
    ]
    timers = [SLOWEST.format(800, 1000), *(SLOWEST.format(80, 160),) * 3]
    found = read_log(log_file(tmp_path, ARGUMENTS, *map("".join, zip(rounds, timers, strict=True))))
    profile = found.profile
    assert (profile.devices, profile.chunks, found.microbatches) == (4, 1, 8)
    assert found.iteration_ns == 331_000_000
    for cost in profile.stages:
        assert (cost.t_f_ns, cost.fused_ns, cost.splits) == (10_000_000, 20_000_000, False)
    assert simulate(build("1f1b", profile, 8), profile).makespan_ns == (8 + 3) * 30_000_000
    text = " ".join(found.unread)
    assert "t_comm: not in a log" in text
    assert "those of the slowest rank are used for all" in text
    assert "memory of pipeline ranks 0, 1, 2, 3" in text


def test_a_log_with_times_and_memory_of_each_rank(tmp_path: Path) -> None:
    memory = [MEMORY.format(rank, 1000, 1000 + 400 - 50 * rank) for rank in (0, 2, 4, 6)]
    found = read_log(log_file(tmp_path, ARGUMENTS, ITERATION.format(1, 330.0), "\n", EACH, *memory))
    stages = found.profile.stages
    assert [cost.t_f_ns for cost in stages] == [10_000_000, 11_000_000, 12_000_000, 13_000_000]
    assert [cost.static_bytes for cost in stages] == [1000 * 2**20] * 4
    # rank r holds 4 - r activations at its peak
    assert [cost.act_bytes for cost in stages] == [100 * 2**20] * 4
    trace = simulate(build("1f1b", found.profile, 8), found.profile)
    assert trace.peak_bytes == tuple((1400 - 100 * rank) * 2**20 for rank in range(4))
    assert not any("slowest" in sentence for sentence in found.unread)


def test_chunks_of_a_log(tmp_path: Path) -> None:
    arguments = ARGUMENTS.replace("parallel_size ............ None", "parallel_size ............ 2")
    found = read_log(log_file(tmp_path, arguments, SLOWEST.format(80, 160)))
    assert (found.profile.chunks, found.iteration_ns) == (2, None)
    assert {cost.t_f_ns for cost in found.profile.stages} == {5_000_000}
    recomputing = arguments.replace("granularity ........................... None",
                                    "granularity ........................... full")  # fmt: skip
    found = read_log(log_file(tmp_path, recomputing, SLOWEST.format(80, 160)))
    assert any(sentence.startswith("recomputation: ") for sentence in found.unread)


def test_logs_that_say_too_little(tmp_path: Path) -> None:
    with pytest.raises(OptPipeError, match="no timer forward-compute; a run logs it with --timing"):
        read_log(log_file(tmp_path, ARGUMENTS, ITERATION.format(1, 330.0)))
    with pytest.raises(OptPipeError, match="no argument pipeline_model_parallel_size"):
        read_log(log_file(tmp_path, SLOWEST.format(80, 160)))
    few = ARGUMENTS.replace("global_batch_size ............................... 16", "")
    with pytest.raises(OptPipeError, match="no arguments global_batch_size and micro_batch_size"):
        read_log(log_file(tmp_path, few, SLOWEST.format(80, 160)))
    odd = ARGUMENTS.replace(
        "............................... 16", "............................... 15"
    )
    with pytest.raises(OptPipeError, match="15 is not a multiple of 2"):
        read_log(log_file(tmp_path, odd, SLOWEST.format(80, 160)))
    assert parse_log("").arguments == {}
