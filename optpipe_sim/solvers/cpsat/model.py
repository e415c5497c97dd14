"""The problem as a CP-SAT model: an interval per op; intervals of copies are optional.

The model states the rules of docs/semantics.md: one interval for each F, B, W (and a choice of BW
where fusing is cheaper); O and R as optional intervals with one literal per activation; data flow
with P2P latencies; no overlap on a compute stream, a copy engine or a host link; the memory limit
of each device (`memory`); the order of microbatches (`order`); the cost.

The model relaxes the semantics in two places, so that its bound is valid and only the replay gives
the cost of a schedule: serial links count as latency, and with the objective ``span`` a device may
delay its first op (unless `Model.heads` are known and requested).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from ...ops import BW, COMPUTE, B, F, O, Op, OpKind, R, W
from ...schedule import Schedule
from ...sim.links import link_keys
from ..problem import Problem, schedule_from_times


@dataclass
class Model:
    """A CP-SAT model and the mapping from its variables to ops.

    Attributes:
        unit_ns: one unit of time; durations are rounded down to it.
        horizon: the latest possible time.
        start, end: of every op (also of optional copies and W's). interval: of every op that
            occupies a resource.
        moved: per (stage, unit), the literal of its offload; only if an offload can help.
        present: per O and R, the literal of its presence.
        fused: per (stage, unit), the literal of BW; only if BW is cheaper than B and W.
        both: literals of conjunctions, each made once.
        cost: the variable to minimize.
    """

    problem: Problem
    unit_ns: int
    horizon: int
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    start: dict[Op, Any] = field(default_factory=dict)
    end: dict[Op, Any] = field(default_factory=dict)
    interval: dict[Op, Any] = field(default_factory=dict)
    moved: dict[tuple[int, int], Any] = field(default_factory=dict)
    present: dict[Op, Any] = field(default_factory=dict)
    fused: dict[tuple[int, int], Any] = field(default_factory=dict)
    both: dict[tuple[int, ...], Any] = field(default_factory=dict)
    cost: Any = None

    def duration_of(self, kind: int, stage: int) -> int:
        """Return the duration of an op in units."""
        return int(self.problem.profile.durations_ns[kind, stage]) // self.unit_ns

    @property
    def stages(self) -> range:
        return range(self.problem.shape.stages)

    @property
    def microbatches(self) -> range:
        """The units of the shape: microbatches, or their slices in order."""
        return range(self.problem.shape.units)

    def op(self, kind: OpKind, stage: int, unit: int) -> Op:
        """Return the op of a kind on a unit."""
        return self.problem.shape.op(kind, stage, unit)

    @property
    def latency(self) -> int:
        """The P2P latency between devices, in units."""
        return self.problem.profile.t_comm_ns // self.unit_ns

    @cached_property
    def binding(self) -> tuple[bool, ...]:
        """Per device, whether its limit is below the memory of all microbatches together."""
        return binding(self.problem)

    def time(self, name: str) -> Any:
        """Make a variable for a time or a duration."""
        return self.cp.new_int_var(0, self.horizon, name)

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

    def starts_ns(self, value: Any) -> dict[Op, int]:
        """Return the start of each op in ns; `value` returns the value of a variable in a solution.
        Durations that were rounded down to a unit are not corrected: then only the order
        matters."""
        found = {}
        shape = self.problem.shape
        for op, start in self.start.items():
            at = (op.stage, shape.unit(op))
            whole = at in self.fused and value(self.fused[at])
            there = value(self.present[op]) if op in self.present else not (whole and op.kind is W)
            if there:
                kind = BW if whole and op.kind is B else op.kind
                found[shape.op(kind, *at)] = int(value(start)) * self.unit_ns
        return found

    def schedule(self, value: Any) -> Schedule:
        """Return the schedule of a solution; `value` returns the value of a variable in it."""
        return schedule_from_times(self.problem, self.starts_ns(value))


def binding(problem: Problem) -> tuple[bool, ...]:
    """Per device, whether its limit is below the memory of all microbatches together.

    Otherwise memory never delays an op there and offloading is useless.
    """
    costs = problem.profile
    if problem.limits is None:
        return (False,) * costs.devices
    most = list(costs.static_bytes)
    for cost, device in zip(costs.stages, costs.placement, strict=True):
        most[device] += cost.act_bytes * problem.microbatches
    return tuple(need > limit for need, limit in zip(most, problem.limits, strict=True))


def may_move(problem: Problem, stage: int) -> bool:
    """Whether offloading can help at a stage."""
    costs = problem.profile
    device = costs.placement[stage]
    return problem.may_offload and costs.stages[stage].offloadable > 0 and binding(problem)[device]


def may_fuse(problem: Problem, stage: int) -> bool:
    """Whether BW takes less time than B and W. If it does not, B directly followed by its W is
    never worse: the previous stage gets its gradient sooner, and the device and its memory are
    free at the same time."""
    cost = problem.profile.stages[stage]
    return cost.fused_ns < cost.t_b_ns + cost.t_w_ns


def time_unit(problem: Problem) -> int:
    """Return the greatest common divisor of all durations, in ns: some optimal solution has only multiples
    of it as times."""
    costs = problem.profile
    whole = costs.slices == 1 and costs.alike
    tables = [costs.op_table] if whole else [costs.part_tables]
    hidden = costs.hidden_ns(*np.indices((len(costs.stages),) * 2)).flat
    durations = (int(t) for one in tables for t in one.duration_ns.flat)
    return gcd(costs.t_comm_ns, *durations, *map(int, hidden)) or 1


def serial_ns(problem: Problem) -> int:
    """Return an upper bound on any replay, in ns: at any time an op runs or a message is under way."""
    costs = problem.profile
    messages_ns = 2 * sum(a != b for a, b in pairwise(costs.placement)) * costs.t_comm_ns
    if costs.slices == 1 and costs.alike:
        longest = costs.op_table.duration_ns.max(axis=2)
    else:  # by way of copying, part, kind, stage and treatment
        longest = costs.part_tables.duration_ns.max(axis=(0, 4))
        if not costs.alike:
            longest = costs.slices * longest.max(axis=0)
    return problem.microbatches * (int(longest.sum()) + costs.slices * messages_ns)


def horizon_ns(problem: Problem, cost_ns: int | None) -> int:
    """Return the latest end, in ns, of any replay that costs at most `cost_ns`.

    With the objective ``span``, the device of stage 0 starts at 0 and so ends by `cost_ns`. All F's
    and B's have ended by then, as each precedes a B of stage 0; only W's may be left, which wait
    for no other device.
    """
    costs = problem.profile
    longest = serial_ns(problem)
    if cost_ns is None:
        return longest
    left = 0
    if problem.objective == "span":
        weights = [0] * costs.devices
        for cost, device in zip(costs.stages, costs.placement, strict=True):
            weights[device] += problem.microbatches * cost.t_w_ns
        left = max(weights)
    return min(longest, cost_ns + left)


def compute(model: Model) -> None:
    """Add F, B and W of every stage and microbatch; B and W may become one BW if that is cheaper."""
    for s in model.stages:
        for j in model.microbatches:
            fuse = may_fuse(model.problem, s)
            if fuse:
                model.fused[s, j] = model.cp.new_bool_var(f"BW{s}.{j}")
            for kind in (F, B, W):
                _compute_op(model, Op(kind, s, j), fuse)


def _compute_op(model: Model, op: Op, fuse: bool) -> None:
    cp, size = model.cp, model.duration_of(op.kind, op.stage)
    start = model.start[op] = model.time(str(op))
    model.end[op] = start + size
    if fuse and op.kind is B:
        more = model.problem.profile.stages[op.stage].fused_ns // model.unit_ns - size
        end = model.end[op] = model.time(f"end of {op}")
        whole = size + more * model.fused[op.stage, op.microbatch]
        model.interval[op] = cp.new_interval_var(start, whole, end, str(op))
    elif fuse and op.kind is W:
        split = ~model.fused[op.stage, op.microbatch]
        model.interval[op] = cp.new_optional_fixed_size_interval_var(start, size, split, str(op))
        cp.add(start == model.end[Op(B, op.stage, op.microbatch)]).only_enforce_if(~split)
    elif size or op.kind is not W:
        model.interval[op] = cp.new_fixed_size_interval_var(start, size, str(op))
    if not (fuse and op.kind is W):
        cp.add(model.end[op] <= model.horizon)


def flow(model: Model) -> None:
    """Add the data flow: F along the stages, B back along them, W after B; the P2P latency between
    two devices. A W that takes no time runs right after its B, as keeping its bytes longer gains
    nothing."""
    cp, place = model.cp, model.problem.profile.placement
    for s in model.stages:
        latency = model.latency if s and place[s] != place[s - 1] else 0
        for j in model.microbatches:
            forward, back, weight = Op(F, s, j), Op(B, s, j), Op(W, s, j)
            cp.add(model.start[back] >= model.end[forward])
            if weight in model.interval:
                cp.add(model.start[weight] >= model.end[back])
            else:
                cp.add(model.start[weight] == model.end[back])
            if s:
                cp.add(model.start[forward] >= model.end[Op(F, s - 1, j)] + latency)
                cp.add(model.start[Op(B, s - 1, j)] >= model.end[back] + latency)


def transfers(model: Model) -> None:
    """Add O and R of every activation that may be offloaded: both are present, or neither."""
    cp = model.cp
    for s in filter(lambda s: may_move(model.problem, s), model.stages):
        for j in model.microbatches:
            moved = model.moved[s, j] = cp.new_bool_var(f"moved{s}.{j}")
            out, back = Op(O, s, j), Op(R, s, j)
            for op in (out, back):
                copy(model, op, moved)
            cp.add(model.start[out] >= model.end[Op(F, s, j)]).only_enforce_if(moved)
            cp.add(model.start[back] >= model.end[out]).only_enforce_if(moved)
            cp.add(model.start[Op(B, s, j)] >= model.end[back]).only_enforce_if(moved)


def copy(model: Model, op: Op, present: Any) -> None:
    """Add an O or R that is present if the literal `present` holds."""
    size, start = model.duration_of(op.kind, op.stage), model.time(str(op))
    model.start[op], model.end[op], model.present[op] = start, start + size, present
    model.interval[op] = model.cp.new_optional_fixed_size_interval_var(
        start, size, present, str(op)
    )


def engines(model: Model) -> None:
    """Allow one op at a time on each compute stream, copy engine and host link."""
    costs = model.problem.profile
    shared = costs.shares_copy_engine
    keys = link_keys(costs)
    queues: dict[str, list[Op]] = {}
    for op in model.interval:
        device = costs.placement[op.stage]
        if op.kind in COMPUTE:
            queues.setdefault(f"compute {device}", []).append(op)
        else:
            engine = "OR" if shared else op.kind.name
            queues.setdefault(f"copy {device} {engine}", []).append(op)
            queues.setdefault(f"link {keys[2 * device + (op.kind is R)]}", []).append(op)
    for ops in {frozenset(ops): ops for ops in queues.values()}.values():
        model.cp.add_no_overlap([model.interval[op] for op in ops])


def head(model: Model) -> None:
    """Make every device start its first op, an F of microbatch 0, as soon as its input arrives, as
    a replay does: with the objective ``span`` a delay would count as a gain."""
    place = model.problem.profile.placement
    for device in range(model.problem.shape.devices):
        s = model.problem.shape.stages_of(device)[0]
        first = model.start[model.op(F, s, 0)]
        latency = model.latency if s and place[s] != place[s - 1] else 0
        model.cp.add(first == (model.end[model.op(F, s - 1, 0)] + latency if s else 0))


def objective(model: Model, least: int, most: int) -> None:
    """Add the cost, from `least` to `most` units: the last end, or the longest time from a device's
    first op to its last. The very first F starts at 0, as it waits for nothing; where microbatches differ any may be first."""
    cp, problem = model.cp, model.problem
    cost = model.cost = cp.new_int_var(least, most, "cost")
    if problem.profile.alike:
        cp.add(model.start[model.op(F, 0, 0)] == 0)
    for device in range(problem.shape.devices):
        stages = problem.shape.stages_of(device)
        first: Any = 0
        if problem.objective == "span":
            first = model.time(f"first of {device}")
            for j in model.microbatches:
                cp.add(first <= model.start[model.op(F, stages[0], j)])
        for s in stages:
            for j in model.microbatches:
                cp.add(cost >= model.end[model.op(B, s, j)] - first)
                weight = cp.add(cost >= model.end[model.op(W, s, j)] - first)
                if (s, j) in model.fused:
                    weight.only_enforce_if(~model.fused[s, j])
