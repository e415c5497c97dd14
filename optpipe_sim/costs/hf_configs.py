"""Read a Hugging Face ``config.json`` as a `Model`: text models of known types, their heads, and in sentences what
of the config is not in the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..units import format_parameters, is_plain
from .data_files import data_file
from .models import NEEDED, Model, ModelError, made_of, parameters

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
# A config of its own has always these keys; that of a text model in another may leave them out.
_SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
_NOT_TOWERS = ("quantization_config", "generation_config", "compression_config")


def _known(table: str) -> dict[str, Any]:
    """Return one of the tables of ``data/hugging_face/types.yaml``."""
    found: dict[str, Any] = data_file("hugging_face", "types")[table]
    return found


def _of_type(kind: str) -> dict[str, Any]:
    """Return what is known of a type of models; nothing of one that is not read."""
    found: dict[str, Any] = _known("types").get(kind, {})
    return found


def _listed(table: str, kind: str) -> str | None:
    """Return under which name of a table a type is listed."""
    return next((name for name, kinds in _known(table).items() if kind in kinds), None)


def hugging_face(data: Mapping[str, Any], name: str) -> Model:
    """Return the model of a ``config.json``; keys that do not change costs are ignored.

    Raises:
        ModelError: one line with the key and what would be right.
    """
    text = _text_config(data)
    nested = text is not data
    model = _text_model(text, name, nested, data.get("model_type") if nested else None)
    head, lost = _head(data, text)
    if head:
        model = replace(model, **head, mtp=0)
    left_out = [*_left_out(data, text), *lost, *_towers(data, parameters(model))]
    return replace(model, left_out="; ".join(left_out))


def _text_config(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model, with what the config around it says of all models."""
    key = next((key for key in _TEXT if isinstance(data.get(key), Mapping)), None)
    if key is None:
        return data
    outer = ("model_type", "_name_or_path", "tie_word_embeddings")
    kept = {key: data[key] for key in outer if data.get(key) is not None}
    around = data.get("model_type")
    if isinstance(around, str) and (text := _listed("text_types", around)):
        kept["model_type"] = text
    return _text_config({**kept, **data[key]})


def _name(data: Mapping[str, Any], name: str) -> str:
    given = data.get("_name_or_path")
    return given if isinstance(given, str) and given and is_plain(given) else name


def _type(data: Mapping[str, Any], name: str, around: Any = None) -> str:
    """Return the type of a text model; `around` is that of the config which it is a part of.

    Raises:
        ModelError: for one that has no cost model; says what that lacks.
    """
    kind = data.get("model_type")
    types = _known("types")
    if isinstance(kind, str) and kind in types:
        return kind
    problem = "missing" if kind is None else f"{kind!r} is not supported"
    if kind is not None and kind == around:
        problem = f"missing in the config of the text model, and {kind!r} does not imply one"
    elif isinstance(kind, str) and _listed("text_types", kind):
        problem = f"{kind!r} has its text model in text_config, which is missing"
    if isinstance(kind, str) and (part := _listed("lacking", kind)):
        problem += f", as it has {part}, for which there is no cost model"
    raise ModelError(
        f"model {name}: model_type: {problem}; supported are {', '.join(types)};"
        " or write a short config"
    )


