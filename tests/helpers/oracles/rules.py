"""The rules of schedules for tiny problems, op by op, as plainly as can be; they owe nothing to the
simulator or the solvers. `exhaustive` and `beatable` search under them."""

from __future__ import annotations

import numpy as np

from optpipe_sim.op_table import apart
from optpipe_sim.ops import BW, COMPUTE, B, C, F, O, Op, R, W
from optpipe_sim.sim.host_links import link_keys
from optpipe_sim.solvers.problem import Problem

Times = dict[Op, tuple[int, int]]  # start and end of what has been started


class Rules:
    """What an op waits for, which engines it uses, and whether memory admits it.

    Args:
        chosen: (stages, microbatches) treatments, see `op_table`.
    """

    def __init__(self, problem: Problem, chosen: np.ndarray) -> None:
        self.problem, costs = problem, problem.profile
        self.costs, self.place = costs, costs.placement
        self.blocking = costs.sending_ns
        self.latency, self.span = costs.t_comm_ns, problem.objective == "span"
        self.pairs = [(s, j) for s in range(len(costs.stages)) for j in range(problem.microbatches)]
        kinds = [F, B, W, BW, *([O, R] if problem.may_offload else [])]
        self.apart = {
            (s, j)
            for s, j in self.pairs
            if chosen[s, j] and chosen[s, j] == apart(chosen[s, j] // 2)
        }
        self.ops = [Op(kind, s, j) for s, j in self.pairs for kind in kinds]
        self.ops += [Op(C, s, j) for s, j in sorted(self.apart)]
        self.durations, self.taken, self.given, self.asks = (
            {op: int(array[op.kind, op.stage, chosen[op.stage, op.microbatch]]) for op in self.ops}
            for array in costs.op_table
        )
        self.keys = link_keys(costs)
        offload = costs.offload
        self.shared = offload is not None and offload.copy_engines == "shared"
        self.pinned = offload.host_limit_bytes if offload else None
        self.node = (offload.devices_per_node if offload else None) or costs.devices

    def done(self, times: Times) -> bool:
        return all(
            (Op(W, *at) in times or Op(BW, *at) in times)
            and (at not in self.apart or Op(C, *at) in times)
            and (Op(O, *at) in times) == (Op(R, *at) in times)
            for at in self.pairs
        )

    def numbered(self, op: Op, times: Times) -> bool:
        """Whether microbatches, which are alike, stay numbered by their first F with it."""
        return (
            op.kind is not F
            or op.stage > 0
            or op.microbatch == 0
            or (Op(F, 0, op.microbatch - 1) in times)
        )

    def in_time(self, op: Op, times: Times) -> bool:
        """Whether it is neither started already nor, a copy, later than what it is for."""
        kind, s, j = op
        back = Op(B, s, j) in times or Op(BW, s, j) in times
        if op in times or (kind in (B, BW, O) and back) or (kind is W and Op(B, s, j) not in times):
            return False
        return kind is not O or Op(C, s, j) not in times

    def inputs(self, op: Op, times: Times) -> list[int | None]:
        """When each input is there; None where it has not been started."""
        kind, s, j = op
        reloaded = [(R, s)] if Op(O, s, j) in times else []
        find = {
            F: [(F, s - 1)] if s else [],
            B: [(F, s), (B, s + 1), *reloaded, *([(C, s)] * ((s, j) in self.apart))],
            C: [(F, s), *reloaded],
            W: [(B, s)],
            O: [(F, s)],
            R: [(O, s)],
        }[B if kind is BW else kind]
        inputs: list[int | None] = []
        for needs, t in find:
            if t == len(self.place):
                continue
            other = Op(BW, t, j) if needs is B and Op(BW, t, j) in times else Op(needs, t, j)
            latency = self.latency if self.place[s] != self.place[t] else 0
            inputs.append(times[other][1] + latency if other in times else None)
        return inputs

    def sends(self, op: Op) -> int:
        """How long the op's message keeps its device from computing."""
        to = op.stage + (1 if op.kind is F else -1)
        if op.kind not in (F, B, BW) or not 0 <= to < len(self.place):
            return 0
        return self.blocking if self.place[to] != self.place[op.stage] else 0

    def uses(self, op: Op) -> set[object]:
        """The device, or the copy engine and the host link, that it occupies."""
        device = self.place[op.stage]
        if op.kind in COMPUTE:
            return {device}
        engine = ("engine", device, None if self.shared else op.kind)
        return {engine, self.keys[2 * device + (op.kind is R)]}

    def fits(self, op: Op, times: Times, now: int) -> bool:
        """Whether device or host memory admits its start now; nothing in `times` starts later."""
        limits, device = self.problem.limits, self.place[op.stage]
        taken, given = self.taken, self.given
        if limits is not None and self.asks[op]:
            level = self.costs.static_bytes[device] + taken[op]
            for other, (_, end) in times.items():
                if self.place[other.stage] == device:
                    level += taken[other] - (given[other] if end <= now else 0)
            return level <= limits[device]
        if self.pinned is not None and op.kind is O:
            level = given[op]
            for other, (_, end) in times.items():
                if self.place[other.stage] // self.node == device // self.node:
                    if other.kind is O:
                        level += given[other]
                    elif other.kind is R and end <= now:
                        level -= taken[other]
            return level <= self.pinned
        return True
