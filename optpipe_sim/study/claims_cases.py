"""The settings that OptPipe's claims are put to the test in, and the schedules that it is up against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import OptPipeError
from ..profile import CostProfile, Offload
from ..profile_io import load_profile
from ..schedules import build
from ..sim import simulate
from ..stage_cost import StageCost
from ..trace import Trace

SHARES = ("1.5", "1", "0.5", "0.25", "0.15")  # of 1F1B's activation memory
SCARCE, AMPLE = ("0.25", "0.15"), ("1.5", "1")
# GB/s each way: PCIe 4 as PipeOffload measured it; PCIe 5 at its best, which is also PCIe 4 where
# FlashAttention leaves 2.6 times less to copy; and PCIe 5 with FlashAttention.
BANDWIDTHS = (21, 55, 110)
MODELS = {
    "1.5B/2": (
        "zb-1.5b-p8-m24",
        4,
        12,
    ),  # half of the model on half of the devices, for the solvers
    "1.5B": ("zb-1.5b-p8-m24", 8, 24),
    "6.2B": ("zbv-6.2b-p16-m48", 16, 48),
    "14.6B": ("zb-14.6b-p16-m48", 16, 48),
}
PLAIN = (
    "gpipe", "1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe-v",
    "1f1b-i:chunks=2", "1f1b-i:chunks=3", "gis:chunks=2", "gis:chunks=3", "gis-h:chunks=2",
    "gis-h:chunks=3",
)  # fmt: skip
CHUNKS = (1, 2, 3)


def with_copies(profile: CostProfile, gb_per_s: int) -> CostProfile:
    """The profile with an engine each way that copies so many GB/s."""

    def change(_: int, cost: StageCost) -> StageCost:
        lasts = (2 * cost.offloadable + gb_per_s) // (2 * gb_per_s)  # to the nearest ns
        return replace(cost, t_offload_ns=lasts, t_reload_ns=lasts)

    stages = tuple(change(at, cost) for at, cost in enumerate(profile.stages))
    return replace(profile, stages=stages, offload=profile.offload or Offload())


def limit_of(profile: CostProfile, share: str) -> int:
    """What is static, and a share of the activations that 1F1B holds on its first device, bytes."""
    whole = profile.rechunk(1)
    return max(whole.static_bytes) + int(float(share) * whole.devices * whole.stages[0].act_bytes)


@cache
def setting(model: str, gb_per_s: int, share: str, folder: str) -> tuple[CostProfile, int]:
    """Profile (one chunk, with its limit) and number of microbatches."""
    name, devices, m = MODELS[model]
    whole = load_profile(Path(folder) / f"{name}.yaml").rechunk(1)
    if devices < whole.devices:
        cut = whole.stages[:devices]
        whole = replace(whole, devices=devices, stages=cut, placement="loop")  # type: ignore[arg-type]
    whole = with_copies(whole, gb_per_s)
    return replace(whole, memory_limit=(limit_of(whole, share),) * whole.devices), m


def pipeoffload_names(devices: int) -> Iterator[str]:
    """PipeOffload with every number of chunks, group size and number of offloaded chunks."""
    for chunks in CHUNKS:
        for group in sorted({1, 2, max(1, devices // 4), max(1, devices // 2), devices}):
            for offloaded in range(chunks + 1):
                yield f"po:chunks={chunks},group={group},offloaded={offloaded}"


@cache
def best_of(names: tuple[str, ...], *where: Any) -> tuple[str, Trace] | None:
    """The fastest of some schedules under the limit of a setting, and its trace; None where none
    of them fits."""
    profile, m = setting(*where)
    best: tuple[str, Trace] | None = None
    for name in names:
        try:
            trace = simulate(build(name, profile, m), profile, engine="replay")
        except OptPipeError:
            continue  # not for this profile, or it does not fit
        if best is None or trace.makespan_ns < best[1].makespan_ns:
            best = name, trace
    return best
