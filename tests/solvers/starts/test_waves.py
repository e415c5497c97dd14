"""AdaOffload in a given order, and the search for the waves that make a good one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from search_cases import uniform
from strategies import SEEDS, limited, profiles

from optpipe_sim import CostProfile, build, check, load_profile, simulate
from optpipe_sim.ops import COMPUTE, TRANSFERS, B, F, OpKind
from optpipe_sim.schedule import Schedule, validate
from optpipe_sim.schedules.adaoffload.adaoffload import CHUNKED, best_run
from optpipe_sim.schedules.adaoffload.runs import Order, Setting
from optpipe_sim.schedules.adaoffload.runs import Problem as Runs
from optpipe_sim.schedules.adaoffload.waves import wave_order
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.starts.waves import KNOWN, wave_search
from optpipe_sim.stage_cost import StageCost

FAST = {
    "forward0": 1000, "forward1": 1000, "backward0": 1000, "backward1": 1000, "defer": 0, "window": 0, "late": 0
}  # fmt: skip


def compute(schedule: Schedule, device: int) -> str:
    return " ".join(str(op) for op in schedule.programs[device] if op.kind in COMPUTE)


def followed(problem: Problem, order: Order, **setting: int) -> Schedule:
    runs = Runs(problem.profile, problem.microbatches, problem.limits)
    played = runs.play(Setting(tolerance=0, **setting), order=order)
    assert played is not None
    return played.schedule(problem.microbatches)


def test_waves_by_hand() -> None:
    """Two devices, a V, everything takes 10 ns: stages 0 and 3 on device 0. A microbatch takes 60 ns
    of each device; its F's are due at 0, 10, 20, 30, its B's at 40, .., 70, a W when its B ends."""
    costs = {"t_f_ns": 10, "t_b_ns": 10, "t_w_ns": 10, "act_bytes": 100, "w_bytes": 50}
    data = {"devices": 2, "chunks": 2, "placement": "vee", "stages": costs}
    profile = load_profile(data)
    order = wave_order(profile, 2, FAST)
    assert order.due_ns[OpKind.F, :, 0].tolist() == [0, 10, 20, 30]
    assert order.due_ns[OpKind.B, :, 1].tolist() == [130, 120, 110, 100]
    assert order.due_ns[OpKind.W, :, 0].tolist() == [80, 70, 60, 50]
    assert order.window_ns == 0
    schedule = followed(make_problem(profile, 2), order)
    assert compute(schedule, 0) == "F0.0 F3.0 B3.0 W3.0 F0.1 B0.0 W0.0 F3.1 B3.1 W3.1 B0.1 W0.1"
    trace = simulate(schedule, profile)
    starts = dict(zip((op for ops in schedule.programs for op in ops), trace.start_ns, strict=True))
    for op, start in starts.items():
        if op.microbatch == 0 and op.kind in (B, F):
            assert start == order.due_ns[op]
    early = followed(make_problem(profile, 2), order._replace(window_ns=10**6))
    assert compute(early, 0).startswith("F0.0 F0.1 ")
    assert simulate(early, profile).makespan_ns < trace.makespan_ns


def test_late_weight_gradients_by_hand() -> None:
    """The profile of `test_waves_by_hand`: the W's of the last microbatch, half of p, are due after all else."""
    costs = {"t_f_ns": 10, "t_b_ns": 10, "t_w_ns": 10, "act_bytes": 100, "w_bytes": 50}
    data = {"devices": 2, "chunks": 2, "placement": "vee", "stages": costs}
    profile = load_profile(data)
    plain, late = (wave_order(profile, 2, {**FAST, "late": part}) for part in (499, 500))
    assert plain.due_ns.tolist() == wave_order(profile, 2, FAST).due_ns.tolist()
    assert late.due_ns[OpKind.W, :, 0].tolist() == [80, 70, 60, 50]
    assert late.due_ns[OpKind.W, :, 1].tolist() == [280, 270, 260, 250]
    assert (late.due_ns[: OpKind.W] == plain.due_ns[: OpKind.W]).all()
    schedule = followed(make_problem(profile, 2), late)
    assert compute(schedule, 1).endswith("B1.1 W2.1 W1.1")
    assert compute(schedule, 0).endswith("F3.1 B3.1 W3.1 B0.1 W0.1")  # device 0 waits for B0.1


def test_an_order_that_fits_is_followed_to_the_letter() -> None:
    profile = uniform(4).rechunk(2, "vee")
    published = build("zb-v", profile, 8)
    trace = simulate(published, profile)
    due = np.zeros((len(OpKind), 8, 8), np.int64)
    ops = (op for program in published.programs for op in program)
    for op, start in zip(ops, trace.start_ns.tolist(), strict=True):
        due[op.kind, op.stage, op.microbatch] = start
    schedule = followed(make_problem(profile, 8), Order(due, 0))
    assert schedule.programs == published.programs


