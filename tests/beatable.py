"""Whether a schedule of a tiny problem can be beaten, by trying all that might; owes nothing to the
solvers. Given a good cost to beat it is fast where a search for the least cost is not."""

from __future__ import annotations

from optpipe_sim.ops import B, F, O, Op, R, W
from optpipe_sim.sim.links import link_keys
from optpipe_sim.solve.problem import Problem

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
        self.problem, self.cost, self.left = problem, cost_ns, nodes
        costs = self.costs = problem.profile
        self.stages, self.m = range(problem.shape.stages), problem.microbatches
        self.offload = costs.offload
        self.host = costs.offload.host_limit_bytes if costs.offload else None
        self.span = problem.objective == "span"
        self.keys = link_keys(costs)
        self.start: dict[Op, int] = {}
        self.end: dict[Op, int] = {}
        self.free: dict[object, int] = {}
        kinds = (*KINDS, O, R) if problem.may_offload else KINDS
        self.ops = [
            Op(kind, s, j)
            for kind in kinds
            for s in self.stages
            for j in range(self.m)
            if kind in KINDS or costs.stages[s].offloadable
        ]

    def lasts(self, op: Op) -> int:
        return int(self.costs.durations_ns[op.kind, op.stage])

    def device(self, op: Op) -> int:
        return self.costs.placement[op.stage]

    def needs(self, op: Op) -> list[Op]:
        kind, s, j = op
        if kind is F:
            return [Op(F, s - 1, j)] if s else [Op(F, 0, j - 1)] if j else []
        if kind is B:
            above = [Op(B, s + 1, j)] if s < self.stages[-1] else []
            return [Op(F, s, j), *above, *([Op(R, s, j)] if Op(O, s, j) in self.start else [])]
        return [Op({W: B, O: F, R: O}[kind], s, j)]

    def arrives(self, need: Op, op: Op) -> int:
        across = self.device(need) != self.device(op)
        return self.end[need] + (self.costs.t_comm_ns if across else 0)

    def engines(self, op: Op) -> tuple[object, ...]:
        d = self.device(op)
        if op.kind in KINDS:
            return (d,)
        assert self.offload is not None
        engine = "copy" if self.offload.copy_engines == "shared" else op.kind.name
        return (d, engine), self.keys[2 * d + (op.kind is R)]

    def fits(self, op: Op, at: int) -> bool:
        """Whether device or host memory admits the op at a time."""
        costs, d = self.costs, self.device(op)
        if op.kind is O and self.offload is not None and self.host is not None:
            per_node = self.offload.devices_per_node or costs.devices
            pinned = sum(
                costs.stages[a.stage].offloadable
                for a in (*self.start, op)
                if a.kind is O
                and self.device(a) // per_node == d // per_node
                and self.end.get(a._replace(kind=R), at + 1) > at
            )
            return pinned <= self.host
        if op.kind not in (F, R) or self.problem.limits is None:
            return True
        held = costs.static_bytes[d]
        for a in (*self.start, op):
            if self.device(a) == d:
                held += int(costs.allocated_bytes[a.kind, a.stage])
                if self.end.get(a, at + 1) <= at:
                    held -= int(costs.released_bytes[a.kind, a.stage])
        return held <= self.problem.limits[d]

    def earliest(self, op: Op, now: int) -> int | None:
        """When the op can start next, if it can at all."""
        if op in self.start or (op.kind is O and op._replace(kind=B) in self.start):
            return None
        if any(need not in self.end for need in self.needs(op)):
            return None
        ready = [self.arrives(need, op) for need in self.needs(op)]
        at = max([now, *ready, *(self.free.get(engine, 0) for engine in self.engines(op))])
        later = sorted({end for end in self.end.values() if end > at})
        return next((time for time in (at, *later) if self.fits(op, time)), None)

    def hopeless(self, now: int) -> bool:
        """Whether the work that a device has left cannot be done in time."""
        for d in range(self.costs.devices):
            here = [op for op in self.ops if op.kind in KINDS and self.device(op) == d]
            begun = [self.start[op] for op in here if op in self.start]
            left = sum(self.lasts(op) for op in here if op not in self.start)
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
        if all(op in self.start for op in self.ops if op.kind is W):
            return True
        for op in self.ops:
            at = self.earliest(op, now)
            if at is None or (at >= self.cost and not self.span):
                continue
            if last is not None and at == self.start[last] and self.seen_swapped(op, last):
                continue
            saved = {engine: self.free.get(engine, 0) for engine in self.engines(op)}
            self.start[op], self.end[op] = at, at + self.lasts(op)
            self.free.update(dict.fromkeys(saved, self.end[op]))
            if self.finish(at, op):
                return True
            del self.start[op], self.end[op]
            self.free.update(saved)
        return False

    def seen_swapped(self, op: Op, last: Op) -> bool:
        """Whether the two, of one instant, were looked at in the other order already."""
        if self.host is not None or self.device(op) == self.device(last) or not self.lasts(last):
            return False
        apart = not {*self.engines(op)} & {*self.engines(last)}
        return apart and self.ops.index(op) < self.ops.index(last)
