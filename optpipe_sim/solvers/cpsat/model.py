"""The problem as one CP-SAT model: its variables, and the schedule that their values are.

An interval per op, optional where the op is: O and R of what may be offloaded, C of what may be
recomputed, W of what may be a BW. Per activation a literal for each level of recomputation (none where
there is nothing to choose), one for a recomputation apart, one for an offload, one for a BW; per forward
and backward that may be one op a literal that they are. What ops take, allocate and release comes from
the table of ops (`op_table`). `constraints` states the rules of docs/semantics.md, each in a function of
its name.

The model relaxes the semantics, so that its bound is valid and only the replay gives the cost of a
schedule: serial and blocking links count as latency, and with the objective ``span`` a device may
delay its first op (unless `constraints.first_ops_at_once`).

With slices, an offload may leave keys and values behind, or take them along and wait for the F of its
microbatch's last slice. Which of the two a program means follows from its order alone (`op_costs`). The
model lets the former start at any time, which is wider than the semantics where that O is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from ...op_table import KEEP, OpTable, inside
from ...ops import BW, B, F, O, Op, OpKind
from ...schedule import Schedule
from ..problem import Problem, schedule_from_times
from ..treatments import named_levels

Activation = tuple[int, int]  # stage, unit: a microbatch, or a slice of one
Literals = tuple[Any, ...]


@dataclass
class Model:
    """A CP-SAT model and the mapping from its variables to ops.

    Attributes:
        unit_ns: one unit of time; durations are rounded down to it.
        horizon: the latest possible time.
        start, end: of every op, also of one that is absent. interval: of every op that occupies a resource.
        present: of an op that may be absent, the literal that it is not.
        level: per activation that may be recomputed, a literal per level; number 0: kept whole.
        apart: of the same, the literal of an op C.
        moved: per activation that may be offloaded, the literal that it is.
        behind: per activation whose copies may take keys and values along or not, the literal that
            they do.
        fused: per activation, the literal of BW; only if that may be better than B and W.
        size: of the ops whose duration is not fixed. own: of the same, what it is by itself; in a
            pair the two last as long as that.
        pairs: per forward and backward that may be one op, the literal that they are.
        single: of each forward and backward that might be in a pair, the literal that it is not.
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
    present: dict[Op, Any] = field(default_factory=dict)
    level: dict[Activation, list[Any]] = field(default_factory=dict)
    apart: dict[Activation, Any] = field(default_factory=dict)
    moved: dict[Activation, Any] = field(default_factory=dict)
    behind: dict[Activation, Any] = field(default_factory=dict)
    fused: dict[Activation, Any] = field(default_factory=dict)
    size: dict[Op, Any] = field(default_factory=dict)
    own: dict[Op, Any] = field(default_factory=dict)
    pairs: dict[tuple[Op, Op], Any] = field(default_factory=dict)
    single: dict[Op, Any] = field(default_factory=dict)
    both: dict[tuple[int, ...], Any] = field(default_factory=dict)
    cost: Any = None

    # -- the problem in the model's units ---------------------------------------------------------

    @property
    def stages(self) -> range:
        return range(self.problem.shape.stages)

    @property
    def units(self) -> range:
        """The units of the shape: microbatches, or their slices in order."""
        return range(self.problem.shape.units)

    @property
    def activations(self) -> Iterator[Activation]:
        return ((s, j) for s in self.stages for j in self.units)

    def op(self, kind: OpKind, stage: int, unit: int) -> Op:
        """Return the op of a kind on a unit."""
        return self.problem.shape.op(kind, stage, unit)

    def latency(self, stage: int, other: int) -> int:
        """The latency of a message between two stages, in units of time."""
        return self.problem.profile.message_ns(stage, other) // self.unit_ns

    @cached_property
    def part_of(self) -> list[int]:
        """The part of each unit: its place in `_tables`."""
        return self.problem.profile.parts_of(self.problem.shape).tolist()  # type: ignore[no-any-return]

    @cached_property
    def _tables(self) -> list[list[OpTable]]:
        """The table of each part: with copies that leave keys and values behind, and with those
        that take them along."""
        tables = self.problem.profile.part_tables
        parts = range(tables.asks.shape[1])
        return [[OpTable(*(array[way, at] for array in tables)) for at in parts] for way in (0, 1)]

    def table(self, unit: int, behind: bool = True) -> OpTable:
        """Return what the ops of a unit cost."""
        return self._tables[behind][self.part_of[unit]]

    def duration(
        self, kind: int, at: Activation, treatment: int = KEEP, behind: bool = True
    ) -> int:
        """Return the duration of an op under a treatment, in units of time."""
        found = self.table(at[1], behind).duration_ns[kind, at[0], treatment]
        return int(found) // self.unit_ns

    def levels(self, stage: int) -> range:
        """Return the levels of a stage, numbered from 1; empty if the problem does not allow
        recomputation."""
        few = len(self.problem.profile.stages[stage].recompute)
        return range(1, 1 + few if self.problem.may_recompute else 1)

    def modes(self, at: Activation) -> list[tuple[int, Literals]]:
        """Return the levels of an activation, as treatments inside the backward, and the literals that say so."""
        if at not in self.level:
            return [(KEEP, ())]
        ways = [KEEP, *map(inside, self.levels(at[0]))]
        return [(way, (one,)) for way, one in zip(ways, self.level[at], strict=True)]

    def ways(self, at: Activation) -> list[tuple[bool, Literals]]:
        """Return how an activation may be copied, with or without keys and values, and the literals that
        say so."""
        if at not in self.behind:
            return [(True, ())]
        return [(True, (self.behind[at],)), (False, (~self.behind[at],))]

    # -- variables --------------------------------------------------------------------------------

    def time(self, name: str) -> Any:
        """Make a variable for a time or a duration."""
        return self.cp.new_int_var(0, self.horizon, name)

    def conjunction(self, *literals: Any) -> Any:
        """Return a literal that holds if and only if all of `literals` hold; 1 if there are none."""
        if len(literals) < 2:
            return literals[0] if literals else 1
        key = tuple(sorted(literal.index for literal in literals))
        if key not in self.both:
            one = self.both[key] = self.cp.new_bool_var("")
            self.cp.add_bool_and(*literals).only_enforce_if(one)
            self.cp.add_bool_or(one, *(~literal for literal in literals))
        return self.both[key]

    def after(self, first: Op, second: Op, *literals: Any, latency: int = 0) -> None:
        """Let `second` start when `first` has ended, if all of `literals` hold."""
        row = self.cp.add(self.start[second] >= self.end[first] + latency)
        row.only_enforce_if(*literals)

    # -- solutions --------------------------------------------------------------------------------

    def starts_ns(self, value: Callable[[Any], int]) -> dict[Op, int]:
        """Return the start of each op in ns; `value` returns the value of a variable in a solution.
        Durations that were rounded down to a unit are not corrected: then only the order
        matters."""
        found, shape = {}, self.problem.shape
        for op, start in self.start.items():
            if op in self.present and not value(self.present[op]):
                continue
            at = (op.stage, shape.unit(op))
            whole = op.kind is B and at in self.fused and value(self.fused[at])
            found[self.op(BW if whole else op.kind, *at)] = int(value(start)) * self.unit_ns
        for at, behind in self.behind.items():
            out, last = self.op(O, *at), self.op(F, at[0], shape.last_slice(at[1]))
            if out in found and not value(behind):  # its program is to have it before that F
                found[out] = min(found[out], found[last] - 1)
        return found

    def schedule(self, value: Callable[[Any], int]) -> Schedule:
        """Return the schedule of a solution; `value` returns the value of a variable in it."""
        starts = self.starts_ns(value)
        chosen = np.zeros((len(self.stages), len(self.units)), np.int64)
        for at, literals in self.level.items():
            chosen[at] = next(level for level, one in enumerate(literals) if value(one))
        pairs = {
            forward: back if back in starts else back._replace(kind=BW)
            for (forward, back), literal in self.pairs.items()
            if value(literal)
        }
        levels = named_levels(self.problem.profile, chosen) if self.level else None
        return schedule_from_times(self.problem, starts, levels, pairs)


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


def time_unit(problem: Problem) -> int:
    """Return the greatest common divisor of all durations, in ns: some optimal solution has only multiples
    of it as times."""
    costs = problem.profile
    hidden = costs.hidden_ns(*np.indices((len(costs.stages),) * 2)).flat
    durations = map(int, costs.part_tables.duration_ns.flat)
    return gcd(costs.t_comm_ns, *durations, *map(int, hidden)) or 1


def serial_ns(problem: Problem) -> int:
    """Return an upper bound on any replay, in ns: at any time an op runs or a message is under way."""
    costs = problem.profile
    messages_ns = 2 * sum(costs.messages_ns)
    # by way of copying, part, kind, stage and treatment
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
