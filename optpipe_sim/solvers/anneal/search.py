"""Search over programs: annealing from several starts, evaluated by a compiled replay. If transfers
share links, each evaluation follows all of them in the order of time, first come, first served,
and is about ten times slower. What drives write behind the copies is not modelled: there each better
schedule is replayed under the limit on the memory in front of them (`visits`).

Deterministic for a seed and a number of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from random import Random
from typing import NamedTuple

import numpy as np

from ...ops import BW, TRANSFERS, B, OpKind, W
from ...schedule import Schedule
from ..problem import Problem
from ..reports import Others, no_report
from ..starts import park_first
from . import core, times
from .host import make_host
from .links import make_links
from .state import Costs, fill_slots, make_times
from .visits import Stop, Visit, Visits

# Visits of one round; each further round is twice as long: the initial temperature (in typical op
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
# moves let microbatches overtake one another. In other visits such moves rarely help.
PARKED, LINKED_PARKED = (0.2, 160), (0.2, 80)
PASSING = 0.25  # share of the moves
CHUNK_OPS = 4_000_000  # ops evaluated between two checks of the clock, some 60 ms


class Programs(NamedTuple):
    """Programs in the encoding of the compiled code: codes (devices, room) and their number per device."""

    prog: np.ndarray
    length: np.ndarray

    def copy(self) -> Programs:
        return Programs(self.prog.copy(), self.length.copy())


def make_costs(problem: Problem) -> Costs:
    """Make the costs of a problem for the compiled code."""
    costs = problem.profile
    unlimited = (2**55,) * costs.devices
    low, high = _bits(problem)

    def by_stage(name: str) -> np.ndarray:
        return np.array([getattr(stage, name) for stage in costs.stages], np.int64)

    return Costs(
        durations=costs.durations_ns,
        act=by_stage("act_bytes"),
        held=by_stage("w_bytes"),
        moved=by_stage("offloadable"),
        place=np.array(costs.placement, np.int64),
        limit=np.array(problem.limits or unlimited, np.int64),
        static=np.array(costs.static_bytes, np.int64),
        lag=costs.t_comm_ns,
        occupancy=costs.occupancy_ns,
        serial=costs.links == "serial",
        shared=costs.shares_copy_engine,
        microbatches=problem.microbatches,
        low=low,
        high=high,
    )


def _bits(problem: Problem) -> tuple[int, int]:
    """Return the bits at which the stage and the kind begin in a code."""
    low = max(1, (problem.microbatches - 1).bit_length())
    return low, low + max(1, (problem.shape.stages - 1).bit_length())


def shares_links(problem: Problem) -> bool:
    """Whether transfers of several queues share a link."""
    offload = problem.profile.offload
    if offload is None or not problem.may_offload:
        return False
    grouped = any(len(group) > 1 for group in problem.profile.host_links)
    return grouped or (offload.host_link == "single" and offload.copy_engines == "separate")


def pack(problem: Problem, schedule: Schedule) -> Programs:
    """Encode the programs of a schedule. A BW becomes its B and its W; without a memory limit
    transfers are left out, as they could only delay ops."""
    shape = problem.shape
    low, high = _bits(problem)
    room = (
        5
        * shape.microbatches
        * max(len(shape.stages_of(device)) for device in range(shape.devices))
        + 2
    )
    prog = np.full((shape.devices, room), -1, np.int64)
    kinds, stages, microbatches = schedule.table.T.astype(np.int64)
    kept = np.full(len(kinds), problem.may_offload) | ~np.isin(kinds, TRANSFERS)
    fused = kinds == BW
    codes = np.where(fused, B, kinds) << high | stages << low | microbatches
    # a W follows the B of its BW
    split = np.repeat(codes, 1 + fused)
    split[np.flatnonzero(np.repeat(fused, 1 + fused))[1::2]] += (W - B) << high
    kept, devices = np.repeat(kept, 1 + fused), np.repeat(schedule.devices, 1 + fused)
    length = np.bincount(devices[kept], minlength=shape.devices)
    codes, ends = split[kept], np.cumsum(length)
    for device, end in enumerate(ends):
        prog[device, : length[device]] = codes[end - length[device] : end]
    return Programs(prog, length.astype(np.int64))


def unpack(problem: Problem, programs: Programs, name: str = "search") -> Schedule:
    """Decode programs to a schedule."""
    codes = [row[:size] for row, size in zip(programs.prog, programs.length, strict=True)]
    flat = np.concatenate(codes)
    low, high = _bits(problem)
    table = np.stack((flat >> high, flat >> low & (1 << high - low) - 1, flat & (1 << low) - 1), 1)
    offsets = np.cumsum([0, *map(len, codes)])
    return Schedule.from_table(problem.shape, table, offsets, meta={"name": name})


class Workspace:
    """The working arrays of evaluations; one per process."""

    def __init__(self, problem: Problem) -> None:
        low, high = _bits(problem)
        codes = len(OpKind) << high
        self.costs = make_costs(problem)
        self.span_counts = problem.objective == "span"
        self.times = make_times(codes, problem.shape.devices)
        self.links = make_links(problem.profile, (low, high), shares_links(problem))
        self.host = make_host(problem, problem.shape.stages << low)

    def evaluate(self, programs: Programs) -> tuple[int, int, int]:
        """(makespan, longest span, sum of ends); `times.NEVER` first if the programs deadlock."""
        return times.measure(  # type: ignore[no-any-return]
            programs.prog, programs.length, self.costs, self.links, self.times
        )

    def slots(self, programs: Programs) -> np.ndarray:
        """Return the slot of each code, or -1; valid until the next evaluation."""
        fill_slots(programs.prog, programs.length, self.times.slot)
        return self.times.slot

    def cost_ns(self, programs: Programs) -> int:
        """Return the cost by the objective; `times.NEVER` if the programs deadlock."""
        makespan, span, _ = self.evaluate(programs)
        return span if self.span_counts else makespan


def _parked(problem: Problem, work: Workspace, random: Random) -> Programs | None:
    """Make a start with the first microbatch parked; None if that is infeasible."""
    stages = problem.shape.stages
    if not problem.may_offload or problem.shape.chunks > 1 or problem.microbatches < 3:
        return None
    passed = min(random.choice((1, 2, 2, 2, 3, 4)), problem.microbatches - 1)
    ones, twos = stages, 0
    if random.random() < 0.6:
        ones, twos = random.randint(stages // 2, stages), random.randint(0, stages // 2)
    spare = [(stage < twos) + (stage < ones) for stage in range(stages)]
    programs = pack(problem, park_first(problem, passed, spare))
    return programs if work.cost_ns(programs) < times.NEVER else None


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
    work = Workspace(problem)
    search = Visits(
        problem, work.cost_ns, pack, unpack, starts, Stop(goal_ns, time_limit, evaluations, stop)
    )
    if not search.starts:
        return None
    core.seed_random(seed)
    places = list(problem.profile.placement)
    alike = places == list(range(problem.profile.devices))

    def anneal(
        start: Programs, best_plan: Programs, best: int, todo: int, hot: float, cold: float, passing: float
    ) -> tuple[int, int]:  # fmt: skip
        return core.anneal(  # type: ignore[no-any-return]
            *start, work.costs, work.links, work.host, work.times, *best_plan, best, todo, hot, cold,
            work.span_counts, search.weight, problem.may_offload, alike, goal_ns, passing,
        )  # fmt: skip

    return search.run(_visits(problem, work, search, seed), anneal, CHUNK_OPS, on_incumbent, others)


def _visits(
    problem: Problem, work: Workspace, search: Visits[Programs], seed: int
) -> Iterator[Visit]:
    random, linked = Random(seed), shares_links(problem)
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
