"""One contest on a layout that people train: the fastest published schedule, AdaOffload, and this search, each in the division of layers that suits it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple

from experiments.expressiveness.pairs import Pair, pairs
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

VERSION = 1
RULES, ADAOFFLOAD, SEARCH = "rules", "AdaOffload", "this search"
CUT, ANEW = "cut", "anew"


class Plan(NamedTuple):
    """A plan: its name, its replay, the profile that it was made for, how layers are divided there, and a bound, if it has one."""

    name: str | None
    trace: Trace
    profile: CostProfile
    division: str
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

    Half of the `seconds` go to plans that cut the stages of one chunk per device, in any number of chunks; with the chunks of the best of these, the
    layers are then divided anew, as `estimate --chunks` does, for the other half. All methods have one process.

    ``iteration_ns``: the pipeline's part of an iteration. ``drawn_ns``: the same for each of `costs` that may be true as well, the same ones for all methods
    (`solvers.steady.draws`); None where an op waits forever for memory. ``bound_ns``: on all schedules of the division that the plan has, in the
    chunks of ``covers``. ``toss_up``: by how much the difference between two replays may be off, in four cases of five.
    """
    one = pairs()[pair]
    profile = one.profile(execution=None)
    plans = list(_plans(one, profile, method, seconds, seed))
    best = min(plans, key=lambda plan: plan.trace.cost_ns, default=None)
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
    for division in (CUT, ANEW):
        times = [plan.trace.cost_ns for plan in plans if plan.division == division]
        row[f"{division}_ns"] = min(times, default=None)
    return row | _about(best, profile, one.compared, costs)


def _about(best: Plan | None, profile: CostProfile, m: int, costs: int) -> Row:
    """Return what a row says of the better plan."""
    if best is None:
        names = ("schedule", "chunks", "placement", "division", "iteration_ns", "peak_bytes", "offloaded", "recomputed", "bound_ns", "covers", "drawn_ns")  # fmt: skip
        return dict.fromkeys(names)
    shape = best.trace.schedule.shape
    return {
        "schedule": best.name,
        "chunks": shape.chunks,
        "placement": str(shape.placement_name),
        "division": best.division,
        "iteration_ns": best.trace.cost_ns,
        "peak_bytes": max(best.trace.peak_bytes),
        "offloaded": bool(best.trace.offloaded),
        "recomputed": bool(best.trace.recomputed),
        "bound_ns": best.bound_ns,
        "covers": best.covers,
        "drawn_ns": [_time(best, draw) for draw in draws(profile, costs)],
    }


def _plans(
    one: Pair, profile: CostProfile, method: str, seconds: float, seed: int
) -> Iterator[Plan]:
    """Yield the best plan of the given stages, cut, and the best with its chunks and layers divided anew."""
    makers: dict[str, Callable[[CostProfile, int, str, float], Plan | None]] = {
        RULES: _rule,
        ADAOFFLOAD: _adaoffload,
        SEARCH: partial(_searched, seed=seed),
    }
    make = makers[method]
    first = None
    with suppress(OptPipeError):  # nothing fits
        first = make(profile, one.compared, CUT, seconds / 2)
    if first is None:
        return
    yield first
    shape = first.trace.schedule.shape
    if shape.chunks == 1:  # there is one division only
        return
    with suppress(OptPipeError):
        anew = one.profile(execution=None, chunks=shape.chunks, placement=str(shape.placement_name))
        second = make(anew, one.compared, ANEW, seconds / 2)
        if second is not None:
            yield second


def _rule(profile: CostProfile, m: int, division: str, seconds: float) -> Plan | None:
    found = best_rule(profile, m, profile.memory_limit, seconds=seconds)
    return found and Plan(found.name, found.trace, profile, division)


def _adaoffload(profile: CostProfile, m: int, division: str, seconds: float) -> Plan | None:
    """Return the fastest of AdaOffload without and with recomputation, in each number of chunks for which there is time."""
    until = time.monotonic() + seconds
    shapes = candidate_shapes(profile) if division == CUT else [profile]
    found = []
    for name, shape in product(("adaoffload", "adaoffload-r"), shapes):
        if time.monotonic() > until:
            break
        with suppress(OptPipeError):  # not with these chunks, or in this memory
            trace = make_problem(shape, m).replay(build(name, shape, m), explain=False)
            found.append(Plan(name, trace, profile, division))
    return min(found, key=lambda plan: plan.trace.cost_ns, default=None)


def _searched(profile: CostProfile, m: int, division: str, seconds: float, seed: int) -> Plan:
    chunks = "any" if division == CUT else "own"
    found = solve(profile, m, time_limit=seconds, seed=seed, workers=1, chunks=chunks)
    assert found.trace is not None
    name = str(found.info["found_by"])
    return Plan(name, found.trace, profile, division, found.lower_bound_ns, found.info.get("covers"))  # fmt: skip


def _time(plan: Plan, draw: Any) -> int | None:
    """Return the pipeline's part of an iteration of a plan at drawn costs; None where an op waits forever for memory."""
    costs = drawn(plan.profile.for_shape(plan.trace.schedule.shape), draw)
    with suppress(OptPipeError):
        return simulate(plan.trace.schedule, costs, explain=False).cost_ns
    return None
