"""Offload only, recompute only, both: this search at equal memory, and rules."""

from __future__ import annotations

from dataclasses import replace

from optpipe_sim.errors import NoSolution, OutOfMemory
from optpipe_sim.profile import CostProfile
from optpipe_sim.schedule import Schedule
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race.bounds import best_bound
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.starts.published import fixed_schedules
from optpipe_sim.study.tasks import CostProfile as Profile
from optpipe_sim.study.tasks import Count, Limit, Row, Seconds
from optpipe_sim.trace import Trace

VERSION = 2

TREATMENTS = {
    "offload": ("keep", "offload"),
    "recompute": ("keep", "recompute"),
    "all": ("keep", "offload", "recompute"),
}
STAGES = "all, per stage"


def run(
    profile: Profile,
    microbatches: Count,
    part: str,
    methods: list[str],
    memory_limit: Limit = None,
    time_limit: Seconds = 2.0,
    bound_limit: Seconds = 3.0,
    seed: int = 0,
    cores: Count = 1,
) -> list[Row]:
    """A row per method, all with the profile's own chunks and placement.

    Of `methods`, ``offload``, ``recompute`` and ``all`` are this search with these treatments of each
    activation (``all`` from the best of the methods before it), ``all, per stage`` with one per stage; ``rules`` is the fastest schedule that is built
    by rule, with every level of recomputation, for each kind of treatment: ``rule, keep``, ``rule, offload``,
    ``rule, recompute`` or ``rule, both``. ``bound``: a lower bound on the time with all treatments, searched
    for as long as `bound_limit`. These two do not depend on the seed and run with seed 0 only. `part` is the part of the figure that the point is for.
    """
    limits = profile.limits(memory_limit)
    profile = replace(profile, memory_limit=limits)
    rows: list[Row] = []
    plans: list[Trace] = []
    for method in methods:
        if method == "rules":
            found = _by_rule(profile, microbatches)
            plans += [trace for _, trace in found.values()]
            rows += [
                {"method": kind, "fits": True, **_measures(trace), "schedule": name}
                for kind, (name, trace) in found.items()
                if not seed
            ]
        elif method != "bound":
            best = min(plans, key=lambda trace: trace.cost_ns, default=None)
            start = best.schedule if best is not None and method == "all" else None
            row, trace = _searched(method, profile, microbatches, time_limit, seed, cores, start)
            rows.append(row)
            plans += [] if trace is None else [trace]
        elif not seed:
            bound_ns = best_bound(make_problem(profile, microbatches), bound_limit)
            rows.append({"method": "bound", "fits": True, "lower_bound_ns": bound_ns})
    return rows


def _searched(
    method: str,
    profile: CostProfile,
    microbatches: int,
    time_limit: float,
    seed: int,
    cores: int,
    start: Schedule | None,
) -> tuple[Row, Trace | None]:
    """Run this search with the treatments of a method."""
    per_stage = method == STAGES
    try:
        found = solve(
            profile, microbatches, engine="search", time_limit=time_limit, seed=seed, workers=cores,
            treatments=TREATMENTS["all" if per_stage else method], per_stage=per_stage,
            warm_start=start, published=start is None, chunks="own",
        )  # fmt: skip
    except (OutOfMemory, NoSolution) as error:
        return {"method": method, "fits": False, "reason": str(error)}, None
    assert found.trace is not None
    row = {"method": method, "fits": True, **_measures(found.trace)}
    row |= {"lower_bound_ns": found.lower_bound_ns, "schedule": found.info["found_by"]}
    return row, found.trace


def _by_rule(profile: CostProfile, microbatches: int) -> dict[str, tuple[str, Trace]]:
    """The fastest rule of each kind, by name."""
    problem = make_problem(profile, microbatches)
    best: dict[str, tuple[str, Trace]] = {}
    for name, schedule in fixed_schedules(problem):
        trace = problem.keeps(schedule)
        if trace is not None:
            kind = kind_of(trace)
            if kind not in best or trace.cost_ns < best[kind][1].cost_ns:
                best[kind] = name, trace
    return best


def kind_of(trace: Trace) -> str:
    """What a rule does with activations."""
    done = (bool(trace.offloaded), bool(trace.recomputed))
    words = {(False, False): "keep", (True, False): "offload", (False, True): "recompute"}
    return f"rule, {words.get(done, 'both')}"


def _measures(trace: Trace) -> Row:
    stages, units = trace.schedule.levels.table.shape
    return {
        "cost_ns": trace.cost_ns,
        "peak_bytes": max(trace.peak_bytes),
        "offloaded_share": trace.offloaded / (stages * units),
        "recomputed_share": trace.recomputed / (stages * units),
    }
