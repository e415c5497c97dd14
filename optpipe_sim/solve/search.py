"""Search over programs: annealing from several starts, evaluated by a compiled replay.

For profiles whose transfers share no link between devices; others are searched by AdaOffload's
parameters and by CP-SAT. Deterministic for a seed and a number of evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ..ops import BW, OpKind
from ..schedule import Schedule
from . import search_core as core
from .problem import Problem

HOT, COLD = 0.3, 0.01  # temperatures, in typical op durations
WEIGHT = 0.3  # of the mean end of an op, so that plateaus have a slope
CHUNK = 4000  # evaluations between two looks at the clock


class Programs(NamedTuple):
    """Programs as the compiled code has them: codes (devices, room) and their number per device."""

    prog: np.ndarray
    length: np.ndarray

    def copy(self) -> Programs:
        return Programs(self.prog.copy(), self.length.copy())


def compiled_costs(problem: Problem) -> tuple[object, ...]:
    """What `search_core.evaluate` wants to know of a problem."""
    costs = problem.profile
    stages = costs.stages
    unlimited = (2**55,) * costs.devices
    return (
        costs.durations_ns,
        np.array([cost.act_bytes for cost in stages], np.int64),
        np.array([cost.w_bytes for cost in stages], np.int64),
        np.array([cost.offloadable for cost in stages], np.int64),
        np.array(costs.placement, np.int64),
        np.array(problem.limits or unlimited, np.int64),
        np.array(costs.static_bytes, np.int64),
        costs.t_comm_ns,
        costs.occupancy_ns,
        costs.links == "serial",
        costs.offload is not None and costs.offload.copy_engines == "shared",
        problem.microbatches,
        *_bits(problem),
    )


def _bits(problem: Problem) -> tuple[int, int]:
    """Where the stage and the kind begin in a code, in bits."""
    low = max(1, (problem.microbatches - 1).bit_length())
    return low, low + max(1, (problem.shape.stages - 1).bit_length())


def can_search(problem: Problem) -> bool:
    """Whether the compiled evaluation covers the problem: no link that two queues share, and no
    limit on host memory."""
    offload = problem.profile.offload
    if offload is None or not problem.may_offload:
        return True
    shared = offload.copy_engines == "shared"
    lone = all(len(group) == 1 for group in problem.profile.host_links)
    return lone and offload.host_limit_bytes is None and (offload.host_link != "single" or shared)


def pack(problem: Problem, schedule: Schedule) -> Programs:
    """The programs of a schedule; a BW becomes its B and its W."""
    shape = problem.shape
    low, high = _bits(problem)
    room = (
        5
        * shape.microbatches
        * max(len(shape.stages_of(device)) for device in range(shape.devices))
        + 2
    )
    prog = np.full((shape.devices, room), -1, np.int64)
    length = np.zeros(shape.devices, np.int64)
    for device, program in enumerate(schedule.programs):
        for op in program:
            kinds = (OpKind.B, OpKind.W) if op.kind is BW else (op.kind,)
            for kind in kinds:
                prog[device, length[device]] = kind << high | op.stage << low | op.microbatch
                length[device] += 1
    return Programs(prog, length)


def unpack(problem: Problem, programs: Programs, name: str = "search") -> Schedule:
    """The schedule that the programs are."""
    codes = [row[:size] for row, size in zip(programs.prog, programs.length, strict=True)]
    flat = np.concatenate(codes)
    low, high = _bits(problem)
    table = np.stack((flat >> high, flat >> low & (1 << high - low) - 1, flat & (1 << low) - 1), 1)
    offsets = np.cumsum([0, *map(len, codes)])
    return Schedule.from_table(problem.shape, table, offsets, meta={"name": name})


class Workspace:
    """The arrays that evaluations work in; one per process."""

    def __init__(self, problem: Problem) -> None:
        shape = problem.shape
        devices, codes = shape.devices, len(OpKind) << _bits(problem)[1]
        room = shape.microbatches * shape.stages + 1

        def ints(*size: int) -> np.ndarray:
            return np.zeros(size, np.int64)

        self.costs = compiled_costs(problem)
        self.space = (
            ints(devices), ints(devices), ints(devices, 2), ints(devices), ints(devices),
            ints(devices), ints(devices + 1), np.zeros(devices, np.bool_), ints(devices),
            ints(devices, room), ints(devices), ints(devices), ints(devices),
            ints(devices, devices),
        )  # fmt: skip
        self.end, self.ready, self.cause = ints(codes), ints(codes), ints(codes)

    def evaluate(self, programs: Programs) -> tuple[int, int, int]:
        """(makespan, longest span, sum of ends); `search_core.NEVER` first where it cannot go on."""
        return core.evaluate(  # type: ignore[no-any-return]
            programs.prog, programs.length, self.costs, self.space, self.end, self.ready, self.cause
        )


def search(
    problem: Problem,
    starts: Iterable[Schedule],
    *,
    goal_ns: int = 0,
    time_limit: float = 10.0,
    evaluations: int | None = None,
    seed: int = 0,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Schedule | None:
    """The best schedule that annealing from `starts` finds; None where none of them fits.

    Args:
        starts: schedules under the limit; each gets its share of the time, the best a second one.
        goal_ns: stop at this cost (a proven bound).
        evaluations: in all; None: as many as `time_limit` (seconds) allows.
        on_incumbent: called with each better schedule and its cost in ns.
    """
    work = Workspace(problem)
    span_counts = problem.objective == "span"
    began = time.monotonic()
    packed: list[tuple[int, int, Programs]] = []
    for schedule in starts:
        programs = pack(problem, schedule)
        makespan, span, _ = work.evaluate(programs)
        if makespan < core.NEVER:
            packed.append((span if span_counts else makespan, len(packed), programs))
    if not packed:
        return None
    packed.sort(key=lambda entry: entry[:2])
    best, _, found = packed[0]
    best_programs = found.copy()
    core.seed_random(seed)
    typical = float(np.median(problem.profile.durations_ns[: OpKind.BW]))
    ops = sum(map(int, best_programs.length))
    # later ends weigh so little that all of them together count less than one op
    weight = WEIGHT / ops
    lone = problem.profile.chunks == 1 and len(set(problem.profile.placement)) == len(
        problem.profile.placement
    )
    alike = lone and list(problem.profile.placement) == list(range(problem.profile.devices))
    done, turn = 0, 0
    budget = evaluations
    rounds = len(packed) + 1

    def share() -> float:
        """The part of the budget that is used up."""
        if budget is not None:
            return done / budget
        return (time.monotonic() - began) / time_limit

    while best > goal_ns and share() < 1 and not stop():
        start = best_programs.copy() if turn >= len(packed) else packed[turn][2].copy()
        opened = share()
        until = min(1.0, opened + (1 - opened) / max(1, rounds - turn))
        hot, cold = HOT * typical, COLD * typical
        while share() < until and best > goal_ns and not stop():
            # one cooling per visit, cut in chunks so that clock and callers are heard
            at = (share() - opened) / max(1e-9, until - opened)
            now = hot * (cold / hot) ** at
            steps = CHUNK if budget is None else min(CHUNK, budget - done)
            before = best
            best, used = core.anneal(
                start.prog, start.length, work.costs, work.space, work.end, work.ready, work.cause,
                best_programs.prog, best_programs.length, best, steps, now, now * 0.9, span_counts,
                weight, problem.may_offload, alike, goal_ns,
            )  # fmt: skip
            done += max(used, 1)
            if best < before and on_incumbent is not None:
                on_incumbent(unpack(problem, best_programs), best)
        turn += 1
        if turn >= rounds:
            rounds = turn + 1
    return unpack(problem, best_programs)
