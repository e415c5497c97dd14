"""Bounds of instances, computed again: the proofs that need no search."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from ..bounds.bounds import lower_bound
from ..bounds.lp import configuration_bounds
from ..profile import CostProfile
from .instances import Instance

CLOSED = ("work", "one microbatch", "fill and drain", "residency")
LP = "configuration LP"


def closed_form(instance: Instance, profile: CostProfile) -> int:
    """Return the best closed form, in ns; takes milliseconds."""
    return lower_bound(profile, instance.microbatches, "flush").ns


def configuration_lp(instance: Instance, profile: CostProfile) -> int:
    """Return the bound of the configuration LP, in ns, 0 where there is none; takes seconds, or minutes."""
    return max(configuration_bounds(profile, instance.microbatches, "flush"), default=0)


# by the name of the proof
PROOFS: dict[str, Callable[[Instance, CostProfile], int]] = {
    **dict.fromkeys(CLOSED, closed_form),
    LP: configuration_lp,
}


def proven(instance: Instance, profile: CostProfile, proof: str) -> int:
    """Return what a proof of `PROOFS` gives for an instance, in ns. Makespans are sums of times, so it
    is rounded up to the next multiple of the common divisor of all times."""
    tables = [profile.op_table]
    if profile.slices > 1 or not profile.alike:
        tables.append(profile.part_tables)
    times = [int(ns) for table in tables for ns in table.duration_ns.ravel()]
    unit = max(1, gcd(*times, profile.latency_ns, profile.occupancy_ns))
    return -(-PROOFS[proof](instance, profile) // unit) * unit
