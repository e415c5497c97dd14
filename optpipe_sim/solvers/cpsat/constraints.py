"""The constraints of the CP-SAT model, each a function of its name. Every schedule keeps them; `order`
has those that not every one does."""

from __future__ import annotations

from functools import reduce
from itertools import permutations
from math import gcd
from typing import Any

import numpy as np

from ...op_table import KEEP, apart, inside, level_of
from ...ops import BW, COMPUTE, B, C, F, O, Op, R, W, dependencies
from ...sim.host_links import link_keys
from .model import Activation, Model, binding, may_move

# -- what there is to decide, and the ops ---------------------------------------------------------


def treatments(model: Model) -> None:
    """Each activation has one level; a C only if that is not the first. With `per_stage` all activations
    of a stage are treated alike, but for a BW."""
    cp, problem = model.cp, model.problem
    for at in model.activations:
        s, unit = at
        duration = [model.table(unit).duration_ns[kind, s, KEEP] for kind in (BW, B, W)]
        # of others B directly followed by its W is never worse: the gradient leaves sooner
        if model.levels(s) or duration[0] < duration[1] + duration[2] or problem.may_pair:
            model.fused[at] = cp.new_bool_var(f"BW{s}.{unit}")
        first = (s, unit % problem.shape.slices)
        if at != first and problem.per_stage:
            for chosen in (model.level, model.apart, model.moved):
                if first in chosen:
                    chosen[at] = chosen[first]
        else:
            if model.levels(s):
                levels = (0, *model.levels(s))
                model.level[at] = [cp.new_bool_var(f"{s}.{unit} at level {n}") for n in levels]
                cp.add_exactly_one(model.level[at])
                model.apart[at] = cp.new_bool_var(f"C{s}.{unit}")
                cp.add_implication(model.apart[at], ~model.level[at][0])
            if may_move(problem, s):
                model.moved[at] = cp.new_bool_var(f"moved{s}.{unit}")
        # not of a microbatch's last slice, whose F has ended anyway
        if at in model.moved and unit != problem.shape.last_slice(unit):
            early, late = (model.table(unit, way).released_bytes[O, s] for way in (False, True))
            if (early < late).any():
                model.behind[at] = cp.new_bool_var(f"whole{s}.{unit}")


def partners(model: Model) -> None:
    """Each forward is one op with at most one backward of another unit on its device, and each backward
    with one forward."""
    if not model.problem.may_pair:
        return
    shape = model.problem.shape
    for device in range(shape.devices):
        units = [(s, j) for s in shape.stages_of(device) for j in model.units]
        chosen: dict[Op, list[Any]] = {model.op(kind, *at): [] for at in units for kind in (F, B)}
        for one, other in permutations(units, 2):
            forward, back = model.op(F, *one), model.op(B, *other)
            literal = model.pairs[forward, back] = model.cp.new_bool_var(f"{forward}+{back}")
            chosen[forward].append(literal)
            chosen[back].append(literal)
        for op, literals in chosen.items():
            model.single[op] = model.cp.new_bool_var(f"{op} alone")
            model.cp.add_exactly_one(model.single[op], *literals)


def ops(model: Model) -> None:
    """Each op takes what the table says of its treatment; O and R are both present or neither, W only
    where there is no BW."""
    for at in model.activations:
        forward, back, weight, again = (model.op(kind, *at) for kind in (F, B, W, C))
        fused = model.fused.get(at)
        add_op(model, forward, model.duration(F, at))
        split = model.duration(B, at)
        size: Any = split
        if fused is not None:
            size += (model.duration(BW, at) - split) * fused
        if at in model.apart:
            for level, literal in enumerate(model.level[at][1:], 1):
                more = model.duration(B, at, inside(level)) - split
                size += more * model.conjunction(literal, ~model.apart[at])
        add_op(model, back, size)
        _weight(model, weight, back, model.duration(W, at), fused)
        if at in model.apart:
            levels = enumerate(model.level[at][1:], 1)
            lasts = sum(model.duration(C, at, apart(level)) * one for level, one in levels)
            add_op(model, again, lasts, model.apart[at])


def _weight(model: Model, weight: Op, back: Op, size: int, fused: Any) -> None:
    """Add a W. One that is absent, or takes no time, is at the end of its backward: holding its bytes
    for longer would gain nothing."""
    if fused is None and not size:
        model.start[weight] = model.end[weight] = model.end[back]
        return
    if fused is None:
        add_op(model, weight, size)
        return
    add_op(model, weight, size * ~fused, ~fused)
    model.cp.add(model.start[weight] == model.end[back]).only_enforce_if(fused)


