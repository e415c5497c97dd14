"""Read a Hugging Face ``config.json`` as a model, and report the keys that change costs but are not
modelled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ...costs.model_files import load_model
from ...costs.models import Model
from ...files import plain, read_mapping

# Keys of a config that change costs but are not modelled.
_LOST = {
    "num_nextn_predict_layers": "layers that predict further tokens (MTP) are left out",
    "sliding_window": "attention is taken over the whole sequence, not over a sliding window",
    "quantization_config": "weights are taken in the dtype of the work, not quantized",
    "mlp_bias": "biases of the MLP are left out",
    "layer_types": "all layers are taken to attend over the whole sequence",
    "vision_config": "only the text model is read",
    "cross_attention_layers": "layers with cross attention are taken as plain ones",
    "use_sliding_window": "",
}


def read_config(path: str | os.PathLike[str]) -> tuple[Model, list[str]]:
    """Read the model; returns it with a sentence for each feature that it leaves out.

    Raises:
        ModelError: names the file, the key, and what would be right.
        OptPipeError: for a file that cannot be read.
    """
    model = load_model(path)
    data = plain(read_mapping(path)) if not os.path.isdir(path) else {}
    return model, list(_unread(data))


def _unread(data: Mapping[str, Any]) -> list[str]:
    inner = data.get("text_config")
    whole = {**data, **inner} if isinstance(inner, Mapping) else dict(data)
    if whole.get("use_sliding_window") is False:
        whole.pop("sliding_window", None)
    layers = whole.get("layer_types")
    if isinstance(layers, list) and set(layers) <= {"full_attention"}:
        whole.pop("layer_types")
    return [f"{key}: {lost}" for key, lost in _LOST.items() if lost and whole.get(key)]


def model_data(model: Model) -> dict[str, Any]:
    """Return the short config of a model: the fields that differ from their defaults."""
    plain_fields = {entry.name: getattr(model, entry.name) for entry in fields(Model)}
    usual = {e.name: e.default for e in fields(Model) if e.default is not MISSING}
    return {key: value for key, value in plain_fields.items() if usual.get(key, MISSING) != value}
