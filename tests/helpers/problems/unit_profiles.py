"""Profiles of whole milliseconds, whose times can be added up by eye."""

from __future__ import annotations

from typing import Any

from optpipe_sim import CostProfile, load_profile

UNIT = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50}


def unit_profile(devices: int, chunks: int = 1, **changes: Any) -> CostProfile:
    """F = B = W = 1 ms per *chunk*, no communication, 100 bytes per activation, half of it for W."""
    data: dict[str, Any] = {
        "name": "unit",
        "devices": devices,
        "chunks": chunks,
        "stages": UNIT,
    }
    return load_profile({**data, **changes})
