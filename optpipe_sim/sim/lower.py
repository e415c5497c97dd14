"""Timing-proof lowering: a program whose waits keep the memory limit under any durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from ..op_costs import may_move_keys, op_costs
from ..ops import COMPUTE, TRANSFERS, O, Op, R, dependencies
from ..profile import CostProfile
from ..schedule import Schedule, validate
from ..trace import Trace
from . import require_limit
from .grants import find_waits
from .graph import Graph, build_graph, given_order, shared_links
from .host_links import check_link_order
from .replay import deadlock, run_events


@dataclass(frozen=True, eq=False)
class Lowered:
    """A schedule in which all decisions that depend on times are fixed; it can be executed as it is.

    Attributes:
        schedule: its programs in an order in which a host thread can issue them without deadlock;
            `link_order` for every link that several queues share.
        profile: with the schedule's chunks and placement.
        memory_limit: the bytes per device that it keeps, or None.
        wait_rows, wait_for_rows: grants that wait, and the rows whose end they wait for.
        graph: the schedule as a graph; its times are longest paths.
    """

    schedule: Schedule
    profile: CostProfile
    memory_limit: tuple[int, ...] | None
    wait_rows: np.ndarray
    wait_for_rows: np.ndarray
    graph: Graph

    @cached_property
    def waits(self) -> dict[Op, tuple[Op, ...]]:
        """For each op that waits for memory, the ops whose end it waits for: the last one on
        the compute stream and the last O, which imply the earlier ones on these engines."""
        waits: dict[Op, tuple[Op, ...]] = {}
        for row, needed in zip(self.wait_rows.tolist(), self.wait_for_rows.tolist(), strict=True):
            op = self.schedule.op(row)
            waits[op] = (*waits.get(op, ()), self.schedule.op(needed))
        return waits

    def replay(self, durations_ns: np.ndarray | None = None, objective: str = "flush") -> Trace:
        """Replay with the profile's durations or with others, (ops,) in ns by rows.

        It never exceeds the limit, whatever the durations.
        """
        durations = self.graph.durations
        if durations_ns is not None:
            durations = durations.copy()
            durations[self.graph.op_at] = durations_ns
        times = self.graph.times(durations)
        return Trace(
            self.schedule,
            self.profile,
            *times,
            memory_limit=self.memory_limit,
            objective=objective,
        )


def lower(
    schedule: Schedule, profile: CostProfile, memory_limit: int | Sequence[int] | None = None
) -> Lowered:
    """Derive, from one replay under the limit, what every grant and every shared link waits for.

    With the profile's durations the result takes exactly the time of that replay. An R that has to
    wait for releases behind it in the program moves behind them, and an O that something before it
    waits for moves before that; engines keep their order.

    Raises:
        InvalidSchedule, OutOfMemory, Deadlock: as `simulate` does.
    """
    validate(schedule)
    profile = profile.for_shape(schedule.shape).issued(schedule.issued_split)
    check_link_order(schedule, profile)
    limits = profile.limits(memory_limit)
    orders = {key: rows for key in schedule.link_order if (rows := given_order(schedule, key))}
    undecided = shared_links(schedule, profile).keys() - orders.keys()
    none = np.zeros(0, np.int64)
    waits = (none, none)
    if limits is not None or undecided:
        if limits is not None:
            require_limit(profile, limits)
        start, _, _, granted_as, ended_as = run_events(schedule, profile, limits)
        on_link = shared_links(schedule, profile)
        for key in undecided:
            # a link serves one at a time: what started earlier ended earlier in the sequence
            orders[key] = sorted(on_link[key], key=lambda row: (start[row], ended_as[row]))
        if limits is not None:
            costs = op_costs(schedule, profile)
            waits = find_waits(
                schedule.table[:, 0],
                costs.asks,
                schedule.offsets,
                costs.allocated_bytes,
                costs.released_bytes,
                np.array(profile.static_bytes, np.int64),
                np.array(limits, np.int64),
                granted_as,
                ended_as,
            )
    schedule = (
        schedule.replace(
            link_order={
                **schedule.link_order,
                **{key: [schedule.op(row) for row in rows] for key, rows in orders.items()},
            }
        )
        if undecided
        else schedule
    )
    moved = _issue_order(schedule, profile, waits)
    if moved is not None:
        schedule, new_row = moved
        waits = (new_row[waits[0]], new_row[waits[1]])
        orders = {key: new_row[rows].tolist() for key, rows in orders.items()}
    graph = build_graph(schedule, profile, orders, waits)
    if graph is None:
        raise deadlock(schedule, profile, limits)
    return Lowered(schedule, profile, limits, *waits, graph)


def _issue_order(
    schedule: Schedule, profile: CostProfile, waits: tuple[np.ndarray, np.ndarray]
) -> tuple[Schedule, np.ndarray] | None:
    """Return the schedule with every wait pointing backwards in its program, and the new row of each old
    one; None where nothing has to move."""
    backwards = waits[1] > waits[0]
    if not backwards.any():
        return None
    old_rows = np.arange(len(schedule))
    # which of the two comes first decides what the O moves
    sides = np.sort(np.stack(may_move_keys(schedule, profile), axis=1), axis=1)
    for device in np.unique(schedule.devices[waits[0][backwards]]).tolist():
        first, last = schedule.offsets[device : device + 2].tolist()
        here = schedule.devices[waits[0]] == device
        pairs = list(
            zip((waits[1][here] - first).tolist(), (waits[0][here] - first).tolist(), strict=True)
        )
        asks = op_costs(schedule, profile).asks[first:last].tolist()
        around = (sides >= first) & (sides < last)
        pairs += [tuple(side) for side in (sides[around[:, 0]] - first).tolist()]
        order = _reorder(schedule.flat_programs[device], profile, asks, pairs)
        old_rows[first:last] = first + np.array(order)
    new_row = np.empty_like(old_rows)
    new_row[old_rows] = np.arange(len(old_rows))
    table = schedule.table[old_rows]
    return (
        Schedule.from_table(
            schedule.shape,
            table,
            schedule.offsets,
            schedule.link_order,
            schedule.meta,
            schedule.levels,
            schedule.paired[old_rows],
        ),
        new_row,
    )


def _reorder(
    program: Sequence[Op], profile: CostProfile, asks: Sequence[bool], pairs: list[tuple[int, int]]
) -> list[int]:
    """Return positions in the order closest to the program's own that satisfies each pair (before, after).
    It keeps the order on each engine, the order of grants, R's after their anchors, and the dependencies
    that the program already satisfies."""
    shared = profile.shares_copy_engine
    after: list[list[int]] = [[] for _ in program]
    missing = [0] * len(program)
    last: dict[str, int] = {}
    at: dict[tuple[int, ...], int] = {}  # ops, by their entries
    pairs = list(pairs)
    for here, op in enumerate(program):
        follows = []
        if op.kind in COMPUTE:
            follows.append("compute")
        if op.kind in TRANSFERS:
            follows.append("copies" if shared else op.kind.name)
        if asks[here]:
            follows.append("grants")
        pairs += [(last[what], here) for what in follows if what in last]
        if op.kind is R and "compute" in last:
            pairs.append((last["compute"], here))
        pairs += [(at[needed], here) for needed in dependencies(op) if needed in at]
        last.update(dict.fromkeys(follows, here))
        at[op] = here
    for before, behind in pairs:
        after[before].append(behind)
        missing[behind] += 1
    # an O is issued as early as the first op that waits for it would be
    urgency = list(range(len(program)))
    for here in reversed(range(len(program))):
        if program[here].kind is O:
            urgency[here] = min([here, *(urgency[behind] for behind in after[here])])
    ready = [(urgency[here], here) for here in range(len(program)) if not missing[here]]
    heapify(ready)
    order = []
    while ready:
        _, here = heappop(ready)
        order.append(here)
        for behind in after[here]:
            missing[behind] -= 1
            if not missing[behind]:
                heappush(ready, (urgency[behind], behind))
    return order
