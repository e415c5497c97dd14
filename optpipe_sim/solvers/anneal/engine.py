"""The engine ``search``: greedy runs, then annealing from the best of them. If activations may be
recomputed, `treated.engine` runs instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ...schedule import Schedule
from ..greedy.search import counted_runs, greedy_search
from ..greedy.waves import wave_search
from ..options import SolveOptions
from ..problem import Problem
from ..reports import Others, Report, no_report
from ..starts import offload_everything
from .host import writes_behind
from .patterns import STEPS, pattern_start
from .search import search, shares_links
from .stand_ins import moved_to, shared_out

# Least and largest share of the job's time for the greedy searches: waves (devices with several
# chunks), then AdaOffload. Within these, each runs for twice its time to the last improvement.
WAVES, GREEDY = (0.1, 0.4), (0.2, 0.3)
AFTER_WAVES = (0.1, 0.2)
RUNS = 1000  # most runs of each, if evaluations are limited instead of time
KEPT = 2  # schedules kept of each, if both run
STAND_IN = 0.4  # share of the time for links of their own first, if links are shared
PATTERNS = (0.4, 0.4)  # the same for the search of a start pattern on shared links


def run(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    options: SolveOptions,
    bound_ns: int = 0,
    others: Others = no_report,
) -> None:
    """Search over waves and over the parameters of AdaOffload, then anneal from the best of these,
    from the incumbent and from simple offloading patterns. If links are shared, this is first done with links
    of their own."""
    if shares_links(problem):
        start, options = _stand_in(problem, report, start, options, bound_ns)
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
    starts = [start] if start is not None else []
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
        goal_ns=bound_ns,
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


def _stand_in(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    options: SolveOptions,
    bound_ns: int,
) -> tuple[Schedule | None, SolveOptions]:
    """Search with links of their own, each as fast as a fair share of the shared one: that evaluates many
    times as many schedules. Returns the best schedule of the problem itself, which may still be
    `start`, and the options for what is left of the time."""
    best, cost_ns = start, 2**62 if start is None else problem.replay(start).cost_ns

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
    run(replace(problem, profile=shared_out(problem.profile)), take, None, own, bound_ns)
    seconds = max(0.01, options.time_limit - (time.monotonic() - began))
    rest = None if evaluations is None or some is None else max(1, evaluations - some)
    return best, replace(options, time_limit=seconds, evaluations=rest)


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
