"""Solved schedules on disk: what counts as the same problem, what is adapted, what is thrown away."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import time
import zlib
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import profiles
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, build, load_profile
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.race.adapt import adapt
from optpipe_sim.solvers.race.cache import Cache, open_cache, recall
from optpipe_sim.solvers.race.identity import carried_bound, distance, identity
from optpipe_sim.solvers.race.race import Race
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
        problem.profile,
        problem.microbatches,
        problem.limits,
        "adaoffload",
        10,
        problem.objective,
        chunks="own",
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
    first = solve(offloading(), 6, 250, time_limit=2, cache=True, chunks="own")
    again = solve(offloading(), 6, 250, "adaoffload", cache=True, chunks="own")
    assert again.objective_ns == first.objective_ns
    assert again.lower_bound_ns == first.lower_bound_ns
    assert again.info["found_by"] == "cache"
    assert solve(offloading(), 6, 250, "adaoffload", chunks="own").info["found_by"] == "adaoffload"
    assert cache.info()["problems"] == 1


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPTPIPE_SIM_CACHE", str(tmp_path / "file" / "cache"))
    result = solve(offloading(), 6, 250, "adaoffload", cache=True, chunks="own")
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
    result = solve(offloading(), 6, 250, "adaoffload", cache=True, chunks="own")
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
    def write() -> None:
        for m in (4, 5) * 3:
            keep(open_cache(), make_problem(offloading(), m, 250), m)

    runs = [get_context("fork").Process(target=write) for _ in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    assert [run.exitcode for run in runs] == [0, 0, 0]
    for m in (4, 5):
        assert cache.get(make_problem(offloading(), m, 250)) is not None
    assert cache.info()["problems"] == 2
    assert len(list(cache.folder.rglob("*"))) == 3  # two entries in the folder of their family


# -- entries that are no help -----------------------------------------------------------------

SELECTIVE = {"name": "sel", "t_ms": 0.2, "keep_bytes": 40}
COPIES = {"t_offload_ms": 1, "t_reload_ms": 1}


def with_stages(stage: dict[str, Any], **changes: Any) -> CostProfile:
    """The unit profile with further keys of its stages."""
    like = unit_profile(4).stages[0]
    own = {
        "t_f_ms": 1,
        "t_b_ms": 1,
        "t_w_ms": 1,
        "act_bytes": like.act_bytes,
        "w_bytes": like.w_bytes,
    }
    return load_profile({"devices": 4, "stages": {**own, **stage}, **changes})


# problems whose solutions are something else, all but "chunks", "vee" and "slices" of one family
KINDS: dict[str, Any] = {
    "plain": lambda m: make_problem(unit_profile(4), m, 200),
    "levels": lambda m: make_problem(with_stages({"recompute": [SELECTIVE]}), m, 200),
    "other levels": lambda m: make_problem(
        with_stages({"recompute": [{**SELECTIVE, "name": "full", "t_ms": 1, "keep_bytes": 4}]}),
        m,
        200,
    ),
    "levels, alike": lambda m: make_problem(
        with_stages({"recompute": [SELECTIVE]}), m, 200, per_stage=True
    ),
    "copies": lambda m: make_problem(unit_profile(4, offload=COPIES), m, 200),
    "copies and levels": lambda m: make_problem(
        with_stages({"recompute": [SELECTIVE]}, offload=COPIES), m, 150
    ),
    "shared links": lambda m: make_problem(
        unit_profile(4, offload={**COPIES, "host_link_groups": [[0, 1], [2, 3]]}), m, 200
    ),
    "little pinned memory": lambda m: make_problem(
        unit_profile(4, offload={**COPIES, "host_limit_bytes": 300}), m, 300
    ),
    "blocking": lambda m: make_problem(
        unit_profile(4, links="blocking", t_comm_ms=0.1), m, 200
    ),
    "sizes": lambda m: make_problem(with_stages({"act_bytes": 190, "w_bytes": 7}), m, 200),
    "fused": lambda m: make_problem(
        unit_profile(4).map_stages(
            lambda _, cost: replace(cost, t_b_ns=2_000_000, t_w_ns=0, w_bytes=0, splits=False)
        ),
        m,
        300,
    ),
    "no limit": lambda m: make_problem(unit_profile(4), m),
    "chunks": lambda m: make_problem(unit_profile(4).rechunk(2), m, 200),
    "vee": lambda m: make_problem(unit_profile(4).rechunk(2, "vee"), m, 200),
    "slices": lambda m: make_problem(unit_profile(4).with_slices(2), m, 200),
}  # fmt: skip


def answer(problem: Problem, engine: str = "search", **options: Any) -> tuple[int, str]:
    """The cost and the status of a short, deterministic solve."""
    if engine == "search":
        options = {"workers": 1, "evaluations": 300, "published": False, **options}
    found = solve(
        problem.profile, problem.microbatches, problem.limits, engine,
        per_stage=problem.per_stage, **options, chunks="own")  # fmt: skip
    return found.objective_ns, found.status


@functools.cache
def cold(kind: str, m: int) -> tuple[int, str]:
    """The answer without a cache, which several tests compare with."""
    return answer(KINDS[kind](m))


def floor(problem: Problem) -> int:
    """What a solve with a cache never exceeds. (A random search from a better start may end worse.)"""
    return answer(problem, "search" if problem.shape.slices > 1 else "adaoffload")[0]


def recalled(problem: Problem, cache: Cache) -> Race:
    """A race that has used the cache; whatever it took from there is checked."""
    race = Race(problem)
    recall(race, cache)
    if race.best is not None:
        assert problem.replay(race.best).cost_ns == race.cost_ns >= race.bound_ns
    return race


def fill(cache: Cache, problem: Problem, **options: Any) -> Path:
    """Solve a problem into the cache; the file of its entry."""
    answer(problem, cache=True, **options)
    path: Path = cache._path(identity(problem))
    assert path.exists()
    return path


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cache, dict[str, Path]]:
    """A cache with an entry of each kind of problems, and their files."""
    cache = open_cache(tmp_path_factory.mktemp("every kind"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTPIPE_SIM_CACHE", str(cache.folder))
        return cache, {
            kind: fill(cache, KINDS[kind](4 + number % 3)) for number, kind in enumerate(KINDS)
        }


def forge(path: Path, head: Any, schedule: bytes) -> None:
    """Write an entry that passes for one of this package, whatever it holds."""
    line = head if isinstance(head, bytes) else json.dumps(head).encode()
    body = line + b"\n" + schedule
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of an entry, and its schedule."""
    _, _, body = path.read_bytes().partition(b"\n")
    line, _, schedule = body.partition(b"\n")
    return json.loads(line), schedule


