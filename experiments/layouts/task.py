"""One contest on a layout that people train: the fastest published schedule, AdaOffload, and this search."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple

from experiments.expressiveness.pairs import pairs
from optpipe_sim.errors import OptPipeError
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.sim import simulate
from optpipe_sim.solvers.axes import candidate_shapes
from optpipe_sim.solvers.fixed import best_rule
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.steady import drawn, draws
from optpipe_sim.study.tasks import Count, Row, Seconds
from optpipe_sim.trace import Trace

VERSION = 2
RULES, ADAOFFLOAD, SEARCH = "rules", "AdaOffload", "this search"


class Plan(NamedTuple):
    """A plan: its name, its replay, and a bound, if it has one."""

    name: str | None
    trace: Trace
    bound_ns: int | None = None
    covers: str | None = None


def run(
    pair: str,
    method: Literal["rules", "AdaOffload", "this search"],
    seconds: Seconds,
    seed: int = 0,
    costs: Count = 16,
) -> Row:
    """Return the best plan of a method for a pair of `experiments.expressiveness.pairs`, issued as the runs that its machine's rates are fitted to.

    Plans have any number of chunks, whose layers are dealt to devices by what they cost. All methods have the same `seconds` and one process.

    ``iteration_ns``: the pipeline's part of an iteration. ``drawn_ns``: the same for each of `costs` that may be true as well, the same ones for all methods
    (`solvers.steady.draws`); None where an op waits forever for memory. ``bound_ns``: on all schedules with the layers
    of each number of chunks in ``covers``. ``toss_up``: by how much the difference between two replays may be off, in four cases of five.
    """
    one = pairs()[pair]
    profile = one.profile(execution=None)
    makers: dict[str, Callable[[CostProfile, int, float], Plan | None]] = {
        RULES: _rule,
        ADAOFFLOAD: _adaoffload,
        SEARCH: partial(_searched, seed=seed),
    }
    best = None
    with suppress(OptPipeError):  # nothing fits
        best = makers[method](profile, one.compared, seconds)
    row: Row = {
        "model": one.model if isinstance(one.model, str) else one.model["name"],
        "machine": one.machine,
        "gpus": one.gpus,
        "devices": profile.devices,
        "microbatches": one.compared,
        "published_microbatches": one.microbatches,
        "execution": profile.execution.name,
        "toss_up": profile.execution.between,
        "limit_bytes": min(profile.memory_limit or ()),
    }
    return row | _about(best, profile, one.compared, costs)


def _about(best: Plan | None, profile: CostProfile, m: int, costs: int) -> Row:
    """Return what a row says of the best plan."""
    if best is None:
        names = ("schedule", "chunks", "placement", "iteration_ns", "peak_bytes", "offloaded", "recomputed", "bound_ns", "covers", "drawn_ns")  # fmt: skip
        return dict.fromkeys(names)
    shape = best.trace.schedule.shape
    return {
        "schedule": best.name,
        "chunks": shape.chunks,
        "placement": str(shape.placement_name),
        "iteration_ns": best.trace.cost_ns,
        "peak_bytes": max(best.trace.peak_bytes),
        "offloaded": bool(best.trace.offloaded),
        "recomputed": bool(best.trace.recomputed),
        "bound_ns": best.bound_ns,
        "covers": best.covers,
        "drawn_ns": [_time(best, profile, draw) for draw in draws(profile, costs)],
    }


def _rule(profile: CostProfile, m: int, seconds: float) -> Plan | None:
    found = best_rule(profile, m, profile.memory_limit, seconds=seconds)
    return found and Plan(found.name, found.trace)


def _adaoffload(profile: CostProfile, m: int, seconds: float) -> Plan | None:
    """Return the fastest of AdaOffload without and with recomputation, in each number of chunks for which there is time."""
    until = time.monotonic() + seconds
    found = []
    for name, shape in product(("adaoffload", "adaoffload-r"), candidate_shapes(profile)):
        if time.monotonic() > until:
            break
        with suppress(OptPipeError):  # not with these chunks, or in this memory
            trace = make_problem(shape, m).replay(build(name, shape, m))
            found.append(Plan(name, trace))
    return min(found, key=lambda plan: plan.trace.cost_ns, default=None)


def _searched(profile: CostProfile, m: int, seconds: float, seed: int) -> Plan:
    found = solve(profile, m, time_limit=seconds, seed=seed, workers=1, chunks="any")
    assert found.trace is not None
    name = str(found.info["found_by"])
    return Plan(name, found.trace, found.lower_bound_ns, found.info.get("covers"))


def _time(plan: Plan, profile: CostProfile, draw: Any) -> int | None:
    """Return the pipeline's part of an iteration of a plan at drawn costs; None where an op waits forever for memory."""
    costs = drawn(profile.for_shape(plan.trace.schedule.shape), draw)
    with suppress(OptPipeError):
        return simulate(plan.trace.schedule, costs).cost_ns
    return None
