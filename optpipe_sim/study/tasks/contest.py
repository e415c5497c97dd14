"""Published schedules, the best PipeOffload and OptPipe under one and the same memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ...errors import NoSolution, OptPipeError, OutOfMemory
from ...names import build
from ...profile import CostProfile
from ...sim import simulate, simulate_or_report
from ...solve import SolveResult, solve
from ...solve.shapes import solve_any
from ...trace import Trace
from . import CostProfile as Profile
from . import Count, Limit, Row, Seconds

VERSION = 1

CHUNKS = (1, 2, 3)
# Who takes part, with the names that each may choose from.
PUBLISHED = {
    "1F1B": ("1f1b",),
    "1F1B-I": ("1f1b-i:chunks=2", "1f1b-i:chunks=3"),
    "ZB-1p": ("zb-1p",),
    "ZB-2p": ("zb-2p",),
    "ZB-V": ("zb-v",),
    "PO-H": ("po-h",),
    "PO-F": ("po-f",),
}
# Beside those above, what else fits without offloading; the automatic ones for the very limit.
PLAIN = (
    "gpipe", "zb-h1", "zb-h2", "v-half", "v-min", "dualpipe-v", "gis:chunks=2", "gis:chunks=3",
    "gis-h:chunks=2", "gis-h:chunks=3", *(n for key in list(PUBLISHED)[:5] for n in PUBLISHED[key]),
)  # fmt: skip


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
    holds least: ``fits`` is then False and time and peak are those without the limit. *no offload* is
    the best schedule that does not offload; *PipeOffload* the best of all its settings. *OptPipe*
    has the profile's stages as they are (a third of the time), and then chunks and placement of its
    own choice. ``idle_ns`` is the iteration less the busiest device's work; ``reference_ns`` what
    1F1B takes without a limit; ``machine_bytes`` what a device of the profile's machine has, if it
    says so.
    """
    limits = profile.limits(memory_limit)
    machine = min(profile.memory_limit) if profile.memory_limit else None
    profile = replace(profile, memory_limit=limits)
    most = "" if limits is None else f":limit={min(limits)}B"
    methods = {
        **PUBLISHED,
        "no offload": (*PLAIN, *(f"{name}{most}" for name in ("zb-1p", "zb-v") if most)),
        "PipeOffload": tuple(pipeoffload_names(profile.devices)),
    }
    rows = {key: best_of(names, profile, microbatches) for key, names in methods.items()}
    own, free = time_limit / 3, 2 * time_limit / 3
    rows["OptPipe, 1 chunk"] = _solved(
        lambda: solve(profile, microbatches, time_limit=own, seed=seed, workers=cores)
    )
    whole = profile.rechunk(CHUNKS[-1])
    rows["OptPipe"] = _solved(
        lambda: solve_any(whole, microbatches, time_limit=free, seed=seed, workers=cores)
    )
    unbound = simulate(
        build("1f1b", profile, microbatches), profile, enforce=False, engine="replay"
    )
    common = {"reference_ns": unbound.makespan_ns, "machine_bytes": machine}
    return [{"method": key, **row, **common} for key, row in rows.items()]


def pipeoffload_names(devices: int) -> Iterator[str]:
    """PipeOffload with every number of chunks, group size and number of offloaded chunks."""
    for chunks in CHUNKS:
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
            trace, reason = simulate_or_report(built, profile, engine="replay")
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
