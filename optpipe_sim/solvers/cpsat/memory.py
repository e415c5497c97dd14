"""The memory limit in CP-SAT, in two equivalent formulations, and the pinned memory of the host.

Bytes are held over half-open intervals, so that bytes released at an instant are available to
allocations at the same instant. A microbatch at a stage holds: act - offload from the start of F to
the end of B; offload from the start of F to the end of O, and from the start of R to the end of B
(or from F to B if it is not offloaded); w from the end of B to the end of W.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from math import gcd
from typing import Any, NamedTuple

from ...ops import B, F, O, Op, R, W
from .model import Model
from .order import FIFO, RANKS, SORTED


def memory(model: Model, way: str, order: str) -> None:
    """Keep every device within its limit.

    Args:
        way: ``cumulative`` (the intervals above on one resource), or ``order`` (the level at each
            allocation, from literals for the releases before it).
        order: of microbatches, as given to `order.order`; it saves literals. Ranks always use
            ``order``.
    """
    for device, binds in enumerate(model.binding):
        if binds and way == "cumulative" and order != RANKS:
            _cumulative(model, device)
        elif binds:
            _by_order(model, device, order)


def host_memory(model: Model, order: str) -> None:
    """Limit the pinned memory of each node, held from the start of O to the end of R. Not with
    ranks, whose O's and R's are not paired."""
    costs = model.problem.profile
    offload = costs.offload
    if offload is None or offload.host_limit_bytes is None or order == RANKS:
        return
    per_node = costs.devices_per_node
    for node in range(costs.nodes):
        held = [
            (_interval(model, model.start[Op(O, s, j)], model.end[Op(R, s, j)], moved), size)
            for (s, j), moved in model.moved.items()
            if costs.placement[s] // per_node == node
            for size in [costs.stages[s].offloadable]
        ]
        _hold(model, held, offload.host_limit_bytes)


def _interval(model: Model, start: Any, end: Any, literal: Any = None) -> Any:
    duration = model.time("")
    if literal is None:
        return model.cp.new_interval_var(start, duration, end, "")
    return model.cp.new_optional_interval_var(start, duration, end, literal, "")


def _hold(model: Model, held: list[tuple[Any, int]], room: int) -> None:
    if sum(size for _, size in held) > room:
        unit = gcd(*(size for _, size in held))
        model.cp.add_cumulative(
            [interval for interval, _ in held], [size // unit for _, size in held], room // unit
        )


def _cumulative(model: Model, device: int) -> None:
    problem, costs = model.problem, model.problem.profile
    held: list[tuple[Any, int]] = []
    for s in problem.shape.stages_of(device):
        cost = costs.stages[s]
        for j in model.microbatches:
            moved = model.moved.get((s, j))
            taken, given = model.start[Op(F, s, j)], model.end[Op(B, s, j)]
            parts = [(_interval(model, taken, given), cost.act_bytes)]
            if moved is not None:
                left = model.time(f"{s}.{j} leaves")
                model.cp.add(left <= given)
                model.cp.add(left == model.end[Op(O, s, j)]).only_enforce_if(moved)
                model.cp.add(left == given).only_enforce_if(~moved)
                parts = [
                    (parts[0][0], cost.act_bytes - cost.offloadable),
                    (_interval(model, taken, left), cost.offloadable),
                    (_interval(model, model.start[Op(R, s, j)], given, moved), cost.offloadable),
                ]
            if Op(W, s, j) in model.interval:
                split = ~model.fused[s, j] if (s, j) in model.fused else None
                kept = _interval(model, given, model.end[Op(W, s, j)], split)
                parts.append((kept, cost.w_bytes))
            held += [(interval, size) for interval, size in parts if size]
    assert problem.limits is not None
    _hold(model, held, problem.limits[device] - costs.static_bytes[device])


@dataclass
class Held:
    """Bytes that a resource holds over half-open intervals."""

    model: Model
    intervals: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def hold(self, size: int, start: Any, end: Any, *literals: Any) -> None:
        """Hold `size` bytes from `start` to `end` if all of `literals` hold."""
        if size:
            there = self.model.conjunction(*literals)
            duration = self.model.time("")
            interval = self.model.cp.new_optional_interval_var(start, duration, end, there, "")
            self.intervals.append(interval)
            self.sizes.append(size)

    def limit(self, room: int) -> None:
        """Allow at most `room` bytes at any time."""
        if sum(self.sizes) > room:
            unit = reduce(gcd, self.sizes)
            demands = [size // unit for size in self.sizes]
            self.model.cp.add_cumulative(self.intervals, demands, room // unit)


class _Step(NamedTuple):
    """A change of the held bytes, by `op` at `time`, if `literal` (None: always)."""

    op: Op
    time: Any
    literal: Any
    size: int


def _by_order(model: Model, device: int, order: str) -> None:
    """At each allocation, the bytes allocated so far less the bytes released so far fit."""
    problem, costs, cp = model.problem, model.problem.profile, model.cp
    assert problem.limits is not None
    takes: list[_Step] = []
    gives: list[_Step] = []
    for s in problem.shape.stages_of(device):
        cost = costs.stages[s]
        for j in model.microbatches:
            forward, back, weight = Op(F, s, j), Op(B, s, j), Op(W, s, j)
            out, again = Op(O, s, j), Op(R, s, j)
            takes.append(_Step(forward, model.start[forward], None, cost.act_bytes))
            rest = cost.act_bytes - cost.w_bytes
            gives.append(_Step(back, model.end[back], None, rest))
            # a W that is absent or takes no time starts at the end of its B, which is its end if absent
            free = model.start[weight] if weight not in model.interval else model.end[weight]
            if (s, j) in model.fused:
                free = model.start[weight] + model.duration_of(W, s) * ~model.fused[s, j]
            gives.append(_Step(weight, free, None, cost.w_bytes))
            if out in model.present:
                size = cost.offloadable
                takes.append(_Step(again, model.start[again], model.present[again], size))
                gives.append(_Step(out, model.end[out], model.present[out], size))
    takes, gives = [step for step in takes if step.size], [step for step in gives if step.size]
    unit = gcd(*(step.size for step in takes + gives))
    room = (problem.limits[device] - costs.static_bytes[device]) // unit
    for at in takes:
        level = sum(step.size // unit * _taken(model, step, at, order) for step in takes) - sum(
            step.size // unit * _given(model, step, at, order) for step in gives
        )
        fits = cp.add(level <= room)
        if at.literal is not None:
            fits.only_enforce_if(at.literal)


def _taken(model: Model, step: _Step, at: _Step, order: str) -> Any:
    """Return 1, or an expression that is 1 unless `step` is absent or certainly later than `at`."""
    there = 1 if step.literal is None else step.literal
    (one, s, i), (other, t, j) = step.op, at.op
    if step.op == at.op:
        return 1
    if s == t:
        if one == other and (order in SORTED or (one is F and s == 0)):
            return there if i < j else 0
        if order == FIFO or (i == j and order != RANKS):
            if one is F and i <= j:
                return 1
            if one is R and i >= j:
                return 0
    later = model.cp.new_bool_var(f"{step.op} after {at.op}")
    model.cp.add(step.time > at.time).only_enforce_if(later)
    if step.literal is not None:
        model.cp.add_implication(later, step.literal)
    return there - later


def _given(model: Model, step: _Step, at: _Step, order: str) -> Any:
    """Return 0, or an expression that is 1 only if `step` is present and no later than `at`."""
    (one, s, i), (other, t, j) = step.op, at.op
    if s == t:
        if one is O and other is R:
            if order != RANKS and (i == j or (order == FIFO and i < j)):
                return step.literal
        elif i == j or (order in SORTED and i > j):
            return 0
    before = model.cp.new_bool_var(f"{step.op} before {at.op}")
    model.cp.add(step.time <= at.time).only_enforce_if(before)
    if step.literal is not None:
        model.cp.add_implication(before, step.literal)
    return before
