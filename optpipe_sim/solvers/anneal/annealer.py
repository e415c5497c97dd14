"""Search over programs and treatments: annealing from several starts, evaluated by a compiled replay. If transfers
share links, each evaluation follows all of them in the order of time, first come, first served,
and is about ten times slower. What drives write behind the copies is not modelled: there each better
schedule is replayed under the limit on the memory in front of them (`visits`).

Deterministic for a seed and a number of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from random import Random

from ...codes import KINDS
from ...schedule import Schedule
from ..anneal.offloading import park_first
from ..problem import Problem
from ..reports import Others, no_report
from . import loop
from .evaluate import evaluate
from .host import make_host
from .host_links import make_links
from .linked import evaluate_links
from .moves import chances
from .plans import Plan, bits, make_costs, pack
from .times import NEVER, make_times
from .visits import Stop, Visit, Visits

# Plain problems: visits of one round; each further round is twice as long: the initial temperature (in typical op
# durations), the evaluations per op, and whether to start from the best or from one of the
# starts.
VISITS = (
    (0.01, 10, True),
    (0.03, 40, True),
    (0.08, 160, True),
    (0.3, 80, False),
    (0.15, 160, True),
)
# With shared links each evaluation is a full one: shorter visits, which grow only every other round.
LINKED = (
    (0.01, 20, True),
    (0.02, 20, True),
    (0.05, 20, True),
    (0.1, 20, True),
    (0.3, 80, False),
    (0.3, 40, True),
)
# Each round ends with visits that begin with a microbatch parked on the hosts, and in which some
# moves let microbatches overtake one another. In other visits such moves rarely help. (At tight limits with slow copies
# they are what reaches the optimum: p 4, m 8 and 16, room for two, 303 and 551 ns; without them 305 and 553 at best.)
PARKED, LINKED_PARKED = (0.2, 160), (0.2, 80)
PASSING = 0.25  # share of the moves
WEIGHT = 0.3  # weight of the mean end of an op, which gives plateaus a slope
# Problems with treatments: visits from the best as (heat, evaluations per op), then in turns as (heat, share of what
# is left, whether from the best). One slow annealing finds more than several quick ones. All begin colder, and the
# mean end of ops counts for less: a treatment that shortens the critical path mostly makes other ops end later.
QUICK = ((0.01, 10), (0.03, 40))
SLOW = ((0.03, 0.5, True), (0.06, 0.5, True), (0.2, 0.2, False))
# After each round of these one from the best, in which some moves let microbatches overtake one another, and some
# tighten the trip of one: heat, share of what is left, share of the moves. (In more visits they found no better plans;
# without these, 1 of 18 of the referee's cells ends 0.8 % worse after 3 million evaluations, two seeds, the others equal.)
SLOW_PASSING = (0.1, 0.5, 0.3)
MOST_EFFORT = 8000  # evaluations per op of a slow visit
TREATED_WEIGHT = 0.02
CHUNK_OPS = 4_000_000, 1_000_000  # ops evaluated between two checks of the clock, some 50 ms


def shares_links(problem: Problem) -> bool:
    """Whether transfers of several queues share a link."""
    offload = problem.profile.offload
    if offload is None or not problem.may_offload:
        return False
    grouped = any(len(group) > 1 for group in problem.profile.host_links)
    return grouped or (offload.host_link == "single" and offload.copy_engines == "separate")


def treats(problem: Problem) -> bool:
    """Whether a problem is more than which activations to offload: the moves and the evaluation of
    shared links know neither levels of recomputation, slices, treatments by stage nor blocking links."""
    offloads_stages = problem.per_stage and problem.may_offload
    return problem.decides or offloads_stages or problem.profile.sending_ns > 0


class Workspace:
    """The working arrays of evaluations; one per process."""

    def __init__(self, problem: Problem) -> None:
        low, _ = bits(problem)
        shape, units = problem.shape, problem.shape.stages << low
        self.costs = make_costs(problem)
        self.span_counts = problem.objective == "span"
        self.times = make_times(KINDS << self.costs.high, units, shape.devices, self.costs.serial)
        self.host = make_host(problem, units)
        # where treatments are chosen, links of their own stand in for shared ones (`stand_ins`)
        linked = shares_links(problem) and not treats(problem)
        self.links = make_links(problem.profile, units) if linked else None

    def evaluate(self, plan: Plan) -> tuple[int, int, int]:
        """(makespan, longest span, sum of ends); `NEVER` first if the programs deadlock."""
        if self.links is None:
            return evaluate(plan, self.costs, self.times)  # type: ignore[no-any-return]
        return evaluate_links(plan, self.costs, self.links, self.times)  # type: ignore[no-any-return]

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
    """Find the best schedule by annealing from `starts`; None if none of them fits.

    Args:
        starts: schedules under the limit; each gets a share of the time, the best one two shares.
            If it may pay, starts with a parked microbatch are added (`starts.park_first`).
        goal_ns: stop at this cost (a proven bound).
        evaluations: total number; None: as many as `time_limit` (seconds) allows.
        on_incumbent: called with each better schedule and its cost in ns.
        others: returns schedules of other engines; the search continues from those that are better.
    """
    work, treated = Workspace(problem), treats(problem)
    search = Visits(
        problem,
        work.cost_ns,
        starts,
        Stop(goal_ns, time_limit, evaluations, stop),
        TREATED_WEIGHT if treated else WEIGHT,
        follows=not treated,  # two that anneal the same treatments find less than two that do not
    )
    if not search.starts:
        return None
    loop.seed_random(seed)
    aim = loop.Aim(work.span_counts, search.weight, goal_ns)

    def anneal(
        start: Plan, best_plan: Plan, best: int, cooling: loop.Cooling, passing: float
    ) -> tuple[int, int]:
        return loop.anneal(  # type: ignore[no-any-return]
            start,
            Plan(start.prog.copy(), start.length.copy(), start.mode),
            best_plan,
            best,
            work.costs,
            work.links,
            work.host,
            work.times,
            chances(work.costs, passing),
            aim,
            cooling,
        )

    visits = _slow_visits(search, seed) if treated else _visits(problem, work, search, seed)
    return search.run(visits, anneal, CHUNK_OPS[treated], on_incumbent, others)


def _visits(problem: Problem, work: Workspace, search: Visits, seed: int) -> Iterator[Visit]:
    """Visits of plain problems."""
    random, linked = Random(seed), work.links is not None
    listed, (heat_parked, effort_parked) = (LINKED, LINKED_PARKED) if linked else (VISITS, PARKED)
    for visit in count():
        rounds, at = divmod(visit, len(listed))
        heat, effort, from_best = listed[(seed + at) % len(listed)]
        start = search.plan if from_best else search.starts[(seed + visit) % len(search.starts)][2]
        longer = 2 ** (rounds // 2 if linked else rounds)
        yield Visit(heat, effort * longer, 0.0, from_best, start.copy())
        if at == len(listed) - 1:
            for _ in range(2 * longer):
                parked = _parked(problem, work, random)
                if parked is not None:
                    yield Visit(heat_parked, effort_parked, PASSING, False, parked)


def _parked(problem: Problem, work: Workspace, random: Random) -> Plan | None:
    """Make a start with the first microbatch parked; None if that is infeasible."""
    stages = problem.shape.stages
    if not problem.may_offload or problem.shape.chunks > 1 or problem.microbatches < 3:
        return None
    passed = min(random.choice((1, 2, 2, 2, 3, 4)), problem.microbatches - 1)
    ones, twos = stages, 0
    if random.random() < 0.6:
        ones, twos = random.randint(stages // 2, stages), random.randint(0, stages // 2)
    spare = [(stage < twos) + (stage < ones) for stage in range(stages)]
    plan = pack(problem, park_first(problem, passed, spare))
    return plan if work.cost_ns(plan) < NEVER else None


def _slow_visits(search: Visits, seed: int) -> Iterator[Visit]:
    """Visits of problems with treatments."""

    def effort(share: float, start: Plan) -> int:
        most = int(share * search.evaluations_left() / int(start.length.sum()))
        return min(max(most, QUICK[-1][1]), MOST_EFFORT)

    passes = search.problem.shape.slices == 1
    for heat, many in QUICK:
        yield Visit(heat, many, 0.0, True, search.plan.copy())
    for turn, visit in enumerate(count(seed), 1):
        heat, share, from_best = SLOW[visit % len(SLOW)]
        start = search.plan if from_best else search.starts[visit % len(search.starts)][2]
        passing = 0.0 if search.problem.profile.alike else SLOW_PASSING[2]
        yield Visit(heat, effort(share, start), passing, from_best, start.copy())
        if passes and turn % len(SLOW) == 0:
            heat, share, passing = SLOW_PASSING
            yield Visit(heat, effort(share, search.plan), passing, True, search.plan.copy())
