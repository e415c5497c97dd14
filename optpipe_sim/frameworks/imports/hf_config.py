"""Read a Hugging Face ``config.json`` as a model, and report the keys that change costs but are not
modelled."""

from __future__ import annotations

import os
from typing import Any

from ...costs.model_files import load_model
from ...costs.models import SAID, Model


def read_config(path: str | os.PathLike[str]) -> tuple[Model, list[str]]:
    """Read the model; returns it with a sentence for each feature that it leaves out.

    Raises:
        ModelError: names the file, the key, and what would be right.
        OptPipeError: for a file that cannot be read.
    """
    model = load_model(path)
    return model, model.warnings


def model_data(model: Model) -> dict[str, Any]:
    """Return the short config of a model: its shape, and what is said of it where anything is."""
    said = {key: getattr(model, key) for key in SAID}
    return {**model.shape(), **{key: value for key, value in said.items() if value}}
