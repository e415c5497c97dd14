"""Models by name, from a short config, a Hugging Face ``config.json``, or a log of Megatron-LM."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import hint_for
from ..files import plain, read_log_text, read_mapping
from ..units import is_plain
from .hf_configs import hugging_face
from .megatron_arguments import arguments_in, is_log, model_of
from .models import NEEDED, Model, ModelError, made_of

_KEYS = tuple(entry.name for entry in fields(Model))


def load_model(source: str | os.PathLike[str] | Mapping[str, Any]) -> Model:
    """Load a model by name, from a YAML or JSON file, or from a mapping.

    A folder stands for the ``config.json`` in it, ``owner/Name`` of a hub for the built-in model of
    that name. A file or mapping is a short config (the fields of `Model`) or a Hugging Face ``config.json``
    (it has ``model_type``). A log of Megatron-LM stands for the model of the arguments in it.

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
    named = text.endswith((".json", ".yaml", ".yml"))
    if not named and Path(text).is_file():
        log = read_log_text(text)
        if is_log(log):
            return _of_log(log, text)
    if named or Path(text).is_file():
        data = plain(read_mapping(text, "a model"))
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


def _of_log(log: str, path: str) -> Model:
    stem = Path(path).stem
    try:
        return model_of(arguments_in(log), stem if is_plain(stem) else "model")
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


@lru_cache(maxsize=1024)
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
        return hugging_face(data, name)
    if not set(data) & set(NEEDED):
        keys = ", ".join(map(str, list(data)[:3])) or "no keys"
        raise ModelError(
            f"model {name}: model_type: missing: neither a config.json of Hugging Face, which has it, nor a short"
            f" config, which has {', '.join(NEEDED)}; it has {keys}"
        )
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
    missing = [key for key in NEEDED if key not in data]
    if missing:
        raise ModelError(f"model {name}: {missing[0]}: missing")
    return made_of({**data, "name": name})
