"""The contest's fastest rules, and this search, with layers distributed anew for their number of chunks."""

from __future__ import annotations

from typing import Any, Literal

from optpipe_sim.errors import OptPipeError
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.tasks import CostProfile as Profile
from optpipe_sim.study.tasks import Count, Row, Seconds
from optpipe_sim.trace import Trace

VERSION = 1


def run(
    profile: Profile,
    microbatches: Count,
    method: Literal["rule", "this search"],
    rule: str,
    seconds: Seconds,
    seed: int = 0,
    cores: Count = 2,
) -> Row:
    """The time and peak of a rule by name, or of this search within `seconds`, on the profile's own
    chunks; ``fits`` tells whether it keeps the limit."""
    found: Any = None
    try:
        if method == "rule":
            trace = _replayed(rule, profile, microbatches)
        else:
            found = solve(
                profile, microbatches, time_limit=seconds, seed=seed, workers=cores, chunks="own"
            )
            trace = found.trace
    except OptPipeError:  # beyond the limit
        return {"fits": False, "makespan_ns": None, "peak_bytes": None, "lower_bound_ns": None}
    return {
        "fits": True,
        "makespan_ns": trace.makespan_ns,
        "peak_bytes": max(trace.peak_bytes),
        "lower_bound_ns": None if found is None else found.lower_bound_ns,
    }


def _replayed(rule: str, profile: CostProfile, microbatches: int) -> Trace:
    schedule = build(rule, profile, microbatches)
    return make_problem(profile, microbatches).replay(schedule, explain=False)
