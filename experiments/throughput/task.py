"""Published schedules, the best PipeOffload, AdaOffload and this search under one memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from optpipe_sim.errors import NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.sim import simulate, simulate_or_report
from optpipe_sim.solvers.result import SolveResult
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.tasks import CostProfile as Profile
from optpipe_sim.study.tasks import Count, Limit, Row, Seconds
from optpipe_sim.trace import Trace

VERSION = 2

MOST_CHUNKS = 8  # where the stages do not say their layers
# Who takes part, with the names that each may choose from, beside those that depend on the profile.
PUBLISHED = {
    "1F1B": ("1f1b",),
    "ZB-1p": ("zb-1p",),
    "ZB-2p": ("zb-2p",),
    "ZB-V": ("zb-v",),
    "PO-H": ("po-h",),
    "PO-F": ("po-f",),
}
# Beside those above, what else fits without offloading; the automatic ones for the very limit.
PLAIN = (
    "gpipe",
    "1f1b",
    "zb-h1",
    "zb-h2",
    "zb-1p",
    "zb-2p",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
)
SEARCHED = ("this search, 1 chunk", "this search")


def run(
    profile: Profile,
    microbatches: Count,
    memory_limit: Limit = None,
    time_limit: Seconds = 8.0,
    seed: int = 0,
    cores: Count = 2,
) -> list[Row]:
    """A row per method, at equal memory.

    ``schedule`` is the fastest of the method's settings that fits, or, where none does, the one that
    holds least: ``fits`` is then False and time and peak are those without the limit. Every method
    that may choose has 1 to so many chunks as there are layers per stage (`MOST_CHUNKS` where the
    profile does not say). *no offload* is the best schedule that does not offload; *PipeOffload* the
    best of all its groups and offloaded chunks; *AdaOffload* the greedy as reconstructed. *This
    search* has the profile's stages as they are (a quarter of the time), and then chunks and placement
    of its own choice; ``schedule`` is then the engine that found it. ``idle_ns`` is the iteration
    less the busiest device's work; ``reference_ns`` what 1F1B takes without a limit;
    ``machine_bytes`` what a device of the profile's machine has, if it says so.
    """
    limits = profile.limits(memory_limit)
    machine = min(profile.memory_limit) if profile.memory_limit else None
    profile = replace(profile, memory_limit=limits)
    rows = dict(_by_rule(profile, microbatches))
    own, free = time_limit / 4, 3 * time_limit / 4
    one, any_ = SEARCHED
    rows[one] = _solved(
        lambda: solve(profile, microbatches, time_limit=own, seed=seed, workers=cores)
    )
    rows[any_] = _solved(
        lambda: solve(
            profile, microbatches, time_limit=free, seed=seed, workers=cores, chunks="any"
        )
    )
    unbound = simulate(build("1f1b", profile, microbatches), profile, enforce=False)
    common = {"reference_ns": unbound.makespan_ns, "machine_bytes": machine}
    return [{"method": key, **row, **common} for key, row in rows.items()]


@lru_cache(maxsize=2)  # seeds of one setting come one after the other
def _by_rule(profile: Profile, microbatches: int) -> tuple[tuple[str, Row], ...]:
    """The rows of the methods that search nothing."""
    most = "" if profile.memory_limit is None else f":limit={min(profile.memory_limit)}B"
    chunks = chunk_counts(profile)
    several = [v for v in chunks if v > 1]
    methods = {
        **PUBLISHED,
        "1F1B-I": tuple(f"1f1b-i:chunks={v}" for v in several),
        "no offload": (
            *PLAIN,
            *(f"{name}:chunks={v}" for name in ("1f1b-i", "gis", "gis-h") for v in several),
            *(f"{name}{most}" for name in ("zb-1p", "zb-v") if most),
        ),
        "PipeOffload": tuple(pipeoffload_names(profile.devices, chunks)),
        "AdaOffload": tuple(f"adaoffload:chunks={v}" for v in chunks),
    }
    return tuple((key, best_of(names, profile, microbatches)) for key, names in methods.items())


def chunk_counts(profile: CostProfile) -> list[int]:
    """Each number of chunks per device that the profile can be cut into, up to one layer per stage."""
    found = []
    for chunks in range(1, (profile.most_chunks or MOST_CHUNKS) + 1):
        try:
            profile.rechunk(chunks)
        except OptPipeError:  # layers that do not come out
            continue
        found.append(chunks)
    return found


def pipeoffload_names(devices: int, chunk_counts: Sequence[int]) -> Iterator[str]:
    """PipeOffload with every number of chunks, group size and number of offloaded chunks."""
    for chunks in chunk_counts:
        for group in sorted({1, 2, max(1, devices // 4), max(1, devices // 2), devices}):
            for offloaded in range(chunks + 1):
                yield f"po:chunks={chunks},group={group},offloaded={offloaded}"


def best_of(names: Sequence[str], profile: CostProfile, microbatches: int) -> Row:
    """The row of the fastest of some schedules that fits into the profile's limit, or of the one
    that holds least where none of them does."""
    found = []
    for name in names:
        try:
            built = build(name, profile, microbatches)
            trace, reason = simulate_or_report(built, profile)
        except OptPipeError:
            continue  # not for this profile, or not for so little memory
        found.append((name, trace, reason is None))
    if not found:
        return {"fits": False}
    able = [entry for entry in found if entry[2]]
    name, trace, fits = min(able, key=_time) if able else min(found, key=_held)
    return {"fits": fits, "schedule": name, **_row(trace)}


def _time(entry: tuple[str, Trace, bool]) -> int:
    return entry[1].makespan_ns


def _held(entry: tuple[str, Trace, bool]) -> int:
    return max(entry[1].peak_bytes)


def _solved(search: Callable[[], SolveResult]) -> Row:
    try:
        found = search()
    except (NoSolution, OutOfMemory):
        return {"fits": False}
    assert found.trace is not None
    return {
        "fits": True,
        "schedule": found.info.get("found_by", found.engine),
        **_row(found.trace),
        "lower_bound_ns": found.lower_bound_ns,
        "status": found.status,
    }


def _row(trace: Trace) -> Row:
    return {
        "chunks": trace.profile.chunks,
        "makespan_ns": trace.makespan_ns,
        "idle_ns": trace.makespan_ns - max(trace.busy_ns),
        "peak_bytes": max(trace.peak_bytes),
        "offloaded": trace.measures()["offloaded"],
    }
