"""Hints: the times of a known schedule for a CP-SAT model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops import BW, B, C, F, O, Op, R, W
from ...schedule import Schedule
from ...trace import Trace
from .model import Model
from .treated import Activation, TreatedModel


def hint(model: Model, trace: Trace) -> None:
    """Hint the times of every op, the offloads and the fused backwards.

    If a stage runs microbatches out of order, its F's, B's and W's are assigned to microbatches in
    order and its copies follow their F; the solver has to repair constraints that this violates. A
    BW that the model has as B and W is split.
    """
    cp, unit = model.cp, model.unit_ns
    costs = model.problem.profile
    starts: dict[Op, int] = {}
    fused = set()
    for op, _, start, *_ in trace.spans:
        kind, s, j = op
        if kind is BW:
            fused.add((s, j))
            starts[Op(B, s, j)] = start
            duration = (
                costs.stages[s].t_b_ns if (s, j) not in model.fused else costs.stages[s].fused_ns
            )
            starts[Op(W, s, j)] = start + duration
        else:
            starts[op] = start
    whose = _ranks(model, starts)
    moved = {(s, whose[s][j]) for kind, s, j in starts if kind is O}
    for s in model.stages:
        for kind in (F, B, W):
            for j, start in enumerate(sorted(starts[Op(kind, s, j)] for j in model.microbatches)):
                cp.add_hint(model.start[Op(kind, s, j)], start // unit)
    for (s, j), literal in model.moved.items():
        cp.add_hint(literal, (s, j) in moved)
        at = whose[s].index(j)
        out = starts.get(Op(O, s, at), starts[Op(F, s, at)])
        back = starts.get(Op(R, s, at), starts[Op(B, s, at)])
        cp.add_hint(model.start[Op(O, s, j)], out // unit)
        cp.add_hint(model.start[Op(R, s, j)], back // unit)
    for pair, literal in model.fused.items():
        cp.add_hint(literal, pair in fused)
    cp.add_hint(model.cost, min(trace.cost_ns // unit, model.horizon))


def _ranks(model: Model, starts: dict[Op, int]) -> list[list[int]]:
    """Return, per stage and microbatch, how many F's of the stage come before its own."""
    ranks = []
    for s in model.stages:
        times = sorted(starts[Op(F, s, j)] for j in model.microbatches)
        ranks.append([times.index(starts[Op(F, s, j)]) for j in model.microbatches])
    return ranks


def hint_treated(model: TreatedModel, trace: Trace) -> None:
    """Hint the times and the treatments of a schedule; microbatches by their order at stage 0."""
    cp, unit, schedule = model.cp, model.unit_ns, trace.schedule
    spans = {span.op: span for span in trace.spans}
    n, number = model.problem.shape.slices, {}
    first = sorted(
        model.microbatches[::n], key=lambda j: spans[model.op(F, 0, j)].start_ns
    )  # of each microbatch its first slice
    for new, old in zip(model.microbatches[::n], first, strict=True):
        for part in range(n):
            for s in model.stages:
                _hint_activation(model, spans, schedule, (s, new + part), (s, old + part))
                number[old + part] = new + part
    rows = np.flatnonzero(schedule.paired)
    _, stages, units = schedule.table.T.tolist()
    paired = {
        (model.op(F, stages[at], number[units[at]]), model.op(B, stages[at + 1], number[units[at + 1]]))
        for at in rows.tolist()
    }  # fmt: skip
    for pair, literal in model.pairs.items():
        cp.add_hint(literal, pair in paired)
    cp.add_hint(model.cost, min(trace.cost_ns // unit, model.horizon))


def _hint_activation(
    model: TreatedModel, spans: dict[Op, Any], schedule: Schedule, new: Activation, old: Activation
) -> None:
    cp, unit, op = model.cp, model.unit_ns, model.op
    whole = op(BW, *old) in spans
    back = spans[op(BW if whole else B, *old)]
    number = int(schedule.levels.table[old])
    name = schedule.levels.names[number - 1] if number else None
    names = [None, *(level.name for level in model.problem.profile.stages[old[0]].recompute)]
    starts = {F: spans[op(F, *old)].start_ns, B: back.start_ns, W: back.end_ns}
    for kind in (W, C, O, R):
        if op(kind, *old) in spans:
            starts[kind] = spans[op(kind, *old)].start_ns
    for kind, start in starts.items():
        if op(kind, *new) in model.start:
            cp.add_hint(model.start[op(kind, *new)], start // unit)
    if new in model.fused:
        cp.add_hint(model.fused[new], whole)
    if new in model.behind:
        last = schedule.row(op(F, old[0], schedule.shape.last_slice(old[1])))
        cp.add_hint(model.behind[new], schedule.row(op(O, *old)) > last)
    if model.problem.per_stage and new[1] >= model.problem.shape.slices:
        return
    for at, literal in enumerate(model.level[new]):
        cp.add_hint(literal, names[at] == name)
    if new in model.apart:
        cp.add_hint(model.apart[new], op(C, *old) in spans)
    if new in model.moved:
        cp.add_hint(model.moved[new], op(O, *old) in spans)
