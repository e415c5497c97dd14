"""The CP-SAT model with recomputation: the treatment of each activation is part of the solution.

In addition to the ops of `model` there are, per (stage, microbatch): one literal for each level of
recomputation and one for none, of which exactly one holds; a literal for recomputation by a
separate op C (else it happens inside the backward); and a choice of BW on every stage with levels,
as a fused backward may hold less than B and W of a recomputed activation. Durations and sizes of
ops follow from these, as in `op_table`.

The only assumption on the order of microbatches is that stage 0 runs them by number: the exchange
that makes first in, first out lossless without offloading (`order`) fails as soon as two
microbatches may hold different amounts of memory. ``fifo`` is a restriction here, to find good
schedules with; the bound of the unrestricted model holds for every schedule. Links that are serial
or blocking count as latency, which keeps it a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np

from ...op_table import KEEP, apart, inside
from ...ops import BW, B, C, F, O, Op, R, W
from ...schedule import Schedule
from ...trace import Trace
from ..problem import Problem, schedule_from_times
from ..treatments import named_levels
from . import model as cpsat_model
from .model import Model

Activation = tuple[int, int]


@dataclass
class TreatedModel(Model):
    """A model with treatments.

    Attributes:
        level: per (stage, microbatch), a literal per level; number 0: kept whole.
        apart: per (stage, microbatch) of a stage with levels, the literal of an op C.
        size: of the ops whose duration depends on treatments.
        both: literals of conjunctions, each made once.
    """

    level: dict[Activation, list[Any]] = field(default_factory=dict)
    apart: dict[Activation, Any] = field(default_factory=dict)
    size: dict[Op, Any] = field(default_factory=dict)
    both: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def duration(self, kind: int, stage: int, treatment: int) -> int:
        """The duration of an op under a treatment, in units."""
        found = self.problem.profile.op_table.duration_ns[kind, stage, treatment]
        return int(found) // self.unit_ns

    def levels(self, stage: int) -> range:
        """The levels of a stage, numbered from 1; empty if the problem does not allow recomputation."""
        few = len(self.problem.profile.stages[stage].recompute)
        return range(1, 1 + few if self.problem.may_recompute else 1)

    def conjunction(self, *literals: Any) -> Any:
        """Return a literal that holds if and only if all of `literals` hold."""
        if len(literals) == 1:
            return literals[0]
        key = tuple(sorted(literal.index for literal in literals))
        if key not in self.both:
            one = self.both[key] = self.cp.new_bool_var("")
            self.cp.add_bool_and(*literals).only_enforce_if(one)
            self.cp.add_bool_or(one, *(~literal for literal in literals))
        return self.both[key]

    def schedule(self, value: Any) -> Schedule:
        """Return the schedule of a solution; `value` returns the value of a variable in it."""
        chosen = np.array(
            [
                [
                    next(at for at, one in enumerate(self.level[s, j]) if value(one))
                    for j in self.microbatches
                ]
                for s in self.stages
            ]
        )
        starts = self.starts_ns(value)
        levels = named_levels(self.problem.profile, chosen)
        return schedule_from_times(self.problem, starts, levels)


def build(problem: Problem, unit_ns: int, horizon: int, fifo: bool) -> TreatedModel:
    """Build the model without its cost: choices, ops, data flow, engines, memory, order."""
    model = TreatedModel(problem, unit_ns, horizon)
    _choices(model)
    _compute(model)
    _flow(model)
    _copies(model)
    cpsat_model.engines(model)
    _device_memory(model)
    _host_memory(model)
    _order(model, fifo)
    return model


def _choices(model: TreatedModel) -> None:
    """Add the treatment of each activation; one choice per stage if the problem requires it."""
    cp, problem = model.cp, model.problem
    for s in model.stages:
        cost = problem.profile.stages[s]
        may_move = cpsat_model.may_move(problem, s)
        may_fuse = bool(model.levels(s)) or cost.fused_ns < cost.t_b_ns + cost.t_w_ns
        for j in model.microbatches:
            at = (s, j)
            if may_fuse:
                model.fused[at] = cp.new_bool_var(f"BW{s}.{j}")
            if j and problem.per_stage:
                for chosen in (model.level, model.apart, model.moved):
                    if (s, 0) in chosen:
                        chosen[at] = chosen[s, 0]
                continue
            model.level[at] = [
                cp.new_bool_var(f"{s}.{j} at level {level}") for level in (0, *model.levels(s))
            ]
            cp.add_exactly_one(model.level[at])
            if model.levels(s):
                model.apart[at] = cp.new_bool_var(f"C{s}.{j}")
                cp.add_implication(model.apart[at], ~model.level[at][0])
            if may_move:
                model.moved[at] = cp.new_bool_var(f"moved{s}.{j}")


def _compute(model: TreatedModel) -> None:
    """Add F, B, W (or BW) and C of every activation."""
    cp = model.cp
    for s in model.stages:
        for j in model.microbatches:
            at = (s, j)
            forward, back, weight, again = (Op(kind, s, j) for kind in (F, B, W, C))
            _fixed(model, forward, model.duration(F, s, KEEP))
            fused = model.fused.get(at)
            split, whole = model.duration(B, s, KEEP), model.duration(BW, s, KEEP)
            more: Any = 0 if fused is None else (whole - split) * fused
            for level in model.levels(s):
                extra = model.duration(B, s, inside(level)) - split
                more += extra * model.conjunction(model.level[at][level], ~model.apart[at])
            _variable(model, back, split + more)
            model.interval[back] = cp.new_interval_var(
                model.start[back], model.size[back], model.end[back], str(back)
            )
            _weight(model, weight, fused)
            if model.levels(s):
                lasting: Any = 0
                for level in model.levels(s):
                    lasting += model.duration(C, s, apart(level)) * model.level[at][level]
                _optional(model, again, lasting, model.apart[at])


def _fixed(model: TreatedModel, op: Op, size: int) -> None:
    start = model.start[op] = model.time(str(op))
    model.end[op] = start + size
    model.interval[op] = model.cp.new_fixed_size_interval_var(start, size, str(op))
    model.cp.add(model.end[op] <= model.horizon)


def _variable(model: TreatedModel, op: Op, size: Any) -> None:
    """Make start, size and end of an op whose duration is an expression."""
    model.start[op], model.end[op] = model.time(str(op)), model.time(f"end of {op}")
    model.size[op] = model.time(f"size of {op}")
    model.cp.add(model.size[op] == size)
    model.cp.add(model.end[op] == model.start[op] + model.size[op])


def _optional(model: TreatedModel, op: Op, size: Any, literal: Any) -> None:
    """Make an op that is present if `literal` holds."""
    _variable(model, op, size)
    model.present[op] = literal
    model.interval[op] = model.cp.new_optional_interval_var(
        model.start[op], model.size[op], model.end[op], literal, str(op)
    )


def _weight(model: TreatedModel, weight: Op, fused: Any) -> None:
    """Add W; if the backward is fused it is absent, with zero duration at the end of its BW."""
    if fused is None:
        _fixed(model, weight, model.duration(W, weight.stage, KEEP))
        return
    size = model.duration(W, weight.stage, KEEP)
    _optional(model, weight, size * ~fused, ~fused)
    back = Op(B, weight.stage, weight.microbatch)
    model.cp.add(model.start[weight] == model.end[back]).only_enforce_if(fused)
    del model.present[weight]  # `Model.starts_ns` decides by `fused`


def _flow(model: TreatedModel) -> None:
    """Add the data flow: F along the stages, B back along them, W after B, C between F and B; the
    P2P latency across devices."""
    cp, place = model.cp, model.problem.profile.placement
    for s in model.stages:
        latency = model.latency if s and place[s] != place[s - 1] else 0
        for j in model.microbatches:
            forward, back, weight, again = (Op(kind, s, j) for kind in (F, B, W, C))
            cp.add(model.start[back] >= model.end[forward])
            cp.add(model.start[weight] >= model.end[back])
            if again in model.start:
                there = model.apart[s, j]
                cp.add(model.start[again] >= model.end[forward]).only_enforce_if(there)
                cp.add(model.start[back] >= model.end[again]).only_enforce_if(there)
            if s:
                cp.add(model.start[forward] >= model.end[Op(F, s - 1, j)] + latency)
                cp.add(model.start[Op(B, s - 1, j)] >= model.end[back] + latency)


def _copies(model: TreatedModel) -> None:
    """Add O and R of activations that may be offloaded: both or neither; shorter ones for
    recomputed activations."""
    cp = model.cp
    for (s, j), moved in model.moved.items():
        forward, back, out, reload, again = (Op(kind, s, j) for kind in (F, B, O, R, C))
        for op in (out, reload):
            size: Any = model.duration(op.kind, s, KEEP) * model.level[s, j][0]
            for level in model.levels(s):
                size += model.duration(op.kind, s, inside(level)) * model.level[s, j][level]
            _optional(model, op, size, moved)
        cp.add(model.start[out] >= model.end[forward]).only_enforce_if(moved)
        cp.add(model.start[reload] >= model.end[out]).only_enforce_if(moved)
        cp.add(model.start[back] >= model.end[reload]).only_enforce_if(moved)
        if again in model.start:
            first = cp.add(model.start[again] >= model.end[reload])
            first.only_enforce_if(moved, model.apart[s, j])


@dataclass
class _Held:
    """Bytes that a resource holds over half-open intervals."""

    model: TreatedModel
    intervals: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def hold(self, size: int, start: Any, end: Any, *literals: Any) -> None:
        """Hold `size` bytes from `start` to `end` if all of `literals` hold."""
        if size:
            there = self.model.conjunction(*literals)
            lasting = self.model.time("")
            interval = self.model.cp.new_optional_interval_var(start, lasting, end, there, "")
            self.intervals.append(interval)
            self.sizes.append(size)

    def limit(self, room: int) -> None:
        """Allow at most `room` bytes at any time."""
        if sum(self.sizes) > room:
            unit = reduce(gcd, self.sizes)
            demands = [size // unit for size in self.sizes]
            self.model.cp.add_cumulative(self.intervals, demands, room // unit)


def _device_memory(model: TreatedModel) -> None:
    """Add the limit of each device (the table of events in docs/semantics.md, "Recomputation")."""
    problem = model.problem
    if problem.limits is None:
        return
    for device in range(problem.shape.devices):
        held = _Held(model)
        for s in problem.shape.stages_of(device):
            for j in model.microbatches:
                _hold_activation(model, held, s, j)
        held.limit(problem.limits[device] - problem.profile.static_bytes[device])


def _hold_activation(model: TreatedModel, held: _Held, s: int, j: int) -> None:
    cost, table, at = model.problem.profile.stages[s], model.problem.profile.op_table, (s, j)
    forward, back, weight, again, out, reload = (Op(kind, s, j) for kind in (F, B, W, C, O, R))
    taken, freed = model.start[forward], model.end[back]
    moved, fused = model.moved.get(at), model.fused.get(at)
    left = freed
    if moved is not None:
        left = model.time(f"{s}.{j} leaves")
        model.cp.add(left <= freed)
        model.cp.add(left == model.end[out]).only_enforce_if(moved)
        model.cp.add(left == freed).only_enforce_if(~moved)
    for level, chosen in enumerate(model.level[at]):
        keep = cost.act_bytes if level == 0 else cost.recompute[level - 1].keep_bytes
        away = min(cost.offloadable, keep) if moved is not None else 0
        held.hold(keep - away, taken, freed, chosen)
        if moved is not None:
            held.hold(away, taken, left, chosen)
            held.hold(away, model.start[reload], freed, chosen, moved)
        if level == 0:
            continue
        work = int(table.released_bytes[F, s, inside(level)])
        held.hold(work, taken, model.end[forward], chosen)
        held.hold(cost.act_bytes - keep, model.start[again], freed, chosen, model.apart[at])
        assert fused is not None  # a stage with levels may fuse its backwards
        for kind, literal in ((B, ~fused), (BW, fused)):
            size = int(table.allocated_bytes[kind, s, inside(level)])
            held.hold(size, model.start[back], freed, chosen, ~model.apart[at], literal)
    # a stage without levels need not fuse: its only level is fixed
    held.hold(
        cost.w_bytes, freed, model.end[weight], model.level[at][0] if fused is None else ~fused
    )


def _host_memory(model: TreatedModel) -> None:
    """Limit the pinned memory of each node, held from the start of an O to the end of its R."""
    problem = model.problem
    if problem.host_limit is None:
        return
    per_node = problem.profile.devices_per_node
    nodes: dict[int, _Held] = {}
    for (s, j), moved in model.moved.items():
        held = nodes.setdefault(problem.profile.placement[s] // per_node, _Held(model))
        out, reload = model.start[Op(O, s, j)], model.end[Op(R, s, j)]
        for level, chosen in enumerate(model.level[s, j]):
            cost = problem.profile.stages[s]
            keep = cost.act_bytes if level == 0 else cost.recompute[level - 1].keep_bytes
            held.hold(min(cost.offloadable, keep), out, reload, chosen, moved)
    for held in nodes.values():
        held.limit(problem.host_limit)


def _order(model: TreatedModel, fifo: bool) -> None:
    """Make stage 0 run microbatches by number; with `fifo` every stage, forward and backward."""
    for s in model.stages if fifo else (0,):
        for kind in (F, B) if fifo else (F,):
            for i, j in pairwise(model.microbatches):
                model.cp.add(model.start[Op(kind, s, j)] >= model.end[Op(kind, s, i)])


def hint(model: TreatedModel, trace: Trace) -> None:
    """Hint the times and the treatments of a schedule; microbatches by their order at stage 0."""
    cp, unit, schedule = model.cp, model.unit_ns, trace.schedule
    spans = {span.op: span for span in trace.spans}
    first = sorted(model.microbatches, key=lambda j: spans[Op(F, 0, j)].start_ns)
    for new, old in enumerate(first):
        for s in model.stages:
            _hint_activation(model, spans, schedule, (s, new), (s, old))
    cp.add_hint(model.cost, min(trace.cost_ns // unit, model.horizon))


def _hint_activation(
    model: TreatedModel, spans: dict[Op, Any], schedule: Schedule, new: Activation, old: Activation
) -> None:
    cp, unit = model.cp, model.unit_ns
    whole = Op(BW, *old) in spans
    back = spans[Op(BW if whole else B, *old)]
    number = int(schedule.levels.table[old])
    name = schedule.levels.names[number - 1] if number else None
    names = [None, *(level.name for level in model.problem.profile.stages[old[0]].recompute)]
    starts = {F: spans[Op(F, *old)].start_ns, B: back.start_ns, W: back.end_ns}
    for kind in (W, C, O, R):
        if Op(kind, *old) in spans:
            starts[kind] = spans[Op(kind, *old)].start_ns
    for kind, start in starts.items():
        if Op(kind, *new) in model.start:
            cp.add_hint(model.start[Op(kind, *new)], start // unit)
    if new in model.fused:
        cp.add_hint(model.fused[new], whole)
    if model.problem.per_stage and new[1]:
        return
    for at, literal in enumerate(model.level[new]):
        cp.add_hint(literal, names[at] == name)
    if new in model.apart:
        cp.add_hint(model.apart[new], Op(C, *old) in spans)
    if new in model.moved:
        cp.add_hint(model.moved[new], Op(O, *old) in spans)
