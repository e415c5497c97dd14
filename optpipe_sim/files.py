"""Files, read with clear errors and written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

from .errors import OptPipeError


class _Loader(yaml.SafeLoader):
    """Safe YAML whose decimals are exact (`Decimal`) and whose keys occur once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is not a word", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Decimal:
    text = node.value.replace("_", "").lower()
    try:
        return Decimal(
            {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}.get(text, text)
        )
    except InvalidOperation:  # 1:30.5, which YAML 1.1 takes for minutes and seconds
        raise yaml.constructor.ConstructorError(
            None, None, f"{node.value} is no decimal number", node.start_mark
        ) from None


_Loader.add_constructor("tag:yaml.org,2002:float", _decimal)
# YAML 1.1 takes 1e3 for a text (it wants 1.0e+3); people, and JSON, mean the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file; any failure is one line that names it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise OptPipeError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise OptPipeError(f"{path}: cannot be read: {reason}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON mapping whose keys occur once."""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return data


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, decimals as `Decimal`."""
    text = read_text(path)
    try:
        if str(path).endswith(".json"):
            data = json.loads(text, parse_float=Decimal, object_pairs_hook=_once)
        else:
            data = yaml.load(text, _Loader)  # a safe loader
    except json.JSONDecodeError as error:
        raise OptPipeError(
            f"{path}: not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
            + (" (the file ends there: truncated?)" if error.pos >= len(text.rstrip()) else "")
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise OptPipeError(f"{path}: not valid YAML: {problem}{place}") from None
    except (ValueError, RecursionError) as error:
        # a key given twice in JSON, a day that is none, a number of 5000 digits, endless nesting
        raise OptPipeError(f"{path}: cannot be parsed: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise OptPipeError(f"{path}: holds {type(data).__name__}, expected a mapping of keys")
    return data


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file whole or not at all (temporary file beside it, then renamed)."""
    target = Path(path)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:
        raise OptPipeError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """`write_bytes` for text."""
    return write_bytes(path, text.encode())


def plain(value: Any) -> Any:
    """`value` with decimals as numbers and tuples as lists: what JSON and YAML can hold."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def write_mapping(path: str | os.PathLike[str], data: dict[str, Any]) -> Path:
    """Write a mapping as JSON (by the name's ending) or else YAML."""
    if str(path).endswith(".json"):
        return write_text(path, json.dumps(plain(data), indent=1) + "\n")
    return write_text(path, yaml.safe_dump(plain(data), sort_keys=False, width=100))
