"""Schedules to start from: the published ones, and simple offloading patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ...errors import OptPipeError
from ...schedule import Schedule
from ...schedules import INTERLEAVED, PLAIN, REGISTRY, build, parse_name, those
from ...schedules.trials import AS_NAMED, CHOOSING, FITTED, STARTS
from ...sim import simulate
from ..problem import Problem
from .variants import both_ways, levels_of, only_delays, recomputed_at

_PATTERNS = {
    name: entry
    for name, entry in REGISTRY.items()
    if not (entry.plans or entry.sliced or entry.by_name)
}
ONE_CHUNK = those(lambda entry: "one" in entry.runs and not entry.offloads, _PATTERNS)
LOOP = those(lambda entry: "loop" in entry.runs, _PATTERNS)
VEE = those(lambda entry: "vee" in entry.runs, _PATTERNS)
FULL = "full"  # the level of recomputation that every framework has


def tried(problem: Problem, tier: int | str, names: Iterable[str] = REGISTRY) -> list[str]:
    """Return those of `names` that run on the problem's shape, with the values of their options of a tier; those come last
    that usually run on another shape, or that need pairs or offloading."""
    where = _where(problem)
    trials = [
        (where not in REGISTRY[name].runs, trial.place, name, trial)
        for name in names
        for trial in REGISTRY[name].tried
        if trial.tier == tier and where in (trial.on or REGISTRY[name].runs)
    ]
    trials.sort(key=lambda found: found[:2])
    return [
        variant
        for *_, name, trial in trials
        if trial.admits(problem)
        for variant in trial.names(name, problem)
    ]


def _where(problem: Problem) -> str:
    """Return where a problem's solutions run, as `Entry.runs` says it."""
    placed = str(problem.shape.placement_name)
    return "one" if placed == "loop" and problem.shape.chunks == 1 else placed


def fixed_schedules(problem: Problem) -> Iterator[tuple[str, Schedule]]:
    """Build the published schedules with the problem's chunks and placement, without checking
    whether they fit. `variants` builds them with all values of their options."""
    for level in (None, *levels_of(problem)):
        yield from plain_schedules(problem, level)
    mixing = those(lambda entry: entry.ours) if problem.per_stage else ()
    choosing = [name for name in REGISTRY if name not in mixing]
    yield from build_those(problem, tried(problem, CHOOSING, choosing))
    if problem.shape.placement_name == "loop":
        names = (*(name for name in LOOP if name != INTERLEAVED), *tried(problem, STARTS))
        yield from build_those(problem, names)


def plain_schedules(problem: Problem, level: str | None = None) -> Iterator[tuple[str, Schedule]]:
    """Build those of `fixed_schedules` as published; schedules that plan for a limit also for the problem's.

    Args:
        level: as for `build_those`.
    """
    yield from build_those(problem, [*tried(problem, AS_NAMED), *tried(problem, FITTED)], level)


def told_schedules(problem: Problem) -> Iterator[tuple[str, Schedule]]:
    """Build what a plan that is run today most likely is: 1F1B, or interleaved 1F1B, and the same with all
    recomputed where a level says so."""
    shape = problem.shape
    if shape.placement_name != "loop" or shape.slices > 1:
        return
    name = INTERLEAVED if shape.chunks > 1 else PLAIN
    yield from build_those(problem, [name])
    if FULL in levels_of(problem):
        yield from build_those(problem, [recomputed_at(name, FULL)])


def tried_schedules(
    problem: Problem, variants: Sequence[str], level: str | None, best_ns: Callable[[], float]
) -> Iterator[tuple[str, Schedule]]:
    """Build variants of one schedule, until what bounds it (`Entry.bound`) takes `best_ns` or longer.

    Args:
        level: as for `build_those`.
    """
    bound = REGISTRY[parse_name(variants[0])[0]].bound.get(_where(problem))
    least_ns = 0 if bound is None else _free_ns(problem, bound, level)
    for variant in variants:
        if least_ns >= best_ns():
            return
        yield from build_those(problem, [variant], level)


def _free_ns(problem: Problem, name: str, level: str | None) -> int:
    """Return a bound on schedules that delay ops of another one, with every activation recomputed at `level`:
    the makespan of that one without a limit, recomputation by separate ops; 0 if unknown."""
    if not only_delays(problem):
        return 0
    if level is not None:
        name = f"{name}:recompute={level},apart=yes"
    for _, schedule in build_those(problem, [name]):
        return simulate(schedule, problem.profile, enforce=False).makespan_ns
    return 0


def build_those(
    problem: Problem, variants: Sequence[str], level: str | None = None
) -> Iterator[tuple[str, Schedule]]:
    """Yield the schedules of these names with the problem's chunks, as far as they are of its shape.

    Args:
        level: the level of recomputation of every activation, inside backwards and by separate ops.
    """
    if level is not None:
        built = build_those(problem, [recomputed_at(variant, level) for variant in variants])
        yield from both_ways(built)
        return
    shape = problem.shape
    for variant in variants:
        name, options = parse_name(variant)
        if "chunks" in REGISTRY[name].options:
            options["chunks"] = shape.chunks
        try:
            schedule = build(name, problem.profile, problem.microbatches, **options)
        except OptPipeError:
            continue
        if schedule.shape == shape:
            yield variant, schedule
