"""Whether a schedule of a tiny problem can be beaten, by trying all that might; owes nothing to the
solvers. Given a good cost to beat it is fast where a search for the least cost is not."""

from __future__ import annotations

import numpy as np
from rules import Rules, Times

from optpipe_sim.ops import B, F, O, Op, R, W
from optpipe_sim.solvers.problem import Problem

KINDS = (F, B, W)


def cheaper(problem: Problem, cost_ns: int, nodes: int = 200_000) -> dict[Op, int] | None:
    """Starts of a schedule, B and W apart, that costs less than `cost_ns`; None where none does.

    Raises:
        OverflowError: where that takes more nodes of the search.
    """
    search = _Search(problem, cost_ns, nodes)
    return search.start if search.finish(0, None) else None


class _Search:
    """Ops are started in order of time, each as early as those before it allow, in every way;
    microbatches are named by the order of their first F."""

    def __init__(self, problem: Problem, cost_ns: int, nodes: int) -> None:
        self.cost, self.left = cost_ns, nodes
        costs = self.costs = problem.profile
        whole = np.zeros((problem.shape.stages, problem.microbatches), np.int64)
        self.rules = Rules(problem, whole)
        self.span = problem.objective == "span"
        self.times: Times = {}
        self.free: dict[object, int] = {}
        self.ops = [
            op
            for op in self.rules.ops
            if op.kind in KINDS or (op.kind in (O, R) and costs.stages[op.stage].offloadable)
        ]
        self.ops.sort(key=lambda op: (op.kind, op.stage, op.microbatch))

    @property
    def start(self) -> dict[Op, int]:
        return {op: begin for op, (begin, _) in self.times.items()}

    def device(self, op: Op) -> int:
        return self.costs.placement[op.stage]

    def earliest(self, op: Op, now: int) -> int | None:
        """When the op can start next, if it can at all."""
        rules, times = self.rules, self.times
        if not rules.in_time(op, times) or not rules.numbered(op, times):
            return None
        if op.kind is R and Op(O, *op[1:]) not in times:
            return None
        inputs = rules.inputs(op, times)
        if None in inputs:
            return None
        at = max(
            [now, *filter(None, inputs), *(self.free.get(engine, 0) for engine in rules.uses(op))]
        )
        later = sorted({end for _, end in times.values() if end > at})
        return next((time for time in (at, *later) if rules.fits(op, times, time)), None)

    def hopeless(self, now: int) -> bool:
        """Whether the work that a device has left cannot be done in time."""
        for d in range(self.costs.devices):
            here = [op for op in self.ops if op.kind in KINDS and self.device(op) == d]
            begun = [self.times[op][0] for op in here if op in self.times]
            left = sum(self.rules.durations[op] for op in here if op not in self.times)
            end = max(self.free.get(d, 0), now if left else 0) + left
            if end - (min(begun, default=now) if self.span else 0) >= self.cost:
                return True
        return False

    def finish(self, now: int, last: Op | None) -> bool:
        """Whether what has been started can be completed for less than the cost."""
        self.left -= 1
        if self.left < 0:
            raise OverflowError
        if self.hopeless(now):
            return False
        if all(op in self.times for op in self.ops if op.kind is W):
            return True
        for op in self.ops:
            at = self.earliest(op, now)
            if at is None or (at >= self.cost and not self.span):
                continue
            if last is not None and at == self.times[last][0] and self.seen_swapped(op, last):
                continue
            saved = {engine: self.free.get(engine, 0) for engine in self.rules.uses(op)}
            end = at + self.rules.durations[op]
            self.times[op] = at, end
            self.free.update(dict.fromkeys(saved, end + self.rules.sends(op)))
            if self.finish(at, op):
                return True
            del self.times[op]
            self.free.update(saved)
        return False

    def seen_swapped(self, op: Op, last: Op) -> bool:
        """Whether the two, of one instant, were looked at in the other order already."""
        if (
            self.rules.pinned is not None
            or self.device(op) == self.device(last)
            or not self.rules.durations[last]
        ):
            return False
        apart = not {*self.rules.uses(op)} & {*self.rules.uses(last)}
        return apart and self.ops.index(op) < self.ops.index(last)
