"""Hints: the times and the treatments of a known schedule for a CP-SAT model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops import BW, B, C, F, O, Op, R, W
from ...schedule import Schedule
from ...trace import Trace
from .model import Activation, Model


def hint(model: Model, trace: Trace) -> None:
    """Hint the times and the treatments of a schedule; microbatches by their order at stage 0. Where
    that violates a constraint the solver has to repair it."""
    cp, schedule, n = model.cp, trace.schedule, model.problem.shape.slices
    spans = {span.op: span for span in trace.spans}
    first = sorted(
        model.units[::n], key=lambda j: spans[model.op(F, 0, j)].start_ns
    )  # of each microbatch its first slice
    number = {
        old + part: new + part
        for new, old in zip(model.units[::n], first, strict=True)
        for part in range(n)
    }
    for old, new in number.items():
        for s in model.stages:
            _hint_activation(model, spans, schedule, (s, new), (s, old))
    rows = np.flatnonzero(schedule.paired)
    _, stages, units = schedule.table.T.tolist()
    paired = {
        (
            model.op(F, stages[at], number[units[at]]),
            model.op(B, stages[at + 1], number[units[at + 1]]),
        )
        for at in rows.tolist()
    }
    for pair, literal in model.pairs.items():
        cp.add_hint(literal, pair in paired)
    cp.add_hint(model.cost, min(trace.cost_ns // model.unit_ns, model.horizon))


def _hint_activation(
    model: Model, spans: dict[Op, Any], schedule: Schedule, new: Activation, old: Activation
) -> None:
    cp, op = model.cp, model.op
    whole = op(BW, *old) in spans
    back = spans[op(BW if whole else B, *old)]
    number = int(schedule.levels.table[old])
    name = schedule.levels.names[number - 1] if number else None
    names = [None, *(level.name for level in model.problem.profile.stages[old[0]].recompute)]
    end = back.end_ns
    if whole and new not in model.fused:  # a BW that the model has as B and W
        end = back.start_ns + model.duration(B, new) * model.unit_ns
    begin = spans[op(F, *old)].start_ns
    # what is absent has a place, too
    starts = {F: begin, B: back.start_ns, W: end, C: back.start_ns, O: begin, R: back.start_ns}
    for kind in (W, C, O, R):
        if op(kind, *old) in spans:
            starts[kind] = spans[op(kind, *old)].start_ns
    for kind, start in starts.items():
        variable = model.start.get(op(kind, *new))
        if variable is not None and variable is not model.end.get(op(B, *new)):
            cp.add_hint(variable, start // model.unit_ns)
    if new in model.fused:
        cp.add_hint(model.fused[new], whole)
    if new in model.behind:
        last = schedule.row(op(F, old[0], schedule.shape.last_slice(old[1])))
        cp.add_hint(model.behind[new], schedule.row(op(O, *old)) > last)
    if model.problem.per_stage and new[1] >= model.problem.shape.slices:
        return
    for at, literal in enumerate(model.level.get(new, ())):
        cp.add_hint(literal, names[at] == name)
    if new in model.apart:
        cp.add_hint(model.apart[new], op(C, *old) in spans)
    if new in model.moved:
        cp.add_hint(model.moved[new], op(O, *old) in spans)
