"""From a schedule to values of the MILP's variables, and back: exact times from its binaries."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from ...ops import BW, COMPUTE, B, F, O, Op, R, W
from ...schedule import Schedule
from ...trace import Trace
from ..problem import Problem, schedule_from_times
from .sets import KINDS, Sets
from .variables import Model


def plan(sets: Sets, trace: Trace) -> dict[Op, int] | None:
    """The starts (ns) of a schedule's ops as the MILP names them: BW cut into B and W, and the
    microbatches renamed as `MilpOptions.in_order` says; None where `fifo` rules the schedule out.
    """
    starts: dict[Op, int] = {}
    for span in trace.spans:
        op = span.op
        if op.kind is BW:
            starts[op._replace(kind=B)] = span.start_ns
            starts[op._replace(kind=W)] = span.start_ns + sets.durations[B][op.stage]
        elif op.kind in KINDS or op.stage in sets.away:
            starts[op] = span.start_ns
    if sets.mode == "none":
        return starts
    if sets.mode == "all" and not sets.gone:
        for kind, s in sets.chained:
            ops = sets.of(kind, s)
            starts |= zip(ops, sorted(starts[op] for op in ops), strict=True)
        return starts
    names = sorted(range(sets.m), key=lambda j: starts[Op(F, 0, j)])
    rank = {j: new for new, j in enumerate(names)}
    starts = {op._replace(microbatch=rank[op.microbatch]): at for op, at in starts.items()}
    for s in sets.stages:
        lasts = [op._replace(kind=W) for op in sorted(sets.of(B, s), key=starts.__getitem__)]
        starts |= zip(lasts, sorted(starts[op] for op in lasts), strict=True)
    late = any(
        starts[a] > starts[b] for kind, s in sets.chained for a, b in pairwise(sets.of(kind, s))
    )
    return None if late else starts


def set_values(model: Model, starts: dict[Op, int], cost_ns: int) -> None:
    """Give every variable of the model its value in a plan."""
    sets, m, unit = model.sets, model.pyomo, model.unit_ns
    moved = {out for out in sets.gone if out in starts}
    starts = dict(starts)
    for out in sets.gone:
        forward = out._replace(kind=F)
        end = starts[forward] + sets.dur(forward)
        starts.setdefault(out, end)
        starts.setdefault(out._replace(kind=R), end)

    def over(a: Op, q: Op) -> bool:
        return starts[a] + sets.dur(a) <= starts[q]

    def first(a: Op, b: Op) -> bool:
        return (starts[a], starts[a] + sets.dur(a), a) < (starts[b], starts[b] + sets.dur(b), b)

    def goes(op: Op) -> bool:
        return op.kind in KINDS or op._replace(kind=O) in moved

    def give(variable: Any, value: float) -> None:
        if not variable.fixed:
            variable.set_value(float(value), skip_validation=True)

    give(m.C, cost_ns / unit)
    for op in sets.ops:
        give(m.t[str(op)], starts[op] / unit)
    for out in sets.gone:
        give(m.x[str(out)], out in moved)
    for a, b in sets.pairs:
        give(m.y[str(a), str(b)], first(a, b))
    for a, b in sets.ways:
        give(m.y[str(a), str(b)], goes(a) and goes(b) and first(a, b))
    for a, q in sets.releases:
        give(m.z[str(a), str(q)], goes(a) and over(a, q))
    for back, f in sets.overtakes:
        give(m.r[str(back), str(f)], goes(back) and starts[back] <= starts[f])
    for a, b in sets.pinned:
        give(m.g[str(a), str(b)], goes(a) and goes(b) and starts[a] <= starts[b])
        away = goes(a) and goes(b) and over(a._replace(kind=R), b)
        give(m.h[str(a), str(b)], away)
    if sets.span and sets.mode != "all":
        for d in sets.devices:
            begins = min(starts[op] for op in sets.of(F, sets.first_stage(d)))
            give(m.first[d], begins / unit)


def earliest(model: Model) -> dict[Op, int] | None:
    """The earliest starts (ns) that the model's binaries allow; of its times nothing is used, so
    that no tolerance of the solver is in them. None where its orders contradict one another."""
    sets, m = model.sets, model.pyomo

    def one(expression: Any) -> bool:
        value = expression if isinstance(expression, int) else expression()
        return bool(value > 0.5)

    def edges() -> Iterable[tuple[Op, Op, int]]:
        yield from sets.flow
        for a, b in sets.pairs + sets.borrowing:
            yield (a, b, sets.dur(a)) if one(model.order(a, b)) else (b, a, sets.dur(b))
        for out in sets.gone:
            if one(m.x[str(out)]):
                f, back, b = (out._replace(kind=kind) for kind in (F, R, B))
                yield from ((f, out, sets.dur(f)), (out, back, sets.dur(out)))
                yield back, b, sets.dur(back)
        for a, b in sets.ways:
            if one(m.y[str(a), str(b)]):
                yield a, b, sets.dur(a)
        for a, q in sets.releases:
            if one(m.z[str(a), str(q)]):
                yield a, q, sets.dur(a)
        for back, f in sets.overtakes:
            if one(m.x[str(back._replace(kind=O))]):
                yield (back, f, 0) if one(m.r[str(back), str(f)]) else (f, back, 0)
        for a, b in sets.pinned:
            if one(m.h[str(a), str(b)]):
                yield a._replace(kind=R), b, sets.dur(a._replace(kind=R))
            if one(m.x[str(a)]) and one(m.x[str(b)]) and not one(m.g[str(a), str(b)]):
                yield b, a, model.tick_ns

    number = {op: at for at, op in enumerate(sets.ops)}
    rows = np.array([(number[a], number[b], lag) for a, b, lag in edges()], np.int64)
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
    moved = {out for out in sets.gone if one(m.x[str(out)])}
    return {
        op: int(time[at])
        for op, at in number.items()
        if op.kind in KINDS or op._replace(kind=O) in moved
    }


def scheduled(problem: Problem, starts: dict[Op, int]) -> tuple[Schedule, Trace] | None:
    """The schedule of a timing and its replay, with B and W fused where that is better; None where
    the replay cannot go on or breaks the host limit, as it may start copies earlier."""
    schedule = schedule_from_times(problem, starts)
    found = [(one, problem.keeps(one)) for one in (schedule, _fused(problem, schedule)) if one]
    good = [(trace.cost_ns, at) for at, (_, trace) in enumerate(found) if trace is not None]
    if not good:
        return None
    schedule, trace = found[min(good)[1]]
    assert trace is not None
    return schedule, trace


def _fused(problem: Problem, schedule: Schedule) -> Schedule | None:
    """The schedule with BW for each W right behind its B, where BW is cheaper; None without any."""
    stages = problem.profile.stages
    cheap = {s for s, cost in enumerate(stages) if cost.fused_ns < cost.t_b_ns + cost.t_w_ns}
    if not cheap:
        return None
    programs: list[list[Op]] = []
    for program in schedule.programs:
        compute = [op for op in program if op.kind in COMPUTE]
        both = {
            b
            for b, w in pairwise(compute)
            if (b.kind, w.kind) == (B, W) and b[1:] == w[1:] and b.stage in cheap
        }
        gone = {b._replace(kind=W) for b in both}
        programs.append(
            [op._replace(kind=BW) if op in both else op for op in program if op not in gone]
        )
    return schedule.replace(programs=programs)
