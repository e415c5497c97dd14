"""Plans with and without a margin for slower copies, run with copies as profiled and slower."""

from __future__ import annotations

from typing import Any

from optpipe_sim.op_costs import op_costs
from optpipe_sim.sim.lower import lower
from optpipe_sim.solvers.margins.plan import padded
from optpipe_sim.solvers.margins.shares import Margins
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.tasks import CostProfile, Count, Limit, Row

VERSION = 3


def run(
    profile: CostProfile,
    microbatches: Count,
    margin: float,
    slower: list[float],
    memory_limit: Limit = None,
    chunks: Count = 2,
    evaluations: Count = 200_000,
    seed: int = 0,
) -> list[Row]:
    """A plan by this search (so many `evaluations`, whatever the clock) with a margin of copies (0.1: they may take 10 % longer), lowered for
    the longest copies within it, so that it keeps the limit in any case, and run with copies `slower` by so much: one row each.
    ``planned_ns`` is the time that the plan promises within its margin."""
    shaped = profile.rechunk(chunks)
    found = solve(
        shaped, microbatches, memory_limit, engine="search", evaluations=evaluations, time_limit=600,
        seed=seed, workers=1, margin={"copies": margin},
    )  # fmt: skip
    assert found.schedule is not None  # solve raises otherwise
    margin_info: dict[str, Any] = found.info.get("margin", {"planned_ns": found.objective_ns})
    # waits are chosen for the longest copies within the margin
    worst = padded(shaped, Margins(copies=margin))
    lowered = lower(found.schedule, worst, shaped.limits(memory_limit))
    rows = []
    for share in slower:
        true = shaped.scale(copy=1 + share)
        trace = lowered.replay(op_costs(lowered.schedule, true).duration_ns)
        cost = {"slower": share, "cost_ns": trace.cost_ns, "planned_ns": margin_info["planned_ns"]}
        rows.append({**cost, "fits": True, "peak_bytes": max(trace.peak_bytes)})
    return rows
