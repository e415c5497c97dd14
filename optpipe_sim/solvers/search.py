"""The engine ``search``: greedy runs with searched settings, then annealing from the best of them; if
activations may be recomputed, first for fixed levels, then of order and treatments together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from ..schedule import Schedule
from .anneal.annealer import search, shares_links, treats
from .anneal.host import writes_behind
from .anneal.offloading import offload_everything
from .anneal.patterns import STEPS, pattern_start
from .anneal.stand_ins import moved_to, others_for, shared_out, stand_ins
from .microbatch_order import best_order
from .problem import Problem
from .reports import Job, Others, Report, no_report
from .starts.adaoffload_runs import counted_runs, greedy_search
from .starts.fixed_levels import MOST, Start, first_starts, start_of
from .starts.sliced import few_in_flight, one_at_a_time, sliced_schedules
from .starts.variants import levels_of
from .starts.waves import wave_search

# Least and largest share of the job's time for the greedy searches: waves (devices with several
# chunks), then AdaOffload. Within these, each runs for twice its time to the last improvement.
WAVES, GREEDY = (0.1, 0.4), (0.2, 0.3)
AFTER_WAVES = (0.1, 0.2)
RUNS = 1000  # most greedy runs of each kind, if evaluations are limited instead of time
KEPT = 2  # schedules kept of each, if both run
STAND_IN = 0.4  # share of the time for links of their own first, if links are shared
PATTERNS = (0.4, 0.4)  # the same for the search of a start pattern on shared links
# Shares of the time: AdaOffload for several choices of levels, if that has not run before; greedy runs, then
# annealing with fixed levels.
FIRST, FIXED_GREEDY, FIXED_ANNEALING = 0.15, 0.12, 0.18
FIRST_PLAN = 0.7  # share of the time for the first stand-in of a problem with shared links
# of the time, for the order of microbatches that differ: before annealing, and after it
ORDER, LAST_ORDER = 0.4, 0.2
# most greedy runs for each choice of levels, if evaluations are limited instead of time
FIXED_RUNS = 200


def run(job: Job, report: Report, others: Others = no_report) -> None:
    """Search from the best of many starts."""
    if treats(job.problem):
        _with_treatments(job, report, others)
    else:
        _plain(job, report, others)


# -- plain problems: which activations to offload, and the order ---------------------------------------------------


def _plain(job: Job, report: Report, others: Others = no_report) -> None:
    """Search over waves and over the parameters of AdaOffload, then anneal from the best of these,
    from the incumbent and from simple offloading patterns. If links are shared, this is first done with links
    of their own."""
    if shares_links(job.problem):
        job = _stand_in(job, report)
    problem, options = job.problem, job.options
    evaluations, seed = options.evaluations, options.seed
    clock = _Clock(options.time_limit if evaluations is None else float("inf"))
    runs = 10**6 if evaluations is None else counted_runs(problem, evaluations, RUNS)

    def found_by(method: str) -> Callable[[Schedule], None]:
        def found(schedule: Schedule) -> None:
            clock.gained()
            report("incumbent", (schedule, method))

        return found

    perturbed = found_by("perturbed AdaOffload")
    waves: list[Schedule] = []
    if problem.shape.chunks > 1:
        clock.share(*WAVES)
        waves = wave_search(
            problem, clock.over, runs=runs, seed=seed, keep=KEPT, found=found_by("waves")
        )
    clock.share(*(AFTER_WAVES if waves else GREEDY))
    greedy = greedy_search(problem, clock.over, runs=runs, seed=seed, found=perturbed)
    starts = [] if job.start is None else [job.start]
    starts += [*waves, *(greedy[:KEPT] if waves else greedy)]
    if problem.may_offload:
        starts += [offload_everything(problem, depth) for depth in (1, 2, problem.shape.stages)]
    if shares_links(problem):
        steps = STEPS if evaluations is None else min(STEPS, evaluations // 2)
        clock.share(*PATTERNS)
        pattern = pattern_start(problem, starts[0], clock.over, steps=steps, seed=seed)
        if pattern is not None:
            report("incumbent", (pattern, "periodic pattern"))
            starts.append(pattern)
    annealing = "annealing on shared links" if shares_links(problem) else "annealing"
    best = search(
        problem,
        starts,
        goal_ns=job.bound_ns,
        time_limit=clock.left,
        evaluations=evaluations,
        seed=seed,
        on_incumbent=lambda schedule, _: report("incumbent", (schedule, annealing)),
        others=others,
    )
    if best is not None:
        report("incumbent", (best, annealing))
    if writes_behind(problem):
        # if that ended the search, AdaOffload gets the remaining time
        greedy_search(
            problem,
            lambda: clock.left <= 0,
            runs=runs,
            seed=seed + 1,
            found=perturbed,
        )


def _stand_in(job: Job, report: Report) -> Job:
    """Search with links of their own, each as fast as a fair share of the shared one: that evaluates many
    times as many schedules. Returns what is left to do in the rest of the time, from the best schedule of the
    problem itself so far."""
    problem, options, best = job.problem, job.options, job.start
    cost_ns = 2**62 if best is None else problem.replay(best).cost_ns

    def take(kind: str, value: tuple[Schedule, str]) -> None:
        nonlocal best, cost_ns
        assert kind == "incumbent"
        schedule, method = value
        trace = problem.keeps(moved_to(problem, [schedule])[0])
        if trace is not None and trace.cost_ns < cost_ns:
            best, cost_ns = trace.schedule, trace.cost_ns
            report("incumbent", (best, f"{method}, each link of its own"))

    began, evaluations = time.monotonic(), options.evaluations
    some = None if evaluations is None else max(1, int(STAND_IN * evaluations))
    own = replace(options, time_limit=STAND_IN * options.time_limit, evaluations=some)
    apart = replace(problem, profile=shared_out(problem.profile))
    _plain(replace(job, problem=apart, start=None, options=own), take)
    seconds = max(0.01, options.time_limit - (time.monotonic() - began))
    rest = None if evaluations is None or some is None else max(1, evaluations - some)
    return replace(job, start=best, options=replace(options, time_limit=seconds, evaluations=rest))


class _Clock:
    """The clock of a job, and of the current part of it."""

    def __init__(self, seconds: float) -> None:
        self.began, self.seconds = time.monotonic(), seconds

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.monotonic()

    def share(self, least: float, most: float) -> None:
        """Begin a part that may take a share of the time from `least` to `most`, depending on its gains."""
        self.since = self.last = time.monotonic()
        self.least, self.most = least * self.seconds, most * self.seconds

    def gained(self) -> None:
        self.last = time.monotonic()

    def over(self) -> bool:
        took = time.monotonic() - self.since
        return took > min(self.most, max(self.least, 2 * (self.last - self.since)))


# -- problems with treatments ----------------------------------------------------------------------------------------


def _with_treatments(job: Job, report: Report, others: Others) -> None:
    """Search for order and treatments: from fixed levels, each improved by greedy runs and annealing,
    then annealing of both together."""
    problem, options, start = job.problem, job.options, job.start
    seconds, evaluations, seed = options.time_limit, options.evaluations, options.seed
    began = time.monotonic()

    def left() -> float:
        return seconds - (time.monotonic() - began)

    known_ns = float("inf") if start is None else problem.replay(start).cost_ns
    chosen: Sequence[Start] = job.chosen
    if not chosen and not (job.brief and start is not None):
        chosen = first_starts(
            problem,
            over=lambda: evaluations is None and left() < (1 - FIRST) * seconds,
            best_ns=lambda: known_ns,
        )
    starts = [start] if start is not None else []
    if problem.shape.slices > 1:
        starts += _sliced_starts(problem)
    starts += [entry.schedule for entry in chosen]
    first, step = job.part
    mine = range(first % max(1, len(chosen)), len(chosen), step)
    # where microbatches differ, plain problems have their costs only nearly
    for at in () if job.brief or not problem.profile.alike else mine:
        starts += _improve(job, chosen[at], report, seconds / MOST, seed + at)
    if not problem.profile.alike:
        starts += _ordered(problem, starts, report, lambda: left() < (1 - ORDER) * seconds, seed)
    if not shares_links(problem):
        plans = [problem]
    else:
        plans = list(stand_ins(problem))
        first = seed % len(plans)  # each process begins with a different one
        plans = plans[first:] + plans[:first]
    annealed = 1.0 if problem.profile.alike else 1 - LAST_ORDER
    for at, plan in enumerate(plans):
        stands_in = plan is not problem

        def tell(schedule: Schedule, _: int = 0, stands_in: bool = stands_in) -> None:
            method = "annealing with treatments"
            if stands_in:
                schedule, method = (
                    moved_to(problem, [schedule])[0],
                    f"{method}, each link of its own",
                )
            report("incumbent", (schedule, method))

        best = search(
            plan,
            moved_to(plan, starts) if stands_in else starts,
            goal_ns=job.bound_ns,
            time_limit=(left() if at == len(plans) - 1 else FIRST_PLAN * left()) * annealed,
            evaluations=evaluations,
            seed=seed,
            on_incumbent=tell,
            others=others_for(plan, others) if stands_in else others,
        )
        if best is not None:
            tell(best)
            starts.append(best)
    if not problem.profile.alike:
        _ordered(problem, starts[-1:], report, lambda: left() <= 0, seed)


def _ordered(
    problem: Problem,
    starts: Sequence[Schedule],
    report: Report,
    over: Callable[[], bool],
    seed: int,
) -> list[Schedule]:
    """Improve the order of the microbatches of each schedule, the best first."""

    def cost_of(schedule: Schedule) -> float:
        trace = problem.keeps(schedule)
        return float("inf") if trace is None else trace.cost_ns

    traces = [trace for each in starts if (trace := problem.keeps(each)) is not None]
    found = []
    for trace in sorted(traces, key=lambda trace: trace.cost_ns)[:MOST]:
        if over():
            break
        found.append(best_order(problem.profile, trace.schedule, cost_of, over, seed))
        report("incumbent", (found[-1], "order of microbatches"))
    return found


def _sliced_starts(problem: Problem) -> list[Schedule]:
    """The best few of the schedules over slices that fit."""
    built = chain(
        one_at_a_time(problem),
        few_in_flight(problem),
        sliced_schedules(problem),
        *(sliced_schedules(problem, level) for level in levels_of(problem)),
    )
    traces = [trace for _, each in built if (trace := problem.keeps(each)) is not None]
    return [trace.schedule for trace in sorted(traces, key=lambda trace: trace.cost_ns)[:MOST]]


def _improve(job: Job, entry: Start, report: Report, seconds: float, seed: int) -> list[Schedule]:
    """Improve one choice of levels by greedy runs, then by plain annealing."""
    problem, evaluations, plain = job.problem, job.options.evaluations, entry.fixed.problem
    until = time.monotonic() + seconds * (FIXED_GREEDY + FIXED_ANNEALING)
    found: list[Schedule] = []

    def take(schedule: Schedule, method: str) -> None:
        start = start_of(problem, entry.fixed, schedule)
        if start is not None:
            found.append(start.schedule)
            report("incumbent", (start.schedule, f"{method} with fixed levels"))

    counted = evaluations is not None
    greedy_until = until - FIXED_ANNEALING * seconds

    def over() -> bool:
        return not counted and time.monotonic() > greedy_until

    runs = 10**6 if evaluations is None else counted_runs(plain, evaluations, FIXED_RUNS)
    several = plain.shape.chunks > 1
    search_runs: Callable[..., list[Schedule]] = wave_search if several else greedy_search
    orders = search_runs(plain, over, runs=runs, seed=seed, keep=2)
    for order in orders:
        take(order, "waves" if several else "perturbed AdaOffload")
    take(entry.plain, "its start")
    orders.append(entry.plain)
    left = until - time.monotonic()
    if counted or left > 0:
        best = search(
            plain,
            orders,
            goal_ns=job.bound_ns,
            time_limit=left,
            evaluations=evaluations // 10 if evaluations is not None else None,
            seed=seed,
        )
        if best is not None:
            take(best, "annealing")
    return found[-2:]
