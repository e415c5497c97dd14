"""Schedules on two devices for the tests of the checker."""

from __future__ import annotations

from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule

PROGRAMS = (
    "F0.0 O0.0 F0.1 B0.1 W0.1 R0.0 BW0.0",
    "F1.0 BW1.0 F1.1 O1.1 R1.1 B1.1 W1.1",
)


def offloading(**changes: object) -> CostProfile:
    offload = {"t_offload_ms": 1, "t_reload_ms": 1, **changes.pop("offload", {})}  # type: ignore[dict-item]
    return unit_profile(2, offload=offload, **changes)


def programs(*lines: str, link_order: dict[str, str] | None = None, m: int = 2) -> Schedule:
    shape = offloading().shape(m)
    orders = {key: ops.split() for key, ops in (link_order or {}).items()}
    return Schedule(shape, [line.split() for line in lines], orders)


def edited(old: str, new: str) -> Schedule:
    """PROGRAMS with one piece of text replaced."""
    assert old in "|".join(PROGRAMS)
    return programs(*(line.replace(old, new) for line in PROGRAMS))