def test_the_same_costs_with_levels_are_solved_before(cache: Cache) -> None:
    fill(cache, KINDS["levels"](8), published=True)
    for kind, m in (("plain", 16), ("plain", 8), ("levels", 16), ("levels", 5)):
        problem = KINDS[kind](m)
        assert answer(problem, cache=True)[0] <= floor(problem), (kind, m)


@pytest.mark.parametrize("kind", KINDS)
def test_entries_of_every_other_kind_only_help(
    kind: str, cache: Cache, entries: tuple[Cache, dict[str, Path]]
) -> None:
    shutil.copytree(entries[0].folder, cache.folder)
    (cache.folder / entries[1][kind].relative_to(entries[0].folder)).unlink()
    for m in (3, 9):
        recalled(KINDS[kind](m), cache)
    problem = KINDS[kind](5)
    assert answer(problem, cache=True)[0] <= floor(problem)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_of_another_problem_is_no_entry(
    kind: str, cache: Cache, entries: tuple[Cache, dict[str, Path]]
) -> None:
    """As if written by a version with another notion of what the same problem is."""
    near, file = KINDS[kind](7), entries[1][kind]
    head, _ = parts(file)
    problem = KINDS[kind](head["problem"]["m"])
    own = cache._path(identity(problem))
    for other in entries[1].values():
        forge(own, {**head, "bound": 1}, parts(other)[1])
        found = cache.get(problem)
        assert found is None or problem.replay(found.schedule).fits
        recalled(problem, cache)
        recalled(near, cache)


FORGED: dict[str, Any] = {
    "no mapping": lambda head: [head],
    "no JSON": lambda head: b"{",
    "deep": lambda head: b"[" * 100_000,
    "a problem of nothing": lambda head: {**head, "problem": {}},
    "a problem of another kind": lambda head: {**head, "problem": [1, 2]},
    "times of other stages": lambda head: {
        **head,
        "problem": {**head["problem"], "times": {"f": [1], "o": [0]}},
    },
    "no microbatches": lambda head: {**head, "problem": {**head["problem"], "m": 0}},
    "a bound in words": lambda head: {**head, "bound": "high"},
    "a negative bound": lambda head: {**head, "bound": -5},
    "a name that is none": lambda head: {**head, "bound_name": None},
    "seconds in words": lambda head: {**head, "seconds": "a few"},
    "an older format": lambda head: {**head, "format": [0, "0.1"]},
    "a future version": lambda head: {**head, "format": [head["format"][0], "99.0"]},
    "a future format": lambda head: {**head, "format": {"number": 2}},
    "nothing else": lambda head: {"format": head["format"]},
}
SCHEDULES = [b"", b"x", zlib.compress(b"[]"), zlib.compress(b"{")]


