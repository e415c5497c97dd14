"""No published schedule that fits is faster than what `solve` returns, whatever its options."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from strategies import SEEDS

from optpipe_sim import build, load_profile, names, simulate, solve
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.errors import Deadlock, InvalidSchedule, NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.profile import CostProfile
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.solvers.axes import candidate_shapes, covers
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race.race import Race
from optpipe_sim.solvers.race.rules import rules_of, run_rules
from optpipe_sim.solvers.treatments import require_alike, restrict
from optpipe_sim.study.compare import compare

SECONDS = 1.5  # enough for every option of these; most end sooner, by a proof


def test_the_example_of_the_help_loses_to_no_published_schedule() -> None:
    """As `optpipe-sim solve --help` has it, with a number of schedules in the place of the clock; what
    a race has is never lost again."""
    from optpipe_sim.cli.commands.search.solve import EXAMPLE
    from optpipe_sim.cli.options.solving import search_options
    from optpipe_sim.cli.parser import parse

    arguments = parse(EXAMPLE.split()[1:])
    # all of these shapes, and more options than are tried here
    assert search_options(arguments).chunks == "any"
    root = Path(__file__).parents[2]
    profile = load_profile(root / arguments.profile)
    m, limit = arguments.microbatches, arguments.memory_limit
    # the fastest that fits of all published schedules on all shapes, whatever their options
    fixed = simulate(build("po:chunks=3,group=8,offloaded=2", profile, m), profile, limit)
    race = Race(make_problem(profile.for_shape(fixed.schedule.shape), m, limit))
    left = iter(range(100))
    rules = [rule for rule in rules_of([race.problem], [race.bound_ns]) if rule.tier == 1]
    run_rules([race], rules, lambda: next(left, None) is None, processes=1)
    assert race.cost_ns <= fixed.cost_ns


def small(seed: int) -> CostProfile:
    """Two or three devices, one to four layers per stage, uneven or not, as many copies as may be."""
    random = Random(seed)
    devices = random.choice((2, 2, 3))
    alike = random.random() < 0.5
    stages = []
    for _ in range(1 if alike else devices):
        act = random.choice((4, 8, 12))
        stages.append(
            {
                "t_f_ns": random.randint(8, 40),
                "t_b_ns": random.randint(8, 40),
                "t_w_ns": random.randint(0, 40),
                "act_bytes": act,
                "w_bytes": random.choice((0, act // 2, act)),
                "layers": random.randint(1, 4),
            }
        )
    if random.random() < 0.4:
        for stage in stages:
            keep = random.randint(1, stage["act_bytes"] // 2)
            level = {"name": "full", "t_ns": random.randint(4, 40), "keep_bytes": keep}
            stage["recompute"] = [level]  # type: ignore[assignment]
    data = {
        "name": f"small-{seed}",
        "devices": devices,
        "stages": stages[0] if alike else stages,
        "t_comm_ns": random.choice((0, 3)),
    }
    if random.random() < 0.8:
        data["offload"] = {
            "t_offload_ns": random.randint(1, 40),
            "t_reload_ns": random.randint(1, 40),
            "copy_engines": random.choice(("separate", "shared")),
        }
    return load_profile(data)


def every_option(profile: CostProfile, microbatches: int, limit: int) -> Iterator[str]:
    """Names of published schedules with each value of their options; some do not fit."""
    for name in kept(profile, microbatches, limit):
        yield name
        if profile.has_levels and not name.startswith("adaoffload"):
            colon = "," if ":" in name else ":"
            yield f"{name}{colon}recompute=full"
            yield f"{name}{colon}recompute=full,apart=yes"


def kept(profile: CostProfile, microbatches: int, limit: int) -> Iterator[str]:
    """Those of them that recompute nothing."""
    most = profile.most_chunks or 1
    for name, entry in REGISTRY.items():
        if name.startswith("adaoffload"):
            yield name
            continue
        counts = range(1, most + 1) if "chunks" in entry.options else [0]
        groups = range(1, microbatches + 1) if "group" in entry.options else [0]
        limits = range(limit // 2, limit + 1, 2) if "limit" in entry.options else [0]
        for chunks in counts:
            offloaded = range(chunks + 1) if "offloaded" in entry.options else [None]
            for group in groups:
                for number in offloaded:
                    for most_bytes in limits:
                        options = [f"chunks={chunks}"] if chunks else []
                        options += [f"group={group}"] if group else []
                        options += [] if number is None else [f"offloaded={number}"]
                        options += [f"limit={most_bytes}B"] if most_bytes else []
                        yield f"{name}:{','.join(options)}" if options else name
        if "limit" in entry.options:
            yield name


def fastest(profile: CostProfile, microbatches: int, limit: int) -> tuple[int, str]:
    """The best of them that fits, by the replay under the limit."""
    best = (2**62, "")
    for name in every_option(profile, microbatches, limit):
        try:
            schedule = build(name, profile, microbatches)
            trace = simulate(schedule, profile, limit)
        except (OptPipeError, Deadlock, OutOfMemory):
            continue
        best = min(best, (trace.makespan_ns, name))
    return best


@given(seed=SEEDS, microbatches=st.integers(1, 6), room=st.integers(0, 100))
@settings(max_examples=6, deadline=None)
def test_any_chunks_are_never_slower_than_a_published_schedule(
    seed: int, microbatches: int, room: int
) -> None:
    profile = small(seed)
    least = min(max(shape.least_limits) for shape in candidate_shapes(profile))
    ample = 2 * microbatches * max(cost.act_bytes for cost in profile.stages)
    limit = least + room * max(0, ample - least) // 100
    found = solve(profile, microbatches, limit, time_limit=SECONDS, workers=1, chunks="any")
    cost, name = fastest(profile, microbatches, limit)
    assert found.objective_ns <= cost, name
    assert found.lower_bound_ns <= min(cost, found.objective_ns)


RESTRICTED: list[dict[str, Any]] = [
    {},
    {"chunks": 2},
    {"placement": "vee"},
    {"per_stage": True},
    {"treatments": ("keep",)},
    {"treatments": ("keep", "offload")},
    {"treatments": ("keep", "recompute"), "chunks": "any"},
    {"engine": "search", "evaluations": 50},
    {"gap": 0.2},
]


@given(
    seed=SEEDS,
    microbatches=st.integers(1, 6),
    room=st.integers(0, 100),
    options=st.sampled_from(RESTRICTED),
    workers=st.integers(1, 2),
)
@settings(max_examples=9, deadline=None)
def test_nor_is_solve_with_any_other_options(
    seed: int, microbatches: int, room: int, options: dict[str, Any], workers: int
) -> None:
    shapes = candidate_shapes(small(seed))
    profile = Random(seed).choice(shapes)
    alone = SolveOptions(**options)
    try:
        profile = restrict(alone.rechunked(profile), alone.treatments)
    except OptPipeError:  # it cannot be divided that way
        reject()
    shaped = candidate_shapes(profile) if options.get("chunks") == "any" else [profile]
    least = min(max(shape.least_limits) for shape in shaped)
    ample = 2 * microbatches * max(cost.act_bytes for cost in profile.stages) * profile.chunks
    limit = least + room * max(0, ample - least) // 100
    found = solve(profile, microbatches, limit, time_limit=SECONDS, workers=workers, **options)
    assert found.info["untried"] == 0
    for name in every_option(profile, microbatches, limit):
        try:
            schedule = build(name, profile, microbatches)
            if schedule.shape not in [shape.shape(microbatches) for shape in shaped]:
                continue
            if alone.per_stage:
                require_alike(schedule)
            trace = simulate(schedule, profile, limit)
        except (OptPipeError, Deadlock, OutOfMemory):
            continue
        assert found.objective_ns <= trace.makespan_ns, name
    assert found.lower_bound_ns <= found.objective_ns


@given(seed=SEEDS, microbatches=st.integers(1, 6), room=st.integers(0, 100))
@settings(max_examples=5, deadline=None)
def test_the_rules_alone_are_the_floor(seed: int, microbatches: int, room: int) -> None:
    """Before any search, whatever is passed over because a bound rules it out."""
    profile = small(seed)
    shaped = candidate_shapes(profile)
    least = min(max(shape.least_limits) for shape in shaped)
    ample = 2 * microbatches * max(cost.act_bytes for cost in profile.stages)
    limit = least + room * max(0, ample - least) // 100
    problems = []
    for shape in shaped:
        with contextlib.suppress(OutOfMemory):
            problems.append(make_problem(shape, microbatches, limit))
    races = [Race(problem) for problem in problems]
    bounds = [
        lower_bound(each.profile, microbatches, each.objective, each.limits).ns for each in problems
    ]
    assert run_rules(races, rules_of(problems, bounds), lambda: False, processes=1) == 0
    cost, name = fastest(profile, microbatches, limit)
    assert min(race.cost_ns for race in races) <= cost, name


def test_shapes_go_to_one_layer_per_stage_and_are_named() -> None:
    data = {"devices": 2, "stages": {"t_f_ns": 60, "t_b_ns": 60, "t_w_ns": 60, "act_bytes": 60}}
    three = load_profile({**data, "stages": {**data["stages"], "layers": 3}})  # type: ignore[dict-item]
    shapes = candidate_shapes(three)
    assert [(each.chunks, each.placement) for each in shapes] == [
        (1, (0, 1)),
        (2, (0, 1, 0, 1)),
        (3, (0, 1, 0, 1, 0, 1)),
        (2, (0, 1, 1, 0)),
    ]
    assert covers(shapes) == "1 to 3 chunks per device in a loop, or 2 in a V"
    assert covers(shapes[:1]) == "1 chunk per device in a loop"
    assert covers([shapes[0], shapes[2]]) == "1 and 3 chunks per device in a loop"
    assert covers(shapes[3:]) == "2 chunks per device in a V"
    own = load_profile({**data, "chunks": 2, "placement": [0, 0, 1, 1]})
    assert covers([own]) == "2 chunks per device in the profile's placement"
    one = load_profile({**data, "stages": {**data["stages"], "layers": 1}})  # type: ignore[dict-item]
    assert [each.chunks for each in candidate_shapes(one)] == [1]
    found = solve(three, 4, 200, time_limit=1, workers=1, chunks="any")
    assert found.info["covers"] == "1 to 3 chunks per device in a loop, or 2 in a V"
    assert found.bound_name.endswith(f"least over {found.info['covers']}")
    own = solve(three, 4, 200, time_limit=1, chunks="own")
    assert own.info["covers"] == "1 chunk per device in a loop"
    assert solve(three, 4, 200, time_limit=1).info["covers"] == found.info["covers"]
    # what is about one shape keeps to the profile's
    assert SolveOptions(placement="vee").chunks == "own"
    assert SolveOptions(engine="cpsat").chunks == "own"
    assert SolveOptions(engine="search", evaluations=9).chunks == "own"


@pytest.mark.parametrize("objective", ["flush", "span"])
def test_options_that_cannot_win_are_not_built(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optpipe_sim.solvers.problem import make_problem
    from optpipe_sim.solvers.starts import variants

    profile = small(3)
    problems = [make_problem(shape, 6, 60, objective) for shape in candidate_shapes(profile)]
    tried = list(variants.grouped_variants(problems, lambda: 2**62, lambda: False))
    assert len({(at, name) for at, name, _ in tried}) == len(tried)
    none = list(variants.grouped_variants(problems, lambda: 0, lambda: False))
    assert (none == []) is (objective == "flush")
    # what is left out deadlocks: every variant by itself fits only if it was tried
    names = {name for _, name, _ in tried}
    for at, problem in enumerate(problems):
        if problem.shape.placement_name != "loop" or not problem.may_offload:
            continue
        for group in range(1, 7):
            for offloaded in range(1, problem.shape.chunks + 1):
                name = f"po:chunks={problem.shape.chunks},group={group},offloaded={offloaded}"
                if name not in names:
                    assert problem.keeps(build(name, problem.profile, 6)) is None, (at, name)


def test_the_best_options_by_name() -> None:
    stages = {
        "t_f_us": 60,
        "t_b_us": 60,
        "t_w_us": 60,
        "act_bytes": 100,
        "w_bytes": 50,
        "layers": 3,
    }
    data = {
        "devices": 3,
        "stages": stages,
        "offload": {"t_offload_us": 40, "t_reload_us": 40},
        "memory_limit_bytes": 260,
    }
    profile = load_profile(data)
    for family in ("gis", "po"):
        costs = []
        for name in every_option(profile, 6, 260):
            if name.startswith(f"{family}:") and "offloaded=0" not in name:
                with contextlib.suppress(OptPipeError):
                    costs.append(simulate(build(name, profile, 6), profile).makespan_ns)
        best = names.build(f"{family}:tuned=yes", profile, 6)
        assert simulate(best, profile).makespan_ns == min(costs)
        assert build(str(best.meta["name"]), profile, 6) == best
    with pytest.raises(InvalidSchedule, match="tuned chooses group itself"):
        names.build("po:tuned=yes,group=2", profile, 6)
    assert names.build("gis:tuned=no,group=2", profile, 6) == build("gis:group=2", profile, 6)
    with pytest.raises(NoSolution, match="gis:tuned=yes: no chunks, groups and offloads fit"):
        names.build("gis:tuned=yes", replace(profile, memory_limit=(30,) * 3), 6)
    rows = compare(profile, 6, ["po:tuned=yes", "gis:tuned=yes", "po", "gis"])
    assert rows[0].schedule.endswith("tuned=yes")
