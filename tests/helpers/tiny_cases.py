"""Problems that an exhaustive search can do."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from optpipe_sim import CostProfile
from optpipe_sim.profile import Offload
from optpipe_sim.stage_cost import StageCost


def tiny(random: Random) -> tuple[CostProfile, int]:
    """A profile with scarce memory that an exhaustive search can do, and a number of microbatches."""
    devices, chunks, microbatches = random.choice(
        ((1, 1, 3), (1, 2, 2), (2, 1, 2), (2, 1, 2), (2, 1, 2), (3, 1, 1))
    )

    def stage() -> StageCost:
        act = random.choice((2, 4))
        return StageCost(
            t_f_ns=random.randint(1, 4),
            t_b_ns=random.randint(1, 4),
            t_w_ns=random.choice((0, 2, 3)),
            t_bw_ns=random.choice((None, None, random.randint(1, 5))),
            act_bytes=act,
            w_bytes=random.choice((0, act // 2, act)),
            offload_bytes=random.choice((None, act // 2)),
            t_offload_ns=random.randint(0, 3),
            t_reload_ns=random.randint(0, 3),
        )

    groups = ((0, 1),) if devices == 2 and random.random() < 0.3 else ()
    profile = CostProfile(
        "tiny",
        devices,
        tuple(stage() for _ in range(devices * chunks)),
        chunks,
        latency_ns=random.choice((0, 1, 3)),
        offload=Offload(random.choice(("separate", "shared")), None, groups),
    )
    limit = tuple(least + random.choice((0, 0, 1, 2, 4)) for least in profile.least_limits)
    return replace(profile, memory_limit=limit), microbatches
