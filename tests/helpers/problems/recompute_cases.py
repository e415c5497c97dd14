"""Small profiles with levels of recomputation."""

from __future__ import annotations

from optpipe_sim import load_profile
from optpipe_sim.profile import CostProfile

LEVELS = [
    {"name": "light", "t_ns": 1, "keep_bytes": 60, "work_bytes": 20},
    {"name": "full", "t_ns": 10, "keep_bytes": 6, "work_bytes": 30},
]


def profile(devices: int = 1, copy: int = 16, **changes: object) -> CostProfile:
    """The stages of the small cases: F, B, W = 10, 11, 9; act 100, w 50; all of act copied in `copy`."""
    return load_profile(
        {
            "name": "small",
            "devices": devices,
            "stages": {
                "t_f_ns": 10,
                "t_b_ns": 11,
                "t_w_ns": 9,
                "act_bytes": 100,
                "w_bytes": 50,
                "recompute": LEVELS,
            },
            "t_comm_ns": 1,
            "offload": {"t_offload_ns": copy, "t_reload_ns": copy},
            **changes,
        }
    )
