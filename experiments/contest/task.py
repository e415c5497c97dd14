"""One contest: every rule with and without recomputation, AdaOffload, the reconstructed MILP, and this search
with each treatment alone and with all, under the memory limit of a real device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple

from optpipe_sim.errors import OptPipeError, OutOfMemory
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.solvers.axes import candidate_shapes
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.starts.variants import Way, grouped_variants
from optpipe_sim.study.tasks import CostProfile as Profile
from optpipe_sim.study.tasks import Count, Limit, Row, Seconds
from optpipe_sim.trace import Trace

VERSION = 3

FULL = "full"
# What every activation has in a row: nothing but memory, a part recomputed, all of it; or what the rule chooses.
TREATED = ("none", "selective", FULL)
CHOSEN = "chosen"


class Rule(NamedTuple):
    """A schedule by name: the least of the chunks that it may choose from (None: it has no such
    option) and the most, whether it plans for a limit, and the values of another option of its own."""

    name: str
    least_chunks: int | None = None
    planned: bool = False
    option: str = ""
    values: Sequence[str] = ("",)
    most_chunks: int = 64


# The rules that are not built in groups, each with the schedules that it may choose from.
RULES = {
    "1F1B": (Rule("1f1b"),),
    "1F1B-I": (Rule("1f1b-i", 2),),
    "ZB-H1, ZB-1p, ZB-2p": (Rule("zb-h1"), Rule("zb-1p", planned=True), Rule("zb-2p")),
    "ZB-V": (Rule("zb-v", planned=True),),
    "V-Half, V-Min": (Rule("v-half"), Rule("v-min")),
    "Megatron-LM offloading": (
        Rule("megatron-offload", 1, option="fraction", values=("0.25", "0.5", "0.75", "1")),
    ),
    "AdaOffload": (Rule("adaoffload", 1),),
}
GROUPED = {"GIS": "gis", "PipeOffload": "po"}
# These choose themselves what is recomputed; two of them would take minutes with more chunks.
CHOOSING = {
    "AdaPipe, up to 4 chunks": Rule("adapipe", 1, most_chunks=4),
    "Mario": Rule("mario", 1, option="level"),
    "AdaOffload-R, up to 4 chunks": Rule("adaoffload-r", 1, most_chunks=4),
}
PLANNED_SHARES = (1, 0.75, 0.5)
# At most so long for all variants of GIS or PipeOffload with one treatment, s of CPU time: their usual
# group sizes come first, so that what is left out are sizes that no paper uses.
GROUPED_S = 12.0

# The machine files of its settings.
MACHINES = ("a100-40gb", "a100-80gb", "b200-sxm", "gh200", "h100-sxm")

MILP = "reconstructed MILP, 1 chunk"
ONE = "this search, 1 chunk, offload"
ONE_ALL = "this search, 1 chunk"
ALL = "this search"
SEARCHES = {
    ONE: ("keep", "offload"),
    ONE_ALL: ("keep", "offload", "recompute"),
    "this search, offload": ("keep", "offload"),
    "this search, recompute": ("keep", "recompute"),
    ALL: ("keep", "offload", "recompute"),
}
# How many times the time of a search without an ingredient the MILP has, and the search with all of them.
WHOLE = 3.0


def run(
    profile: Profile,
    microbatches: Count,
    method: Literal[
        "rules",
        "reconstructed MILP, 1 chunk",
        "this search, 1 chunk, offload",
        "this search, 1 chunk",
        "this search, offload",
        "this search, recompute",
        "this search",
    ],
    memory_limit: Limit = None,
    time_limit: Seconds = 8.0,
    seed: int = 0,
    cores: Count = 2,
) -> list[Row]:
    """The row of a method, or one per rule and treatment, at equal memory, chunks and layers.

    ``treated`` says what a rule does with each activation: *none* keeps it (or offloads, where the
    rule does), *selective* recomputes it at the best of the profile's levels short of everything,
    *full* all of it; inside backwards or apart, whichever is faster; *chosen* what the rule
    chooses. For searches it lists what may be chosen per activation. Whoever may choose chunks has
    one per device up to one layer per stage; what says ``1 chunk`` has the profile's one.
    ``schedule`` is the fastest setting that fits; ``found_by`` the engine, for a search.
    `time_limit` is for each search without an ingredient; the MILP and the search over all treatments
    and chunks have `WHOLE` times that. ``seconds`` is what the method had.
    ``limit_bytes`` is per device, ``work_ns`` what the busiest device computes without recomputation, ``copy_ratio`` the copies of
    all activations over the compute of their stages (PipeOffload's k).
    """
    profile = replace(profile, memory_limit=profile.limits(memory_limit))
    if method == "rules":
        rows = [{**row, "seconds": None} for row in _by_rules(profile, microbatches)]
    else:
        options: dict[str, Any] = {"seed": seed, "workers": cores}
        options |= {"engine": "milp"} if method == MILP else {}
        options |= {"chunks": "own" if "1 chunk" in method else "any"}
        seconds = time_limit * (WHOLE if method in (ALL, MILP) else 1)
        treatments = SEARCHES.get(method, ("keep", "offload"))
        rows = [_solved(method, profile, treatments, microbatches, seconds, **options)]
        rows[0]["seconds"] = seconds
    limits = profile.memory_limit
    about = {
        "limit_bytes": None if limits is None else min(limits),
        "work_ns": microbatches * _work_ns(profile),
        "copy_ratio": _copy_ratio(profile),
    }
    return [{**row, **about} for row in rows]


def _by_rules(profile: CostProfile, microbatches: int) -> Iterator[Row]:
    """The rows of the methods that draw nothing at random."""
    problems = list(_problems(profile, microbatches))
    counts = [each.shape.chunks for each in problems if each.shape.placement_name == "loop"]
    levels = _levels([profile, *(each.profile for each in problems)])
    for treated in TREATED:
        ways = ways_of(levels, treated)
        for method, rules in RULES.items():
            names = _named(profile, rules, ways, counts)
            yield _by(method, treated, _best(names, profile, microbatches))
        for method, family in GROUPED.items():
            yield _by(method, treated, _best_grouped(problems, family, ways))
    for method, rule in CHOOSING.items():
        if rule.option == "level":
            rule = rule._replace(values=levels)
        names = _named(profile, (rule,), [None], counts)
        yield _by(method, CHOSEN, _best(names, profile, microbatches))


def _work_ns(profile: CostProfile) -> int:
    """What the busiest device computes for a microbatch, ns."""
    busy = [0] * profile.devices
    for device, cost in zip(profile.placement, profile.stages, strict=True):
        busy[device] += cost.t_f_ns + cost.t_b_ns + cost.t_w_ns
    return max(busy)


def _copy_ratio(profile: CostProfile) -> float | None:
    """The largest k of a stage: the round trip of its activation over its compute; None without a link."""
    if profile.offload is None:
        return None
    return max(
        ((c.t_offload_ns or 0) + (c.t_reload_ns or 0)) / (c.t_f_ns + c.t_b_ns + c.t_w_ns)
        for c in profile.stages
    )


def _levels(profiles: Sequence[CostProfile]) -> list[str]:
    """The levels that stages have in any number of chunks: a half of two layers is none of five."""
    return list(dict.fromkeys(name for profile in profiles for name in profile.level_names))


def _problems(profile: CostProfile, microbatches: int) -> Iterator[Problem]:
    """One per number of chunks and placement that the limit admits."""
    for shaped in candidate_shapes(profile):
        with suppress(OutOfMemory):
            yield make_problem(shaped, microbatches)


def ways_of(levels: Sequence[str], treated: str) -> list[Way | None]:
    """The ways to recompute every activation that a treatment stands for."""
    if treated == "none":
        return [None]
    chosen = [name for name in levels if (name == FULL) == (treated == FULL)]
    return [Way(name, apart) for name in chosen for apart in (False, True)]


def _named(
    profile: CostProfile, rules: Sequence[Rule], ways: Sequence[Way | None], counts: Sequence[int]
) -> Iterator[str]:
    """The names of schedules with every value of their options; `counts`: of chunks."""
    limits = [f"limit={limit}B" for limit in _limits(profile)]
    for rule in rules:
        options = ["", *(limits if rule.planned else ())]
        if rule.least_chunks is not None:
            least, most = rule.least_chunks, rule.most_chunks
            options = [f"chunks={count}" for count in counts if least <= count <= most]
        own = [f"{rule.option}={value}" if value else "" for value in rule.values]
        for option, value, way in product(options, own, ways):
            given = ",".join(each for each in (option, value, str(way or "")) if each)
            yield f"{rule.name}:{given}" if given else rule.name


def _limits(profile: CostProfile) -> Iterator[int]:
    """What a rule may plan for: all the memory there is, or less of what is not static, as planning
    does not count what recomputing takes beside."""
    if profile.memory_limit is None:
        return
    limit, static = min(profile.memory_limit), max(profile.static_bytes)
    for share in PLANNED_SHARES:
        yield static + int(share * (limit - static))


def _best(
    names: Iterator[str], profile: CostProfile, microbatches: int
) -> tuple[str, Trace] | None:
    """The fastest of some schedules that fits, the host's memory included, and its replay; None where
    none does."""
    best: tuple[str, Trace] | None = None
    for name in names:
        with suppress(OptPipeError):  # not for this profile, or beyond the limit
            schedule = build(name, profile, microbatches)
            problem = Problem(profile.for_shape(schedule.shape), microbatches, profile.memory_limit)
            trace = problem.replay(schedule)
            if best is None or trace.makespan_ns < best[1].makespan_ns:
                best = name, trace
    return best


def _best_grouped(
    problems: Sequence[Problem], family: str, ways: Sequence[Way | None]
) -> tuple[str, Trace] | None:
    """The fastest of GIS or PipeOffload that fits, in all groups, chunks and offloaded parts."""
    until = time.process_time() + GROUPED_S
    best: tuple[str, Trace] | None = None

    def best_ns() -> float:
        return float("inf") if best is None else best[1].makespan_ns

    def over() -> bool:
        return time.process_time() > until

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
