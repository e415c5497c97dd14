"""From a schedule to values of the MILP's variables, and back: exact times from its binaries."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...op_costs import treatments
from ...ops import BW, TRANSFERS, B, C, F, O, Op, R, W
from ...schedule import Schedule
from ...trace import Trace
from ..problem import Problem, schedule_from_times
from ..treatments import named_levels
from .choices import Choice
from .precedence import KINDS
from .sets import Sets
from .variables import Model

Activation = tuple[int, int]


class Plan(NamedTuple):
    """The starts (ns) of the MILP's ops, and the choice of each activation that has choices."""

    starts: dict[Op, int]
    chosen: dict[Activation, Choice]


def plan(sets: Sets, trace: Trace) -> Plan | None:
    """Convert a trace to the MILP's ops: BW split into B and W, and microbatches renamed according
    to `MilpOptions.in_order`; None if `fifo` excludes the schedule."""
    chosen = _choices(sets, trace)
    starts: dict[Op, int] = {}
    for span in trace.spans:
        op, one = span.op, chosen.get(span.op[1:])
        if op.kind is BW:
            back = sets.durations[B][op.stage] if one is None else one.durations[B]
            starts[op._replace(kind=B)] = span.start_ns
            starts[op._replace(kind=W)] = span.start_ns + back
        elif _there(sets, op, one):
            starts[op] = span.start_ns
    for (s, j), one in chosen.items():
        if not one.apart:  # an instant
            starts[Op(C, s, j)] = starts[Op(B, s, j)]
    if sets.mode == "none":
        return Plan(starts, chosen)
    if sets.mode == "all" and not sets.offloads and not chosen:
        for kind, s in sets.chained:
            ops = sets.of(kind, s)
            starts |= zip(ops, sorted(starts[op] for op in ops), strict=True)
        return Plan(starts, chosen)
    names = sorted(range(sets.m), key=lambda j: starts[Op(F, 0, j)])
    rank = {j: new for new, j in enumerate(names)}
    starts = {op._replace(microbatch=rank[op.microbatch]): at for op, at in starts.items()}
    for s in sets.stages:
        if not sets.fusible(s):
            last = [op._replace(kind=W) for op in sorted(sets.of(B, s), key=starts.__getitem__)]
            starts |= zip(last, sorted(starts[op] for op in last), strict=True)
    late = any(
        starts[a] > starts[b] for kind, s in sets.chained for a, b in pairwise(sets.of(kind, s))
    )
    return None if late else Plan(starts, {(s, rank[j]): one for (s, j), one in chosen.items()})


def _there(sets: Sets, op: Op, one: Choice | None) -> bool:
    """Whether the MILP has an op of a schedule: no transfers if memory cannot bind, and no empty copies."""
    if op.kind in TRANSFERS:
        return op.stage in sets.offloadable and (one is None or one.moved)
    return op.kind is not C or one is not None


def _choices(sets: Sets, trace: Trace) -> dict[Activation, Choice]:
    """Return a schedule's choice for each activation with choices; B and W if no choice has a BW."""
    ops = {span.op for span in trace.spans}
    treated = treatments(trace.schedule, sets.problem.profile)
    chosen = {}
    for _, s, j in sets.treated:
        moved, fused = Op(O, s, j) in ops, Op(BW, s, j) in ops
        same = [one for one in sets.choices[s] if one.treatment == treated[s, j]]
        chosen[s, j] = max(same, key=lambda one: (one.moved == moved, one.fused == fused))
    return chosen


def set_values(model: Model, plan: Plan, cost_ns: int) -> None:
    """Give every variable of the model its value in a plan."""
    sets, m, unit = model.sets, model.pyomo, model.unit_ns
    moved = {out for out in sets.offloads if out in plan.starts}
    starts = dict(plan.starts)
    for out in sets.offloads:
        forward = out._replace(kind=F)
        end = starts[forward] + sets.dur(forward)
        starts.setdefault(out, end)
        starts.setdefault(out._replace(kind=R), end)

    def dur(op: Op) -> int:
        one = plan.chosen.get(op[1:])
        return sets.dur(op) if one is None else one.durations[op.kind]

    def over(a: Op, q: Op) -> bool:
        return starts[a] + dur(a) <= starts[q]

    def place(op: Op) -> tuple[int, int, bool, Op]:
        return starts[op], starts[op] + dur(op), op.kind is C, op  # releases go first

    def first(a: Op, b: Op) -> bool:
        return place(a) < place(b)

    def goes(op: Op) -> bool:
        return op.kind in KINDS or op._replace(kind=O) in moved

    def give(variable: Any, value: float) -> None:
        if not variable.fixed:
            variable.set_value(float(value), skip_validation=True)

    give(m.C, cost_ns / unit)
    for op in sets.ops:
        give(m.t[str(op)], starts[op] / unit)
    for out in sets.offloads:
        if not sets.choices_of(out):
            give(m.x[str(out)], out in moved)
    for f in sets.treated:
        for one in sets.choices_of(f):
            give(m.u[str(f), one.name], one is plan.chosen[f[1:]])
    for a, b in sets.pairs:
        give(m.y[str(a), str(b)], first(a, b))
    for a, b in sets.ways:
        give(m.y[str(a), str(b)], goes(a) and goes(b) and first(a, b))
    for a, q in sets.releases:
        give(m.z[str(a), str(q)], goes(a) and over(a, q))
    for back, q in sets.overtakes:
        give(m.r[str(back), str(q)], goes(back) and starts[back] <= starts[q])
    for a, b in sets.pinned:
        counts = goes(a) and goes(b) and starts[a] <= starts[b]
        is_over = goes(a) and goes(b) and over(a._replace(kind=R), b)
        give(m.g[str(a), str(b)], counts)
        give(m.h[str(a), str(b)], is_over)
        if sets.choices_of(a):
            give(
                m.n[str(a), str(b)], plan.chosen[a[1:]].moved_bytes if counts and not is_over else 0
            )
    for held, floors in model.floors:
        give(held, max(0.0, *(_value(floor) for floor in floors)))
    if sets.span and sets.mode != "all":
        for d in sets.devices:
            begins = min(starts[op] for op in sets.of(F, sets.first_stage(d)))
            give(m.first[d], begins / unit)