def _text_model(data: Mapping[str, Any], name: str, nested: bool, around: Any = None) -> Model:
    kind = _type(data, name, around)
    known = _of_type(kind)
    defaults = {
        key: value
        for key, value in known.get("defaults", {}).items()
        if key not in data
        # published configs of gemma leave their vocabulary out
        and (nested or key not in _SHAPE or (key == "vocab_size" and kind.startswith("gemma")))
    }
    data = {**defaults, **data}
    names = dict(_GPT2 if kind == "gpt2" else _COMMON)
    names |= _EXPERTS if known.get("experts") else {}
    names |= _LATENT if known.get("latent") else {}
    made: dict[str, Any] = {"name": _name(data, name), **known.get("implies", {})}
    for theirs, ours in names.items():
        if data.get(theirs) is not None:
            made[ours] = data[theirs]
    for ours in (*NEEDED, *(() if kind == "gpt2" else ("ffn",))):
        if ours not in made:
            theirs = next(key for key, value in names.items() if value == ours)
            raise ModelError(f"model {name}: {theirs}: missing in the config.json")
    for theirs, ours in names.items():
        if ours != "tied" and not isinstance(value := made.get(ours, 0), int):
            raise ModelError(f"model {name}: {theirs}: expected a whole number, got {value!r}")
    made |= _beyond_names(data, kind, made) | _dense_layers(data, name)
    if known.get("latent"):
        made.pop("kv_heads", None)  # meaningless there: one latent serves every head
        made.pop("head_dim", None)
    scaling = data.get("rope_scaling") or data.get("rope_parameters")
    if isinstance(scaling, Mapping) and "original_max_position_embeddings" in scaling:
        made["context"] = _stretched(made.get("context"), scaling)
    base = _rotary_base(data)
    if base:
        made["rotary_base"] = base
    activation = data.get("hidden_activation") or data.get("hidden_act")
    if isinstance(activation, str) and is_plain(activation):
        made["activation"] = activation
    taken = [f"{key} {defaults[key]}" for key in names if key in defaults]
    if taken:
        made["source"] = f"defaults of {kind}, as the config does not say: {', '.join(taken)}"
    try:
        return made_of(made)
    except ModelError as error:  # in the words of the file
        before, _, after = str(error).partition(": ")
        field, _, problem = after.partition(": ")
        theirs = next((key for key, ours in names.items() if ours == field and key in data), field)
        raise ModelError(f"{before}: {theirs}: {problem}") from None


def _rotary_base(data: Mapping[str, Any]) -> int:
    """Return the base of the rotary positions; 0 where the config does not say one number for all layers."""
    inside = data.get("rope_parameters")
    base = data.get("rope_theta", inside.get("rope_theta") if isinstance(inside, Mapping) else None)
    whole = isinstance(base, int | float) and not isinstance(base, bool) and base == base // 1
    return int(base) if whole and 0 < base <= 10**9 else 0


