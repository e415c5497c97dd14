"""Configs of Hugging Face, read back; what is not read is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe_sim.costs import estimate, load_model
from optpipe_sim.costs.models import Model, parameters

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
    "mistral-7b, its window in no key": (
        {**LLAMA, "model_type": "mistral", "vocab_size": 32000}, 7.24, ["sliding_window"],
    ),
    "mistral-7b, without a window": (
        {**LLAMA, "model_type": "mistral", "vocab_size": 32000, "sliding_window": None}, 7.24, [],
    ),
    "qwen2, its window not in use": (
        {**LLAMA, "model_type": "qwen2", "sliding_window": 4096}, 8.03, [],
    ),
    "llama-3-8b of 8-bit weights": (
        {**LLAMA, "quantization_config": {"quant_method": "fbgemm_fp8"}}, 8.03,
        ["quantization_config"],
    ),
    "deepseek-v3": (DEEPSEEK, 671.0, ["quantization_config"]),
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
    model = load_model(path)
    unread = model.warnings
    folder = tmp_path / name / "config.json"
    folder.parent.mkdir()
    folder.write_text(json.dumps(config))
    assert load_model(folder.parent).warnings == unread
    assert parameters(model) / 1e9 == pytest.approx(billions, rel=0.005)
    assert [sentence.partition(":")[0] for sentence in unread] == lost
    short = tmp_path / "short.yaml"
    short.write_text(yaml.safe_dump(model.to_json()))
    assert load_model(short) == model
    # and whoever estimates with it, or with the config itself, is warned of it
    for source in (path, short):
        assert estimate(source, "h100", 1, seq=1024).meta.get("warnings", []) == unread


def test_a_short_config_is_what_is_not_as_usual() -> None:
    model = Model("x", 4, 64, 4, 100, ffn=128)
    data = model.to_json()
    assert data == {"name": "x", "layers": 4, "hidden": 64, "heads": 4, "vocab": 100, "kv_heads": 4,
                    "head_dim": 16, "ffn": 128}  # fmt: skip