def _value(expression: Any) -> float:
    """Return the value of an expression or a number."""
    return float(expression if isinstance(expression, int | float) else expression())


def decided(model: Model) -> dict[Activation, Choice]:
    """Return the choice of each activation with choices, by the model's binaries."""
    u = model.pyomo.u
    return {
        f[1:]: max(model.sets.choices_of(f), key=lambda one: _value(u[str(f), one.name]))
        for f in model.sets.treated
    }


def earliest(model: Model) -> Plan | None:
    """Compute the earliest starts (ns) that the model's binaries allow. Its time variables are not
    used, so solver tolerances do not matter. None if the orders are cyclic."""
    sets, m, chosen = model.sets, model.pyomo, decided(model)

    def one(expression: Any) -> bool:
        return _value(expression) > 0.5

    def dur(op: Op) -> int:
        choice = chosen.get(op[1:])
        return sets.dur(op) if choice is None else choice.durations[op.kind]

    moved = {out for out in sets.offloads if one(model.moved(out))}

    def edges() -> Iterable[tuple[Op, Op, int]]:
        for a, b, latency in sets.flow:
            yield a, b, dur(a) + latency
        for a, b in sets.pairs + sets.borrowing:
            yield (a, b, dur(a)) if one(model.order(a, b)) else (b, a, dur(b))
        for out in moved:
            f, back = out._replace(kind=F), out._replace(kind=R)
            yield from ((f, out, dur(f)), (out, back, dur(out)))
            yield back, sets.after_reload(out), dur(back)
        for a, b in sets.ways:
            if one(m.y[str(a), str(b)]):
                yield a, b, dur(a)
        for a, q in sets.releases:
            if one(m.z[str(a), str(q)]):
                yield a, q, dur(a)
        for back, q in sets.overtakes:
            if back._replace(kind=O) in moved:
                yield (back, q, 0) if one(m.r[str(back), str(q)]) else (q, back, 0)
        for a, b in sets.pinned:
            if one(m.h[str(a), str(b)]):
                yield a._replace(kind=R), b, dur(a._replace(kind=R))
            if {a, b} <= moved and not one(m.g[str(a), str(b)]):
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
    there = {op for op in sets.ops if op.kind in KINDS or op._replace(kind=O) in moved}
    return Plan({op: int(time[number[op]]) for op in there}, chosen)


def scheduled(problem: Problem, plan: Plan) -> tuple[Schedule, Trace] | None:
    """Make the schedule of a timing and its replay, with B and W fused if that is better; None if
    the replay deadlocks or breaks the host limit (it may start copies earlier)."""
    starts = dict(plan.starts)
    levels = np.zeros((problem.shape.stages, problem.microbatches), np.int64)
    for (s, j), one in plan.chosen.items():
        levels[s, j] = one.level
        if not one.apart:
            del starts[Op(C, s, j)]
        if one.fused:
            starts[Op(BW, s, j)] = starts.pop(Op(B, s, j))
            del starts[Op(W, s, j)]
    named = named_levels(problem.profile, levels)
    ways = [starts, _fused(problem, starts)]
    schedules = [schedule_from_times(problem, way, named) for way in ways if way is not None]
    found = [(one, problem.keeps(one)) for one in schedules]
    good = [(trace.cost_ns, at) for at, (_, trace) in enumerate(found) if trace is not None]
    if not good:
        return None
    schedule, trace = found[min(good)[1]]
    assert trace is not None
    return schedule, trace


def _fused(problem: Problem, starts: dict[Op, int]) -> dict[Op, int] | None:
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
