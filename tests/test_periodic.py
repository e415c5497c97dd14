"""Periodic patterns: what they claim holds for any number of microbatches."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from random import Random

import pytest

from optpipe_sim import CostProfile, check
from optpipe_sim.errors import NoSolution, OptPipeError
from optpipe_sim.profile import Offload, StageCost
from optpipe_sim.solve.periodic import periodic_pattern, unroll
from optpipe_sim.solve.problem import Problem, make_problem


def pipeline(devices: int, limit: int | None, copy_ns: int = 5, **offload) -> Problem:
    stage = StageCost(10, 11, 9, 100, 50, t_offload_ns=copy_ns, t_reload_ns=copy_ns)
    profile = CostProfile(
        "pipeline", devices, (stage,) * devices, latency_ns=1, offload=Offload(**offload)
    )
    return make_problem(profile, devices, limit)


def random_problem(seed: int) -> Problem:
    random = Random(seed)
    devices, chunks = random.choice(((2, 1), (3, 1), (2, 2)))
    stages = tuple(
        StageCost(
            random.randint(2, 9),
            random.randint(2, 9),
            random.randint(0, 9),
            act_bytes=4,
            w_bytes=random.choice((0, 2)),
            offload_bytes=random.choice((4, 3)),
            static_bytes=1,
            t_bw_ns=random.choice((None, 5)),
            t_offload_ns=random.randint(0, 9),
            t_reload_ns=random.randint(0, 9),
        )
        for _ in range(devices * chunks)
    )
    offload = Offload(
        random.choice(("separate", "shared")),
        host_link_groups=((0, 1),) if random.random() < 0.5 else (),
        host_limit_bytes=random.choice((None, 30)),
    )
    placement = "vee" if chunks == 2 and random.random() < 0.5 else "loop"
    profile = CostProfile(
        "random",
        devices,
        stages,
        chunks,
        placement,
        latency_ns=random.randint(0, 3),
        offload=offload,
    )
    limits = [least + random.randint(0, 8) for least in profile.least_limits]
    return make_problem(profile, 4, limits)


def test_a_quarter_of_the_memory_still_has_no_bubble_in_the_period():
    problem = pipeline(4, limit=200)
    pattern = periodic_pattern(problem, 20)
    assert pattern.period_ns == pattern.least_period_ns == 30
    longer = [problem_of(problem, m).replay(unroll(pattern, m)).makespan_ns for m in (20, 21, 40)]
    assert longer[1] - longer[0] == 30
    assert longer[2] - longer[0] == 600


def problem_of(problem: Problem, m: int) -> Problem:
    return replace(problem, microbatches=m)


@pytest.mark.parametrize("seed", range(8))
def test_the_replay_is_no_later_than_the_pattern_and_keeps_all_limits(seed):
    problem = random_problem(seed)
    pattern = periodic_pattern(problem, 4, per_period=1 + seed % 2)
    assert pattern.period_ns >= pattern.least_period_ns
    for m in (1, 2, 9):
        schedule = unroll(pattern, m)
        assert check(schedule, problem.profile, problem.limits) == []
        trace = problem_of(problem, m).replay(schedule)
        for op, _, start, *_ in trace.spans:
            turn, first = divmod(op.microbatch, pattern.per_period)
            planned = pattern.starts_ns[op._replace(microbatch=first)]
            assert start <= planned + turn * pattern.period_ns, op
        turns = (m - 1) // pattern.per_period
        assert trace.makespan_ns <= turns * pattern.period_ns + pattern.latency_ns


def test_with_one_slot_the_period_is_what_offloading_can_make_of_it():
    ample, tight = pipeline(2, limit=300, copy_ns=40), pipeline(2, limit=100, copy_ns=40)
    assert periodic_pattern(ample, 10).period_ns == 30
    # device 0 holds an activation from F to W but for its time on the host; copies take 40 each
    without = periodic_pattern(replace(tight, profile=replace(tight.profile, offload=None)), 10)
    assert 40 <= periodic_pattern(tight, 10).period_ns <= without.period_ns


def test_without_a_limit_nothing_is_offloaded():
    pattern = periodic_pattern(pipeline(3, limit=None), 10)
    assert pattern.period_ns == 30
    assert {op.kind.name for op in pattern.starts_ns} == {"F", "B", "W"}


def test_errors_say_what_is_wrong():
    problem = pipeline(2, limit=200)
    with pytest.raises(OptPipeError, match="time limit"):
        periodic_pattern(problem, 0)
    with pytest.raises(OptPipeError, match="per_period"):
        periodic_pattern(problem, 1, per_period=0)
    with pytest.raises(NoSolution, match="more memory"):
        periodic_pattern(replace(problem, limits=(99, 99)), 5)


def test_ctrl_c_ends_it_and_stays_pythons_own() -> None:
    for _ in range(2):  # CP-SAT's handler, once there, would have the second kill this process
        ctrl_c = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        ctrl_c.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                periodic_pattern(pipeline(12, limit=350), 60, per_period=3)
        finally:
            ctrl_c.cancel()
