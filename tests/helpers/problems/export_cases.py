"""A trace with every kind of op, for the tests of exports."""

from __future__ import annotations

from typing import Any

from unit_profiles import unit_profile

from optpipe_sim import Schedule, Shape, Trace, simulate

OFFLOADING = {"offload": {"t_offload_us": 1500.123, "t_reload_us": 650.001}}


def offloading(**offload: Any) -> Trace:
    """Two devices, two chunks, every kind of op, odd times, a limit that makes ops wait."""
    programs = [
        "F0.0 O0.0 F0.1 F2.0 B2.0 W2.0 F2.1 BW2.1 R0.0 BW0.0 BW0.1",
        "F1.0 F1.1 F3.0 B3.0 W3.0 F3.1 BW3.1 BW1.0 BW1.1",
    ]
    profile = unit_profile(
        2,
        2,
        t_comm_us=33.337,
        memory_limit_bytes=[250, 300],
        offload={**OFFLOADING["offload"], **offload},
    )
    schedule = Schedule(Shape(2, 2, 2), [ops.split() for ops in programs], meta={"name": "odd"})
    return simulate(schedule, profile)
