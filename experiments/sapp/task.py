"""SAPP's example: layers and recomputation per stage under interleaved 1F1B, and a free plan for that division."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.published import published
from experiments.sapp.division import MIB, Balancer, Counts
from optpipe_sim.errors import OptPipeError
from optpipe_sim.schedules.recompute import with_levels
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.tasks import Count, Row, Seconds

VERSION = 1
PLANS = ("even", "family", "free")


def run(
    plan: str,
    memory: str,
    tries: Count = 8000,
    time_limit: Seconds = 60.0,
    seed: int = 0,
    cores: Count = 2,
) -> Row:
    """Return a plan's time in SAPP's units, its peak, a bound, and its lists.

    Args:
        plan: ``even`` (the same number of layers in each chunk), ``family`` (the best division that `tries`
            changes find), ``free`` (order and treatment of each activation searched for
            `time_limit` seconds, with the division of ``family``).
        memory: see `Balancer`.

    The lists, chunk by chunk and stage by stage, as SAPP prints them: `offset`, layers beyond the even share;
    `recompute`, layers recomputed in full; `select` and `comm`, those with selective recomputation and
    with that of communication, each with or without the other, and the former also in full.

    The bound of ``free`` is on every order with its layers; the others' on their family over all
    divisions: the least work of the busiest stage over all divisions.

    Raises:
        OptPipeError: for an unknown plan, or a division that does not fit.
    """
    if plan not in PLANS:
        raise OptPipeError(f"plan: expected one of {', '.join(PLANS)}, got {plan!r}")
    problem = Balancer(published("sapp_llama2_70b"), memory)
    chosen = problem.plan(problem.even) if plan == "even" else problem.search(tries, seed)
    if chosen is None:
        raise OptPipeError("three layers in each chunk fit with no recomputation")
    trace = problem.replay(chosen)
    bound_ns = problem.m * problem.least_load()[0] * 1000
    recomputed = None
    if plan == "free":
        profile = problem.profile(chosen, levels=True)
        names = [problem.level_name(counts) or None for counts in chosen]
        found = solve(
            profile,
            problem.m,
            time_limit=time_limit,
            seed=seed,
            workers=cores,
            warm_start=with_levels(problem.schedule, names, apart=False),
        )
        assert found.trace is not None
        trace, bound_ns = found.trace, found.lower_bound_ns
        recomputed = trace.recomputed / (problem.slots * problem.m)
    return {
        "time": trace.makespan_ns / 1000,
        "bound": bound_ns / 1000,
        "peak_mb": max(trace.peak_bytes) / MIB,
        "recomputing_share": recomputed,
        **_lists(problem, chosen),
    }


def _lists(problem: Balancer, plan: Sequence[Counts]) -> Row:
    select, both, full = 1, 2, 3

    def listed(kinds: Sequence[int]) -> list[list[int]]:
        counted = [sum(counts[kind] for kind in kinds) for counts in plan]
        return _by_chunk(problem, counted)

    offset = [sum(counts) - even for counts, even in zip(plan, problem.even, strict=True)]
    return {
        "offset": _by_chunk(problem, offset),
        "recompute": listed([full]),
        "select": listed([select, both, full]),
        "comm": listed([both]),
    }


def _by_chunk(problem: Balancer, numbers: Sequence[int]) -> list[list[int]]:
    p = problem.p
    return [list(numbers[at : at + p]) for at in range(0, len(numbers), p)]
