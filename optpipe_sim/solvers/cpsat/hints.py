"""Hints: the times of a known schedule for a CP-SAT model."""

from __future__ import annotations

from ...ops import BW, B, F, O, Op, R, W
from ...trace import Trace
from .model import Model


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
            lasting = (
                costs.stages[s].t_b_ns if (s, j) not in model.fused else costs.stages[s].fused_ns
            )
            starts[Op(W, s, j)] = start + lasting
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
