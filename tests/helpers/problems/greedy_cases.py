"""Profiles and settings for AdaOffload and what is made of it."""

from __future__ import annotations

from random import Random

from optpipe_sim import CostProfile, load_profile
from optpipe_sim.schedules.adaoffload.runs import UNBOUNDED, Setting


def uniform(
    devices: int, limit: int | None = None, copy_ns: int = 5, **offload: object
) -> CostProfile:
    """F = 10, B = 11, W = 9 ns, P2P latency 1 ns, 100 bytes per activation."""
    data = {
        "name": "uniform",
        "devices": devices,
        "stages": {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50},
        "t_comm_ns": 1,
        "offload": {"t_offload_ns": copy_ns, "t_reload_ns": copy_ns, **offload},
    }
    return load_profile(data if limit is None else {**data, "memory_limit_bytes": limit})


def any_setting(random: Random) -> Setting:
    return Setting(
        prefer=random.randrange(3),
        tolerance=random.choice((0, 300, 1000)),
        pending=random.choice((1, 3, UNBOUNDED)),
        group=random.choice((1, 2, 0, -1)),
        ahead=random.choice((500, 1500, 5000)),
        headroom=random.randrange(4),
        oldest=random.randrange(2),
        keep=random.randrange(2),
        reload_first=random.randrange(2),
        depth=random.choice((0, 1, 1000, 1500)),
    )