def copies(model: Model) -> None:
    """O's and R's of what is offloaded, of one and the same activation; an O that takes keys and values
    along waits for its microbatch's last slice."""
    for at, moved in model.moved.items():
        for kind in (O, R):
            sizes = [
                (model.duration(kind, at, treatment, behind), (*level, *way))
                for behind, way in model.ways(at)
                for treatment, level in model.modes(at)
            ]
            size: Any = sizes[0][0]
            if len(sizes) > 1:
                size = sum(size * model.conjunction(*literals) for size, literals in sizes)
            add_op(model, model.op(kind, *at), size, moved)
        if at in model.behind:
            last = model.op(F, at[0], model.problem.shape.last_slice(at[1]))
            model.after(last, model.op(O, *at), moved, model.behind[at])


def add_op(model: Model, op: Op, size: Any, present: Any = None) -> None:
    """Add an op, one that may be absent if it has a literal `present`. The stream is taken by the
    forward of a pair, for both."""
    cp, start, name = model.cp, model.time(str(op)), str(op)
    model.start[op] = start
    if present is not None:
        model.present[op] = present
    taken = model.single.get(op) if op.kind is B else present
    if isinstance(size, int) and op not in model.single:
        model.end[op] = start + size
        make: Any = cp.new_fixed_size_interval_var
        if taken is not None:
            make = cp.new_optional_fixed_size_interval_var
        model.interval[op] = make(start, size, *(() if taken is None else (taken,)), name)
    else:
        end, lasts = model.time(f"end of {op}"), model.time(f"size of {op}")
        model.end[op], model.size[op], model.own[op] = end, lasts, size
        alone = cp.add(lasts == size)
        if op in model.single:
            alone.only_enforce_if(model.single[op])
        cp.add(end == start + lasts)
        there = 1 if taken is None else taken
        model.interval[op] = cp.new_optional_interval_var(start, lasts, end, there, name)
    if present is None:
        cp.add(model.end[op] <= model.horizon)


