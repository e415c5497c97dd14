"""The fastest of all published schedules that fit, each replayed, against the start of `solve`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optpipe_sim.errors import NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.sim import simulate
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.tasks import CostProfile as Profile
from optpipe_sim.study.tasks import Count, Limit, Row

VERSION = 1

AMPLE_S = 600.0  # for the start of `solve`: it takes seconds; the clock must not influence it
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the limit, to plan for


def run(profile: Profile, microbatches: Count, memory_limit: Limit = None) -> Row:
    """Return how many schedules were ``tried`` and how many ``fit``; the ``best`` of them; and the ``start`` of
    ``solve`` from AdaOffload and published schedules, whose bound covers ``covers``."""
    limits = profile.limits(memory_limit)
    costs: dict[str, int] = {}
    tried = 0
    for name in every_option(profile, microbatches, None if limits is None else min(limits)):
        tried += 1
        try:
            schedule = build(name, profile, microbatches)
            trace = simulate(schedule, profile, memory_limit, engine="replay")
        except OptPipeError:
            continue
        costs[name] = trace.makespan_ns
    best = min(costs, key=lambda name: costs[name], default=None)
    try:
        found = solve(
            profile,
            microbatches,
            memory_limit,
            engine="adaoffload",
            time_limit=AMPLE_S,
            chunks="any",
        )
    except (NoSolution, OutOfMemory):
        start: dict[str, Any] = {
            "start": None,
            "start_ns": None,
            "lower_bound_ns": None,
            "covers": None,
        }
    else:
        start = {
            "start": found.info["found_by"],
            "start_ns": found.objective_ns,
            "lower_bound_ns": found.lower_bound_ns,
            "covers": found.info["covers"],
        }
    return {
        "tried": tried,
        "fit": len(costs),
        "best": best,
        "best_ns": costs.get(best or ""),
        **start,
    }


def every_option(profile: CostProfile, microbatches: int, limit: int | None) -> Iterator[str]:
    """The names of all published schedules with each value of their options: chunks up to one layer
    per stage, group sizes up to m, offloaded chunks, and limits to plan for."""
    most = profile.most_chunks or profile.chunks
    for name, entry in REGISTRY.items():
        if name in ("po-h", "po-f", "gis-h", "adaoffload"):  # po and gis with options; no pattern
            continue
        if entry.sliced or entry.by_name:
            continue
        yield name
        if "limit" in entry.options and limit is not None:
            for share in SHARES:
                yield f"{name}:limit={int(share * limit)}B"
        for chunks in range(1, most + 1) if "chunks" in entry.options else ():
            if "group" not in entry.options:
                yield f"{name}:chunks={chunks}"
                continue
            for group in range(1, microbatches + 1):
                options = f"{name}:chunks={chunks},group={group}"
                if "offloaded" not in entry.options:
                    yield options
                    continue
                for offloaded in range(1, chunks + 1):
                    yield f"{options},offloaded={offloaded}"
