"""Problems for the search and the solvers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from strategies import limits, profiles, schedules

from optpipe_sim import CostProfile, Schedule, load_profile, simulate
from optpipe_sim.profile import Offload
from optpipe_sim.solvers.anneal.plans import pack, unpack
from optpipe_sim.solvers.problem import Problem


def uniform(devices: int, copy: int = 5, **changes: Any) -> CostProfile:
    """F 10, B 11, W 9, one hop 1, 100 bytes per activation, half of it for W (all in ns)."""
    stages = {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50}
    copies = {"t_offload_ns": copy, "t_reload_ns": copy}
    data = {"devices": devices, "stages": stages, "t_comm_ns": 1, "offload": copies}
    return load_profile({**data, **changes})


@st.composite
def problems(draw: st.DrawFn, *, shared: bool = True) -> tuple[Problem, Schedule]:
    """A random problem and a schedule of its shape, B and W split, limits from scarce to ample.

    `shared`: False for devices with links of their own and hosts without a limit.
    """
    profile = replace(draw(profiles()), memory_limit=None)
    if profile.offload is not None and not shared:
        engines = profile.offload.copy_engines
        profile = replace(profile, offload=Offload(engines))
    schedule = draw(schedules(profile, linked=False))
    peaks = simulate(schedule, profile, enforce=False).peak_bytes
    limit = draw(st.one_of(st.none(), limits(profile, peaks)))
    problem = Problem(profile, schedule.shape.microbatches, limit)
    return problem, unpack(problem, pack(problem, schedule))
