"""Bounds of whole profiles, the best of those of their devices."""

from __future__ import annotations

from optpipe_sim import CostProfile
from optpipe_sim.bounds.device.device_bound import device_bound
from optpipe_sim.bounds.device.problem import OneDevice, one_device
from optpipe_sim.bounds.lp import configuration_bounds


def devices_of(
    profile: CostProfile, microbatches: int, objective: str = "flush"
) -> list[OneDevice]:
    """Each device of a profile with a memory limit as a problem of its own."""
    limits = profile.memory_limit
    assert limits is not None
    return [one_device(profile, microbatches, d, objective, limits) for d in range(profile.devices)]


def best_device_bound(profile: CostProfile, microbatches: int, nodes: int = 20_000) -> int:
    """The best that searches of single devices prove, in ns."""
    return max(device_bound(one, nodes=nodes)[0] for one in devices_of(profile, microbatches))


def configuration_bound(profile: CostProfile, microbatches: int, objective: str = "flush") -> int:
    """The best that the configuration LP proves, in ns; 0 without a limit."""
    return max(configuration_bounds(profile, microbatches, objective), default=0)
