"""The least cost of a tiny problem by trying every schedule; slow, and owes nothing to the solvers."""

from __future__ import annotations

import heapq
from itertools import count

from optpipe_sim.ops import BW, COMPUTE, B, F, O, Op, R, W
from optpipe_sim.sim.links import link_keys
from optpipe_sim.solve.problem import Problem

Times = dict[Op, tuple[int, int]]


def least_cost(problem: Problem, states: int) -> int | None:
    """The least cost over all schedules; None where no schedule keeps the limits.

    At each instant at which something ends or arrives, every op that could start is started, or
    not. Two ways to the same state, counted from now, are one; what promises the least goes first.

    Raises:
        OverflowError: after so many states.
    """
    world = _World(problem)
    tick = count()
    queue: list[tuple[int, int, int, Times]] = [(0, 0, 0, {})]
    seen = set()
    while queue:
        least, _, now, times = heapq.heappop(queue)
        if world.done(times):
            return least
        state = world.state(times, now)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > states:
            raise OverflowError
        for op in filter(lambda op: world.may_start(op, times, now), world.ops):
            begun = {**times, op: (now, now + world.lasts[op.kind][op.stage])}
            heapq.heappush(queue, (world.least(begun, now), -next(tick), now, begun))
        later = [at for _, end in times.values() for at in (end, end + world.hop) if at > now]
        if later:
            now = min(later)
            heapq.heappush(queue, (world.least(times, now), -next(tick), now, times))
    return None


class _World:
    def __init__(self, problem: Problem) -> None:
        self.problem, costs = problem, problem.profile
        self.costs, self.place, self.hop = costs, costs.placement, costs.t_comm_ns
        self.lasts = costs.durations_ns.tolist()
        self.taken, self.given = costs.allocated_bytes.tolist(), costs.released_bytes.tolist()
        self.span = problem.objective == "span"
        self.pairs = [(s, j) for s in range(len(costs.stages)) for j in range(problem.microbatches)]
        kinds = [F, B, W, BW, *([O, R] if problem.may_offload else [])]
        self.ops = [Op(kind, s, j) for s, j in self.pairs for kind in kinds]
        self.keys = link_keys(costs)
        offload = costs.offload
        self.shared = offload is not None and offload.copy_engines == "shared"
        self.pinned = offload.host_limit_bytes if offload else None
        self.node = (offload.devices_per_node if offload else None) or costs.devices

    def state(self, times: Times, now: int) -> object:
        ends = frozenset((op, max(end - now, -self.hop)) for op, (_, end) in times.items())
        if not self.span:
            return ends
        return ends, now, tuple(self._device(times, device) for device in range(self.costs.devices))

    def _device(self, times: Times, device: int) -> tuple[int, int]:
        mine = [
            at for op, at in times.items() if self.place[op.stage] == device and op.kind in COMPUTE
        ]
        return min((at[0] for at in mine), default=-1), max((at[1] for at in mine), default=-1)

    def done(self, times: Times) -> bool:
        return all(
            (Op(W, *at) in times or Op(BW, *at) in times)
            and (Op(O, *at) in times) == (Op(R, *at) in times)
            for at in self.pairs
        )

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
            lasts = self.lasts
            split = Op(B, s, j) in times
            back = 0 if split or Op(BW, s, j) in times else min(lasts[B][s], lasts[BW][s])
            both = back and min(lasts[B][s] + lasts[W][s], lasts[BW][s])
            rest = lasts[W][s] if split and Op(W, s, j) not in times else 0
            forward = 0 if Op(F, s, j) in times else lasts[F][s]
            free[self.place[s]] += forward + both + rest
            ready[j] += forward + back
        if self.span:
            return max(last - begun for begun, last in zip(first, free, strict=True))
        return max(*free, *ready)

    def may_start(self, op: Op, times: Times, now: int) -> bool:
        kind, s, j = op
        back = Op(B, s, j) in times or Op(BW, s, j) in times
        if op in times or (kind in (B, BW, O) and back) or (kind is W and Op(B, s, j) not in times):
            return False
        if kind is F and s == 0 and j and Op(F, 0, j - 1) not in times:
            return False  # microbatches are alike: number them by their first F
        inputs = self._inputs(op, times)
        if not all(there is not None and there <= now for there in inputs):
            return False
        first = not any(o.kind is F and self.place[o.stage] == self.place[s] for o in times)
        if self.span and kind is F and first and now > max([0, *filter(None, inputs)]):
            return False  # a replay starts a device's first op when its input comes
        busy = {r for other, (_, end) in times.items() if end > now for r in self._uses(other)}
        return busy.isdisjoint(self._uses(op)) and self._fits(op, times, now)

    def _inputs(self, op: Op, times: Times) -> list[int | None]:
        """When each input is there; None where it has not been started."""
        kind, s, j = op
        find = {
            F: [(F, s - 1)] if s else [],
            B: [(F, s), (B, s + 1), *([(R, s)] if Op(O, s, j) in times else [])],
            W: [(B, s)],
            O: [(F, s)],
            R: [(O, s)],
        }[B if kind is BW else kind]
        inputs: list[int | None] = []
        for needs, t in find:
            if t == len(self.place):
                continue
            other = Op(BW, t, j) if needs is B and Op(BW, t, j) in times else Op(needs, t, j)
            hop = self.hop if self.place[s] != self.place[t] else 0
            inputs.append(times[other][1] + hop if other in times else None)
        return inputs

    def _uses(self, op: Op) -> set[object]:
        device = self.place[op.stage]
        if op.kind in COMPUTE:
            return {device}
        engine = ("engine", device, None if self.shared else op.kind)
        return {engine, self.keys[2 * device + (op.kind is R)]}

    def _fits(self, op: Op, times: Times, now: int) -> bool:
        limits, device = self.problem.limits, self.place[op.stage]
        taken, given = self.taken, self.given
        if limits is not None and op.kind in (F, R):
            level = self.costs.static_bytes[device] + taken[op.kind][op.stage]
            for (kind, s, _), (_, end) in times.items():
                if self.place[s] == device:
                    level += taken[kind][s] - (given[kind][s] if end <= now else 0)
            return level <= limits[device]
        if self.pinned is not None and op.kind is O:
            level = self.costs.stages[op.stage].offloadable
            for (kind, s, _), (_, end) in times.items():
                if self.place[s] // self.node == device // self.node and kind in (O, R):
                    size = self.costs.stages[s].offloadable
                    level += size if kind is O else -size if end <= now else 0
            return level <= self.pinned
        return True
