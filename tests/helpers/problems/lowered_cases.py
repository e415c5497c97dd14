"""Random lowered schedules."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from strategies import cases, limits

from optpipe_sim import simulate
from optpipe_sim.errors import Deadlock, OutOfMemory
from optpipe_sim.sim.lower import Lowered, lower


@st.composite
def lowered_cases(draw: st.DrawFn, **options: bool) -> Lowered:
    """Lowered schedules of any kind; half of them under a limit, where they do fit under it."""
    profile, schedule = draw(cases(**options))
    profile = replace(profile, memory_limit=None)
    if draw(st.booleans()):
        limit = draw(limits(profile, simulate(schedule, profile).peak_bytes))
        try:
            return lower(schedule, profile, limit)
        except (Deadlock, OutOfMemory):
            pass  # this order needs more
    return lower(schedule, profile)