@pytest.mark.parametrize("what", FORGED)
def test_a_header_that_cannot_be_is_no_entry(
    what: str, cache: Cache, entries: tuple[Cache, dict[str, Path]]
) -> None:
    head, schedule = parts(entries[1]["levels"])
    problem, near = KINDS["levels"](head["problem"]["m"]), KINDS["plain"](7)
    assert identity(problem).data == head["problem"]
    forge(cache._path(identity(problem)), FORGED[what](head), schedule)
    assert cache.get(problem) is None
    assert cache.near(near) == []
    assert cache.bound_ns(near) == (0, "")
    for each in (problem, near):
        race = recalled(each, cache)
        assert (race.best, race.bound_ns) == (None, 0)
    assert answer(problem, cache=True) == cold("levels", problem.microbatches)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_is_none_is_no_entry(
    schedule: bytes, cache: Cache, entries: tuple[Cache, dict[str, Path]]
) -> None:
    head, _ = parts(entries[1]["levels"])
    problem, near = KINDS["levels"](head["problem"]["m"]), KINDS["levels"](4)
    forge(cache._path(identity(problem)), head, schedule)
    assert cache.get(problem) is None
    assert cache.near(near) == []
    assert recalled(problem, cache).best is recalled(near, cache).best is None
    assert answer(problem, cache=True) == cold("levels", problem.microbatches)


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a link to itself", "a file as folder"])
def test_what_is_no_file_is_no_entry(kind: str, cache: Cache) -> None:
    problem = KINDS["levels"](4)
    path = cache._path(identity(problem))
    if kind == "a file as folder":
        cache.folder.mkdir(parents=True)
        path.parent.write_text("")
    else:
        path.parent.mkdir(parents=True)
        {
            "a folder": path.mkdir,
            "a pipe": lambda: os.mkfifo(path),
            "a link to itself": lambda: path.symlink_to(path),
        }[kind]()
    assert answer(problem, cache=True) == cold("levels", 4)


def test_a_full_disk_ends_no_solve(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    problem = KINDS["levels"](4)
    monkeypatch.setattr("optpipe_sim.files._write_beside", full)
    assert answer(problem, cache=True) == cold("levels", 4)
    assert cache.info()["problems"] == 0


def test_an_error_of_the_solver_is_not_hidden(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    problem = KINDS["levels"](4)
    fill(cache, problem)
    monkeypatch.setattr("optpipe_sim.solvers.race.cache.identity", broken)
    with pytest.raises(ZeroDivisionError):
        answer(problem, cache=True)


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


def test_transfers_are_dropped_where_nothing_can_be_offloaded() -> None:
    offloads = solved(make_problem(offloading(copy_ms=0.5), 8, 300))
    assert offloads.is_transfer.any()
    without = make_problem(unit_profile(4), 8)
    adapted = adapt(without, offloads)
    assert adapted is not None
    assert without.replay(adapted).offloaded == 0


def test_near_problems_give_a_start(cache: Cache) -> None:
    keep(cache, make_problem(offloading(), 12, 300))
    keep(cache, make_problem(offloading(devices=3), 12, 300))
    target = make_problem(offloading(copy_ms=1.01), 13, 300)
    (entry,) = cache.near(target)
    assert entry.problem.data["m"] == 12
    result = solve(offloading(copy_ms=1.01), 13, 300, "adaoffload", cache=True, chunks="own")
    cold = solve(offloading(copy_ms=1.01), 13, 300, "adaoffload", chunks="own")
    assert result.objective_ns <= cold.objective_ns


def test_a_schedule_that_takes_seconds_to_write_is_not_kept(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(offloading(), 6, 250)
    monkeypatch.setattr("optpipe_sim.solvers.race.cache.LARGEST", len(solved(problem)) - 1)
    keep(cache, problem)
    assert cache.get(problem) is None
