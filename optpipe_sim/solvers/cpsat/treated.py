"""The CP-SAT model with recomputation, slices or pairs: the treatment of each activation is part of the solution.

In addition to the ops of `model` there are, per (stage, unit; a unit is a microbatch, or a slice of
one): one literal for each level of recomputation and one for none, of which exactly one holds; a
literal for recomputation by a separate op C (else it happens inside the backward); and a choice of
BW on every stage with levels, as a fused backward may hold less than B and W of a recomputed
activation. Durations and sizes of ops follow from these, as in `op_table`.

The only assumption on the order of microbatches is that stage 0 runs them by number: the exchange
that makes first in, first out lossless without offloading (`order`) fails as soon as two
microbatches may hold different amounts of memory. ``fifo`` is a restriction here, to find good
schedules with; the bound of the unrestricted model holds for every schedule. Links that are serial
or blocking count as latency, which keeps it a bound.

Where ops may be pairs, each forward and each backward of another unit on its device have a literal that they are one op: they then
start and end together, which is later than either alone would, and the compute stream is taken by the forward, for both.

With slices, an offload may leave keys and values behind, or take them along and wait for the F of its
microbatch's last slice. Which of the two a program means follows from its order alone (`op_costs`). The
model lets the former start at any time, which is wider than the semantics where that O is late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, permutations
from typing import Any

import numpy as np

from ...op_table import KEEP, OpTable, apart, inside
from ...ops import BW, B, C, F, O, Op, R, W
from ...schedule import Schedule
from ...schedules.sliced.orders import backward_units
from ...stage_cost import StageCost
from ..problem import Problem, schedule_from_times
from ..treatments import named_levels
from . import model as cpsat_model
from .memory import Held
from .model import Model

Activation = tuple[int, int]


@dataclass
class TreatedModel(Model):
    """A model with treatments.

    Attributes:
        level: per (stage, unit), a literal per level; number 0: kept whole.
        apart: per (stage, unit) of a stage with levels, the literal of an op C.
        behind: per (stage, unit) whose copies may take keys and values along or not, the literal
            that they do.
        size: of the ops whose duration depends on treatments.
        own: of the same, what it is by itself: in a pair the two last as long as that.
        pairs: per forward and backward that may be one op, the literal that they are.
        single: of each forward and backward that might be in a pair, the literal that it is not.
    """

    level: dict[Activation, list[Any]] = field(default_factory=dict)
    apart: dict[Activation, Any] = field(default_factory=dict)
    behind: dict[Activation, Any] = field(default_factory=dict)
    size: dict[Op, Any] = field(default_factory=dict)
    own: dict[Op, Any] = field(default_factory=dict)
    pairs: dict[tuple[Op, Op], Any] = field(default_factory=dict)
    single: dict[Op, Any] = field(default_factory=dict)

    def cost_of(self, stage: int, unit: int) -> StageCost:
        """Return what a unit costs at a stage."""
        profile, slices = self.problem.profile, self.problem.shape.slices
        factors = profile.factors[unit // slices] if profile.factors else profile.classes[0]
        cost = profile.stages_of(*factors)[stage]
        return cost.slices[unit % slices] if cost.slices else cost

    @cached_property
    def tables(self) -> list[list[OpTable]]:
        """The table of each part: with copies that leave keys and values behind, and with those
        that take them along."""
        tables = self.problem.profile.part_tables
        parts = range(tables.asks.shape[1])
        return [[OpTable(*(array[way, at] for array in tables)) for at in parts] for way in (0, 1)]

    @cached_property
    def part_of(self) -> list[int]:
        """The part of each unit: its place in `tables`."""
        return self.problem.profile.parts_of(self.problem.shape).tolist()  # type: ignore[no-any-return]

    def table_of(self, unit: int, behind: bool = True) -> OpTable:
        """Return what the ops of a unit cost."""
        return self.tables[behind][self.part_of[unit]]

    def duration(
        self, kind: int, stage: int, unit: int, treatment: int, behind: bool = True
    ) -> int:
        """Return the duration of an op under a treatment, in units of time."""
        found = self.table_of(unit, behind).duration_ns[kind, stage, treatment]
        return int(found) // self.unit_ns

    def ways(self, at: Activation) -> list[tuple[bool, tuple[Any, ...]]]:
        """Return how an activation may be copied, with or without keys and values, and the literals that
        say so."""
        if at not in self.behind:
            return [(True, ())]
        return [(True, (self.behind[at],)), (False, (~self.behind[at],))]

    def levels(self, stage: int) -> range:
        """Return the levels of a stage, numbered from 1; empty if the problem does not allow
        recomputation."""
        few = len(self.problem.profile.stages[stage].recompute)
        return range(1, 1 + few if self.problem.may_recompute else 1)

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
        shape = self.problem.shape
        for (s, u), behind in self.behind.items():
            out, last = shape.op(O, s, u), shape.op(F, s, shape.last_slice(u))
            if out in starts and not value(behind):  # its program is to have it before that F
                starts[out] = min(starts[out], starts[last] - 1)
        levels = named_levels(self.problem.profile, chosen)
        pairs = {}
        for (forward, back), literal in self.pairs.items():
            if value(literal):
                pairs[forward] = back if back in starts else back._replace(kind=BW)
        return schedule_from_times(self.problem, starts, levels, pairs)


def build(problem: Problem, unit_ns: int, horizon: int, fifo: bool) -> TreatedModel:
    """Build the model without its cost: choices, ops, data flow, engines, memory, order."""
    model = TreatedModel(problem, unit_ns, horizon)
    _choices(model)
    _partners(model)
    _compute(model)
    _pairs(model)
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
        may_move = cpsat_model.may_move(problem, s)
        for j in model.microbatches:
            at, cost = (s, j), model.cost_of(s, j)
            may_fuse = bool(model.levels(s)) or cost.fused_ns < cost.t_b_ns + cost.t_w_ns
            if may_fuse or problem.may_pair:  # a pair may hide more of the whole
                model.fused[at] = cp.new_bool_var(f"BW{s}.{j}")
            first = (s, j % problem.shape.slices)
            if at != first and problem.per_stage:
                for chosen in (model.level, model.apart, model.moved):
                    if first in chosen:
                        chosen[at] = chosen[first]
                _ways_of_copies(model, at)
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
                _ways_of_copies(model, at)


def _ways_of_copies(model: TreatedModel, at: Activation) -> None:
    """Whether copies take keys and values along, where it matters: not of a microbatch's last slice,
    whose F has ended anyway."""
    s, unit = at
    if at not in model.moved or unit == model.problem.shape.last_slice(unit):
        return
    early, late = (model.table_of(unit, way).released_bytes[O, s] for way in (False, True))
    if (early < late).any():
        model.behind[at] = model.cp.new_bool_var(f"whole{s}.{unit}")


def _partners(model: TreatedModel) -> None:
    """Let each forward be one op with at most one backward of another unit on its device, and each backward with one forward."""
    if not model.problem.may_pair:
        return
    shape = model.problem.shape
    for device in range(shape.devices):
        units = [(s, j) for s in shape.stages_of(device) for j in model.microbatches]
        chosen: dict[Op, list[Any]] = {model.op(kind, *at): [] for at in units for kind in (F, B)}
        for one, other in permutations(units, 2):
            forward, back = model.op(F, *one), model.op(B, *other)
            literal = model.pairs[forward, back] = model.cp.new_bool_var(f"{forward}+{back}")
            chosen[forward].append(literal)
            chosen[back].append(literal)
        for op, literals in chosen.items():
            model.single[op] = model.cp.new_bool_var(f"{op} alone")
            model.cp.add_exactly_one(model.single[op], *literals)


def _pairs(model: TreatedModel) -> None:
    """Make the halves of each pair start and end together, after what both take less what the pair hides."""
    cp, profile, unit = model.cp, model.problem.profile, model.unit_ns
    for (forward, back), literal in model.pairs.items():
        hidden = int(profile.hidden_ns(np.array(forward.stage), np.array(back.stage)))
        most = min(-(-hidden // unit), model.own[forward])  # rounded up, as ops are rounded down
        least = cp.new_int_var(0, most, "")
        cp.add_min_equality(least, [most, model.own[back]])
        cp.add(model.size[forward] == model.own[forward] + model.own[back] - least).only_enforce_if(
            literal
        )
        cp.add(model.start[back] == model.start[forward]).only_enforce_if(literal)
        cp.add(model.end[back] == model.end[forward]).only_enforce_if(literal)


def _compute(model: TreatedModel) -> None:
    """Add F, B, W (or BW) and C of every activation."""
    cp = model.cp
    for s in model.stages:
        for j in model.microbatches:
            at = (s, j)
            forward, back, weight, again = (model.op(kind, s, j) for kind in (F, B, W, C))
            if forward in model.single:
                _variable(model, forward, model.duration(F, s, j, KEEP))
                model.interval[forward] = cp.new_interval_var(
                    model.start[forward], model.size[forward], model.end[forward], str(forward)
                )
                cp.add(model.end[forward] <= model.horizon)
            else:
                _fixed(model, forward, model.duration(F, s, j, KEEP))
            fused = model.fused.get(at)
            split, whole = model.duration(B, s, j, KEEP), model.duration(BW, s, j, KEEP)
            more: Any = 0 if fused is None else (whole - split) * fused
            for level in model.levels(s):
                extra = model.duration(B, s, j, inside(level)) - split
                more += extra * model.conjunction(model.level[at][level], ~model.apart[at])
            _variable(model, back, split + more)
            model.interval[back] = cp.new_optional_interval_var(
                model.start[back], model.size[back], model.end[back], model.single.get(back, 1), str(back)
            )  # fmt: skip
            _weight(model, weight, j, fused)
            if model.levels(s):
                lasting: Any = 0
                for level in model.levels(s):
                    lasting += model.duration(C, s, j, apart(level)) * model.level[at][level]
                _optional(model, again, lasting, model.apart[at])


def _fixed(model: TreatedModel, op: Op, size: int) -> None:
    start = model.start[op] = model.time(str(op))
    model.end[op] = start + size
    model.interval[op] = model.cp.new_fixed_size_interval_var(start, size, str(op))
    model.cp.add(model.end[op] <= model.horizon)


def _variable(model: TreatedModel, op: Op, size: Any) -> None:
    """Make start, size and end of an op whose duration is an expression, unless it is in a pair."""
    model.start[op], model.end[op] = model.time(str(op)), model.time(f"end of {op}")
    model.size[op], model.own[op] = model.time(f"size of {op}"), size
    alone = model.cp.add(model.size[op] == size)
    if op in model.single:
        alone.only_enforce_if(model.single[op])
    model.cp.add(model.end[op] == model.start[op] + model.size[op])


def _optional(model: TreatedModel, op: Op, size: Any, literal: Any) -> None:
    """Make an op that is present if `literal` holds."""
    _variable(model, op, size)
    model.present[op] = literal
    model.interval[op] = model.cp.new_optional_interval_var(
        model.start[op], model.size[op], model.end[op], literal, str(op)
    )


def _weight(model: TreatedModel, weight: Op, unit: int, fused: Any) -> None:
    """Add W; if the backward is fused it is absent, with zero duration at the end of its BW."""
    size = model.duration(W, weight.stage, unit, KEEP)
    if fused is None:
        _fixed(model, weight, size)
        return
    _optional(model, weight, size * ~fused, ~fused)
    back = model.op(B, weight.stage, unit)
    model.cp.add(model.start[weight] == model.end[back]).only_enforce_if(fused)
    del model.present[weight]  # `Model.starts_ns` decides by `fused`


def _flow(model: TreatedModel) -> None:
    """Add the data flow: F along the stages, B back along them, W after B, C between F and B; the
    P2P latency across devices; F's of slices in their order, B's in reverse."""
    cp, place, slices = model.cp, model.problem.profile.placement, model.problem.shape.slices
    for s in model.stages:
        latency = model.latency if s and place[s] != place[s - 1] else 0
        for j in model.microbatches:
            forward, back, weight, again = (model.op(kind, s, j) for kind in (F, B, W, C))
            cp.add(model.start[back] >= model.end[forward])
            cp.add(model.start[weight] >= model.end[back])
            if again in model.start:
                there = model.apart[s, j]
                cp.add(model.start[again] >= model.end[forward]).only_enforce_if(there)
                cp.add(model.start[back] >= model.end[again]).only_enforce_if(there)
            if s:
                cp.add(model.start[forward] >= model.end[model.op(F, s - 1, j)] + latency)
                cp.add(model.start[model.op(B, s - 1, j)] >= model.end[back] + latency)
            if j % slices:
                cp.add(model.start[forward] >= model.end[model.op(F, s, j - 1)])
                cp.add(model.start[model.op(B, s, j - 1)] >= model.end[back])


def _copies(model: TreatedModel) -> None:
    """Add O and R of activations that may be offloaded: both or neither; shorter ones for
    recomputed activations, and for those whose keys and values stay."""
    cp, shape = model.cp, model.problem.shape
    for (s, j), moved in model.moved.items():
        forward, back, out, reload, again = (model.op(kind, s, j) for kind in (F, B, O, R, C))
        for op in (out, reload):
            size: Any = 0
            for behind, way in model.ways((s, j)):
                for level in (0, *model.levels(s)):
                    treatment = inside(level) if level else KEEP
                    chosen = model.conjunction(model.level[s, j][level], *way)
                    size += model.duration(op.kind, s, j, treatment, behind) * chosen
            _optional(model, op, size, moved)
        cp.add(model.start[out] >= model.end[forward]).only_enforce_if(moved)
        if (s, j) in model.behind:
            last = model.end[model.op(F, s, shape.last_slice(j))]
            cp.add(model.start[out] >= last).only_enforce_if(moved, model.behind[s, j])
        cp.add(model.start[reload] >= model.end[out]).only_enforce_if(moved)
        cp.add(model.start[back] >= model.end[reload]).only_enforce_if(moved)
        if again in model.start:
            first = cp.add(model.start[again] >= model.end[reload])
            first.only_enforce_if(moved, model.apart[s, j])


def _device_memory(model: TreatedModel) -> None:
    """Add the limit of each device (the table of events in docs/semantics.md, "Recomputation")."""
    problem = model.problem
    if problem.limits is None:
        return
    for device in range(problem.shape.devices):
        held = Held(model)
        for s in problem.shape.stages_of(device):
            for j in model.microbatches:
                _hold_activation(model, held, s, j)
        held.limit(problem.limits[device] - problem.profile.static_bytes[device])


def _hold_activation(model: TreatedModel, held: Held, s: int, j: int) -> None:
    cost, at = model.cost_of(s, j), (s, j)
    table = model.table_of(j)
    forward, back, weight, again, out, reload = (
        model.op(kind, s, j) for kind in (F, B, W, C, O, R)
    )
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
        for behind, way in model.ways(at):
            moving = _moved_bytes(model, s, j, level, behind) if moved is not None else 0
            held.hold(keep - moving, taken, freed, chosen, *way)
            if moved is not None:
                held.hold(moving, taken, left, chosen, *way)
                held.hold(moving, model.start[reload], freed, chosen, moved, *way)
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


def _moved_bytes(model: TreatedModel, s: int, j: int, level: int, behind: bool) -> int:
    """Return what copies of an activation at a level move, in bytes."""
    treatment = inside(level) if level else KEEP
    return int(model.table_of(j, behind).released_bytes[O, s, treatment])


def _host_memory(model: TreatedModel) -> None:
    """Limit the pinned memory of each node, held from the start of an O to the end of its R. A staging
    buffer is left out: plans that it cannot hold are dropped where they are replayed."""
    problem = model.problem
    offload = problem.profile.offload
    if problem.host_limit is None or offload is None or offload.writes_behind:
        return
    per_node = problem.profile.devices_per_node
    nodes: dict[int, Held] = {}
    for (s, j), moved in model.moved.items():
        held = nodes.setdefault(problem.profile.placement[s] // per_node, Held(model))
        out, reload = model.start[model.op(O, s, j)], model.end[model.op(R, s, j)]
        for level, chosen in enumerate(model.level[s, j]):
            for behind, way in model.ways((s, j)):
                size = _moved_bytes(model, s, j, level, behind)
                held.hold(size, out, reload, chosen, moved, *way)
    for held in nodes.values():
        held.limit(problem.host_limit)


def _order(model: TreatedModel, fifo: bool) -> None:
    """Make stage 0 run microbatches that are alike by number; with `fifo` every stage, forward and backward, all of them."""
    shape, part_of = model.problem.shape, model.part_of
    n = shape.slices
    if not fifo:
        for part in dict.fromkeys(part_of[::n]):
            alike = [unit for unit in model.microbatches[::n] if part_of[unit] == part]
            for i, j in pairwise(alike):
                model.cp.add(model.start[model.op(F, 0, j)] >= model.end[model.op(F, 0, i)])
        return
    for s in model.stages:
        for kind, units in ((F, model.microbatches), (B, backward_units(shape))):
            for i, j in pairwise(units):
                model.cp.add(model.start[model.op(kind, s, j)] >= model.end[model.op(kind, s, i)])
