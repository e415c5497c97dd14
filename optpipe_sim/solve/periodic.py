"""Periodic schedules: one pattern repeated, so that the effort does not grow with m.

Modulo scheduling. An op x of the pattern starts at t(x), and again every period P, each time for the
next microbatches: t = P k + o with the phase 0 <= o < P. Per period `per_period` microbatches (u) pass.

- Data flow: as ever, on t.
- An engine is used by the same phases in every period: no two of its ops overlap on the circle of
  length P. An op that begins near the end of a period reaches into the next, so each has a copy one
  period earlier.
- Bytes held at phase f, once the pattern runs for long: up to period n an event has happened
  n - k + [o <= f] times, so the level is the sum of (sizes taken less sizes given back) times
  ([o <= f] - k); what is taken equals what is given back, so n cancels. It is at its highest at a
  phase at which something is taken. Before and after, fewer microbatches are there: less is held.

Then m microbatches cost at most (m / u - 1) P + the latency of the pattern; the replay of the
orders, as early as it can, fills the beginning and the end better than that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ortools.sat.python import cp_model

from ..errors import NoSolution, OptPipeError
from ..ops import BW, COMPUTE, B, F, O, Op, OpKind, R, W
from ..schedule import Schedule
from ..sim.links import link_keys
from .cpsat_model import may_fuse, may_move, time_unit
from .cpsat_search import PARAMETERS, SUBSOLVERS
from .problem import Problem, schedule_from_times


@dataclass(frozen=True)
class Pattern:
    """What is repeated.

    Attributes:
        problem: its profile, limits and objective; `unroll` gives it another m.
        period_ns: how long until it starts again, with the next `per_period` microbatches.
        starts_ns: of every op of the first ones.
        latency_ns: from the first start to the last end of these.
        least_period_ns: no pattern of so many microbatches has a shorter period.
    """

    problem: Problem
    period_ns: int
    per_period: int
    starts_ns: dict[Op, int]
    latency_ns: int
    least_period_ns: int


def periodic_pattern(
    problem: Problem,
    time_limit: float,
    *,
    per_period: int = 1,
    seed: int = 0,
    workers: int = 1,
) -> Pattern:
    """The pattern with the shortest period found, and for that period with a short latency.

    The least period that the work allows is tried first, then the gap to one that is surely enough
    is halved, for two thirds of the time at most; the rest goes to the latency.

    Raises:
        NoSolution: where no pattern was found: the limit forbids it, or the time was too short.
        OptPipeError: for a time limit of 0 or less, or `per_period` below 1.
    """
    if not time_limit > 0:
        raise OptPipeError(f"time limit: must be above 0 seconds, got {time_limit}")
    if per_period < 1:
        raise OptPipeError(f"per_period: must be at least 1, got {per_period}")
    ends = time.monotonic() + time_limit
    least, most = _periods(problem, per_period)
    low, high, period = least, most, least
    best: dict[Op, int] | None = None
    while low <= high:
        left = ends - time.monotonic() - time_limit / 3
        if left <= 0:
            break
        circle = _Circle(problem, period, per_period)
        found = circle.solve(left / 2, seed, workers)
        if found is not None:
            best, high = found, period - 1
        elif period == most:
            break
        else:
            low = period + 1
        period = most if best is None else (low + high) // 2
    if best is None:
        raise NoSolution(
            f"no periodic schedule with {per_period} microbatches per period was found"
            f" in {time_limit:g} s; give it more time or more memory"
        )
    circle = _Circle(problem, high + 1, per_period)
    circle.hint(best)
    circle.cp.minimize(circle.last)
    best = circle.solve(max(0.05, ends - time.monotonic()), seed, workers) or best
    unit = circle.unit
    starts = {op: start * unit for op, start in best.items()}
    last = max(start + circle.lasts(op) for op, start in best.items()) * unit
    return Pattern(problem, circle.period * unit, per_period, starts, last, least * unit)


def unroll(pattern: Pattern, microbatches: int) -> Schedule:
    """The schedule of m microbatches: the pattern again and again, in the order of its starts.

    Its replay is no later than the pattern and keeps the limit.

    Raises:
        InvalidSchedule: for m below 1.
    """
    problem = replace(pattern.problem, microbatches=microbatches)
    starts = {}
    for (kind, s, i), start in pattern.starts_ns.items():
        for j in range(i, microbatches, pattern.per_period):
            starts[Op(kind, s, j)] = start + j // pattern.per_period * pattern.period_ns
    return schedule_from_times(problem, starts)


def _periods(problem: Problem, per_period: int) -> tuple[int, int]:
    """The least period that compute work allows, and one that surely is enough, in units."""
    costs, unit = problem.profile, time_unit(problem)
    work = [0] * costs.devices
    serial = 0
    for s, device in enumerate(costs.placement):
        cost = costs.stages[s]
        work[device] += cost.t_f_ns + (
            cost.fused_ns if may_fuse(problem, s) else cost.t_b_ns + cost.t_w_ns
        )
        moved = (cost.t_offload_ns or 0) + (cost.t_reload_ns or 0) if may_move(problem, s) else 0
        serial += cost.t_f_ns + cost.t_b_ns + cost.t_w_ns + moved + 2 * costs.t_comm_ns
    return per_period * max(work) // unit, per_period * max(serial, *work) // unit


class _Event(NamedTuple):
    """Something that takes `size` bytes at a time (or, below 0, gives them back)."""

    name: str
    when: Any
    size: int


class _Circle:
    """The model for one period, in units of time."""

    def __init__(self, problem: Problem, period: int, per_period: int) -> None:
        self.problem, self.costs = problem, problem.profile
        self.period, self.per_period, self.unit = period, per_period, time_unit(problem)
        self.cp = cp_model.CpModel()
        # room for a microbatch to take its time; a longer stay would not shorten the period
        self.turns = 2 + _periods(problem, 1)[1] // period
        self.latest = self.turns * period
        self.start: dict[Op, Any] = {}
        self.moved: dict[tuple[int, int], Any] = {}
        self.phases: dict[str, tuple[Any, Any]] = {}
        self._ops()
        self._flow()
        self._engines()
        self._memory()
        self.last = self.cp.new_int_var(0, self.latest, "last")
        for op in self.start:
            if op.kind in COMPUTE:
                self.cp.add(self.last >= self.start[op] + self.lasts(op))

    def lasts(self, op: Op) -> int:
        return int(self.costs.durations_ns[op.kind, op.stage]) // self.unit

    def _back(self, s: int, i: int) -> Op:
        return Op(BW if may_fuse(self.problem, s) else B, s, i)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return ((s, i) for s in range(len(self.costs.stages)) for i in range(self.per_period))

    def _ops(self) -> None:
        for s, i in self._pairs():
            back = self._back(s, i)
            kinds: list[OpKind] = [F, back.kind] + ([W] if back.kind is B else [])
            if may_move(self.problem, s):
                self.moved[s, i] = self.cp.new_bool_var(f"moved{s}.{i}")
                kinds += [O, R]
            for kind in kinds:
                op = Op(kind, s, i)
                self.start[op] = self.cp.new_int_var(0, self.latest, str(op))

    def _flow(self) -> None:
        cp, place, start = self.cp, self.costs.placement, self.start
        hop = self.costs.t_comm_ns // self.unit
        for s, i in self._pairs():
            forward, back, weight = Op(F, s, i), self._back(s, i), Op(W, s, i)
            cp.add(start[back] >= start[forward] + self.lasts(forward))
            if weight in start and self.lasts(weight):
                cp.add(start[weight] >= start[back] + self.lasts(back))
            elif weight in start:
                cp.add(start[weight] == start[back] + self.lasts(back))
            if s:
                before, after = Op(F, s - 1, i), self._back(s - 1, i)
                gap = hop if place[s] != place[s - 1] else 0
                cp.add(start[forward] >= start[before] + self.lasts(before) + gap)
                cp.add(start[after] >= start[back] + self.lasts(back) + gap)
            if (s, i) in self.moved:
                out, again, moved = Op(O, s, i), Op(R, s, i), self.moved[s, i]
                cp.add(start[out] >= start[forward] + self.lasts(forward)).only_enforce_if(moved)
                cp.add(start[again] >= start[out] + self.lasts(out))
                cp.add(start[again] == start[out] + self.lasts(out)).only_enforce_if(~moved)
                cp.add(start[back] >= start[again] + self.lasts(again)).only_enforce_if(moved)
        cp.add(start[Op(F, 0, 0)] == 0)
        for i in range(1, self.per_period):
            cp.add(start[Op(F, 0, i)] > start[Op(F, 0, i - 1)])
            cp.add(start[Op(F, 0, i)] < self.period)

    def _phase(self, name: str, when: Any) -> tuple[Any, Any]:
        """The turn k and the phase o of a time: when = P k + o."""
        if name not in self.phases:
            turn = self.cp.new_int_var(0, self.turns + 1, f"turn of {name}")
            phase = self.cp.new_int_var(0, self.period - 1, f"phase of {name}")
            self.cp.add(when == self.period * turn + phase)
            self.phases[name] = turn, phase
        return self.phases[name]

    def _engines(self) -> None:
        offload = self.costs.offload
        shared = offload is not None and offload.copy_engines == "shared"
        keys = link_keys(self.costs)
        queues: dict[str, list[Op]] = {}
        for op in self.start:
            device = self.costs.placement[op.stage]
            if op.kind in COMPUTE:
                queues.setdefault(f"compute {device}", []).append(op)
            else:
                engine = "OR" if shared else op.kind.name
                queues.setdefault(f"copy {device} {engine}", []).append(op)
                queues.setdefault(f"link {keys[2 * device + (op.kind is R)]}", []).append(op)
        for ops in {frozenset(ops): ops for ops in queues.values()}.values():
            slots = []
            for op in ops:
                if op.kind is W and not self.lasts(op):
                    continue  # at once after its B
                _, phase = self._phase(str(op), self.start[op])
                there = True if op.kind in COMPUTE else self.moved[op.stage, op.microbatch]
                slots += [
                    self.cp.new_optional_fixed_size_interval_var(begin, self.lasts(op), there, "")
                    for begin in (phase, phase - self.period)
                ]
            self.cp.add_no_overlap(slots)

    def _memory(self) -> None:
        problem, costs, offload = self.problem, self.costs, self.costs.offload
        held: dict[int, list[_Event]] = {}
        pinned: dict[int, list[_Event]] = {}
        node = (offload.devices_per_node if offload else None) or costs.devices
        for s, i in self._pairs():
            cost, device, back = costs.stages[s], costs.placement[s], self._back(s, i)
            kept = cost.w_bytes if back.kind is B else 0
            here = held.setdefault(device, [])
            here.append(self._starts(Op(F, s, i), cost.act_bytes))
            here.append(self._ends(back, kept - cost.act_bytes))
            if kept:
                here.append(self._ends(Op(W, s, i), -kept))
            if (s, i) in self.moved:  # where it is not, R starts as O ends: nothing changes
                size, there = cost.offloadable, pinned.setdefault(device // node, [])
                out, again, moved = Op(O, s, i), Op(R, s, i), self.moved[s, i]
                here += [self._ends(out, -size), self._starts(again, size)]
                freed = self.cp.new_int_var(0, self.latest + self.lasts(again), "")
                end = self.start[again] + self.lasts(again)
                self.cp.add(freed == end).only_enforce_if(moved)
                self.cp.add(freed == self.start[out]).only_enforce_if(~moved)
                there.append(self._starts(out, size))
                there.append(_Event(f"freed {again}", freed, -size))
        if problem.limits is not None:
            for device, here in held.items():
                self._keep(here, problem.limits[device] - costs.static_bytes[device])
        if offload is not None and offload.host_limit_bytes is not None:
            for there in pinned.values():
                self._keep(there, offload.host_limit_bytes)

    def _starts(self, op: Op, size: int) -> _Event:
        return _Event(str(op), self.start[op], size)

    def _ends(self, op: Op, size: int) -> _Event:
        return _Event(f"end of {op}", self.start[op] + self.lasts(op), size)

    def _keep(self, events: list[_Event], room: int) -> None:
        """The level at the phase of each event that takes something is at most `room`. Of the others
        those that take count unless they come later, those that give only if they do not."""
        cp = self.cp
        events = [event for event in events if event.size]
        for at in (event for event in events if event.size > 0):
            _, now = self._phase(at.name, at.when)
            level: Any = 0
            for event in events:
                turn, phase = self._phase(event.name, event.when)
                happened: Any = 1
                if event is not at:
                    happened = cp.new_bool_var("")
                    if event.size > 0:
                        cp.add(phase > now).only_enforce_if(~happened)
                    else:
                        cp.add(phase <= now).only_enforce_if(happened)
                level += event.size * (happened - turn)
            cp.add(level <= room)

    def hint(self, starts: dict[Op, int]) -> None:
        """Begin from these starts."""
        for op, variable in self.start.items():
            if op in starts:
                self.cp.add_hint(variable, starts[op])
        for (s, i), moved in self.moved.items():
            self.cp.add_hint(moved, Op(O, s, i) in starts)

    def solve(self, seconds: float, seed: int, workers: int) -> dict[Op, int] | None:
        """The starts in units; None where there is no such pattern or the time was too short."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        for name, value in PARAMETERS.items():
            setattr(solver.parameters, name, value)
        if workers > 1:
            solver.parameters.subsolvers.extend(SUBSOLVERS)
        with ThreadPoolExecutor(1) as thread:  # or Ctrl-C would have to wait for the solver
            solving = thread.submit(solver.solve, self.cp)
            try:
                status = solving.result()
            except KeyboardInterrupt:
                while not solving.done():  # before it has begun it does not hear
                    solver.stop_search()
                    time.sleep(0.01)
                raise
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return {
            op: solver.value(variable)
            for op, variable in self.start.items()
            if op.kind in COMPUTE or solver.value(self.moved[op.stage, op.microbatch])
        }
