"""Compile the engines, once per machine and outside of their time limit.

Numba caches compiled code on disk; from the second run on this takes a fraction of a second.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import product

from ...bounds.device.device_bound import layered_bound
from ...bounds.device.problem import one_device
from ...compiled import njit, on_disk
from ...processes.workers import run_all
from ...profile_io import load_profile
from ...schedules.adaoffload.adaoffload import adaoffload
from ...schedules.copies import with_copies
from ...schedules.gis import grouped
from ...schedules.v_shape import v_half
from ...schedules.zb_auto import zb_1p
from ...schedules.zb_v import zb_v
from ...sim import simulate
from ...sim.replay import run_events
from ..anneal import loop
from ..anneal.annealer import search, shares_links
from ..anneal.offloading import offload_everything
from ..anneal.patterns import pattern_start
from ..problem import Problem, make_problem
from ..reports import no_report
from ..starts.adaoffload_runs import greedy_search
from ..starts.waves import wave_search
from .bounds import best_bound

# to read what another process has compiled takes less; to compile any part takes more
READING_S = 10.0
# Numba makes millions of objects that stay: Python's collector, which looks through all of them again and again,
# took a seventh of the time (34 s of the CPU for the search, 29 with this threshold, and 40 MiB more).
OBJECTS = 200_000


def compile_engines(problem: Problem, on_wait: Callable[[], None] = no_report) -> float:
    """Compile everything that `problem` needs by running it on a tiny problem of the same kind;
    return how long that took, in s (0 where all of it had been compiled, and was only read).

    Args:
        on_wait: called first if nothing is compiled yet, as it then takes some 20 s on two cores.
    """
    kind = (
        problem.shape.chunks > 1,
        shares_links(problem),
        problem.may_recompute,
        problem.may_pair,
    )
    began = time.monotonic()
    compile_first(on_wait, *kind)
    _compile(*kind)
    took = time.monotonic() - began
    return took if took >= READING_S else 0.0


def compile_first(
    on_wait: Callable[[], None] = no_report,
    chunks: bool = False,
    linked: bool = False,
    levels: bool = True,
    pairs: bool = False,
) -> float:
    """Compile what a kind of problem needs if nothing has been compiled on this machine yet; return how long
    that took, in s."""
    if _kept():
        return 0.0
    began = time.monotonic()
    on_wait()
    run_all(PARTS, chunks, linked, levels, pairs)
    return time.monotonic() - began


def _kept() -> bool:
    """Whether the current version of the search has been compiled on this machine."""
    return njit is None or on_disk(loop.anneal)  # without njit compilation is switched off


@cache
def _compile(chunks: bool, linked: bool, levels: bool, pairs: bool) -> None:
    for part in PARTS:
        part(chunks, linked, levels, pairs)


def _tiny(chunks: bool, linked: bool, levels: bool = False, pairs: bool = False) -> Problem:
    stage = {"t_f_ns": 20, "t_b_ns": 20, "t_w_ns": 20, "act_bytes": 2, "w_bytes": 1}
    recompute = [{"name": "full", "t_ns": 20, "keep_bytes": 1}] if levels else []
    profile = load_profile(
        {
            "devices": 2,
            "chunks": 1 + chunks,
            "placement": "loop",
            "stages": {**stage, "recompute": recompute},
            "pair_hidden_ns": 10 * pairs,
            "offload": {
                "t_offload_ns": 10,
                "t_reload_ns": 10,
                "host_link_groups": [[0, 1]] if linked else [],
            },
        }
    )
    return make_problem(profile, 3, 12, "flush")


@contextmanager
def _few_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_few_collections()
def _greedy(chunks: bool, linked: bool, levels: bool, _: bool) -> None:
    problem = _tiny(chunks, linked, levels)
    adaoffload(problem.profile, 3, problem.limits)
    with_copies(grouped(problem.profile, 3, 1), problem.profile, 1)
    if chunks:
        wave_search(problem, lambda: False, runs=2)
    greedy_search(problem, lambda: False, runs=2)


@_few_collections()
def _search(_: bool, linked: bool, __: bool, pairs: bool) -> None:
    # the search is the same for several chunks and for levels; links of their own stand in for shared ones
    kinds = {(False, False), (linked, False), (False, pairs)}
    for shared, paired in sorted(kinds):
        problem = _tiny(False, shared, pairs=paired)
        start = offload_everything(problem, 1)
        if shared:
            pattern_start(problem, start, lambda: False, steps=1)
        search(problem, [start], evaluations=2)


@_few_collections()
def _rules(*_: bool) -> None:
    profile = _tiny(False, False).profile
    for rule in (zb_1p, zb_v, v_half):
        rule(profile, 3)


@_few_collections()
def _bounds(chunks: bool, linked: bool, levels: bool, _: bool) -> None:
    problem = _tiny(chunks, linked, levels)
    best_bound(problem, 1.0)
    assert problem.limits is not None
    layered_bound(one_device(problem.profile, 3, 0, "flush", problem.limits), width=1)


@_few_collections()
def _replay(_: bool, linked: bool, levels: bool, __: bool) -> None:
    problem = _tiny(False, linked, levels)  # the same for several chunks
    schedule = offload_everything(problem, 1)
    simulate(schedule, problem.profile, enforce=False)  # a longest path
    run_events(schedule, problem.profile, problem.limits)


def _others(*kind: bool) -> None:
    for part in (_greedy, _bounds, _replay, _rules):
        part(*kind)


# A process for each, which take about as long. With one for each of the others these would share two cores with the search
# at first, and leave one idle in the end.
PARTS = (_search, _others)
KINDS = [
    *product((False, True), (False, True), (False, True), (False,)),
    (False, False, False, True),
]


def compile_all() -> None:
    """Compile everything for every kind of problem, with a process for each part."""
    # one process for all kinds: what they have in common is not kept on its own (`compiled.part`)
    run_all([partial(_every_kind, part) for part in PARTS])
    for kind in KINDS:  # reads it; or fails, as its process did
        _compile(*kind)


def _every_kind(part: Callable[[bool, bool, bool, bool], None]) -> None:
    for kind in KINDS:
        part(*kind)


if __name__ == "__main__":  # make compile
    compile_all()
