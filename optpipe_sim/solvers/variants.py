"""Published schedules with every value of their options, the most promising first.

GIS and PipeOffload have a group size and a number of offloaded chunks, the automatic zero-bubble
schedules a limit to plan for. Two facts leave few of the hundreds of settings to replay: no variant
of a compute order beats the order itself without limit and copies, which only make ops wait; and what
its resident chunks hold, op by op, is known before any replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from ..bounds.bounds import naive
from ..errors import OptPipeError
from ..op_costs import op_costs, treatments
from ..ops import B, F, O, R
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedule.fused import as_split
from ..schedules import build
from ..schedules.copies import with_copies
from ..schedules.gis import grouped
from ..schedules.recompute import at_level, taken_apart, with_level
from ..sim import simulate
from ..units import size_text
from .problem import Problem

MOST_LEVELS = 48  # limits to plan for, where every sum of activations would be more

IN_VAIN = 3  # such limits in a row end the search for better ones

GROUPED = ("gis", "po")

Found = tuple[int, str, Schedule]


class Way(NamedTuple):
    """How all activations are recomputed: at a level of the profile, inside backwards or apart."""

    level: str
    apart: bool

    def __str__(self) -> str:
        return f"recompute={self.level}" + (",apart=yes" if self.apart else "")


class _Order(NamedTuple):
    """A compute order: what it costs without limit and copies, the number of its problem, its
    group size; `plain`: without the recomputation that `schedule` has; `may_fit`: the numbers of
    offloaded chunks worth a try."""

    cost_ns: int
    at: int
    group: int
    way: Way | None
    plain: Schedule
    schedule: Schedule
    may_fit: list[int]


def levels_of(problem: Problem, best_ns: float = float("inf")) -> list[str]:
    """The levels at which a problem may recompute every activation and yet, as far as the work tells, cost
    less than `best_ns`."""
    if not problem.may_recompute:
        return []
    stages = problem.profile.stages
    levels = dict.fromkeys(level.name for cost in stages for level in cost.recompute)
    return [name for name in levels if work_ns(problem, name) < best_ns]


def ways_of(problem: Problem, best_ns: float = float("inf")) -> list[Way | None]:
    """None, for activations that are kept, and each way to recompute all of them at one of `levels_of`."""
    levels = levels_of(problem, best_ns)
    return [None, *(Way(name, apart) for name in levels for apart in (False, True))]


def recomputed_at(name: str, level: str) -> str:
    """The name of a schedule with recomputation inside its backwards."""
    return f"{name}{',' if ':' in name else ':'}recompute={level}"


def both_ways(built: Iterable[tuple[str, Schedule]]) -> Iterator[tuple[str, Schedule]]:
    """Schedules that recompute inside backwards, each with itself taken apart: the pattern is the same."""
    for name, schedule in built:
        yield name, schedule
        yield f"{name},apart=yes", taken_apart(schedule)


def work_ns(problem: Problem, level: str) -> int:
    """A bound on schedules that recompute every activation at a level: each device's work, after the
    forwards that lead to it."""
    return naive(at_level(problem.profile, level), problem.microbatches, problem.objective)


def grouped_variants(
    problems: Sequence[Problem],
    best_ns: Callable[[], float],
    over: Callable[[], bool],
    families: Sequence[str] = GROUPED,
    ways: Sequence[Way | None] | None = None,
    sizes: Sequence[bool] = (True, False),
) -> Iterator[Found]:
    """GIS and PipeOffload in every group size, with every number of offloaded chunks that may fit,
    and each with every level of recomputation.

    Args:
        problems: one per number of chunks; those that are not placed in a loop have no such
            schedules.
        best_ns: what variants have to beat to count.
        over: whether the time is up; the usual group sizes come first.
        families: ``gis``, ``po`` or both. `ways`: those to recompute every activation; None: all
            that a problem has, and none.
        sizes: of groups: True the usual ones, False all others.

    Yields:
        the number of the problem, the name with its options, and the schedule, which may not fit.
    """
    loops = [at for at, each in enumerate(problems) if each.shape.placement_name == "loop"]
    for usual in sizes:
        orders = []
        for at in loops:
            for way in ways_of(problems[at], best_ns()) if ways is None else ways:
                planned = _planned(problems[at], way)
                for group in _groups(problems[at], usual):
                    if over():
                        break
                    orders.append(_order(problems[at], at, group, way, planned))
        for order in sorted(filter(None, orders), key=lambda order: order[:3]):
            for offloaded in order.may_fit:
                if ("po" if offloaded else "gis") not in families:
                    continue
                if over():
                    return
                if _hopeless(order, problems[order.at], best_ns()):
                    break
                yield _variant(problems[order.at], order, offloaded)


def _groups(problem: Problem, usual: bool) -> list[int]:
    """Group sizes from 1 to m: those of the papers and the divisors of m, or the others."""
    p, m = problem.profile.devices, problem.microbatches
    first = {1, 2, p // 4, p // 2, -(-p // 2), p, *(g for g in range(1, m + 1) if m % g == 0)}
    return [group for group in range(1, m + 1) if (group in first) is usual]


def _order(
    problem: Problem, at: int, group: int, way: Way | None, planned: CostProfile
) -> _Order | None:
    """An order that some number of offloaded chunks may fit; None where there is none."""
    plain = grouped(planned, problem.microbatches, group)
    schedule = _recomputed(problem, plain, way)
    may_fit = _may_fit(problem, schedule)
    if not may_fit:
        return None
    costs = as_split(problem.profile)
    trace = simulate(schedule, costs, enforce=False, objective=problem.objective)
    return _Order(trace.cost_ns, at, group, way, plain, schedule, may_fit)


def _planned(problem: Problem, way: Way | None) -> CostProfile:
    """The costs that a pattern plans with."""
    costs = problem.profile if way is None else at_level(problem.profile, way.level)
    return as_split(costs)


def _recomputed(problem: Problem, plain: Schedule, way: Way | None) -> Schedule:
    return plain if way is None else with_level(plain, problem.profile, *way)


def _hopeless(order: _Order, problem: Problem, best_ns: float) -> bool:
    """Whether no variant of an order costs less than `best_ns`."""
    return only_delays(problem) and order.cost_ns >= best_ns


def only_delays(problem: Problem) -> bool:
    """Whether limits, copies and recomputation can only make an order take longer. On serial links a
    delayed message may let another go first, and a span may become shorter by a delay."""
    return problem.objective == "flush" and problem.profile.links != "serial"


def _variant(problem: Problem, order: _Order, offloaded: int) -> Found:
    options = f"chunks={problem.shape.chunks},group={order.group}"
    last = "" if order.way is None else f",{order.way}"
    if not offloaded:
        return order.at, f"gis:{options}{last}", order.schedule
    schedule = with_copies(order.plain, _planned(problem, order.way), offloaded)
    name = f"po:{options},offloaded={offloaded}{last}"
    return order.at, name, _recomputed(problem, schedule, order.way)


def _may_fit(problem: Problem, order: Schedule) -> list[int]:
    """The numbers of offloaded chunks with which an order may keep the limit.

    Of a chunk that stays, each activation is held from its F to its B and W, on one compute stream,
    so that what a device holds before each op follows from the order alone. What is offloaded is
    there at least while its F and its B run.
    """
    if problem.limits is None:
        return [0]
    costs, shape = problem.profile, problem.shape
    kinds, stages, microbatches = order.table.T
    own, table = op_costs(order, costs), costs.op_table
    treatment = treatments(order, costs)[stages, microbatches]
    back = table.allocated_bytes[R, stages, treatment]
    out = table.released_bytes[O, stages, treatment]
    chunk_of = np.empty(shape.stages, np.int64)
    for device in range(shape.devices):
        chunk_of[list(shape.stages_of(device))] = np.arange(shape.chunks)
    room = np.subtract(problem.limits, costs.static_bytes)
    found = []
    for offloaded in range(shape.chunks + 1 if problem.may_offload else 1):
        moved = chunk_of[stages] < offloaded
        taken = own.allocated_bytes + np.where(moved & (kinds == B), back, 0)
        given = own.released_bytes + np.where(moved & (kinds == F), out, 0)
        held = np.cumsum(taken - given)
        before = held - (taken - given)
        before -= np.repeat(before[order.offsets[:-1]], np.diff(order.offsets))
        if (before + taken <= room[order.devices]).all():
            found.append(offloaded)
    return found


def limited_variants(
    problem: Problem,
    over: Callable[[], bool],
    best_ns: Callable[[], float] = lambda: float("inf"),
    levels: Sequence[str | None] | None = None,
) -> Iterator[tuple[str, Schedule]]:
    """The automatic zero-bubble schedules of the problem's shape, planned for less than its own limit,
    from the largest to the least; a greedy may do better with less. Where `IN_VAIN` limits in a row
    give orders that take `best_ns` even without one, less memory is taken to be no help. `levels`:
    those to recompute every activation at; None: all, and none."""
    shape = problem.shape
    name = {("loop", 1): "zb-1p", ("vee", 2): "zb-v"}.get((str(shape.placement_name), shape.chunks))
    if name is None:
        return
    for level in (None, *levels_of(problem, best_ns())) if levels is None else levels:
        in_vain = 0
        for limit in _limits(problem):
            if over():
                return
            variant = f"{name}:limit={size_text(limit)}"
            variant = variant if level is None else recomputed_at(variant, level)
            try:
                schedule = build(variant, problem.profile, problem.microbatches)
            except OptPipeError:  # not one microbatch
                break
            free = simulate(
                schedule, problem.profile, enforce=False, objective=problem.objective, explain=False
            )
            in_vain = in_vain + 1 if free.cost_ns >= best_ns() else 0
            if in_vain > IN_VAIN:
                break
            found = [(variant, schedule)]
            yield from found if level is None else both_ways(found)


def _limits(problem: Problem) -> list[int]:
    """Limits up to the problem's own, and to twice what 1F1B holds, from the largest: each sum of
    activations, or so many of them that are evenly spread."""
    costs = problem.profile
    sizes = {size for cost in costs.stages for size in (cost.act_bytes, cost.w_bytes) if size}
    if not sizes:
        return []
    most = 2 * costs.devices * max(cost.act_bytes for cost in costs.stages) * costs.chunks
    step = gcd(*sizes)
    if most // step > MOST_LEVELS:
        step = -(-most // MOST_LEVELS)
    top = max(costs.static_bytes) + most
    own = top if problem.limits is None else max(problem.limits)
    limits = (top - step * at for at in range(most // step))
    return [limit for limit in limits if limit <= own]
