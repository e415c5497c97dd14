"""Configs of Hugging Face: odd but real ones have the published sizes, or are refused by name."""

from __future__ import annotations

import pytest

from optpipe_sim.costs import load_model
from optpipe_sim.costs.models import ModelError, parameters

BASE = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000}  # fmt: skip
GEMMA3 = {"model_type": "gemma3_text", "sliding_window": 1024}
MOE = {**BASE, "model_type": "qwen2_moe", "hidden_size": 2048, "num_attention_heads": 16,
       "num_hidden_layers": 24, "num_experts": 60, "num_experts_per_tok": 4, "intermediate_size": 5632,
       "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "vocab_size": 151936}  # fmt: skip
LATENT = {**BASE, "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432,
          "num_attention_heads": 64, "num_key_value_heads": 64, "num_hidden_layers": 61, "vocab_size": 163840,
          "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
          "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_intermediate_size": 2048, "n_routed_experts": 384,
          "num_experts_per_tok": 8, "n_shared_experts": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [  # parameters of the text model, in 10^9
        ({**BASE, "num_key_value_heads": None, "head_dim": None, "rope_scaling": None}, 6.738),
        # a multimodal model's text_config has only what differs from the defaults of its type
        (
            {
                "model_type": "mistral3",
                "text_config": {**BASE, "model_type": "mistral", "intermediate_size": 14336},
            },
            7.242,
        ),
        (
            {
                "model_type": "gemma3",
                "text_config": {
                    **GEMMA3,
                    "hidden_size": 2560,
                    "intermediate_size": 10240,
                    "num_hidden_layers": 34,
                },
            },
            3.880,
        ),
        (
            {
                "model_type": "gemma3",
                "text_config": {
                    **GEMMA3,
                    "hidden_size": 3840,
                    "intermediate_size": 15360,
                    "num_hidden_layers": 48,
                    "num_attention_heads": 16,
                    "num_key_value_heads": 8,
                },
            },
            11.766,
        ),
        (
            {
                "model_type": "gemma2",
                "hidden_size": 3584,
                "intermediate_size": 14336,
                "num_hidden_layers": 42,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
            },
            9.241,
        ),
        ({"model_type": "llava", "tie_word_embeddings": True, "text_config": BASE}, 6.607),
        (MOE, 14.315),
        (LATENT, 1026.4),
        ({**BASE, "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 32064}, 3.821),
        ({"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50257, "n_inner": None}, 1.5576),
    ],
)  # fmt: skip
def test_configs_have_the_published_sizes(config: dict[str, object], published: float) -> None:
    assert parameters(load_model(config)) / 1e9 == pytest.approx(published, rel=2e-4)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({**BASE, "num_attention_heads": 30}, "head_dim: missing: 30 heads do not divide hidden"),
        ({**BASE, "hidden_size": "4096"}, "hidden_size: expected a whole number, got '4096'"),
        ({**BASE, "intermediate_size": None}, "intermediate_size: missing"),
        ({**BASE, "model_type": None, "architectures": ["X"]}, "model_type: missing; supported"),
        ({**MOE, "mlp_only_layers": [3, 7]}, "mlp_only_layers: only the first layers"),
        ({**MOE, "mlp_only_layers": 3}, "mlp_only_layers: only the first layers"),
        ({**LATENT, "moe_layer_freq": 2}, "moe_layer_freq: experts must be in every layer"),
    ],
)
def test_a_config_that_would_be_misread_is_refused(config: dict[str, object], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        load_model(config)


def test_keys_that_are_null_or_list_layers() -> None:
    assert load_model({**LATENT, "n_shared_experts": None}).shared_ffn == 0
    some = load_model({**MOE, "mlp_only_layers": [0, 1, 2]})
    assert [some.is_dense(at) for at in range(5)] == [True, True, True, False, False]
    assert load_model({**BASE, "attention_bias": True}).qkv_bias
    stretched = {"factor": 4.0, "original_max_position_embeddings": 4096}
    for key in ("rope_scaling", "rope_parameters"):
        model = load_model({**BASE, "max_position_embeddings": 4096, key: stretched})
        assert model.context == 16384
