"""The least cost of a tiny problem by trying every schedule; slow, and owes nothing to the solvers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count, product

import numpy as np
from rules import Rules, Times

from optpipe_sim.ops import BW, COMPUTE, B, C, F, Op, W
from optpipe_sim.solvers.problem import Problem


def least_cost(problem: Problem, states: int) -> int | None:
    """The least cost over all schedules; None where no schedule keeps the limits.

    Every choice of levels of recomputation is a problem of its own. At each instant at which
    something ends or arrives, every op that could start is started, or not. Two ways to the same
    state, counted from now, are one; what promises the least goes first.

    Raises:
        OverflowError: after so many states of one of them.
    """
    best: int | None = None
    for chosen in _treatments(problem):
        best = _least_cost(_State(problem, chosen), states, best)
    return best


def _treatments(problem: Problem) -> Iterator[np.ndarray]:
    """Every (stages, microbatches) choice of treatments (see `op_table`)."""
    stages, m = problem.profile.stages, problem.microbatches
    own = [range(1 + 2 * len(cost.recompute)) for cost in stages for _ in range(m)]
    for row in product(*own):
        yield np.array(row).reshape(len(stages), m)


def _least_cost(world: _State, states: int, most: int | None) -> int | None:
    """The least cost for one choice of treatments; `most`, if it is no less."""
    tick = count()
    queue: list[tuple[int, int, int, Times]] = [(0, 0, 0, {})]
    seen = set()
    while queue:
        least, _, now, times = heapq.heappop(queue)
        if most is not None and least >= most:
            return most
        if world.done(times):
            return least
        state = world.state(times, now)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > states:
            raise OverflowError
        for op in filter(lambda op: world.may_start(op, times, now), world.ops):
            begun = {**times, op: (now, now + world.durations[op])}
            heapq.heappush(queue, (world.least(begun, now), -next(tick), now, begun))
        waits = 0, world.latency, world.blocking
        later = [end + more for _, end in times.values() for more in waits if end + more > now]
        if later:
            now = min(later)
            heapq.heappush(queue, (world.least(times, now), -next(tick), now, times))
    return most


class _State(Rules):
    """A search under the rules: what a state is, and what it promises."""

    def state(self, times: Times, now: int) -> object:
        ends = frozenset((op, max(end - now, -self.latency)) for op, (_, end) in times.items())
        if not self.span:
            return ends
        return ends, now, tuple(self._device(times, device) for device in range(self.costs.devices))

    def _device(self, times: Times, device: int) -> tuple[int, int]:
        mine = [
            at for op, at in times.items() if self.place[op.stage] == device and op.kind in COMPUTE
        ]
        return min((at[0] for at in mine), default=-1), max((at[1] for at in mine), default=-1)

    def least(self, times: Times, now: int) -> int:
        """No less is possible from here: each device has this work left, each microbatch this way.
        When all is done it is the cost."""
        over = self.done(times)
        first, free = [], []
        for device in range(self.costs.devices):
            begun, last = self._device(times, device)
            free.append(last if over else max(now, last))
            first.append(free[-1] if begun < 0 else begun)
        ready = [0 if over else now] * self.problem.microbatches
        for s, j in self.pairs:
            f, b, w, bw = (self.durations[Op(kind, s, j)] for kind in (F, B, W, BW))
            split = Op(B, s, j) in times
            back = 0 if split or Op(BW, s, j) in times else min(b, bw)
            both = back and min(b + w, bw)
            rest = w if split and Op(W, s, j) not in times else 0
            forward = 0 if Op(F, s, j) in times else f
            again = Op(C, s, j)
            rest += self.durations[again] if (s, j) in self.apart and again not in times else 0
            free[self.place[s]] += forward + both + rest
            ready[j] += forward + back
        if self.span:
            return max(last - begun for begun, last in zip(first, free, strict=True))
        return max(*free, *ready)

    def may_start(self, op: Op, times: Times, now: int) -> bool:
        if not self.in_time(op, times) or not self.numbered(op, times):
            return False
        inputs = self.inputs(op, times)
        if not all(there is not None and there <= now for there in inputs):
            return False
        first = not any(o.kind is F and self.place[o.stage] == self.place[op.stage] for o in times)
        if self.span and op.kind is F and first and now > max([0, *filter(None, inputs)]):
            return False  # a replay starts a device's first op when its input comes
        busy = {
            r
            for other, (_, end) in times.items()
            if end + self.sends(other) > now
            for r in self.uses(other)
        }
        return busy.isdisjoint(self.uses(op)) and self.fits(op, times, now)