def _beyond_names(data: Mapping[str, Any], kind: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keys of a config mean in models of this type."""
    found: dict[str, Any] = {}
    if data.get("attention_bias") is True:
        found["qkv_bias"] = True
    if kind == "glm4_moe" and data.get("use_qk_norm") is True:
        found["qk_norm"] = True
    if kind in ("mixtral", "gpt_oss", "llama4_text", "minimax_m2"):
        found["expert_ffn"] = made["ffn"]  # there every expert has the width of the MLP
    if kind == "llama4_text":  # except in layers without experts; one is shared by all tokens
        found["shared_ffn"] = made["ffn"]
        found["ffn"] = data.get("intermediate_size_mlp") or made["ffn"]
    if _of_type(kind).get("latent") or kind == "glm4_moe":
        found["shared_ffn"] = (data.get("n_shared_experts") or 0) * made.get("expert_ffn", 0)
    return found


# -- heads ----------------------------------------------------------------------------------------


def _head(data: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a head other than a language model's, and what is not modelled of it."""
    known = [name for one in (data, text) for name in _architectures(one)]
    # a base class around a text model, which the latter's own name says more of
    known.sort(key=lambda name: "For" not in name and "LMHead" not in name)
    if not known:
        return {}, []
    heads = _known("heads")
    end = next((end for end in heads if known[0].endswith(end)), None)
    if end is None:
        return {}, [
            f"architectures: the head of {known[0]} is not known, a language model's is taken"
        ]
    head = heads[end]
    if head in ("vocab", "none"):
        return ({} if head == "vocab" else {"head": head}), []
    labels = 2 if end == "ForQuestionAnswering" else _labels(data, text)
    lost = []
    if "Reward" in end:
        lost = [
            f"architectures: layers of {known[0]} between the last norm and its score are left out"
        ]
    return {"head": head, "labels": labels}, lost


def _architectures(data: Mapping[str, Any]) -> list[str]:
    named = data.get("architectures")
    named = named if isinstance(named, list) else [named]
    return [name for name in named[:1] if isinstance(name, str)]


def _labels(data: Mapping[str, Any], text: Mapping[str, Any]) -> int:
    """Return how many labels a classification has, two where a config does not say.

    Raises:
        ModelError: for anything but a number of at least 1.
    """
    for one in (data, text):
        names = one.get("id2label")
        count = len(names) if isinstance(names, Mapping) else one.get("num_labels")
        if count is None:
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ModelError(f"num_labels: expected a whole number of at least 1, got {count!r}")
        return count
    return 2


# -- what is left out -----------------------------------------------------------------------------


def _left_out(data: Mapping[str, Any], text: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each key of a ``config.json`` that changes costs and is not in the model."""
    kind = str(text.get("model_type"))
    whole = {**_of_type(kind).get("defaults", {}), **data, **text}
    if not whole.get("use_sliding_window", not kind.startswith("qwen")):
        whole.pop("sliding_window", None)
    layers = whole.get("layer_types")
    if isinstance(layers, list) and set(map(str, layers)) <= {"full_attention"}:
        whole.pop("layer_types")
    yield from (f"{key}: {lost}" for key, lost in _known("lost").items() if whole.get(key))
    if not _of_type(kind).get("experts"):
        for key in ("num_local_experts", "num_experts", "n_routed_experts"):
            if isinstance(whole.get(key), int) and whole[key] > 1:
                yield f"{key}: models of the type {kind} have no experts, and none is read"


def _towers(data: Mapping[str, Any], own: int) -> Iterator[str]:
    """Yield a sentence for each part beside the text model, with its share of all parameters."""
    found = dict(_sub_configs(data))
    sizes = {key: _tower_parameters(config) for key, config in found.items()}
    whole = own + sum(size or 0 for size in sizes.values())
    for key, size in sizes.items():
        share = "and not this part, whose share is not known"
        if size is not None:
            share = f"not this part of about {format_parameters(size)} parameters ({_percent(size / whole)} of the whole)"
        yield f"{key}: only the text model is read, {share}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share > 0.0095 else f"{share:.2%}"


def _sub_configs(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the configs of other models inside one, those around its text model included."""
    for key, value in data.items():
        if not isinstance(value, Mapping):
            continue
        if key in _TEXT:
            yield from _sub_configs(value)
        elif key not in _NOT_TOWERS and (
            str(key).endswith("_config") or "model_type" in value or _first(value, _DEPTHS)
        ):
            yield str(key), value


# Names that towers have for their sizes, and those whose MLP is gated.
_DEPTHS = ("num_hidden_layers", "depth", "encoder_layers", "num_layers", "n_layers", "layers")
_WIDTHS = ("embed_dim", "hidden_size", "d_model", "width", "hidden_dim", "dim")
_WIDENED = ("intermediate_size", "encoder_ffn_dim", "ffn_dim", "mlp_dim", "dim_feedforward")
_GATED = ("pixtral", "qwen2_5_vl", "qwen2_5_vl_vision")


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    """Return the first of some sizes that a config has; 0: it has none."""
    sizes = (config.get(key) for key in keys)
    return next(
        (size for size in sizes if isinstance(size, int) and 0 < size < 10**7 and size is not True),
        0,
    )


def _tower_parameters(config: Mapping[str, Any]) -> int | None:
    """Return about how many parameters a tower has, from its layers' widths and its inputs; None where its config
    does not say."""
    kind = str(config.get("model_type"))
    if isinstance(inner := next((config[key] for key in _TEXT if key in config), None), Mapping):
        config = inner
    config = {**_known("towers").get(kind, {}), **config}
    depth, width = _first(config, _DEPTHS), _first(config, _WIDTHS)
    if not depth or not width:
        return None
    ratio = config.get("mlp_ratio")
    ratio = ratio if isinstance(ratio, int | float) and 0 < ratio < 100 else 4
    inner_width = _first(config, _WIDENED) or round(ratio * width)
    heads, dim = _first(config, ("num_attention_heads", "num_heads")), _first(config, ("head_dim",))
    queries = heads * dim or width
    keys = _first(config, ("num_key_value_heads",)) * dim or queries
    text = kind in _known("types")
    gated = kind in _GATED or text
    layer = 2 * width * (queries + keys) + (3 if gated else 2) * width * inner_width
    inputs = 3 * _first(config, ("patch_size",)) ** 2 * width  # of an image's colours
    mels = _first(config, ("num_mel_bins",))  # of sound: two convolutions over three steps
    inputs += (
        (3 * mels + 3 * width + _first(config, ("max_source_positions",))) * width * bool(mels)
    )
    tokens = _first(config, ("vocab_size",)) if text else 0
    return depth * layer + inputs + 2 * tokens * width


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
