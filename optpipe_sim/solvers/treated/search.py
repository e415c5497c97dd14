"""Search over order and treatments: annealing from several starts, evaluated by a compiled replay.

Deterministic for a seed and a number of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

from ...schedule import Schedule
from ..anneal.host import make_host
from ..anneal.visits import Stop, Visit, Visits
from ..problem import Problem
from ..reports import Others, no_report
from . import core
from .programs import Plan, bits, make_costs, pack, unpack
from .state import make_room
from .times import evaluate

# Visits from the best as (heat, evaluations per op), then in turns as (heat, share of what is left,
# whether from the best). One slow annealing finds more than several quick ones. All begin colder than
# `anneal.search.VISITS`, and the mean end of ops counts for less: a treatment that shortens the critical
# path mostly makes other ops end later.
QUICK = ((0.01, 10), (0.03, 40))
SLOW = ((0.03, 0.5, True), (0.06, 0.5, True), (0.2, 0.2, False))
# After each round of these one from the best, in which some moves let microbatches overtake one another, and some
# tighten the trip of one: heat, share of what is left, share of the moves. (In more visits they found no better plans.)
PASSING = (0.1, 0.5, 0.3)
MOST_EFFORT = 8000  # evaluations per op of a slow visit
WEIGHT = 0.02
CHUNK_OPS = 1_000_000  # ops evaluated between two checks of the clock, some 50 ms


class Workspace:
    """The working arrays of evaluations; one per process."""

    def __init__(self, problem: Problem) -> None:
        low, high = bits(problem)
        self.problem = problem
        self.costs = make_costs(problem)
        self.span_counts = problem.objective == "span"
        shape = problem.shape
        units = shape.stages << low
        self.room = make_room(7 << high, units, shape.devices, self.costs.serial)
        self.host = make_host(problem, units)

    def evaluate(self, plan: Plan) -> tuple[int, int, int]:
        """(makespan, longest span, sum of ends); `NEVER` first if the programs deadlock."""
        return evaluate(  # type: ignore[no-any-return]
            plan.prog, plan.length, plan.mode, self.costs, self.room
        )

    def cost_ns(self, plan: Plan) -> int:
        """Return the cost by the objective; `NEVER` if the programs deadlock."""
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
    """Search as `anneal.search.search` does, over treatments too; same arguments and result."""
    work = Workspace(problem)
    search = Visits(
        problem,
        work.cost_ns,
        pack,
        unpack,
        starts,
        Stop(goal_ns, time_limit, evaluations, stop),
        WEIGHT,
        follows=False,  # two that anneal the same find less than two that do not
    )
    if not search.starts:
        return None
    core.seed_random(seed)
    profile = problem.profile
    alike = list(profile.placement) == list(range(profile.devices)) and all(
        [level.name for level in cost.recompute]
        == [level.name for level in profile.stages[0].recompute]
        for cost in profile.stages
    )

    def anneal(
        start: Plan, best_plan: Plan, best: int, todo: int, hot: float, cold: float, passing: float
    ) -> tuple[int, int]:
        return core.anneal(  # type: ignore[no-any-return]
            *start, work.costs, work.host, work.room, *best_plan, best, todo, hot, cold,
            work.span_counts, search.weight, problem.may_offload, alike, problem.per_stage, goal_ns, passing,
        )  # fmt: skip

    return search.run(
        _visits(search, seed, problem.shape.slices == 1), anneal, CHUNK_OPS, on_incumbent, others
    )


def _visits(search: Visits[Plan], seed: int, passes: bool) -> Iterator[Visit]:
    def effort(share: float, start: Plan) -> int:
        most = int(share * search.evaluations_left() / int(start.length.sum()))
        return min(max(most, QUICK[-1][1]), MOST_EFFORT)

    for heat, many in QUICK:
        yield Visit(heat, many, 0.0, True, search.plan.copy())
    for turn, visit in enumerate(count(seed), 1):
        heat, share, from_best = SLOW[visit % len(SLOW)]
        start = search.plan if from_best else search.starts[visit % len(search.starts)][2]
        yield Visit(heat, effort(share, start), 0.0, from_best, start.copy())
        if passes and turn % len(SLOW) == 0:
            heat, share, passing = PASSING
            yield Visit(heat, effort(share, search.plan), passing, True, search.plan.copy())
