"""Models by name, from a short config, or from a Hugging Face ``config.json``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import hint_for
from ..files import plain, read_mapping
from ..units import is_plain
from .models import Model, ModelError

_KEYS = tuple(entry.name for entry in fields(Model))

# Hugging Face names on the left; several model types share them.
_COMMON = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "vocab_size": "vocab",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn",
    "tie_word_embeddings": "tied",
    "max_position_embeddings": "context",
    "num_nextn_predict_layers": "mtp",
}
_NEEDED = ("layers", "hidden", "heads", "vocab")
_EXPERTS = {
    "num_local_experts": "experts",
    "num_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_ffn",
    "shared_expert_intermediate_size": "shared_ffn",
    "first_k_dense_replace": "dense_layers",
    "decoder_sparse_step": "experts_every",
    "interleave_moe_layer_step": "experts_every",
}
_LATENT = {
    "q_lora_rank": "q_lora",
    "kv_lora_rank": "kv_lora",
    "qk_nope_head_dim": "nope_dim",
    "qk_rope_head_dim": "rope_dim",
    "v_head_dim": "value_dim",
}
_GPT2 = {
    "n_layer": "layers",
    "n_embd": "hidden",
    "n_head": "heads",
    "vocab_size": "vocab",
    "n_inner": "ffn",
    "n_positions": "positions",
    "tie_word_embeddings": "tied",
}
# What a type implies beyond its keys.
_TYPES: dict[str, dict[str, Any]] = {
    "gpt2": {"style": "gpt", "tied": True},
    "llama": {},
    "mistral": {},
    "phi3": {},
    "qwen2": {"qkv_bias": True},
    "qwen2_vl": {"qkv_bias": True},
    "qwen2_vl_text": {"qkv_bias": True},
    "qwen2_5_vl": {"qkv_bias": True},
    "qwen2_5_vl_text": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_vl_text": {"qk_norm": True},
    "mixtral": {},
    "qwen2_moe": {"qkv_bias": True},
    "qwen3_moe": {"qk_norm": True},
    "qwen3_vl_moe_text": {"qk_norm": True},
    "gpt_oss": {"qkv_bias": True},
    "gemma": {"tied": True},
    "gemma2": {"tied": True},
    "gemma3_text": {"qk_norm": True, "tied": True},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "kimi_k2": {},
    "llama4_text": {},
}
# What transformers takes for a key that is not there (the text_config of a multimodal model has only what
# differs from it); models/*/configuration_*.py of github.com/huggingface/transformers.
_ABSENT: dict[str, dict[str, int]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "llama4_text": {"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192},
    "gemma": {"num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256_000},
    "gemma2": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 256_000,
        "sliding_window": 4096,
    },
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "sliding_window": 4096,
    },
}
# Keys of a config that change costs but are not modelled.
_LOST = {
    "sliding_window": "attention is taken over the whole sequence, not over a sliding window",
    "attention_chunk_size": "attention is taken over the whole sequence, not within chunks",
    "quantization_config": "weights are taken in the dtype of the work, not quantized",
    "mlp_bias": "biases of the MLP are left out",
    "layer_types": "all layers are taken to attend over the whole sequence",
    "vision_config": "only the text model is read",
    "cross_attention_layers": "layers with cross attention are taken as plain ones",
}
_WITH_EXPERTS = (
    "mixtral",
    "gpt_oss",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_vl_moe_text",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "llama4_text",
)
_LIKE_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "kimi_k2")


def load_model(source: str | os.PathLike[str] | Mapping[str, Any]) -> Model:
    """Load a model by name, from a YAML or JSON file, or from a mapping.

    A folder stands for the ``config.json`` in it, ``owner/Name`` of a hub for the built-in model of
    that name. A file or mapping is a short config (the fields of `Model`) or a Hugging Face ``config.json``
    (it has ``model_type``).

    Raises:
        ModelError: one line with the model or file, the key, and what would be right.
        OptPipeError: for a file that cannot be read.
    """
    if isinstance(source, Mapping):
        return _model(dict(source), "model")
    text = str(source)
    if Path(text).is_dir():
        if not (Path(text) / "config.json").is_file():
            raise ModelError(f"model {text!r}: this folder has no config.json")
        text = str(Path(text) / "config.json")
    if text.endswith((".json", ".yaml", ".yml")) or Path(text).is_file():
        data = plain(read_mapping(text))
        default = Path(text).parent.name if Path(text).name == "config.json" else Path(text).stem
        try:
            return _model(data, default or "model")
        except ModelError as error:
            raise ModelError(f"{text}: {error}") from None
    known = _builtin()
    same = {_bare(name): name for name in known}.get(_bare(text))
    if same is not None:
        return known[same]
    if text.lower() not in known:
        hint = hint_for(text.rpartition("/")[2].lower(), known, 3)
        raise ModelError(f"model {text!r}: no such name, and no such file; {hint}")
    return known[text.lower()]


def _bare(name: str) -> str:
    """Reduce a name, or a hub's ``owner/Name-Instruct``, to the part that determines the shape: without owner,
    signs and variants."""
    text = name.lower().rpartition("/")[2]
    text = re.sub(r"-(instruct|chat|base|hf|it|pt|v0\.\d)(?=-|$)", "", text)
    return re.sub(r"[^a-z0-9]", "", text.removeprefix("meta-"))


def model_names() -> list[str]:
    """Return the names of the built-in models."""
    return list(_builtin())


@cache
def _builtin() -> dict[str, Model]:
    found: dict[str, Model] = {}
    folder = files("optpipe_sim.costs") / "data" / "models"
    for path in sorted(str(entry) for entry in folder.iterdir() if entry.name.endswith(".yaml")):
        for name, data in plain(read_mapping(path)).items():
            found[name] = _short(data, name)
    return found


def _model(data: dict[str, Any], name: str) -> Model:
    if "model_type" in data or "architectures" in data:
        return replace(_hugging_face(data, name), left_out="; ".join(_left_out(data)))
    given = data.pop("name", name)
    if not isinstance(given, str) or not given or not is_plain(given):
        raise ModelError(f"model {name}: name: expected a text on one line, got {given!r}")
    return _short(data, given)


def _short(data: Any, name: str) -> Model:
    if not isinstance(data, Mapping):
        raise ModelError(f"model {name}: expected a mapping of keys, got {data!r}")
    for key in data:
        if key not in _KEYS:
            hint = hint_for(str(key), _KEYS)
            raise ModelError(f"model {name}: {key}: unknown key; {hint}")
    missing = [key for key in _NEEDED if key not in data]
    if missing:
        raise ModelError(f"model {name}: {missing[0]}: missing")
    return _made({**data, "name": name})


def _made(data: dict[str, Any]) -> Model:
    for key in ("published_parameters", "published_active"):
        value = data.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
            raise ModelError(f"model {data['name']}: {key}: must be a number, got {value!r}")
        data[key] = float(value)
    try:
        return Model(**data)
    except (TypeError, ZeroDivisionError):
        raise ModelError(
            f"model {data['name']}: layers, hidden, heads and vocab must be whole numbers above 0"
        ) from None


def _hugging_face_name(data: Mapping[str, Any], name: str) -> str:
    given = data.get("_name_or_path")
    return given if isinstance(given, str) and given and is_plain(given) else name


def _hugging_face(data: dict[str, Any], name: str) -> Model:
    """Return the model of a ``config.json``; keys that do not change costs are ignored."""
    inner = data.get("text_config")
    if isinstance(inner, Mapping):
        outer = ("model_type", "_name_or_path", "tie_word_embeddings")
        return _hugging_face({**{key: data.get(key) for key in outer}, **inner}, name)
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in _TYPES:
        problem = "missing" if kind is None else f"{kind!r} is not supported"
        raise ModelError(
            f"model {name}: model_type: {problem}; supported are {', '.join(_TYPES)};"
            " or write a short config"
        )
    data = {**_ABSENT.get(kind, {}), **data}
    names = dict(_GPT2 if kind == "gpt2" else _COMMON)
    if kind in _WITH_EXPERTS:
        names |= _EXPERTS
    if kind in _LIKE_DEEPSEEK:
        names |= _LATENT
    made: dict[str, Any] = {"name": _hugging_face_name(data, name), **_TYPES[kind]}
    for theirs, ours in names.items():
        if data.get(theirs) is not None:
            made[ours] = data[theirs]
    for ours in (*_NEEDED, *(() if kind == "gpt2" else ("ffn",))):
        if ours not in made:
            theirs = next(key for key, value in names.items() if value == ours)
            raise ModelError(f"model {name}: {theirs}: missing in the config.json")
    for theirs, ours in names.items():
        if ours != "tied" and not isinstance(value := made.get(ours, 0), int):
            raise ModelError(f"model {name}: {theirs}: expected a whole number, got {value!r}")
    if data.get("attention_bias") is True:
        made["qkv_bias"] = True
    if kind in ("mixtral", "gpt_oss", "llama4_text"):  # there every expert has the width of the MLP
        made["expert_ffn"] = made["ffn"]
    if kind == "llama4_text":  # except in layers without experts; one is shared by all tokens
        made["shared_ffn"] = made["expert_ffn"]
        made["ffn"] = data.get("intermediate_size_mlp") or made["expert_ffn"]
    if kind in _LIKE_DEEPSEEK:
        made.pop("kv_heads", None)  # meaningless there: one latent serves every head
        made.pop("head_dim", None)
        made["shared_ffn"] = (data.get("n_shared_experts") or 0) * made.get("expert_ffn", 0)
    made |= _dense_layers(data, name)
    scaling = data.get("rope_scaling") or data.get("rope_parameters")
    if isinstance(scaling, Mapping) and "original_max_position_embeddings" in scaling:
        made["context"] = _stretched(made.get("context"), scaling)
    return _made(made)


def _left_out(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each key of a ``config.json`` that changes costs and is not in the model."""
    inner = data.get("text_config")
    whole = {**data, **inner} if isinstance(inner, Mapping) else dict(data)
    kind = str(whole.get("model_type"))
    whole = {**_ABSENT.get(kind, {}), **whole}
    if not whole.get("use_sliding_window", not kind.startswith("qwen")):
        whole.pop("sliding_window", None)
    layers = whole.get("layer_types")
    if isinstance(layers, list) and set(map(str, layers)) <= {"full_attention"}:
        whole.pop("layer_types")
    yield from (f"{key}: {lost}" for key, lost in _LOST.items() if whole.get(key))


def _dense_layers(data: Mapping[str, Any], name: str) -> dict[str, int]:
    """Return `dense_layers` where a config lists the layers without experts.

    Raises:
        ModelError: if these are not the first ones.
    """
    listed = data.get("mlp_only_layers")
    if listed:
        first = list(range(len(listed))) if isinstance(listed, list) else None
        if listed != first or data.get("decoder_sparse_step", 1) != 1:
            raise ModelError(
                f"model {name}: mlp_only_layers: only the first layers can be without experts, got {listed}"
            )
        return {"dense_layers": len(listed)}
    often = data.get("moe_layer_freq", 1)
    if often not in (None, 1):
        raise ModelError(
            f"model {name}: moe_layer_freq: experts must be in every layer after the first"
            f" first_k_dense_replace, got {often}"
        )
    return {}


def _stretched(context: Any, scaling: Mapping[str, Any]) -> Any:
    """Return the context length, extended by ``rope_scaling``."""
    factor, before = scaling.get("factor"), scaling["original_max_position_embeddings"]
    if not (isinstance(factor, int | float) and isinstance(before, int) and 1 <= factor <= 1e6):
        return context
    return max(context, int(factor * before)) if isinstance(context, int) else context
