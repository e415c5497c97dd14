"""Configs of Hugging Face: odd but real ones have the published sizes, or are refused by name."""

from __future__ import annotations

import pytest

from optpipe_sim.costs import estimate, load_model
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
    assert some.dense[:5] == (True, True, True, False, False)
    assert load_model({**BASE, "attention_bias": True}).qkv_bias
    stretched = {"factor": 4.0, "original_max_position_embeddings": 4096}
    for key in ("rope_scaling", "rope_parameters"):
        model = load_model({**BASE, "max_position_embeddings": 4096, key: stretched})
        assert model.context == 16384


# -- heads ----------------------------------------------------------------------------------------

LLAMA3 = {**BASE, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
LLAMA3_BASE = 128256 * 4096 + 32 * (4096 * 6144 + 4096**2 + 3 * 4096 * 14336 + 2 * 4096) + 4096


@pytest.mark.parametrize(
    ("said", "own", "head", "labels"),
    [  # what comes on top of the decoder and its last norm
        ({}, 128256 * 4096, "vocab", 0),
        ({"architectures": ["LlamaForCausalLM"]}, 128256 * 4096, "vocab", 0),
        # 7,504,928,768 in all: a reward model
        ({"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}, 4096, "sequence", 1),
        ({"architectures": "LlamaForSequenceClassification"}, 2 * 4096, "sequence", 2),
        ({"architectures": ["LlamaForTokenClassification"], "num_labels": 9}, 9 * 4097, "token", 9),
        ({"architectures": ["LlamaForTokenClassification"], "num_labels": 9,
          "id2label": {"0": "a", "1": "b", "2": "c"}}, 3 * 4097, "token", 3),
        ({"architectures": ["LlamaForQuestionAnswering"], "num_labels": 9}, 2 * 4097, "token", 2),
        ({"architectures": ["LlamaModel"], "tie_word_embeddings": True}, 0, "none", 0),
    ],
)  # fmt: skip
def test_architectures_say_the_head(
    said: dict[str, object], own: int, head: str, labels: int
) -> None:
    model = load_model({**LLAMA3, **said})
    assert (model.head, model.labels, model.warnings) == (head, labels, [])
    assert parameters(model) == LLAMA3_BASE + own


@pytest.mark.parametrize("head", ["LlamaForSequenceClassification", "LlamaModel"])
def test_stages_without_logits_are_of_the_same_length(head: str) -> None:
    logits = estimate(load_model(LLAMA3), "h100", 4)
    labels = estimate(load_model({**LLAMA3, "architectures": [head]}), "h100", 4)
    assert [cost.layers for cost in labels.stages] == [9, 8, 8, 9]  # with embedding and head
    assert labels.stages[-1].act_bytes < logits.stages[-1].act_bytes
    assert labels.stages[-1].t_f_ns == pytest.approx(labels.stages[1].t_f_ns, rel=0.01)


def test_heads_that_are_not_known_are_said() -> None:
    model = load_model({**LLAMA3, "architectures": ["LlamaForSomethingElse"]})
    assert model.warnings == [
        "architectures: the head of LlamaForSomethingElse is not known, a language model's is taken"
    ]
    reward = load_model({**LLAMA3, "architectures": ["Qwen2ForRewardModel"], "num_labels": 1})
    assert (reward.head, reward.labels) == ("sequence", 1)
    assert "Qwen2ForRewardModel" in reward.left_out
    wrong = {**LLAMA3, "architectures": ["LlamaForSequenceClassification"], "num_labels": 0}
    with pytest.raises(
        ModelError, match="num_labels: expected a whole number of at least 1, got 0"
    ):
        load_model(wrong)
    with pytest.raises(ModelError, match="labels: a head sequence has no labels"):
        load_model(
            {"layers": 2, "hidden": 64, "heads": 4, "vocab": 10, "ffn": 8, "head": "sequence"}
        )
    with pytest.raises(ModelError, match="head: expected vocab, sequence, token, none, got 'x'"):
        load_model({"layers": 2, "hidden": 64, "heads": 4, "vocab": 10, "ffn": 8, "head": "x"})


# -- multimodal models ----------------------------------------------------------------------------

SOUND = {"model_type": "voxtral_encoder", "hidden_size": 1280, "intermediate_size": 5120,
         "num_attention_heads": 20, "num_hidden_layers": 32, "num_mel_bins": 128}  # fmt: skip


@pytest.mark.parametrize("key", ["audio_config", "speech_config", "encoder_config", "new_tower"])
def test_a_tower_is_named_with_its_share(key: str) -> None:
    """0.637 of 4.65 billion parameters in a published speech model, its projector aside."""
    text = {**BASE, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072}  # fmt: skip
    outer = {"model_type": "voxtral", "architectures": ["VoxtralForConditionalGeneration"]}
    model = load_model({**outer, key: SOUND, "text_config": text})
    assert parameters(model) / 1e9 == pytest.approx(4.014, rel=1e-3)
    assert model.warnings == [
        f"{key}: only the text model is read, not this part of about 0.635B parameters (14% of the whole)"
    ]


def test_towers_around_and_of_unknown_size() -> None:
    inner = {
        "text_config": {**BASE, "num_hidden_layers": 4},
        "vision_config": {"model_type": "new"},
    }
    model = load_model({"model_type": "omni", "thinker_config": inner, "talker_config": SOUND,
                        "quantization_config": None, "id2label": {"0": "x"}})  # fmt: skip
    assert model.layers == 4
    assert [text.partition(",")[0] for text in model.warnings] == [
        "vision_config: only the text model is read",
        "talker_config: only the text model is read",
    ]
    assert model.warnings[0].endswith("and not this part, whose share is not known")


def test_a_sparse_text_config_has_the_defaults_of_its_type() -> None:
    outer = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
             "tie_word_embeddings": False}  # fmt: skip
    model = load_model({**outer, "text_config": {"model_type": "llama", "vocab_size": 32064}})
    assert parameters(model) == 6_738_939_904
    assert model.source == (
        "defaults of llama, as the config does not say: num_hidden_layers 32, hidden_size 4096,"
        " num_attention_heads 32, intermediate_size 11008"
    )
    given = load_model({**outer, "text_config": BASE})
    assert given.source == ""
    # a config of its own has these keys; without one it is not whole
    with pytest.raises(ModelError, match=r"num_hidden_layers: missing in the config\.json"):
        load_model({"model_type": "llama", "vocab_size": 32064})


@pytest.mark.parametrize(
    ("around", "kind"),
    [
        ("llava", "llama"), ("llava_onevision", "qwen2"), ("mistral3", "mistral"), ("paligemma", "gemma"),
        ("gemma3", "gemma3_text"), ("llama4", "llama4_text"), ("qwen3_vl_moe", "qwen3_vl_moe_text"),
    ],
)  # fmt: skip
def test_a_text_config_without_a_type_has_the_one_that_is_implied(around: str, kind: str) -> None:
    """As transformers' configuration classes take it."""
    said = load_model({"model_type": around, "text_config": {"model_type": kind}})
    implied = load_model({"model_type": around, "text_config": {}})
    assert implied.shape() == said.shape()
    assert f"defaults of {kind}" in implied.source


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "new_vl", "text_config": {**BASE, "model_type": None}},
         "model_type: missing in the config of the text model, and 'new_vl' does not imply one"),
        ({"model_type": "llava", "text_config": None},
         "model_type: 'llava' has its text model in text_config, which is missing"),
        ({key: BASE[key] for key in BASE if key not in ("model_type", "architectures")},
         "model_type: missing: neither a config.json of Hugging Face, which has it, nor a short config"),
        ({"peft_type": "LORA", "r": 16}, "it has peft_type, r"),
        # the words of the file, not the fields of a model
        ({**BASE, "num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide"),
        ({**BASE, "num_hidden_layers": -3}, "num_hidden_layers: must be from 0"),
        ({**BASE, "vocab_size": True}, "vocab_size: expected a whole number"),
    ],
)  # fmt: skip
def test_a_refusal_names_what_is_missing_in_the_words_of_the_file(
    config: dict[str, object], problem: str
) -> None:
    config = {key: value for key, value in config.items() if value is not None}
    if isinstance(inner := config.get("text_config"), dict):
        config["text_config"] = {key: one for key, one in inner.items() if one is not None}
    with pytest.raises(ModelError, match=problem):
        load_model(config)


