"""Problems that an exhaustive search can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from optpipe_sim import CostProfile
from optpipe_sim.profile import Offload
from optpipe_sim.stage_cost import RecomputeLevel, StageCost


def tiny(random: Random) -> tuple[CostProfile, int]:
    """A profile with scarce memory that an exhaustive search can do, and a number of microbatches."""
    devices, chunks, microbatches = random.choice(
        ((1, 1, 3), (1, 2, 2), (2, 1, 2), (2, 1, 2), (2, 1, 2), (3, 1, 1))
    )
    groups = ((0, 1),) if devices == 2 and random.random() < 0.3 else ()
    stages = [_stage(random, random.choice((2, 4)), 3) for _ in range(devices * chunks)]
    profile = CostProfile(
        "tiny",
        devices,
        tuple(stages),
        chunks,
        latency_ns=random.choice((0, 1, 3)),
        offload=Offload(random.choice(("separate", "shared")), None, groups),
    )
    return _scarce(random, profile), microbatches


def tiny_with_levels(random: Random) -> tuple[CostProfile, int]:
    """As `tiny`, with levels of recomputation."""
    devices, chunks, microbatches = random.choice(((1, 1, 2), (1, 1, 3), (2, 1, 2), (1, 2, 1)))

    def stage() -> StageCost:
        act = random.choice((2, 4, 6))
        keep = random.choice((0, 1, act // 2))
        work = random.choice((None, 0, (act - keep) // 2))
        levels = [
            RecomputeLevel("light", random.randint(1, 3), keep, work, random.choice((None, 1)))
        ]
        if devices * chunks * microbatches <= 2 and keep:
            levels.append(RecomputeLevel("full", random.randint(2, 4), 0))
        return _stage(random, act, 5, levels)

    profile = CostProfile(
        "tiny",
        devices,
        tuple(stage() for _ in range(devices * chunks)),
        chunks,
        latency_ns=random.choice((0, 1, 3)),
        occupancy_ns=random.choice((0, 2)),
        links=random.choice(("latency", "blocking")),
        offload=Offload(random.choice(("separate", "shared"))) if random.random() < 0.6 else None,
    )
    return _scarce(random, profile), microbatches


def _stage(
    random: Random, act: int, longest_copy: int, levels: Sequence[RecomputeLevel] = ()
) -> StageCost:
    return StageCost(
        t_f_ns=random.randint(1, 4),
        t_b_ns=random.randint(1, 4),
        t_w_ns=random.choice((0, 2, 3)),
        t_bw_ns=random.choice((None, None, random.randint(1, 5))),
        act_bytes=act,
        w_bytes=random.choice((0, act // 2, act)),
        offload_bytes=random.choice((None, act // 2)),
        t_offload_ns=random.randint(0, longest_copy),
        t_reload_ns=random.randint(0, longest_copy),
        recompute=tuple(levels),
    )


def _scarce(random: Random, profile: CostProfile) -> CostProfile:
    """Limits at what is necessary, or little above it."""
    limit = tuple(least + random.choice((0, 0, 1, 2, 4)) for least in profile.least_limits)
    return replace(profile, memory_limit=limit)
