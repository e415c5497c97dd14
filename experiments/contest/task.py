"""One contest: every rule with and without recomputation, AdaOffload, the reconstructed MILP, and this search
with each treatment alone and with all, under the memory limit of a real device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from optpipe_sim.errors import OptPipeError, OutOfMemory
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.sim import simulate
from optpipe_sim.solvers.covers import candidate_shapes
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.variants import Way, grouped_variants
from optpipe_sim.study.tasks import CostProfile as Profile
from optpipe_sim.study.tasks import Count, Limit, Row, Seconds
from optpipe_sim.trace import Trace

VERSION = 1

FULL = "full"
# What an activation may have in a row: nothing but memory, a part recomputed, all of it, or anything.
TREATED = ("none", "selective", FULL)


class Rule(NamedTuple):
    """A schedule by name: the least of the chunks that it may choose from (None: it has no such
    option), and whether it plans for a limit."""

    name: str
    least_chunks: int | None = None
    planned: bool = False


# The rules that are not built in groups, each with the schedules that it may choose from.
RULES = {
    "1F1B": (Rule("1f1b"),),
    "1F1B-I": (Rule("1f1b-i", 2),),
    "ZB-H1, ZB-1p, ZB-2p": (Rule("zb-h1"), Rule("zb-1p", planned=True), Rule("zb-2p")),
    "ZB-V": (Rule("zb-v", planned=True),),
    "V-Half, V-Min": (Rule("v-half"), Rule("v-min")),
    "AdaOffload": (Rule("adaoffload", 1),),
}
GROUPED = {"GIS": "gis", "PipeOffload": "po"}
GROUPED_S = 30.0  # at most for all variants of GIS and PipeOffload at once; what no variant can beat is skipped
MILP = "reconstructed MILP, 1 chunk"
ONE = "this search, 1 chunk"
SEARCHES = {
    "this search, keep": ("keep",),
    "this search, offload": ("keep", "offload"),
    "this search, recompute": ("keep", "recompute"),
    "this search": ("keep", "offload", "recompute"),
}
WHOLE = 2.0  # how many times the time of the others the search over all treatments has


def run(
    profile: Profile,
    microbatches: Count,
    memory_limit: Limit = None,
    time_limit: Seconds = 8.0,
    milp_limit: Seconds = 20.0,
    seed: int = 0,
    cores: Count = 2,
) -> list[Row]:
    """A row per method and treatment, at equal memory, chunks and layers.

    ``treated`` says what a rule does with each activation: *none* keeps it (or offloads, where the
    rule does), *selective* recomputes it at the best of the profile's levels short of everything,
    *full* all of it; inside backwards or apart, whichever is faster. For searches it lists what may
    be chosen per activation. Whoever may choose chunks has one per device up to one layer per
    stage; the MILP and *this search, 1 chunk* have the profile's one. ``schedule`` is
    the fastest setting that fits; ``found_by`` the engine, for a search. `time_limit` is for each
    search, `WHOLE` times that for the one over all treatments; the MILP runs once, with the first seed.
    """
    limits = profile.limits(memory_limit)
    profile = replace(profile, memory_limit=limits)
    rows = [dict(row) for row in _by_rule(profile, microbatches, milp_limit, cores)]
    plain = {"engine": "auto", "seed": seed, "workers": cores}
    rows.append(_solved(ONE, profile, ("keep", "offload"), microbatches, time_limit, **plain))
    for method, treatments in SEARCHES.items():
        seconds = time_limit * (WHOLE if len(treatments) == 3 else 1)
        rows.append(
            _solved(method, profile, treatments, microbatches, seconds, chunks="any", **plain)
        )
    unbound = simulate(build("1f1b", profile, microbatches), profile, enforce=False)
    return [{**row, "reference_ns": unbound.makespan_ns} for row in rows]


@lru_cache(maxsize=2)  # seeds of one setting come one after the other
def _by_rule(
    profile: Profile, microbatches: int, milp_limit: float, cores: int
) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """The rows of the methods that draw nothing at random."""
    problems = list(_problems(profile, microbatches))
    counts = [each.shape.chunks for each in problems if each.shape.placement_name == "loop"]
    rows: list[Row] = []
    for treated in TREATED:
        ways = ways_of(profile, treated)
        for method, rules in RULES.items():
            names = _named(profile, rules, ways, counts)
            rows.append(_by(method, treated, _best(names, profile, microbatches)))
        for method, family in GROUPED.items():
            rows.append(_by(method, treated, _best_grouped(problems, family, ways)))
    rows.append(
        _solved(MILP, profile, ("keep", "offload"), microbatches, milp_limit, engine="milp",
                workers=cores)
    )  # fmt: skip
    return tuple(tuple(row.items()) for row in rows)


def _problems(profile: CostProfile, microbatches: int) -> Iterator[Problem]:
    """One per number of chunks and placement that the limit admits."""
    for shaped in candidate_shapes(profile):
        with suppress(OutOfMemory):
            yield make_problem(shaped, microbatches)


def ways_of(profile: CostProfile, treated: str) -> list[Way | None]:
    """The ways to recompute every activation that a treatment stands for."""
    if treated == "none":
        return [None]
    names = dict.fromkeys(level.name for cost in profile.stages for level in cost.recompute)
    chosen = [name for name in names if (name == FULL) == (treated == FULL)]
    return [Way(name, apart) for name in chosen for apart in (False, True)]


def _named(
    profile: CostProfile, rules: Sequence[Rule], ways: Sequence[Way | None], counts: Sequence[int]
) -> Iterator[str]:
    """The names of schedules with every value of their options; `counts`: of chunks."""
    limits = [f"limit={min(profile.memory_limit)}B"] if profile.memory_limit else []
    for rule in rules:
        options = ["", *(limits if rule.planned else ())]
        if rule.least_chunks is not None:
            options = [f"chunks={count}" for count in counts if count >= rule.least_chunks]
        for option in options:
            for way in ways:
                given = ",".join(each for each in (option, str(way or "")) if each)
                yield f"{rule.name}:{given}" if given else rule.name


def _best(
    names: Iterator[str], profile: CostProfile, microbatches: int
) -> tuple[str, Trace] | None:
    """The fastest of some schedules that fits, and its replay; None where none does."""
    best: tuple[str, Trace] | None = None
    for name in names:
        with suppress(OptPipeError):  # not for this profile, or beyond the limit
            trace = simulate(build(name, profile, microbatches), profile, explain=False)
            if best is None or trace.makespan_ns < best[1].makespan_ns:
                best = name, trace
    return best


def _best_grouped(
    problems: Sequence[Problem], family: str, ways: Sequence[Way | None]
) -> tuple[str, Trace] | None:
    """The fastest of GIS or PipeOffload that fits, in all groups, chunks and offloaded parts."""
    until = time.monotonic() + GROUPED_S
    best: tuple[str, Trace] | None = None

    def best_ns() -> float:
        return float("inf") if best is None else best[1].makespan_ns

    def over() -> bool:
        return time.monotonic() > until

    for at, name, schedule in grouped_variants(problems, best_ns, over, (family,), ways):
        trace = problems[at].keeps(schedule)
        if trace is not None and trace.makespan_ns < best_ns():
            best = name, trace
    return best


def _by(method: str, treated: str, found: tuple[str, Trace] | None) -> Row:
    """The row of a rule."""
    if found is None:
        return _nothing(method, treated)
    return {"method": method, "treated": treated, "fits": True, "schedule": found[0], **_trace(found[1]),
            "found_by": None, "lower_bound_ns": None, "covers": None, "status": None}  # fmt: skip


def _solved(
    method: str,
    profile: CostProfile,
    treatments: Sequence[str],
    microbatches: int,
    seconds: float,
    **options: Any,
) -> Row:
    """The row of what searches; in its `found_by` why there is none."""
    treated = ", ".join(treatments)
    try:
        found = solve(profile, microbatches, time_limit=seconds, treatments=treatments, **options)
    except OptPipeError as error:  # nothing fits, or a MILP too large to be stated
        return {**_nothing(method, treated), "found_by": str(error)}
    assert found.trace is not None
    return {
        "method": method,
        "treated": treated,
        "fits": True,
        "schedule": None,
        **_trace(found.trace),
        "found_by": found.info["found_by"],
        "lower_bound_ns": found.lower_bound_ns,
        "covers": found.info.get("covers"),
        "status": found.status,
    }


def _nothing(method: str, treated: str) -> Row:
    none = ("schedule", "chunks", "makespan_ns", "peak_bytes", "recompute_ns", "offloaded",
            "found_by", "lower_bound_ns", "covers", "status")  # fmt: skip
    return {"method": method, "treated": treated, "fits": False, **dict.fromkeys(none)}


def _trace(trace: Trace) -> Row:
    measures = trace.measures()
    return {
        "chunks": trace.profile.chunks,
        "makespan_ns": trace.makespan_ns,
        "peak_bytes": max(trace.peak_bytes),
        "recompute_ns": measures["recompute_ns"],
        "offloaded": measures["offloaded"],
    }
