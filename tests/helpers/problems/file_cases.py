"""A profile as a mapping, and changes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BASE: dict[str, Any] = {
    "devices": 2,
    "stages": {"t_f_ms": 1, "t_b_ms": 2, "t_w_ms": 1, "act_mib": 10, "w_mib": 5},
    "t_comm_us": 10,
    "offload": {"t_offload_ms": 1, "t_reload_ms": 1},
}


def with_key(path: str, value: Any, base: Mapping[str, Any] = BASE) -> dict[str, Any]:
    """BASE with one key (dots go deeper) set, or left out where the value is `...`."""
    data = {key: dict(item) if isinstance(item, dict) else item for key, item in base.items()}
    *above, key = path.split(".")
    inner: Any = data
    for step in above:
        inner = inner[step]
    if value is ...:
        del inner[key]
    else:
        inner[key] = value
    return data
