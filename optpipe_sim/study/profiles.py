"""Profiles as experiments give them: a file, a mapping or an estimate, with keys changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import OptPipeError
from ..files import plain, read_mapping
from ..profile import CostProfile
from ..profile_io import load_profile, profile_to_json
from ..units import BYTE_UNITS, TIME_UNITS

# keys of a profile with the same meaning
_SAME = {"d2h_gb_per_s": "t_offload", "h2d_gb_per_s": "t_reload"}


def profile_of(value: Any, folder: Path) -> CostProfile:
    """Load a profile as an experiment gives it: a file (relative to the experiment's folder, or to
    its parent folder, where experiments share profiles), a mapping of the file format, or
    ``{file: ...}`` or ``{estimate: {model, machine, devices, ...}}`` with further keys of the
    format that override its keys.

    Raises:
        OptPipeError: one line with what is wrong.
    """
    if isinstance(value, str):
        value = {"file": value}
    if not isinstance(value, dict):
        raise OptPipeError(f"expected a file or a mapping, got {plain(value)!r}")
    changes = dict(value)
    if "file" in value and "estimate" in value:
        raise OptPipeError("give file or estimate, not both")
    if "file" in value:
        path = _beside(str(changes.pop("file")), folder)
        data = read_mapping(path)
        data.setdefault("name", path.stem)
        start = path.as_posix()
    elif "estimate" in value:
        data = _estimated(changes.pop("estimate"))
        start = "estimate"
    else:
        return load_profile(value)
    try:
        return load_profile(changed(data, changes))
    except OptPipeError as error:
        raise OptPipeError(f"{start}: {error}") from None


def _beside(name: str, folder: Path) -> Path:
    """Return the file that an experiment in `folder` names."""
    above = folder / ".." / name
    return above if not (folder / name).exists() and above.exists() else folder / name


def _estimated(given: Any) -> dict[str, Any]:
    from ..costs import estimate  # imported here, as other experiments do not need the cost models

    if not isinstance(given, dict):
        raise OptPipeError("estimate: expected model, machine, devices and so on")
    try:
        # as any profile: ideal, unless it says how it is issued
        return profile_to_json(estimate(**{"execution": "ideal", **plain(given)}))
    except TypeError as error:
        what = (
            str(error)
            .removeprefix("estimate() ")
            .replace("got an unexpected keyword argument", "unknown key")
        )
        raise OptPipeError(f"estimate: {what}") from None


def _stem(key: str) -> str:
    """Return a key without its unit; keys with the same meaning have the same stem."""
    if key in _SAME:
        return _SAME[key]
    units = (*TIME_UNITS, *BYTE_UNITS)
    return next((key.removesuffix(unit) for unit in units if key.endswith(unit)), key)


def changed(data: Any, changes: Mapping[str, Any], keep_null: bool = False) -> Any:
    """Replace keys of a mapping, regardless of their unit; null removes a key (or is kept, for a
    later change); in a list of mappings (stages) each one is changed."""
    if isinstance(data, list):
        return [changed(entry, changes, keep_null) for entry in data]
    made = dict(data)
    for key, value in changes.items():
        old = made.get(key)
        for name in [name for name in made if _stem(str(name)) == _stem(key)]:
            del made[name]
        if isinstance(value, dict) and isinstance(old, dict | list):
            made[key] = changed(old, value, keep_null)
        elif value is not None or keep_null:
            made[key] = value
    return made
