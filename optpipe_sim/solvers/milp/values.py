"""From a schedule to values of the MILP's variables, and back: exact times from its binaries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ...ops import BW, TRANSFERS, B, F, O, Op, R, W
from ...schedule import Schedule
from ...trace import Trace
from ..problem import Problem, schedule_from_times
from .sets import KINDS, Sets
from .variables import Model

Starts = dict[Op, int]  # in ns, of the MILP's ops that take place


def plan(sets: Sets, trace: Trace) -> Starts | None:
    """Convert a trace to the MILP's ops: BW split into B and W, and microbatches renamed according
    to `MilpOptions.in_order`; None if `fifo` excludes the schedule."""
    starts: Starts = {}
    for span in trace.spans:
        op = span.op
        if op.kind is BW:
            starts[op._replace(kind=B)] = span.start_ns
            starts[op._replace(kind=W)] = span.start_ns + sets.durations[B][op.stage]
        elif op.kind not in TRANSFERS or op.stage in sets.offloadable:
            starts[op] = span.start_ns
    if sets.mode == "none":
        return starts
    if sets.mode == "all" and not sets.offloads:
        for kind, s in sets.chained:
            ops = sets.of(kind, s)
            starts |= zip(ops, sorted(starts[op] for op in ops), strict=True)
        return starts
    names = sorted(range(sets.m), key=lambda j: starts[Op(F, 0, j)])
    rank = {j: new for new, j in enumerate(names)}
    starts = {op._replace(microbatch=rank[op.microbatch]): at for op, at in starts.items()}
    for s in sets.stages:
        last = [op._replace(kind=W) for op in sorted(sets.of(B, s), key=starts.__getitem__)]
        starts |= zip(last, sorted(starts[op] for op in last), strict=True)
    late = any(
        starts[a] > starts[b] for kind, s in sets.chained for a, b in pairwise(sets.of(kind, s))
    )
    return None if late else starts


def set_values(model: Model, planned: Starts, cost_ns: int) -> None:
    """Give every variable of the model its value in a plan."""
    sets, m, unit = model.sets, model.pyomo, model.unit_ns
    moved = {out for out in sets.offloads if out in planned}
    starts = dict(planned)
    for out in sets.offloads:  # an instant after F if there is none
        end = starts[out._replace(kind=F)] + sets.dur(out._replace(kind=F))
        starts.setdefault(out, end)
        starts.setdefault(out._replace(kind=R), end)

    def over(a: Op, q: Op) -> bool:
        return starts[a] + sets.dur(a) <= starts[q]

    def first(a: Op, b: Op) -> bool:
        one, other = ((starts[op], starts[op] + sets.dur(op), op) for op in (a, b))
        return one < other

    def goes(op: Op) -> bool:
        return op.kind in KINDS or op._replace(kind=O) in moved

    def give(variable: Any, value: float) -> None:
        if not variable.fixed:
            variable.set_value(float(value), skip_validation=True)

    give(m.C, cost_ns / unit)
    for op in sets.ops:
        give(m.t[str(op)], starts[op] / unit)
    for out in sets.offloads:
        give(m.x[str(out)], out in moved)
    for a, b in sets.pairs:
        give(m.y[str(a), str(b)], first(a, b))
    for a, b in sets.ways:
        give(m.y[str(a), str(b)], goes(a) and goes(b) and first(a, b))
    for a, q in sets.releases:
        give(m.z[str(a), str(q)], goes(a) and over(a, q))
    for back, q in sets.overtakes:
        give(m.r[str(back), str(q)], goes(back) and starts[back] <= starts[q])
    for a, b in sets.pinned:
        both = goes(a) and goes(b)
        give(m.g[str(a), str(b)], both and starts[a] <= starts[b])
        give(m.h[str(a), str(b)], both and over(a._replace(kind=R), b))
    if sets.span and sets.mode != "all":
        for d in sets.devices:
            begins = min(starts[op] for op in sets.of(F, sets.first_stage(d)))
            give(m.first[d], begins / unit)


def earliest(model: Model) -> Starts | None:
    """Compute the earliest starts (ns) under the orders that the model's binaries choose. Its time variables are
    not used, so solver tolerances do not matter. None if the orders are cyclic."""
    sets = model.sets
    number = {op: at for at, op in enumerate(sets.ops)}
    moved = {out for out in sets.offloads if _holds(model.moved(out))}
    rows = np.array([(number[a], number[b], lag) for a, b, lag in _edges(model, moved)], np.int64)
    before, after, lag = rows.T
    time = np.zeros(len(number), np.int64)
    if sets.prompt and sets.span:
        for d in sets.devices:
            op = Op(F, sets.first_stage(d), 0)
            time[number[op]] = model.windows.early[op]
    for _ in range(len(number) + 1):
        later = time.copy()
        np.maximum.at(later, after, time[before] + lag)
        if np.array_equal(later, time):
            break
        time = later
    else:
        return None
    scheduled = {op for op in sets.ops if op.kind in KINDS or op._replace(kind=O) in moved}
    return {op: int(time[number[op]]) for op in scheduled}


def _holds(expression: Any) -> bool:
    """Whether a binary, or a number or expression of binaries, is 1."""
    return (expression if isinstance(expression, int) else expression()) > 0.5


def _edges(model: Model, moved: set[Op]) -> Iterator[tuple[Op, Op, int]]:
    """Yield (a, b, ns): b starts at least `ns` after the start of a. `variables` lists what the binaries mean."""
    sets, m, dur = model.sets, model.pyomo, model.sets.dur
    for a, b, latency in sets.flow:
        yield a, b, dur(a) + latency
    for a, b in sets.pairs + sets.borrowing:
        yield (a, b, dur(a)) if _holds(model.order(a, b)) else (b, a, dur(b))
    for out in moved:
        f, back, b = (out._replace(kind=kind) for kind in (F, R, B))
        yield from ((f, out, dur(f)), (out, back, dur(out)), (back, b, dur(back)))
    for variables, pairs in ((m.y, sets.ways), (m.z, sets.releases)):
        for a, b in pairs:
            if _holds(variables[str(a), str(b)]):
                yield a, b, dur(a)
    for back, q in sets.overtakes:
        if back._replace(kind=O) in moved:
            yield (back, q, 0) if _holds(m.r[str(back), str(q)]) else (q, back, 0)
    for a, b in sets.pinned:
        back = a._replace(kind=R)
        if _holds(m.h[str(a), str(b)]):
            yield back, b, dur(back)
        if {a, b} <= moved and not _holds(m.g[str(a), str(b)]):
            yield b, a, model.tick_ns


def scheduled(problem: Problem, starts: Starts) -> tuple[Schedule, Trace] | None:
    """Make the schedule of a timing and its replay, with B and W fused if that is better; None if
    the replay deadlocks or breaks the host limit (it may start copies earlier)."""
    ways = [starts, _fused(problem, starts)]
    schedules = [schedule_from_times(problem, way) for way in ways if way is not None]
    found = [(one, trace) for one in schedules if (trace := problem.keeps(one)) is not None]
    return min(found, key=lambda pair: pair[1].cost_ns, default=None)


def _fused(problem: Problem, starts: Starts) -> Starts | None:
    """Replace each B directly followed by its W by a BW if that is cheaper; None if there are none."""
    fused = dict(starts)
    for s, cost in enumerate(problem.profile.stages):
        if cost.fused_ns >= cost.t_b_ns + cost.t_w_ns:
            continue
        for j in range(problem.microbatches):
            b, w = Op(B, s, j), Op(W, s, j)
            if b in starts and starts[w] == starts[b] + min(cost.t_b_ns, cost.fused_ns):
                fused[Op(BW, s, j)] = fused.pop(b)
                del fused[w]
    return None if len(fused) == len(starts) else fused
