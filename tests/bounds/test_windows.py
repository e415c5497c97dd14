"""Windows of ops below a goal: they hold every schedule below it, and prove what no device alone sees."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from bound_cases import best_device_bound
from exhaustive import least_cost
from greedy_cases import uniform
from hypothesis import given
from hypothesis import strategies as st
from strategies import SEEDS, limited, profiles, schedules, that_fits
from tiny_cases import tiny

from optpipe_sim import CostProfile, check
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.bounds.windows import Pipeline, Windows
from optpipe_sim.ops import B, F
from optpipe_sim.solvers.cpsat.cpsat import CpsatOptions, solve_cpsat
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race.bounds import best_bound
from optpipe_sim.trace import Trace

# Small likenesses of published profiles: F, B, W, copy, bytes of W of 100, microbatches, slots.
LIKE_14B = ((11, 11, 8, 54, 43), 6, 2)
LIKE_1_5B = ((4, 4, 2, 39, 37), 8, 2)


def pipeline(profile: CostProfile, microbatches: int) -> Pipeline:
    assert profile.memory_limit is not None
    return Pipeline(profile, microbatches, profile.memory_limit)


def like(costs: tuple[int, int, int, int, int], slots: int) -> CostProfile:
    f, b, w, copy, held = costs
    base = uniform(4, 100 * slots, copy)
    return replace(
        base.map_stages(lambda _, cost: replace(cost, t_f_ns=f, t_b_ns=b, t_w_ns=w, w_bytes=held)),
        latency_ns=0,
        occupancy_ns=0,
    )


def assert_inside(trace: Trace, windows: Windows) -> None:
    """The n-th F and the n-th backward of each stage, in time, start in their windows."""
    starts = defaultdict(list)
    ops = [op for program in trace.schedule.programs for op in program]
    for op, start in zip(ops, trace.start_ns.tolist(), strict=True):
        kind = F if op.kind is F else B if op.kind.name in ("B", "BW") else None
        if kind is not None:
            starts[kind, op.stage].append(start)
    for (kind, stage), times in starts.items():
        times.sort()
        earliest, latest = windows.earliest[kind, stage], windows.latest[kind, stage]
        assert (earliest <= times).all(), (kind, stage, times, earliest)
        assert (times <= latest).all(), (kind, stage, times, latest)


@given(profiles(max_chunks=2), st.data(), st.integers(1, 3))
def test_every_schedule_below_the_goal_is_in_the_windows(
    profile: CostProfile, data: st.DataObject, above: int
) -> None:
    schedule = data.draw(schedules(profile))
    profile = limited(profile, Random(data.draw(SEEDS)))
    profile, trace = that_fits(profile, schedule)
    pipe = pipeline(profile, schedule.shape.microbatches)
    windows = pipe.narrow(trace.makespan_ns + above)
    assert windows is not None
    assert_inside(trace, windows)
    assert_inside(trace, pipe.widest(trace.makespan_ns + above))


def test_tiny_problems_are_proven_to_their_least_cost_and_no_further() -> None:
    solved = met = alone = 0
    for seed in range(40):
        profile, microbatches = tiny(Random(seed))
        try:
            least = least_cost(make_problem(profile, microbatches), 400)
        except OverflowError:
            continue
        assert least is not None
        pipe = pipeline(profile, microbatches)
        assert pipe.narrow(least + 1) is not None, seed
        solved += 1
        met += pipe.narrow(least) is None
        alone += max(
            best_device_bound(profile, microbatches), lower_bound(profile, microbatches).ns
        ) == least  # fmt: skip
    assert solved >= 12
    assert met >= alone
    assert met >= solved * 0.9


@pytest.mark.parametrize(("case", "alone", "least"), [(LIKE_14B, 318, 326), (LIKE_1_5B, 146, 150)])
def test_two_devices_want_the_same_moment(case, alone: int, least: int) -> None:
    costs, microbatches, slots = case
    profile = like(costs, slots)
    assert best_device_bound(profile, microbatches) == alone
    reported: list[tuple[int, str]] = []
    problem = make_problem(profile, microbatches)
    bound = best_bound(problem, 60.0, on_bound=lambda *news: reported.append(news))
    assert (bound, "windows") == reported[-1]
    assert bound == least
    # CP-SAT's model of first in, first out knows nothing of windows, and finds what they prove
    found = solve_cpsat(problem, 60.0, lower_bound_ns=least, options=CpsatOptions(order="fifo"))
    assert found.objective_ns == least
    f, b, w, copy, held = costs
    row = f"| {f}, {b}, {w} | {copy} | {held} | {microbatches} | {alone} | {least} |"
    assert row in (Path(__file__).parents[2] / "docs" / "bounds.md").read_text()


def test_overtaking_found_by_windows() -> None:
    """The cell whose optimum among first-in-first-out orders, 305, was long taken for the optimum."""
    problem = make_problem(uniform(4, 200, 16), 8)
    fifo = solve_cpsat(problem, 60.0, options=CpsatOptions(order="fifo"))
    assert (fifo.objective_ns, fifo.lower_bound_ns <= 303) == (305, True)
    found = solve_cpsat(problem, 120.0, warm_start=fifo.schedule, lower_bound_ns=303)
    assert (found.objective_ns, found.status) == (303, "optimal")
    assert found.info["phases"][-1]["order"] == "windows"
    assert found.schedule is not None
    assert check(found.schedule, problem.profile) == []
    trace = problem.replay(found.schedule)
    windows = pipeline(problem.profile, 8).narrow(304)
    assert windows is not None
    assert_inside(trace, windows)


def test_windows_shrink_with_the_goal_and_with_time() -> None:
    profile = uniform(4, 200, 16)
    pipe = pipeline(profile, 8)
    found = [pipe.narrow(goal) for goal in (302, 304, 310, 330)]
    assert found[0] is None
    slack = [windows.slack_ns for windows in found if windows is not None]
    assert len(slack) == 3
    assert slack == sorted(slack)
    hurried = pipe.narrow(304, until=time.monotonic())
    assert hurried is not None  # valid, but wide
    assert slack[0] < hurried.slack_ns <= pipe.widest(304).slack_ns
    assert np.array_equal(hurried.earliest[F, 0], 10 * np.arange(8))