# All parameters of a type as its configuration class has them, counted by transformers on its meta device
# (5.23.0), and of a small config by hand.
SIZES = {
    "llama": 6_738_415_616, "mistral": 7_241_732_096, "mixtral": 46_702_792_704,
    "ministral3": 8_489_553_920, "phi3": 3_821_079_552, "qwen2": 12_049_846_272,
    "qwen3": 12_049_461_248, "qwen3_moe": 15_350_731_776, "gemma": 8_537_680_896,
    "deepseek_v3": 671_026_404_352, "llama4_text": 107_769_861_120, "olmo2": 6_888_624_128,
    "olmo3": 6_888_624_128, "minimax_m2": 228_689_748_992,
}  # fmt: skip


@pytest.mark.parametrize("kind", SIZES)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    whole = {"model_type": "any", "text_config": {"model_type": kind}}
    assert parameters(load_model(whole)) == SIZES[kind]


SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000}  # fmt: skip
ATTENTION = 64 * (4 + 2 * 2) * 32 + 4 * 32 * 64
MLP, NORM, ENDS = 3 * 64 * 96, 64, 2 * 1000 * 64 + 64
EXPERT = 3 * 64 * 32


@pytest.mark.parametrize(
    ("kind", "more", "right"),
    [
        ("ministral3", {}, ENDS + 4 * (ATTENTION + MLP + 2 * NORM)),
        # norms over all heads of queries, and of keys
        ("olmo3", {}, ENDS + 4 * (ATTENTION + MLP + 2 * NORM + (4 + 2) * 32)),
        (
            "minimax_m2", {"num_local_experts": 8, "num_experts_per_tok": 2},
            ENDS + 4 * (ATTENTION + 8 * MLP + 8 * 64 + 2 * NORM + (4 + 2) * 32),
        ),
        (
            "glm4_moe",
            {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2,
             "moe_intermediate_size": 32, "first_k_dense_replace": 1, "attention_bias": True,
             "use_qk_norm": True, "num_nextn_predict_layers": 1},
            ENDS + 4 * (ATTENTION + (4 + 2 * 2) * 32 + 2 * 32 + 2 * NORM) + MLP
            + 3 * ((8 + 2) * EXPERT + 8 * 64),
        ),
    ],
)  # fmt: skip
def test_parameters_of_a_type_by_hand(kind: str, more: dict[str, object], right: int) -> None:
    assert parameters(load_model({**SMALL, "model_type": kind, **more})) == right


@pytest.mark.parametrize(
    ("kind", "lack"),
    [("qwen3_next", "layers of linear attention"), ("nemotron_h", "state-space layers"),
     ("t5", "an encoder before its decoder"), ("bert", "attention to both sides")],
)  # fmt: skip
def test_types_without_a_cost_model_say_what_they_lack(kind: str, lack: str) -> None:
    for config in ({**SMALL, "model_type": kind}, {"text_config": {**SMALL, "model_type": kind}}):
        with pytest.raises(ModelError, match=f"'{kind}' is not supported, as it has {lack}"):
            load_model({"architectures": ["X"], **config})


def test_experts_of_a_type_that_has_none_are_told() -> None:
    said = "num_local_experts: models of the type llama have no experts, and none is read"
    assert said in load_model({**BASE, "num_local_experts": 8}).warnings
    assert not load_model({**BASE, "num_local_experts": 1}).warnings
    assert not [text for text in load_model(MOE).warnings if "experts" in text]
