"""Published schedules with every value of their options, the most promising first.

GIS and PipeOffload have a group size and a number of offloaded chunks; the automatic zero-bubble
schedules have a limit to plan for. Two facts leave few of the hundreds of settings to replay: no
variant of a compute order is faster than the order itself without limit and copies, which only
delay ops; and the memory of its resident chunks, op by op, is known before any replay.

Beyond what is published, GIS and PipeOffload are stretched: F's come earlier on the first devices,
W's later on the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...bounds.bounds import naive
from ...errors import Deadlock, OptPipeError
from ...op_costs import op_costs, treatments
from ...ops import B, F, O, R
from ...profile import CostProfile
from ...schedule import Schedule
from ...schedule.fused import as_split
from ...schedules import GROUPED, GROUPED_OFFLOADED, build, with_option
from ...schedules.copies import with_copies
from ...schedules.gis import grouped
from ...schedules.recompute import at_level, taken_apart, with_level
from ...sim import simulate
from ...trace import Trace
from ..problem import Problem

IN_VAIN = 3  # limits in a row without improvement that end the search
CLIMBS = 3  # variants of GIS and PipeOffload that are stretched
STEPS = (1, 2, 4, 8)  # of their F's and W's

FAMILIES = (GROUPED, GROUPED_OFFLOADED)

Found = tuple[int, str, Schedule]


class Way(NamedTuple):
    """How all activations are recomputed: at a level of the profile, inside backwards or by separate ops."""

    level: str
    apart: bool

    def __str__(self) -> str:
        return f"recompute={self.level}" + (",apart=yes" if self.apart else "")


@dataclass(frozen=True)
class _Order:
    """A compute order: the number of its problem, its group
    size, and how many F's come earlier and W's later (`gis.grouped`); `planned`: the costs that the pattern
    plans with; `plain`: without the recomputation in `schedule`; `may_fit`: the numbers of offloaded
    chunks that may fit; `free`: its replay without limit and copies."""

    at: int
    group: int
    early: int
    late: int
    way: Way | None
    planned: CostProfile
    plain: Schedule
    schedule: Schedule
    may_fit: list[int]
    free: Trace

    @property
    def cost_ns(self) -> int:
        return self.free.cost_ns

    @cached_property
    def start_ns(self) -> np.ndarray:
        """When the ops of `plain` start without limit and copies."""
        if self.way is None:
            return self.free.start_ns
        return simulate(self.plain, self.planned, enforce=False).start_ns


def levels_of(problem: Problem, best_ns: float = float("inf")) -> list[str]:
    """Return the levels at which every activation can be recomputed without the work bound reaching
    `best_ns`."""
    if not problem.may_recompute:
        return []
    return [name for name in problem.profile.level_names if work_ns(problem, name) < best_ns]


def ways_of(problem: Problem, best_ns: float = float("inf")) -> list[Way | None]:
    """Return None, for keeping all activations, and each way to recompute all of them at one of
    `levels_of`."""
    levels = levels_of(problem, best_ns)
    return [None, *(Way(name, apart) for name in levels for apart in (False, True))]


def recomputed_at(name: str, level: str) -> str:
    """Return the name of a schedule with recomputation inside its backwards."""
    return with_option(name, "recompute", level)


def both_ways(built: Iterable[tuple[str, Schedule]]) -> Iterator[tuple[str, Schedule]]:
    """Yield schedules that recompute inside backwards, each also with separate recomputation ops in
    the same pattern."""
    for name, schedule in built:
        yield name, schedule
        if not schedule.has_pairs:
            yield f"{name},apart=yes", taken_apart(schedule)


def work_ns(problem: Problem, level: str) -> int:
    """Return a lower bound on schedules that recompute every activation at a level: each device's
    work, after the forwards that precede it."""
    return naive(at_level(problem.profile, level), problem.microbatches, problem.objective)


def grouped_variants(
    problems: Sequence[Problem],
    best_ns: Callable[[], float],
    over: Callable[[], bool],
    families: Sequence[str] = FAMILIES,
    ways: Sequence[Way | None] | None = None,
    sizes: Sequence[bool] = (True, False),
) -> Iterator[Found]:
    """Yield GIS and PipeOffload in every group size, with every number of offloaded chunks that may
    fit, each with every level of recomputation.

    Args:
        problems: one per number of chunks; placements other than a loop have no such schedules.
        best_ns: the cost that variants have to beat.
        over: tells whether the time is up; the usual group sizes come first.
        families: ``gis``, ``po`` or both. `ways`: the ways to recompute every activation; None: all
            that a problem has, and no recomputation.
        sizes: which group sizes: True: the usual ones; False: all others.

    Yields:
        the number of the problem, the name with its options, and the schedule, which may not fit.
    """
    loops = [at for at, each in enumerate(problems) if each.shape.placement_name == "loop"]
    for usual in sizes:
        orders = []
        for at in loops:
            names = problems[at].profile.level_names
            for way in ways_of(problems[at], best_ns()) if ways is None else ways:
                if way is not None and way.level not in names:
                    continue  # which parts of a stage can be recomputed depends on its layers
                planned = _planned(problems[at], way)
                for group in _groups(problems[at], usual):
                    if over():
                        break
                    orders.append(_order(problems[at], at, group, way, planned))
        for order in sorted(filter(None, orders), key=lambda one: (one.cost_ns, one.at, one.group)):
            for offloaded in order.may_fit:
                if (GROUPED_OFFLOADED if offloaded else GROUPED) not in families:
                    continue
                if over():
                    return
                if _hopeless(order, problems[order.at], best_ns()):
                    break
                yield _variant(problems[order.at], order, offloaded)


class _Spot(NamedTuple):
    """A variant of GIS (nothing offloaded) or PipeOffload, stretched or not."""

    group: int
    offloaded: int
    early: int = 0
    late: int = 0

    def near(self) -> Iterator[_Spot]:
        """Yield the spots that are one step of any size away."""
        for step in STEPS:
            for early, late in ((0, step), (step, 0), (step, step), (0, -step), (-step, 0)):
                spot = self._replace(early=self.early + early, late=self.late + late)
                if min(spot.early, spot.late) >= 0:
                    yield spot
        for offloaded in (self.offloaded + 1, self.offloaded - 1):
            yield self._replace(offloaded=offloaded)


def stretched_variants(
    problem: Problem,
    way: Way | None,
    best_ns: Callable[[], float],
    over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[str, Schedule]]:
    """Yield GIS and PipeOffload with F's earlier and W's later than published (see `gis.grouped`), each
    faster than those before it: from the `CLIMBS` fastest of the usual group sizes, step by step to
    the best neighbour as long as that is faster.

    Args:
        way: how every activation is recomputed; None: not at all. best_ns: the cost to beat. over:
            tells whether the time is up.
    """
    planned = _planned(problem, way)
    orders: dict[tuple[int, int, int], _Order | None] = {}
    costs: dict[_Spot, float] = {}

    def order(group: int, early: int = 0, late: int = 0) -> _Order | None:
        key = group, early, late
        if key not in orders:
            orders[key] = None
            with suppress(Deadlock):  # F's so early that devices wait for one another
                orders[key] = _order(problem, 0, group, way, planned, early, late)
        return orders[key]

    def replayed(spot: _Spot) -> Iterator[tuple[str, Schedule]]:
        """Find the cost of a spot, and yield its schedule if no spot before was as fast."""
        if spot in costs or over():
            return
        one = order(spot.group, spot.early, spot.late)
        least = min([best_ns(), *costs.values()])
        costs[spot] = float("inf")
        if one is None or spot.offloaded not in one.may_fit:
            return
        _, name, schedule = _variant(problem, one, spot.offloaded)
        with suppress(OptPipeError):
            costs[spot] = problem.replay(schedule).cost_ns
        if costs[spot] < least:
            yield name, schedule

    first = [one for group in _groups(problem, True) if not over() and (one := order(group))]
    for one in first:
        for offloaded in one.may_fit:
            yield from replayed(_Spot(one.group, offloaded))
    for start in sorted(costs, key=costs.__getitem__)[:CLIMBS]:
        here, before = start, float("inf")
        while costs[here] < before:
            before = costs[here]
            for spot in here.near():
                yield from replayed(spot)
            here = min(
                (spot for spot in (here, *here.near()) if spot in costs), key=costs.__getitem__
            )


def _groups(problem: Problem, usual: bool) -> list[int]:
    """Group sizes from 1 to m: those of the papers and the divisors of m, or the others."""
    p, m = problem.profile.devices, problem.microbatches
    first = {1, 2, p // 4, p // 2, -(-p // 2), p, *(g for g in range(1, m + 1) if m % g == 0)}
    return [group for group in range(1, m + 1) if (group in first) is usual]


def _order(
    problem: Problem,
    at: int,
    group: int,
    way: Way | None,
    planned: CostProfile,
    early: int = 0,
    late: int = 0,
) -> _Order | None:
    """Make an order that may fit with some number of offloaded chunks; None if there is none."""
    plain = grouped(planned, problem.microbatches, group, early, late)
    schedule = recomputed_in(problem, plain, way)
    may_fit = _may_fit(problem, schedule)
    if not may_fit:
        return None
    costs = as_split(problem.profile)
    trace = simulate(schedule, costs, enforce=False, objective=problem.objective)
    return _Order(at, group, early, late, way, planned, plain, schedule, may_fit, trace)


def _planned(problem: Problem, way: Way | None) -> CostProfile:
    """Return the costs that a pattern plans with."""
    costs = problem.profile if way is None else at_level(problem.profile, way.level)
    return as_split(costs)


def recomputed_in(problem: Problem, plain: Schedule, way: Way | None) -> Schedule:
    """Return a schedule with every activation recomputed in one way; None: as it is."""
    return plain if way is None else with_level(plain, problem.profile, *way)


def _hopeless(order: _Order, problem: Problem, best_ns: float) -> bool:
    """Whether no variant of an order costs less than `best_ns`."""
    return only_delays(problem) and order.cost_ns >= best_ns


def only_delays(problem: Problem) -> bool:
    """Whether limits, copies and recomputation can only slow an order down. On serial links a
    delayed message may let another go first, and a delay may shorten a span."""
    return problem.objective == "flush" and not problem.profile.serial_links


def _variant(problem: Problem, order: _Order, offloaded: int) -> Found:
    options = f"chunks={problem.shape.chunks},group={order.group}"
    stretched = (("early", order.early), ("late", order.late))
    last = "".join(f",{key}={count}" for key, count in stretched if count)
    last += "" if order.way is None else f",{order.way}"
    if not offloaded:
        return order.at, f"{GROUPED}:{options}{last}", order.schedule
    schedule = with_copies(order.plain, order.planned, offloaded, start_ns=order.start_ns)
    name = f"{GROUPED_OFFLOADED}:{options},offloaded={offloaded}{last}"
    return order.at, name, recomputed_in(problem, schedule, order.way)


def _may_fit(problem: Problem, order: Schedule) -> list[int]:
    """Return the numbers of offloaded chunks with which an order may keep the limit.

    Activations of a resident chunk are held from F to B and W on one compute stream, so the memory
    that a device holds before each op follows from the order alone. Offloaded activations are on
    the device at least while their F and their B run.
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
    names: Sequence[str],
    level: str | None,
    best_ns: Callable[[], float],
    over: Callable[[], bool],
) -> Iterator[tuple[str, Schedule]]:
    """Yield the automatic zero-bubble schedules of the problem's shape, planned for ever smaller
    limits than its own, as a greedy may do better with less memory. It stops after `IN_VAIN`
    limits in a row whose orders take `best_ns` even without a limit.

    Args:
        names: of one schedule, with limits from the largest. level: at which every activation is recomputed.
    """
    in_vain = 0
    for name in names:
        if over():
            return
        variant = name if level is None else recomputed_at(name, level)
        try:
            schedule = build(variant, problem.profile, problem.microbatches)
        except OptPipeError:  # not even one microbatch fits
            return
        free = simulate(schedule, problem.profile, enforce=False, objective=problem.objective)
        in_vain = in_vain + 1 if free.cost_ns >= best_ns() else 0
        if in_vain > IN_VAIN:
            return
        found = [(variant, schedule)]
        yield from found if level is None else both_ways(found)
