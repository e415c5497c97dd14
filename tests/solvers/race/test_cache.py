"""Solved schedules on disk: what counts as the same problem, what is adapted, what is thrown away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import profiles
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, build
from optpipe_sim.errors import OptPipeError
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.race.adapt import adapt, put_off
from optpipe_sim.solvers.race.cache import Cache, open_cache
from optpipe_sim.solvers.race.identity import carried_bound, distance, identity
from optpipe_sim.solvers.solve import solve


def offloading(devices: int = 4, copy_ms: float = 1, **changes: Any) -> CostProfile:
    offload = {"t_offload_ms": copy_ms, "t_reload_ms": copy_ms}
    return unit_profile(devices, offload=offload, **changes)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("OPTPIPE_SIM_CACHE", str(tmp_path / "cache"))
    return open_cache()


def solved(problem: Problem) -> Schedule:
    found = solve(
        problem.profile, problem.microbatches, problem.limits, "adaoffload", 10, problem.objective
    )
    assert found.schedule is not None
    return found.schedule


def keep(cache: Cache, problem: Problem, seconds: float = 1.0) -> int:
    """Put AdaOffload's schedule into the cache with a bound just below it; its cost."""
    schedule = solved(problem)
    cost = problem.replay(schedule).cost_ns
    cache.put(problem, schedule, cost - 1_000_000, "a proof", seconds)
    return cost


# -- identity -------------------------------------------------------------------------------------


def test_units_and_static_bytes_do_not_matter() -> None:
    one = make_problem(offloading(), 6, 250)
    scaled = offloading().scale(compute=3, comm=3, copy=3, memory=7)
    assert identity(make_problem(scaled, 6, 1750)).data == identity(one).data
    assert identity(make_problem(scaled, 6, 1750)).time_unit_ns == 3 * identity(one).time_unit_ns
    heavy = offloading().map_stages(lambda at, cost: replace(cost, static_bytes=1000 + at))
    limits = [1250 + at for at in range(4)]
    assert identity(make_problem(heavy, 6, limits)).key == identity(one).key


def test_what_cannot_matter_is_left_out() -> None:
    free = identity(make_problem(unit_profile(4), 6))
    assert identity(make_problem(offloading(copy_ms=0.3), 6, 600)).key == free.key
    assert identity(make_problem(unit_profile(4), 6, 599)).key != free.key
    # between 550 and 599 no more and no less fits
    keys = {identity(make_problem(offloading(), 6, limit)).key for limit in (550, 560, 599)}
    assert len(keys) == 1


