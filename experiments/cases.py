"""Problems to solve: uniform stages, and those of other costs and links by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from optpipe_sim import CostProfile, load_profile
from optpipe_sim.profile import Offload
from optpipe_sim.stage_cost import StageCost

PROFILES = Path(__file__).parent / "profiles"


def uniform(devices: int, limit: int, copy_ns: int) -> CostProfile:
    """Uniform stages; copying a whole activation takes so many ns in each direction."""
    return load_profile(
        {
            "name": "uniform",
            "devices": devices,
            "stages": {
                "t_f_ns": 10,
                "t_b_ns": 11,
                "t_w_ns": 9,
                "act_bytes": 100,
                "w_bytes": 50,
            },
            "t_comm_ns": 1,
            "offload": {"t_offload_ns": copy_ns, "t_reload_ns": copy_ns},
            "memory_limit_bytes": limit,
        }
    )


@dataclass(frozen=True)
class Case:
    """A problem; `limit` in bytes per device, None: the profile's own."""

    profile: CostProfile
    microbatches: int
    limit: int | None = None
    objective: str = "flush"


def synthetic(
    devices: int, slots: int, chunks: int = 1, placement: str = "loop", **offload: Any
) -> CostProfile:
    """Devices that hold 20, 22, 18 ns and 200 bytes per microbatch, cut into chunks; copies as long
    as 28 ns for all of it; `slots` microbatches fit. `offload`: engines and links."""
    whole = load_profile(
        {
            "name": "synthetic",
            "devices": devices,
            "stages": {
                "t_f_ns": 20, "t_b_ns": 22, "t_w_ns": 18, "act_bytes": 200, "w_bytes": 100,
            },
            "t_comm_ns": 2,
            "offload": {"t_offload_ns": 28, "t_reload_ns": 28, **offload},
            "memory_limit_bytes": 200 * slots,
        }
    )  # fmt: skip
    return whole.rechunk(chunks, placement)


def uneven(devices: int, slots: float, seed: int) -> CostProfile:
    """Stages whose costs differ by up to a third up or down; `slots` mean activations fit."""
    random = Random(seed)
    stages = [
        {
            "t_f_ns": random.randint(70, 130),
            "t_b_ns": random.randint(75, 145),
            "t_w_ns": random.randint(60, 120),
            "act_bytes": random.randint(700, 1300),
            "w_bytes": random.randint(300, 600),
            "t_offload_ns": random.randint(100, 180),
            "t_reload_ns": random.randint(100, 180),
        }
        for _ in range(devices)
    ]
    copies = {key: [stage.pop(key) for stage in stages] for key in ("t_offload_ns", "t_reload_ns")}
    return load_profile(
        {
            "name": "uneven",
            "devices": devices,
            "stages": stages,
            "t_comm_ns": 10,
            "offload": copies,
            "memory_limit_bytes": int(1000 * slots),
        }
    )


def with_copies(profile: CostProfile, gb_per_s: int) -> CostProfile:
    """The profile with one engine per direction that copies so many GB/s."""

    def change(_: int, cost: StageCost) -> StageCost:
        duration = (2 * cost.offloadable + gb_per_s) // (2 * gb_per_s)  # to the nearest ns
        return replace(cost, t_offload_ns=duration, t_reload_ns=duration)

    stages = tuple(change(at, cost) for at, cost in enumerate(profile.stages))
    return replace(profile, stages=stages, offload=profile.offload or Offload())


def limit_of(profile: CostProfile, share: str) -> int:
    """What is static, and a share of the activations that 1F1B holds on its first device, bytes."""
    whole = profile.rechunk(1)
    return max(whole.static_bytes) + int(float(share) * whole.devices * whole.stages[0].act_bytes)


def published(name: str, share: str, chunks: int = 1, placement: str = "loop") -> Case:
    """A published profile, with copies at 21 GB/s, and room for `share` of 1F1B's activations."""
    plain = load_profile(PROFILES / f"{name}.yaml")
    profile = with_copies(plain, 21).rechunk(chunks, placement)
    return Case(profile, int(plain.meta["microbatches"]), limit_of(profile, share))


PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
OTHER: dict[str, Case] = {
    "uneven, ample": Case(uneven(8, 8, 1), 24),
    "uneven, half": Case(uneven(8, 4, 1), 24),
    "uneven, quarter": Case(uneven(8, 2.6, 1), 24),
    "zb-1.5b, full": published("zb-1.5b-p8-m24", "1"),
    "zb-1.5b, half": published("zb-1.5b-p8-m24", "0.5"),
    "zb-14.6b, full": published("zb-14.6b-p16-m48", "1"),
    "zb-14.6b, half": published("zb-14.6b-p16-m48", "0.5"),
    "zb-14.6b, quarter": published("zb-14.6b-p16-m48", "0.25"),
    "zbv-6.2b vee, full": published("zbv-6.2b-p16-m48", "1", 2, "vee"),
    "zbv-6.2b vee, half": published("zbv-6.2b-p16-m48", "0.5", 2, "vee"),
    "zbv-28.3b vee, half": published("zbv-28.3b-p32-m96", "0.5", 2, "vee"),
    "loop v=2, half": Case(synthetic(8, 4, 2), 24),
    "loop v=2, quarter": Case(synthetic(8, 2, 2), 24),
    "vee, half": Case(synthetic(8, 4, 2, placement="vee"), 24),
    "vee, quarter": Case(synthetic(8, 2, 2, placement="vee"), 24),
    "span, half": Case(synthetic(8, 4), 24, objective="span"),
    "span, quarter": Case(synthetic(8, 2), 24, objective="span"),
    "span vee, half": Case(synthetic(8, 4, 2, placement="vee"), 24, objective="span"),
    "shared engines, half": Case(synthetic(8, 4, copy_engines="shared"), 24),
    "shared engines, quarter": Case(synthetic(8, 2, copy_engines="shared"), 24),
    "paired switches, half": Case(synthetic(8, 4, host_link_groups=PAIRS), 24),
    "paired switches, quarter": Case(synthetic(8, 2, host_link_groups=PAIRS), 24),
    "paired single links, half": Case(
        synthetic(8, 4, host_link_groups=PAIRS, host_link="single"), 24
    ),
}
