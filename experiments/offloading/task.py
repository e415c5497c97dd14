"""PipeOffload's best setting, and this search, with offloading alone in as many chunks."""

from __future__ import annotations

import time
from typing import Literal

from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile import CostProfile
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.starts.variants import grouped_variants
from optpipe_sim.study.tasks import CostProfile as Profile
from optpipe_sim.study.tasks import Count, Row, Seconds
from optpipe_sim.trace import Trace

VERSION = 2
KEEPING = ("keep", "offload")
TRIED_S = 12.0  # at most so long for all of PipeOffload's groups, s of CPU time, as in the contest


def run(
    profile: Profile,
    microbatches: Count,
    method: Literal["PipeOffload", "this search"],
    seconds: Seconds,
    chunks: Count | None = None,
    seed: int = 0,
    cores: Count = 2,
) -> Row:
    """The time of PipeOffload in the fastest of its groups that fits, or of this search within
    `seconds`, in `chunks` per device in a loop, cut from the profile's stages (None: in any number, or two in a
    V). Both keep or offload each activation whole. ``work_ns`` is what the busiest device computes in one chunk."""
    work_ns = microbatches * max(cost.t_f_ns + cost.t_b_ns + cost.t_w_ns for cost in profile.stages)
    shaped = profile if chunks is None else profile.rechunk(chunks, "loop")
    bound, trace = None, None
    try:
        if method == "PipeOffload":
            name, trace = _pipeoffload(shaped, microbatches)
        else:
            found = solve(
                shaped,
                microbatches,
                time_limit=seconds,
                seed=seed,
                workers=cores,
                treatments=KEEPING,
                chunks="any" if chunks is None else "own",
            )
            name, trace, bound = None, found.trace, found.lower_bound_ns
    except OptPipeError:  # nothing fits
        name = None
    return {
        "fits": trace is not None,
        "schedule": name,
        "used_chunks": None if trace is None else trace.profile.chunks,
        "makespan_ns": None if trace is None else trace.makespan_ns,
        "peak_bytes": None if trace is None else max(trace.peak_bytes),
        "lower_bound_ns": bound,
        "work_ns": work_ns,
    }


def _pipeoffload(profile: CostProfile, microbatches: int) -> tuple[str | None, Trace | None]:
    """The fastest PipeOffload that fits, and its replay; None twice where none does."""
    problem = make_problem(profile, microbatches)
    until = time.process_time() + TRIED_S
    best: tuple[str | None, Trace | None] = None, None
    least = float("inf")
    variants = grouped_variants(
        [problem], lambda: least, lambda: time.process_time() > until, ("po",), [None]
    )
    for _, name, schedule in variants:
        trace = problem.keeps(schedule)
        if trace is not None and trace.makespan_ns < least:
            best, least = (name, trace), trace.makespan_ns
    return best
