"""Traces as files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import OptPipeError, ProfileError
from ..profile_io import load_profile
from ..schedule import Schedule

FORMAT, VERSION = "optpipe-trace", 1


def read_fields(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Read the fields of a trace from a mapping of the file format.

    Raises:
        OptPipeError: one line that names `source` and what is wrong.
    """
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise OptPipeError(f"{source}: format: expected {FORMAT!r}, version {VERSION}")
    for key in ("profile", "schedule"):
        if not isinstance(data.get(key), Mapping):
            raise OptPipeError(f"{source}: {key}: missing, or no mapping")
    schedule = Schedule.from_json(data["schedule"], source)
    start, end, grant = (
        _whole(data, key, len(schedule), source) for key in ("start_ns", "end_ns", "grant_ns")
    )
    limit, devices = data.get("memory_limit_bytes"), schedule.shape.devices
    if limit is not None:
        limit = tuple(_whole(data, "memory_limit_bytes", devices, source).tolist())
    objective, fits = data.get("objective", "flush"), data.get("fits") is not False
    try:
        profile = load_profile(data["profile"])
    except ProfileError as error:
        raise ProfileError(f"{source}: profile: {error}") from None
    return {
        "schedule": schedule,
        "profile": profile,
        "start_ns": start,
        "end_ns": end,
        "grant_ns": grant,
        "memory_limit": limit,
        "objective": objective,
        "fits": fits,
    }


def _whole(data: Mapping[str, Any], key: str, size: int, source: str) -> np.ndarray:
    """Return the `size` whole numbers under a key of a trace file."""
    values = data.get(key)
    fine = isinstance(values, list) and len(values) == size
    if not fine or any(type(value) is not int or abs(value) > 2**62 for value in values or ()):
        raise OptPipeError(f"{source}: {key}: expected a list of {size} whole numbers")
    return np.array(values, np.int64)
