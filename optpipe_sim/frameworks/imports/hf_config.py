"""Read a Hugging Face ``config.json`` as a model, and report the keys that change costs but are not
modelled."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields
from typing import Any

from ...costs.model_files import load_model
from ...costs.models import Model


def read_config(path: str | os.PathLike[str]) -> tuple[Model, list[str]]:
    """Read the model; returns it with a sentence for each feature that it leaves out.

    Raises:
        ModelError: names the file, the key, and what would be right.
        OptPipeError: for a file that cannot be read.
    """
    model = load_model(path)
    return model, model.warnings


def model_data(model: Model) -> dict[str, Any]:
    """Return the short config of a model: the fields that differ from their defaults."""
    plain_fields = {entry.name: getattr(model, entry.name) for entry in fields(Model)}
    usual = {e.name: e.default for e in fields(Model) if e.default is not MISSING}
    return {key: value for key, value in plain_fields.items() if usual.get(key, MISSING) != value}
