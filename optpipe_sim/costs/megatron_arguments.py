"""The arguments that Megatron-LM prints when it starts, and the model that they describe.

Names as of Megatron-LM d98e8a6: megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .models import Model, ModelError, made_of

_LINES = re.compile(r"\r?\n|\r")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BEGINS = re.compile(r"-{10,} arguments -{10,}")
_ARGUMENT = re.compile(r"(?:^|[\s:\]])([a-z]\w+) (\.{2,}) (\[.*\]|\(.*\)|\S+)\s*$")
_WIDTHS = (48, 32)  # of a name and its dots: a line that lost its beginning has another
_PADDED = re.compile(r"> padded vocab \(size: (\d+)\)")

QUICK = "quick_gelu"  # the activation of --quick-geglu

# of a model, by its field; where the argument is absent or None the field keeps its default
_NUMBERS = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "head_dim": "kv_channels",
    "ffn": "ffn_hidden_size",
    "context": "max_position_embeddings",
    "rotary_base": "rotary_base",
    "mtp": "mtp_num_layers",
}
_EXPERTS = {
    "experts": "num_experts",
    "experts_per_token": "moe_router_topk",
    "expert_ffn": "moe_ffn_hidden_size",
    "shared_ffn": "moe_shared_expert_intermediate_size",
}
_LATENT = {
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "nope_dim": "qk_head_dim",
    "rope_dim": "qk_pos_emb_head_dim",
    "value_dim": "v_head_dim",
}
_FLAGS = {"qkv_bias": "add_qkv_bias", "qk_norm": "qk_layernorm"}


def uncoloured(text: str) -> str:
    """Return the text of a log without a terminal's colours."""
    return _COLOURS.sub("", text)


def lines_of(text: str) -> list[str]:
    """Return the lines of a log, without colours."""
    return _LINES.split(uncoloured(text))


def begins(line: str) -> bool:
    """Whether the arguments of a run follow."""
    return bool(_BEGINS.search(line))


def argument_of(line: str) -> tuple[str, str] | None:
    """Return the name and value of an argument in a line that is written whole; None for another line."""
    found = _ARGUMENT.search(line)
    return (found[1], found[3]) if found and len(found[1] + found[2]) in _WIDTHS else None


def vocabulary_of(line: str) -> str | None:
    """Return the size of the tokenizer's vocabulary, which is logged after the arguments; None for
    another line."""
    found = _PADDED.search(line)
    return found[1] if found else None


def is_log(text: str) -> bool:
    """Whether a text has the arguments of a run."""
    return bool(_BEGINS.search(text))


def arguments_in(text: str) -> dict[str, str]:
    """Return the arguments of the last run in a log, as written."""
    found: dict[str, str] = {}
    for line in lines_of(text):
        if begins(line):
            found = {}
        elif argument := argument_of(line):
            found[argument[0]] = argument[1]
        elif size := vocabulary_of(line):
            found["vocab_size"] = size
    return found


def describes_model(arguments: Mapping[str, str]) -> bool:
    """Whether there are arguments of a model at all; some logs have those of the run alone."""
    return _number(arguments, "hidden_size") > 0


def model_of(arguments: Mapping[str, str], name: str) -> Model:
    """Return the model that arguments describe.

    Raises:
        ModelError: one line with the argument that is missing or cannot be read.
    """
    made: dict[str, Any] = {"name": name}
    for ours, theirs in _NUMBERS.items():
        if value := _number(arguments, theirs):
            made[ours] = value
    vocab = _number(arguments, "vocab_size") or _number(arguments, "padded_vocab_size")
    for theirs, needed in (
        ("num_layers", made.get("layers")),
        ("hidden_size", made.get("hidden")),
        ("num_attention_heads", made.get("heads")),
        ("vocab_size", vocab),
    ):
        if not needed:
            raise ModelError(
                f"model {name}: {theirs}: the log does not say; give the model, as --model config.json"
            )
    made["vocab"] = vocab
    made["tied"] = not _is(arguments, "untie_embeddings_and_output_weights")
    made |= {ours: True for ours, theirs in _FLAGS.items() if _is(arguments, theirs)}
    if _is(arguments, "group_query_attention"):
        made["kv_heads"] = _number(arguments, "num_query_groups")
    gated = _is(arguments, "swiglu") or _is(arguments, "quick_geglu")
    made["style"] = "llama" if gated else "gpt"
    if _is(arguments, "quick_geglu"):
        made["activation"] = QUICK
    if arguments.get("position_embedding_type", "learned_absolute") == "learned_absolute":
        made["positions"] = made.get("context", 0)
        made.pop("rotary_base", None)
    if _number(arguments, "num_experts"):
        made |= _experts(arguments, name, made["layers"])
    if _is(arguments, "multi_latent_attention"):
        made |= {ours: _number(arguments, theirs) for ours, theirs in _LATENT.items()}
        made.pop("head_dim", None)
        made.pop("kv_heads", None)
    made["left_out"] = "; ".join(_left_out(arguments, gated))
    return made_of(made)


def _number(arguments: Mapping[str, str], name: str) -> int:
    text = arguments.get(name, "")
    return int(text) if text.isdecimal() else 0


def _is(arguments: Mapping[str, str], name: str) -> bool:
    return arguments.get(name) == "True"


def _experts(arguments: Mapping[str, str], name: str, layers: int) -> dict[str, Any]:
    """Return the fields of experts."""
    found: dict[str, Any] = {ours: _number(arguments, theirs) for ours, theirs in _EXPERTS.items()}
    found["expert_ffn"] = found["expert_ffn"] or _number(arguments, "ffn_hidden_size")
    said = arguments.get("moe_layer_freq", "1")
    if said.isdecimal():
        return found | {"experts_every": int(said)}
    pattern = [part.strip() for part in said.strip("[]").split(",")]
    dense = pattern.index("1") if "1" in pattern else 0
    every = next(
        (every for every in (1, dense + 1) if pattern == _pattern(layers, dense, every)), None
    )
    if every is None:
        raise ModelError(
            f"model {name}: moe_layer_freq: {said} is neither layers with an MLP and then layers with experts, nor every"
            " so many layers one with experts; give the model, as --model config.json"
        )
    return found | ({"dense_layers": dense} if every == 1 else {"experts_every": every})


def _pattern(layers: int, dense: int, every: int) -> list[str]:
    """Return which layers have experts: all after the `dense` first, or the last of each `every`."""
    having = range(dense, layers) if every == 1 else range(every - 1, layers, every)
    return ["1" if layer in having else "0" for layer in range(layers)]


def _left_out(arguments: Mapping[str, str], gated: bool) -> list[str]:
    """Return a sentence for each argument that changes costs and is not in the shape."""
    found = []
    if gated and arguments.get("add_bias_linear") == "True":
        found.append("biases of linears are left out")
    if gated and arguments.get("normalization", "RMSNorm") != "RMSNorm":
        found.append("norms are taken as RMSNorm, not LayerNorm")
    if not gated and arguments.get("normalization", "LayerNorm") != "LayerNorm":
        found.append("norms are taken as LayerNorm, not RMSNorm")
    if not gated and arguments.get("add_bias_linear") == "False":
        found.append("linears are taken with biases, which this model does not have")
    if arguments.get("window_size", "None") != "None":
        found.append("attention is taken over the whole sequence, not over a sliding window")
    for name in ("hybrid_layer_pattern", "hybrid_override_pattern"):
        if arguments.get(name, "None") != "None":
            raise ModelError(
                f"{name}: layers other than attention and MLP have no cost model; give the model, as --model"
            )
    return found