CHANGES = {
    "microbatches": lambda: make_problem(offloading(), 7, 250),
    "limit": lambda: make_problem(offloading(), 6, 300),
    "one device's limit": lambda: make_problem(offloading(), 6, [250, 250, 250, 300]),
    "objective": lambda: make_problem(offloading(), 6, 250, "span"),
    "copies": lambda: make_problem(offloading(copy_ms=2), 6, 250),
    "no offload": lambda: make_problem(unit_profile(4), 6, 250),
    "messages": lambda: make_problem(offloading(t_comm_ms=0.1), 6, 250),
    "engines": lambda: make_problem(
        unit_profile(4, offload={"t_offload_ms": 1, "t_reload_ms": 1, "copy_engines": "shared"}),
        6,
        250,
    ),
    "groups": lambda: make_problem(
        unit_profile(
            4, offload={"t_offload_ms": 1, "t_reload_ms": 1, "host_link_groups": [[0, 1]]}
        ),
        6,
        250,
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_matters_makes_another_problem(what: str) -> None:
    one, other = identity(make_problem(offloading(), 6, 250)), identity(CHANGES[what]())
    assert one.key != other.key
    assert distance(one, one) == 0
    if one.family == other.family and what != "one device's limit":
        assert distance(one, other) > 0 or what == "no offload"


@settings(max_examples=30, deadline=None)
@given(profiles(max_devices=3, max_chunks=2), st.sampled_from([1, 3, 1000]))
def test_cost_scales_as_the_identity_says(profile: CostProfile, factor: int) -> None:
    scaled = profile.scale(factor, factor, factor)
    one = Problem(profile, 3, profile.memory_limit)
    other = Problem(scaled, 3, profile.memory_limit)
    assert identity(one).data == identity(other).data
    assert identity(other).time_unit_ns == factor * identity(one).time_unit_ns
    schedule = solved(one)
    assert other.replay(schedule).cost_ns == factor * one.replay(schedule).cost_ns
    if "engines" in identity(one).data or profile.offload is None:
        assert one.replay(schedule).makespan_ns % identity(one).time_unit_ns == 0


# -- exact ----------------------------------------------------------------------------------------


def test_the_same_problem_in_other_units_is_found(cache: Cache) -> None:
    cost = keep(cache, make_problem(offloading(), 6, 250), seconds=7)
    scaled = make_problem(offloading().scale(3, 3, 3), 6, 250)
    entry = cache.get(scaled)
    assert entry is not None
    assert scaled.replay(entry.schedule).cost_ns == 3 * cost
    assert entry.bound * entry.problem.time_unit_ns == 3 * (cost - 1_000_000)
    assert (entry.bound_name, entry.seconds) == ("a proof", 7)
    assert cache.get(make_problem(offloading(), 6, 300)) is None


def test_better_schedules_and_bounds_stay(cache: Cache) -> None:
    problem = make_problem(offloading(), 6, 400)
    good, bad = solved(problem), build("1f1b", offloading(), 6)
    costs = [problem.replay(schedule).cost_ns for schedule in (good, bad)]
    assert costs[0] < costs[1]
    cache.put(problem, good, 5_000_000, "weak", 1)
    cache.put(problem, bad, 9_000_000, "strong", 0.5)
    entry = cache.get(problem)
    assert entry is not None
    assert problem.replay(entry.schedule).cost_ns == costs[0]
    assert (entry.bound, entry.bound_name, entry.seconds) == (9, "strong", 1)


def test_solve_starts_from_what_it_found_before(cache: Cache) -> None:
    first = solve(offloading(), 6, 250, time_limit=2, cache=True)
    again = solve(offloading(), 6, 250, "adaoffload", cache=True)
    assert again.objective_ns == first.objective_ns
    assert again.lower_bound_ns == first.lower_bound_ns
    assert again.info["found_by"] == "cache"
    assert solve(offloading(), 6, 250, "adaoffload").info["found_by"] == "adaoffload"
    assert cache.info()["problems"] == 1


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPTPIPE_SIM_CACHE", str(tmp_path / "file" / "cache"))
    result = solve(offloading(), 6, 250, "adaoffload", cache=True)
    assert result.schedule is not None
    assert open_cache().info()["problems"] == 0


# -- damage, size ---------------------------------------------------------------------------------


def damage_none(path: Path) -> None:
    path.write_bytes(b"")


def damage_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_head(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"bound": ', b'"bound": 9'))


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("damage", [damage_none, damage_middle, damage_head, damage_end])
def test_a_damaged_entry_is_ignored_and_rebuilt(damage: Any, cache: Cache) -> None:
    problem = make_problem(offloading(), 6, 250)
    keep(cache, problem)
    (path,) = cache.folder.rglob("*.entry")
    before = path.read_bytes()
    damage(path)
    assert path.read_bytes() != before
    assert cache.get(problem) is None
    near = make_problem(offloading(), 6, 300)
    assert cache.near(near) == []
    assert cache.bound_ns(make_problem(offloading(), 7, 250)) == (0, "")
    keep(cache, problem)
    assert cache.get(problem) is not None


def test_a_bound_above_what_fits_is_not_believed(cache: Cache) -> None:
    problem = make_problem(offloading(), 6, 250)
    schedule = solved(problem)
    cache.put(problem, schedule, problem.replay(schedule).cost_ns + 1_000_000, "wrong", 1)
    assert cache.get(problem) is None
    result = solve(offloading(), 6, 250, "adaoffload", cache=True)
    assert result.lower_bound_ns <= result.objective_ns


def test_the_oldest_goes_first(cache: Cache) -> None:
    problems = [make_problem(offloading(), m, 250) for m in (5, 6, 7)]
    for age, problem in zip((300, 200, 100), problems, strict=True):
        keep(cache, problem)
        newest = max(cache.folder.rglob("*.entry"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (time.time() - age,) * 2)
    assert cache.get(problems[0]) is not None  # used: now the youngest
    size = cache.info()["bytes"]
    leftover = next(cache.folder.iterdir()) / ".x.entry.abc"
    leftover.write_bytes(b"left by a writer that died")
    os.utime(leftover, (time.time() - 7200,) * 2)
    small = replace(cache, most_bytes=size)
    keep(small, make_problem(offloading(), 4, 250))
    assert small.get(problems[1]) is None
    assert small.get(problems[0]) is not None
    assert not leftover.exists()
    assert small.info()["bytes"] <= size
    assert small.clear() == small.info()["problems"] + 3
    assert cache.info()["problems"] == 0


def test_several_processes_may_write_at_once(cache: Cache) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from test_cache import *;"
        "[keep(open_cache(), make_problem(offloading(), m, 250), m) for m in (4, 5) * 3]"
    )
    here = str(Path(__file__).parent)
    runs = [subprocess.Popen([sys.executable, "-c", code, here]) for _ in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    for m in (4, 5):
        assert cache.get(make_problem(offloading(), m, 250)) is not None
    assert cache.info()["problems"] == 2
    assert len(list(cache.folder.rglob("*"))) == 3  # two entries in the folder of their family


# -- near -----------------------------------------------------------------------------------------


def test_bounds_carry_to_harder_problems_only() -> None:
    def bound(of: Problem, to: Problem) -> int:
        return carried_bound(identity(of), 20, identity(to))

    base = make_problem(offloading(), 6, 250)
    assert bound(base, make_problem(offloading(), 7, 250)) == 20_000_000
    assert bound(base, make_problem(offloading(), 6, 200)) == 20_000_000
    assert bound(base, make_problem(offloading(), 5, 250)) == 0
    assert bound(base, make_problem(offloading(), 6, 300)) == 0
    assert bound(base, make_problem(offloading(copy_ms=2), 6, 250)) == 0
    free = make_problem(unit_profile(4), 6)
    assert bound(free, make_problem(offloading(copy_ms=0.7), 6, 200)) == 20_000_000
    assert bound(free, make_problem(unit_profile(4).scale(2), 6)) == 40_000_000
    assert bound(free, make_problem(unit_profile(4, t_comm_ms=1), 6)) == 0


@settings(max_examples=15, deadline=None)
@given(profiles(max_devices=3, max_chunks=2), st.integers(2, 5), st.integers(2, 5))
def test_adapted_schedules_are_schedules_of_the_problem(
    profile: CostProfile, old: int, new: int
) -> None:
    schedule = solved(Problem(profile, old, profile.memory_limit))
    problem = Problem(profile, new, profile.memory_limit)
    adapted = adapt(problem, schedule)
    assert adapted is not None or (old != new and profile.memory_limit is not None)
    if adapted is not None:
        assert adapted.shape == problem.shape
        assert problem.replay(adapted).fits


def test_more_microbatches_are_spliced_into_the_steady_part() -> None:
    few, many = (make_problem(unit_profile(4), m, 400) for m in (12, 40))
    schedule = build("zb-h1", unit_profile(4), 12)
    adapted = adapt(many, schedule, seconds=5)
    assert adapted is not None
    # each further microbatch costs F + B + W
    assert many.replay(adapted).cost_ns == few.replay(schedule).cost_ns + 28 * 3_000_000
    back = adapt(few, adapted, seconds=5)
    assert back is not None
    assert few.replay(back).cost_ns == few.replay(schedule).cost_ns


def test_a_lower_limit_is_kept_by_delaying_and_offloading() -> None:
    schedule = build("zb-h1", offloading(copy_ms=0.5), 8)
    for limit in (300, 200):
        problem = make_problem(offloading(copy_ms=0.5), 8, limit)
        with pytest.raises(OptPipeError):
            problem.replay(schedule)
        found = put_off(problem, schedule)
        assert max(problem.replay(found).peak_bytes) <= limit
    without = make_problem(unit_profile(4), 8, 300)
    adapted = adapt(without, found)
    assert adapted is not None
    assert without.replay(adapted).offloaded == 0


def test_near_problems_give_a_start(cache: Cache) -> None:
    keep(cache, make_problem(offloading(), 12, 300))
    keep(cache, make_problem(offloading(devices=3), 12, 300))
    target = make_problem(offloading(copy_ms=1.01), 13, 300)
    (entry,) = cache.near(target)
    assert entry.problem.data["m"] == 12
    result = solve(offloading(copy_ms=1.01), 13, 300, "adaoffload", cache=True)
    cold = solve(offloading(copy_ms=1.01), 13, 300, "adaoffload")
    assert result.objective_ns <= cold.objective_ns