def test_an_f_without_room_does_not_hold_up_the_rest() -> None:
    """ZB-V at half its memory, in its own order: what has to wait is passed over, some leaves."""
    profile = uniform(8).rechunk(2, "vee")
    problem = make_problem(profile, 24, 400)
    free = replace(problem, limits=None)
    order = wave_order(profile, 24, {**FAST, "window": 10**6})
    schedule = followed(problem, order, headroom=4)
    ample = simulate(followed(free, order), profile, enforce=False)
    assert max(ample.peak_bytes) > 400
    trace = problem.replay(schedule)
    assert any(op.kind in TRANSFERS for program in schedule.programs for op in program)
    assert max(trace.peak_bytes) <= 400
    assert trace.makespan_ns < 1.2 * ample.makespan_ns


@st.composite
def orders(draw: st.DrawFn) -> tuple[Problem, Order, Setting]:
    """A random problem, with a limit that something can keep, and any order at all."""
    random = Random(draw(SEEDS))
    profile = limited(draw(profiles()), random)
    problem = Problem(profile, draw(st.integers(1, 5)), profile.limits(None))
    noise = np.random.default_rng(draw(SEEDS))
    due = noise.integers(0, random.choice((1, 3, 100)), (len(OpKind), len(profile.stages), 5))
    order = Order(due[:, :, : problem.microbatches].copy(), random.choice((0, 5, 10**6)))
    setting = Setting(
        tolerance=random.choice((0, 500, 1000)),
        ahead=random.choice((500, 1500, 5000)),
        headroom=random.randrange(7),
        oldest=random.randrange(2),
        keep=random.randrange(2),
        reload_first=random.randrange(2),
        depth=random.choice((0, 1, 1000)),
    )
    return problem, order, setting


@given(orders())
def test_no_order_deadlocks_or_exceeds_the_limit(case: tuple[Problem, Order, Setting]) -> None:
    problem, order, setting = case
    runs = Runs(problem.profile, problem.microbatches, problem.limits)
    played = runs.play(setting, order=order)
    assert played is not None
    schedule = played.schedule(problem.microbatches)
    validate(schedule)
    assert check(schedule, problem.profile) == []
    trace = problem.replay(schedule)
    assert problem.limits is not None
    assert all(a <= b for a, b in zip(trace.peak_bytes, problem.limits, strict=True))
    if problem.profile.links == "latency":
        assert trace.makespan_ns <= played.cost_ns("flush")


@settings(deadline=None, max_examples=30)
@given(profiles(), st.integers(1, 5), st.sampled_from(("flush", "span")), SEEDS)
def test_what_the_search_finds_fits(
    profile: CostProfile, microbatches: int, objective: str, seed: int
) -> None:
    profile = limited(profile, Random(seed))
    problem = make_problem(profile, microbatches, None, objective)
    reported: list[Schedule] = []
    best = wave_search(problem, lambda: False, runs=30, seed=seed, keep=3, found=reported.append)
    assert 1 <= len(best) <= 3
    assert best[0] == reported[-1]
    for schedule in best:
        assert check(schedule, profile) == []
        trace = problem.replay(schedule)
        assert all(a <= b for a, b in zip(trace.peak_bytes, problem.limits or (), strict=True))


def test_known_waves_alone_find_room_for_light_activations() -> None:
    """Where a dozen small activations fit, copies had better begin long before memory is short, and the W's of the last
    microbatches had better wait; AdaOffload's own waves do neither."""
    light = uniform(8, 20).rechunk(2, "vee").map_stages(lambda _, cost: lighter(cost))
    problem = make_problem(light, 24, 300)
    (best,) = wave_search(problem, lambda: False, runs=len(KNOWN), keep=1)
    plain = build("adaoffload", light, 24, limit=300)
    assert problem.replay(best).cost_ns < problem.replay(plain).cost_ns


def lighter(cost: StageCost) -> StageCost:
    """A stage whose activations have 46 % of the bytes."""
    act, w = cost.act_bytes * 46 // 100, cost.w_bytes * 46 // 100
    return replace(cost, act_bytes=act, w_bytes=w, offload_bytes=act)


def test_the_search_repeats_and_beats_adaoffload_where_chunks_meet_little_memory() -> None:
    problem = make_problem(uniform(8, 20).rechunk(2, "vee"), 24, 300)
    best = wave_search(problem, lambda: False, runs=150, seed=1)
    assert best == wave_search(problem, lambda: False, runs=150, seed=1)
    costs = [problem.replay(schedule).cost_ns for schedule in best]
    assert costs == sorted(costs)
    plain = best_run(
        Runs(problem.profile, 24, problem.limits),
        [way for way in CHUNKED if isinstance(way, Setting)],
    )
    assert plain is not None
    assert costs[0] < 0.95 * plain.cost_ns("flush")
    some_waves = problem.replay(build("adaoffload", problem.profile, 24, limit=300)).cost_ns
    assert costs[0] < some_waves < 0.95 * plain.cost_ns("flush")


def test_the_search_stops_on_request() -> None:
    problem = make_problem(uniform(4).rechunk(2), 8, 300)
    asked = iter([False, False, True])
    reported: list[Schedule] = []
    wave_search(problem, lambda: next(asked), runs=100, found=reported.append)
    assert 1 <= len(reported) <= 2
    assert wave_search(problem, lambda: True, runs=100) == []
