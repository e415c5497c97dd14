"""The engine ``search`` if activations may be recomputed: greedy and plain search for every level,
then annealing of order and treatments together from the best of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from ...bounds.bounds import naive
from ...errors import OptPipeError
from ...schedule import Schedule
from ...schedules import ADAOFFLOAD
from ...schedules.adaoffload.adaoffload import adaoffload
from ..anneal.search import search, shares_links
from ..anneal.stand_ins import moved_to, others_for, stand_ins
from ..greedy.search import counted_runs, greedy_search
from ..greedy.waves import KNOWN, wave_search
from ..microbatch_order import best_order
from ..options import SolveOptions
from ..problem import Problem
from ..reports import Others, Report, no_report
from ..starts import offload_everything
from ..variants import levels_of
from .games import Game, games, realise
from .sliced import few_in_flight, one_at_a_time, sliced_schedules

# Shares of the time: AdaOffload for several choices of levels, if that has not run before; greedy runs, then
# annealing with fixed levels.
FIRST, GREEDY, PLAIN = 0.15, 0.12, 0.18
MOST = 4  # number of plain problems that are annealed
# starts that are so many times as far above the bound as the best of them are left out
FAR_OFF = 1.5
FIRST_PLAN = 0.7  # share of the time for the first stand-in of a problem with shared links
# of the time, for the order of microbatches that differ: before annealing, and after it
ORDER, LAST_ORDER = 0.4, 0.2
RUNS = 200  # most greedy runs on each, if evaluations are limited instead of time


class Start(NamedTuple):
    """A schedule of a plain problem, and the same as a schedule of the problem itself."""

    cost_ns: int
    game: Game
    plain: Schedule
    schedule: Schedule


def first_starts(
    problem: Problem,
    offer: Callable[[Schedule, str], object] = lambda schedule, name: None,
    over: Callable[[], bool] = lambda: False,
    best_ns: Callable[[], float] = lambda: float("inf"),
) -> list[Start]:
    """Find the best schedules of the best few choices of levels, by AdaOffload and simple patterns.
    The published schedules with levels are in `starts.plain_schedules`.

    Args:
        offer: called with each schedule and its name. `over`: called regularly; tells whether to
            stop. `best_ns`: choices of levels whose work alone reaches this cost are skipped.
    """
    found: list[Start] = []
    if problem.shape.slices > 1:
        for name, schedule in chain(one_at_a_time(problem), few_in_flight(problem)):
            offer(schedule, name)
            if over():
                break
        return []

    def take(game: Game, plain: Schedule, name: str) -> None:
        start = _start(problem, game, plain)
        if start is not None:
            found.append(start)
            offer(start.schedule, name)

    for game in games(problem):
        plain = game.problem
        if found and naive(plain.profile, plain.microbatches) >= best_ns():
            continue
        with suppress(OptPipeError):
            take(
                game,
                adaoffload(
                    plain.profile,
                    plain.microbatches,
                    plain.limits,
                    None,
                    plain.objective,
                    over=over,
                ),
                ADAOFFLOAD,
            )
        if found and over():
            break
        if plain.shape.chunks > 1:
            for schedule in wave_search(plain, over, runs=len(KNOWN), keep=1):
                take(game, schedule, "waves")
        if plain.may_offload:
            for depth in (1, 2, plain.shape.stages):
                if found and over():
                    break
                take(game, offload_everything(plain, depth), "offload everything")
        if over():
            break
    return _different(found)


def run(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    options: SolveOptions,
    bound_ns: int = 0,
    others: Others = no_report,
    chosen: Sequence[Start] = (),
    part: tuple[int, int] = (0, 1),
    brief: bool = False,
) -> None:
    """Search for order and treatments.

    Args:
        chosen: the result of `first_starts`, if known. `part`: the number of this search and the
            total of parallel searches, which share these starts. `brief`: anneal from these as they
            are.
    """
    seconds, evaluations, seed = options.time_limit, options.evaluations, options.seed
    began = time.monotonic()

    def left() -> float:
        return seconds - (time.monotonic() - began)

    known_ns = float("inf") if start is None else problem.replay(start).cost_ns
    if not chosen and not (brief and start is not None):
        chosen = first_starts(
            problem,
            over=lambda: evaluations is None and left() < (1 - FIRST) * seconds,
            best_ns=lambda: known_ns,
        )
    starts = [start] if start is not None else []
    if problem.shape.slices > 1:
        starts += _sliced_starts(problem)
    starts += [entry.schedule for entry in chosen]
    chosen = _promising(chosen, bound_ns)
    first, step = part
    mine = range(first % max(1, len(chosen)), len(chosen), step)
    # where microbatches differ, plain problems have their costs only nearly
    for at in () if brief or not problem.profile.alike else mine:
        entry, share = chosen[at], seconds / MOST
        until = time.monotonic() + share * (GREEDY + PLAIN)
        found = _improve(problem, entry, report, until, share, evaluations, seed + at, bound_ns)
        starts += found
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
            goal_ns=bound_ns,
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
    traces = [trace for each in starts if (trace := problem.keeps(each)) is not None]
    found = []
    for trace in sorted(traces, key=lambda trace: trace.cost_ns)[:MOST]:
        if over():
            break
        found.append(best_order(problem, trace.schedule, over, seed))
        report("incumbent", (found[-1], "order of microbatches"))
    return found


def _sliced_starts(problem: Problem) -> list[Schedule]:
    """The best few of the schedules over slices that fit."""
    built = chain(
        one_at_a_time(problem), few_in_flight(problem), sliced_schedules(problem),
        *(sliced_schedules(problem, level) for level in levels_of(problem)),
    )  # fmt: skip
    traces = [trace for _, each in built if (trace := problem.keeps(each)) is not None]
    return [trace.schedule for trace in sorted(traces, key=lambda trace: trace.cost_ns)[:MOST]]


def _start(problem: Problem, game: Game, plain: Schedule) -> Start | None:
    schedule = realise(problem, game.choice, plain)
    try:
        return Start(problem.replay(schedule).cost_ns, game, plain, schedule)
    except OptPipeError:
        return None


def _different(found: list[Start]) -> list[Start]:
    """Return the best start of each of several choices of levels, the best first."""
    chosen: list[Start] = []
    for entry in sorted(found, key=lambda entry: entry.cost_ns):
        if len(chosen) < MOST and all(entry.game.choice != other.game.choice for other in chosen):
            chosen.append(entry)
    return chosen


def _promising(chosen: Sequence[Start], bound_ns: int) -> list[Start]:
    """Return the starts that are not `FAR_OFF`."""
    most = min((start.cost_ns for start in chosen), default=0) - bound_ns
    return [start for start in chosen if start.cost_ns - bound_ns <= FAR_OFF * most]


def _improve(
    problem: Problem,
    entry: Start,
    report: Report,
    until: float,
    seconds: float,
    evaluations: int | None,
    seed: int,
    bound_ns: int,
) -> list[Schedule]:
    """Improve one choice of levels by greedy runs, then by plain annealing."""
    plain = entry.game.problem
    found: list[Schedule] = []

    def take(schedule: Schedule, method: str) -> None:
        start = _start(problem, entry.game, schedule)
        if start is not None:
            found.append(start.schedule)
            report("incumbent", (start.schedule, f"{method} with fixed levels"))

    counted = evaluations is not None
    greedy_until = until - PLAIN * seconds

    def over() -> bool:
        return not counted and time.monotonic() > greedy_until

    runs = 10**6 if evaluations is None else counted_runs(plain, evaluations, RUNS)
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
            goal_ns=bound_ns,
            time_limit=left,
            evaluations=evaluations // 10 if evaluations is not None else None,
            seed=seed,
        )
        if best is not None:
            take(best, "annealing")
    return found[-2:]
