"""Search over order and treatments: annealing from several starts, evaluated by a compiled replay.

Deterministic for a seed and a number of evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count

import numpy as np

from ...ops import BW
from ...schedule import Schedule
from ..problem import Problem
from ..reports import Others, no_report
from . import core
from .programs import Plan, bits, make_costs, pack, unpack
from .state import NEVER, make_room
from .times import evaluate

# Visits, over and over, each time twice as long: the temperature they begin at (in typical op
# durations), their evaluations per op, and whether they start from the best or from one of the starts.
VISITS = (
    (0.01, 10, True),
    (0.03, 40, True),
    (0.08, 160, True),
    (0.3, 80, False),
    (0.15, 160, True),
)
COLD = 0.01  # the temperature they end at
WEIGHT = 0.3  # of the mean end of an op, so that plateaus have a slope
CHUNK_OPS = 1_000_000  # ops evaluated between two looks at the clock, some 50 ms


class Workspace:
    """The arrays that evaluations work in; one per process."""

    def __init__(self, problem: Problem) -> None:
        low, high = bits(problem)
        self.problem = problem
        self.costs = make_costs(problem)
        self.span_counts = problem.objective == "span"
        shape = problem.shape
        most = max(len(shape.stages_of(device)) for device in range(shape.devices))
        slots = 6 * shape.microbatches * most + 2
        self.room = make_room(
            7 << high, shape.stages << low, shape.devices, slots, self.costs.serial
        )

    def evaluate(self, plan: Plan) -> tuple[int, int, int]:
        """(makespan, longest span, sum of ends); `NEVER` first where it cannot go on."""
        return evaluate(  # type: ignore[no-any-return]
            plan.prog, plan.length, plan.mode, self.costs, self.room
        )

    def cost_ns(self, plan: Plan) -> int:
        """By the objective; `NEVER` where it cannot go on."""
        makespan, span, _ = self.evaluate(plan)
        return span if self.span_counts else makespan


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
    others: Others = no_report,
) -> Schedule | None:
    """The best schedule that annealing from `starts` finds; None where none of them fits.

    Args:
        starts: schedules under the limit; each gets its share of the time, the best a second one.
        goal_ns: stop at this cost (a proven bound).
        evaluations: in all; None: as many as `time_limit` (seconds) allows.
        on_incumbent: called with each better schedule and its cost in ns.
        others: gives schedules that were found elsewhere meanwhile, to go on from where they are better.
    """
    work = Workspace(problem)
    began = time.monotonic()
    packed: list[tuple[int, int, Plan]] = []
    for schedule in starts:
        plan = pack(problem, schedule)
        cost = work.cost_ns(plan)
        if cost < NEVER and _fits_host(problem, schedule):
            packed.append((cost, len(packed), plan))
    if not packed:
        return None
    packed.sort(key=lambda entry: entry[:2])
    best, best_plan = packed[0][0], packed[0][2].copy()
    core.seed_random(seed)
    profile = problem.profile
    typical = float(np.median(profile.durations_ns[:BW]))
    weight = WEIGHT / int(best_plan.length.sum())
    alike = list(profile.placement) == list(range(profile.devices)) and all(
        [level.name for level in cost.recompute]
        == [level.name for level in profile.stages[0].recompute]
        for cost in profile.stages
    )
    done, fitting = 0, True

    def over() -> bool:
        if best <= goal_ns or not fitting or stop():
            return True
        if evaluations is not None:
            return done >= evaluations
        return time.monotonic() - began >= time_limit

    def listen() -> bool:
        """Take what others have found; returns whether it is better."""
        nonlocal best, best_plan
        schedule = others()
        if schedule is None:
            return False
        plan = pack(problem, schedule)
        cost = work.cost_ns(plan)
        if cost >= best:
            return False
        best, best_plan = cost, plan
        return True

    def visits() -> Iterator[tuple[float, int, bool, Plan]]:
        for visit in count():
            rounds, at = divmod(visit, len(VISITS))
            heat, effort, from_best = VISITS[(seed + at) % len(VISITS)]
            start = best_plan if from_best else packed[(seed + visit) % len(packed)][2]
            yield heat, effort * 2**rounds, from_best, start.copy()

    for heat, effort, from_best, start in visits():
        if over():
            break
        steps = effort * int(start.length.sum())
        chunk = max(200, CHUNK_OPS // int(start.length.sum()))
        hot, cold = heat * typical, COLD * typical
        for at in range(0, steps, chunk):
            if over():
                break
            if listen() and from_best:
                start = best_plan.copy()
            todo = min(chunk, steps - at)
            if evaluations is not None:
                todo = min(todo, evaluations - done)
            begin, end = (hot * (cold / hot) ** (part / steps) for part in (at, at + todo))
            before, kept = best, best_plan.copy()
            best, used = core.anneal(
                *start, work.costs, work.room, *best_plan, best, todo, begin, end,
                work.span_counts, weight, problem.may_offload, alike, problem.per_stage, goal_ns,
            )  # fmt: skip
            done += max(used, 1)
            if best == before:
                continue
            found = unpack(problem, best_plan)
            fitting = _fits_host(problem, found)
            if not fitting:
                best, best_plan = before, kept
            elif on_incumbent is not None:
                on_incumbent(found, best)
    return unpack(problem, best_plan)


def _fits_host(problem: Problem, schedule: Schedule) -> bool:
    """Whether what it offloads fits into the memory of the hosts."""
    return problem.host_limit is None or problem.keeps(schedule) is not None
