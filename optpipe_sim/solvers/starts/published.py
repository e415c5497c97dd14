"""Schedules to start from: the published ones, and simple offloading patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...errors import OptPipeError
from ...schedule import Schedule
from ...schedules import (
    FITTED,
    GROUPED_OFFLOADED,
    INTERLEAVED,
    INTERLEAVED_OFFLOADED,
    MEGATRON_OFFLOAD,
    PLAIN,
    REGISTRY,
    build,
    parse_name,
    those,
)
from ...sim import simulate
from ...units import size_text
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
RECOMPUTING = those(lambda entry: entry.recomputes)  # for the problem's limit
FULL = "full"  # the level of recomputation that every framework has
FRACTIONS = ("0.25", "0.5", "0.75", "1")  # shares of activations that Megatron-LM's rule offloads


def fixed_schedules(problem: Problem) -> Iterator[tuple[str, Schedule]]:
    """Build the published schedules with the problem's chunks and placement, without checking
    whether they fit. `variants` builds them with all values of their options."""
    for level in (None, *levels_of(problem)):
        yield from plain_schedules(problem, level)
    yield from recomputing_schedules(problem)
    if problem.shape.placement_name == "loop":
        names = (*(name for name in LOOP if name != INTERLEAVED), *_pipeoffloads(problem))
        yield from build_those(problem, names)


def plain_schedules(problem: Problem, level: str | None = None) -> Iterator[tuple[str, Schedule]]:
    """Build those of `fixed_schedules` that have no groups; schedules that plan for a limit both as
    published and for the problem's limit.

    Args:
        level: as for `build_those`.
    """
    shape = problem.shape
    names: tuple[str, ...] = ()
    if shape.placement_name == "loop":
        names = (*(ONE_CHUNK if shape.chunks == 1 else ()), INTERLEAVED)
        if problem.may_pair:
            names = (*names, f"{INTERLEAVED}:pairs=yes")
        if problem.may_offload:
            names = (*names, INTERLEAVED_OFFLOADED)
    elif shape.placement_name == "vee":
        names = VEE
    limit = "" if problem.limits is None else f"limit={size_text(min(problem.limits))}"
    planned = [name for name in names if name in FITTED.values()] if limit else []
    variants = [*names, *(f"{name}:{limit}" for name in planned)]
    yield from build_those(problem, variants, level)


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


def interleaved_schedules(
    problem: Problem, level: str | None, usual: bool
) -> Iterator[tuple[str, Schedule]]:
    """Build 1F1B-I in every size of group but the default one, p.

    Args:
        level: as for `build_those`.
        usual: the sizes that divide m, and 2p; otherwise all others that leave no rest, or one of at least p.
    """
    p, m = problem.profile.devices, problem.microbatches
    if problem.shape.chunks == 1 or problem.shape.placement_name != "loop":
        return
    sizes = [size for size in range(p + 1, m + 1) if not 0 < m % size < p]
    names = [
        f"{INTERLEAVED}:group={size}" for size in sizes if (m % size == 0 or size == 2 * p) is usual
    ]
    interleaved = list(names)
    if problem.may_pair:
        names += [f"{name},pairs=yes" for name in interleaved]
    if problem.may_offload:
        names += [name.replace(INTERLEAVED, INTERLEAVED_OFFLOADED) for name in interleaved]
    yield from build_those(problem, names, level)


def recomputing_schedules(
    problem: Problem, best_ns: float = float("inf"), names: Sequence[str] = RECOMPUTING
) -> Iterator[tuple[str, Schedule]]:
    """Build those of `names` that choose what to recompute under the problem's limit; none if 1F1B,
    on which they are built, already takes `best_ns`."""
    limits = problem.limits
    if not (problem.may_recompute and limits and problem.shape.placement_name == "loop"):
        return
    for name in names:
        mixes = REGISTRY[name].ours
        if (mixes and problem.per_stage) or (not mixes and _one_f_one_b_ns(problem) >= best_ns):
            continue
        yield from build_those(problem, [f"{name}:limit={size_text(min(limits))}"])


def megatron_offloads(
    problem: Problem, level: str | None, best_ns: Callable[[], float]
) -> Iterator[tuple[str, Schedule]]:
    """Build Megatron-LM's offloading with each of `FRACTIONS`, on all ranks alike or each keeping
    one activation more than the previous rank; none if 1F1B itself takes `best_ns` or longer."""
    act = max(cost.act_bytes for cost in problem.profile.stages)
    least_ns = _one_f_one_b_ns(problem, level)
    for fraction in FRACTIONS:
        for delta in ("", f",delta={act}B"):
            if least_ns >= best_ns():
                return
            yield from build_those(
                problem, [f"{MEGATRON_OFFLOAD}:fraction={fraction}{delta}"], level
            )


def _one_f_one_b_ns(problem: Problem, level: str | None = None) -> int:
    """Return a bound on schedules that are built on (interleaved) 1F1B, with every activation recomputed at
    `level`: its makespan without a limit, recomputation by separate ops; 0 if unknown."""
    if not only_delays(problem):
        return 0
    name = PLAIN if problem.shape.chunks == 1 else INTERLEAVED
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


def _pipeoffloads(problem: Problem) -> Iterator[str]:
    """Build PipeOffload in groups of more than one microbatch, with any number of chunks offloaded."""
    p, chunks = problem.profile.devices, problem.profile.chunks
    if chunks > 1 and problem.may_offload:
        for group in sorted({2, p // 4, p // 2, p} - {0, 1}):
            for offloaded in range(1, chunks + 1):
                yield f"{GROUPED_OFFLOADED}:group={group},offloaded={offloaded}"
