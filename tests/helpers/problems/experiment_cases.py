"""A tiny profile, and what experiments on it begin with."""

from __future__ import annotations

PROFILE = {
    "name": "tiny",
    "devices": 2,
    "stages": {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 2, "w_mib": 1, "static_mib": 10},
    "offload": {"t_offload_ms": 1, "t_reload_ms": 1},
}
BASE = {"profile": PROFILE, "microbatches": 4}