def pairs(model: Model) -> None:
    """The halves of a pair start and end together, after what both take less what the pair hides."""
    cp, profile, unit = model.cp, model.problem.profile, model.unit_ns
    for (forward, back), literal in model.pairs.items():
        hidden = int(profile.hidden_ns(np.array(forward.stage), np.array(back.stage)))
        most = min(-(-hidden // unit), model.own[forward])  # rounded up, as ops are rounded down
        least = cp.new_int_var(0, most, "")
        cp.add_min_equality(least, [most, model.own[back]])
        lasts = model.own[forward] + model.own[back] - least
        cp.add(model.size[forward] == lasts).only_enforce_if(literal)
        cp.add(model.start[back] == model.start[forward]).only_enforce_if(literal)
        cp.add(model.end[back] == model.end[forward]).only_enforce_if(literal)


# -- the rules ------------------------------------------------------------------------------------


def data_flow(model: Model) -> None:
    """Every op starts when what it needs has ended and arrived (`ops.RULES`), if both take place; an
    absent W is at the end of its backward."""
    for op, start in model.start.items():
        for needed in dependencies(op):
            if needed not in model.start or start is model.end[needed]:
                continue
            literals = [
                model.present[one] for one in (op, needed) if one.kind in (C, O, R)
            ]  # those of an O and its R are the same
            there = {literal.index: literal for literal in literals}
            model.after(needed, op, *there.values(), latency=model.latency(needed.stage, op.stage))


def engines(model: Model) -> None:
    """Each compute stream, copy engine and host link runs one op at a time."""
    costs = model.problem.profile
    keys = link_keys(costs)
    queues: dict[str, list[Op]] = {}
    for op in model.interval:
        device = costs.placement[op.stage]
        if op.kind in COMPUTE:
            queues.setdefault(f"compute {device}", []).append(op)
        else:
            engine = "OR" if costs.shares_copy_engine else op.kind.name
            queues.setdefault(f"copy {device} {engine}", []).append(op)
            queues.setdefault(f"link {keys[2 * device + (op.kind is R)]}", []).append(op)
    for queue in {frozenset(queue): queue for queue in queues.values()}.values():
        model.cp.add_no_overlap([model.interval[op] for op in queue])


def device_memory(model: Model) -> None:
    """No device holds more than its limit: the bytes of each activation, over half-open intervals, so
    that what is released at an instant is there for allocations at the same instant."""
    problem = model.problem
    for device, binds in enumerate(binding(problem)):
        if problem.limits is None or not (binds or problem.decides):
            continue
        held = _Held(model)
        for s in problem.shape.stages_of(device):
            for j in model.units:
                _hold_activation(model, held, (s, j))
        held.limit(problem.limits[device] - problem.profile.static_bytes[device])


def _hold_activation(model: Model, held: _Held, at: Activation) -> None:
    """What F leaves, from its start to the end of the backward, less what is on the host between O and
    R; beside it what ops allocate for themselves, and what W still needs."""
    forward, back, weight, again, out, reload = (model.op(kind, *at) for kind in (F, B, W, C, O, R))
    taken, freed = model.start[forward], model.end[back]
    moved, fused = model.moved.get(at), model.fused.get(at)
    left = freed
    if moved is not None:
        left = model.time(f"{at} leaves")
        model.cp.add(left <= freed)
        model.cp.add(left == model.end[out]).only_enforce_if(moved)
        model.cp.add(left == freed).only_enforce_if(~moved)
    for mode, chosen in model.modes(at):
        table = model.table(at[1])
        takes, gives = (
            {kind: int(array[kind, at[0], mode]) for kind in (F, B, W, BW)}
            for array in (table.allocated_bytes, table.released_bytes)
        )
        keep = takes[F] - gives[F]
        for behind, way in model.ways(at):
            moving = 0 if moved is None else _moved_bytes(model, at, mode, behind)
            held.hold(keep - moving, taken, freed, *chosen, *way)
            if moved is not None:
                held.hold(moving, taken, left, *chosen, *way)
                held.hold(moving, model.start[reload], freed, *chosen, moved, *way)
        held.hold(gives[F], taken, model.end[forward], *chosen)
        if mode != KEEP:
            assert fused is not None  # a stage with levels may fuse its backwards
            again_by = apart(level_of(mode))
            dropped = int(table.allocated_bytes[C, at[0], again_by])
            held.hold(dropped, model.start[again], freed, *chosen, model.apart[at])
            for kind, literal in ((B, ~fused), (BW, fused)):
                held.hold(takes[kind], model.start[back], freed, *chosen, ~model.apart[at], literal)
    pending = int(model.table(at[1]).released_bytes[W, at[0], KEEP])
    held.hold(pending, freed, model.end[weight], *(() if fused is None else (~fused,)))


def _moved_bytes(model: Model, at: Activation, mode: int, behind: bool) -> int:
    """Return what copies of an activation move, in bytes."""
    return int(model.table(at[1], behind).released_bytes[O, at[0], mode])


def host_memory(model: Model) -> None:
    """No node holds more pinned memory than its limit, from the start of an O to the end of its R. A staging
    buffer is left out: plans that it cannot hold are dropped where they are replayed."""
    problem = model.problem
    offload = problem.profile.offload
    if problem.host_limit is None or offload is None or offload.writes_behind:
        return
    nodes: dict[int, _Held] = {}
    for at, moved in model.moved.items():
        node = problem.profile.placement[at[0]] // problem.profile.devices_per_node
        held = nodes.setdefault(node, _Held(model))
        out, reload = model.start[model.op(O, *at)], model.end[model.op(R, *at)]
        for mode, chosen in model.modes(at):
            for behind, way in model.ways(at):
                held.hold(_moved_bytes(model, at, mode, behind), out, reload, *chosen, moved, *way)
    for held in nodes.values():
        held.limit(problem.host_limit)


class _Held:
    """Bytes that a resource holds over half-open intervals."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.intervals: list[Any] = []
        self.sizes: list[int] = []

    def hold(self, size: int, start: Any, end: Any, *literals: Any) -> None:
        """Hold `size` bytes from `start` to `end` if all of `literals` hold."""
        if size and start is not end:
            there = self.model.conjunction(*literals)
            duration = self.model.time("")
            interval = self.model.cp.new_optional_interval_var(start, duration, end, there, "")
            self.intervals.append(interval)
            self.sizes.append(size)

    def limit(self, room: int) -> None:
        """Hold at most `room` bytes at any time."""
        if sum(self.sizes) > room:
            unit = reduce(gcd, self.sizes)
            demands = [size // unit for size in self.sizes]
            self.model.cp.add_cumulative(self.intervals, demands, room // unit)


def first_ops_at_once(model: Model) -> None:
    """Every device starts its first op, an F of microbatch 0, as soon as its input arrives, as
    a replay does: with the objective ``span`` a delay would count as a gain."""
    for device in range(model.problem.shape.devices):
        s = model.problem.shape.stages_of(device)[0]
        arrives = model.end[model.op(F, s - 1, 0)] + model.latency(s - 1, s) if s else 0
        model.cp.add(model.start[model.op(F, s, 0)] == arrives)


def cost(model: Model, least: int, most: int) -> None:
    """The cost, from `least` to `most` units: the last end, or the longest time from a device's first op
    to its last. The very first F starts at 0, as it waits for nothing; where microbatches differ any may
    be first."""
    cp, problem = model.cp, model.problem
    total = model.cost = cp.new_int_var(least, most, "cost")
    if problem.profile.alike:
        cp.add(model.start[model.op(F, 0, 0)] == 0)
    for device in range(problem.shape.devices):
        stages = problem.shape.stages_of(device)
        first: Any = 0
        if problem.objective == "span":
            first = model.time(f"first of {device}")
            for j in model.units:
                cp.add(first <= model.start[model.op(F, stages[0], j)])
        for s in stages:
            for j in model.units:
                for kind in (B, W):
                    cp.add(total >= model.end[model.op(kind, s, j)] - first)
    cp.minimize(total)
