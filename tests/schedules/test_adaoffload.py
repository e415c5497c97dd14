"""AdaOffload: feasible wherever anything is, never above a limit, and good."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from greedy_cases import any_setting, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS, profiles

from experiments.cases import synthetic
from optpipe_sim import (
    CostProfile,
    Schedule,
    build,
    check,
    estimate,
    load_profile,
    op_table,
    simulate,
)
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.errors import InvalidSchedule, NoSolution, OutOfMemory
from optpipe_sim.ops import BW, B, F, O, Op, R, W
from optpipe_sim.schedule import validate
from optpipe_sim.schedules.adaoffload.adaoffload import SETTINGS, adaoffload, progress
from optpipe_sim.schedules.adaoffload.runs import Problem, Setting
from optpipe_sim.schedules.adaoffload.waves import WAVES, Wave, play
from optpipe_sim.solvers.anneal.annealer import Workspace
from optpipe_sim.solvers.anneal.plans import pack
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.stage_cost import StageCost


@st.composite
def tight(draw: st.DrawFn) -> CostProfile:
    """Random profiles with a limit per device: the least there is, or up to four activations more."""
    profile = draw(profiles(max_chunks=2))
    random = Random(draw(SEEDS))
    most = max(cost.act_bytes for cost in profile.stages)
    room = random.choice((0, 0, 1, 2, 4))
    limit = tuple(least + random.randint(0, room * most) for least in profile.least_limits)
    return replace(profile, memory_limit=limit)


@given(tight(), st.integers(1, 6), SEEDS)
def test_no_setting_deadlocks_and_the_replay_is_never_later(
    profile: CostProfile, microbatches: int, seed: int
) -> None:
    problem = Problem(profile, microbatches, profile.memory_limit)
    run = problem.play(any_setting(Random(seed)))
    assert run is not None
    schedule = run.schedule(microbatches)
    validate(schedule)
    assert check(schedule, profile) == []
    trace = simulate(schedule, profile)
    assert all(
        peak <= limit for peak, limit in zip(trace.peak_bytes, trace.memory_limit, strict=True)
    )
    if profile.links == "latency":
        claimed = np.concatenate(run.log)
        assert (trace.start_ns <= claimed[:, progress.START]).all()
        assert (trace.end_ns <= claimed[:, progress.END]).all()


@settings(deadline=None, max_examples=40)
@given(tight(), st.integers(1, 6), st.sampled_from(WAVES))
def test_no_wave_deadlocks(profile: CostProfile, microbatches: int, wave: Wave) -> None:
    found = play(Problem(profile, microbatches, profile.memory_limit), wave)
    assert found is not None
    assert found.setting == wave
    schedule = found.schedule(microbatches)
    assert check(schedule, profile) == []
    trace = simulate(schedule, profile)
    assert all(a <= b for a, b in zip(trace.peak_bytes, trace.memory_limit, strict=True))


@pytest.mark.parametrize(
    ("placement", "slots", "most_ns"),
    [
        ("loop", 4, 1524),  # what work alone takes
        ("loop", 2, 1590),  # 1672 without waves, at least 1567
        ("vee", 4, 1540),  # 1622, 1524
        ("vee", 2, 1630),  # 1755, 1596
    ],
)
def test_two_chunks_interleaved_or_in_a_v(placement: str, slots: int, most_ns: int) -> None:
    profile = synthetic(8, slots)
    schedule = build(f"adaoffload:chunks=2,placement={placement}", profile, 24)
    assert schedule.shape.placement_name == placement
    assert check(schedule, profile) == []
    trace = simulate(schedule, profile)
    assert max(trace.peak_bytes) <= 200 * slots
    assert trace.makespan_ns <= most_ns


def test_a_placement_alone_and_an_unknown_one() -> None:
    profile = uniform(3, 300)
    assert build("adaoffload:placement=vee", profile, 6).shape.chunks == 2
    assert build("adaoffload:placement=loop", profile, 6) == build("adaoffload", profile, 6)
    with pytest.raises(InvalidSchedule, match="placement: expected loop or vee, got 'ring'"):
        build("adaoffload:placement=ring", profile, 6)


@given(tight(), st.integers(1, 5), st.integers(0, 30), st.sampled_from(("flush", "span")))
def test_host_limit_is_kept_or_refused(
    profile: CostProfile, microbatches: int, host: int, objective: str
) -> None:
    offload = profile.offload and replace(profile.offload, host_limit_bytes=host)
    profile = replace(profile, offload=offload)
    # where one microbatch fits without offloading, no host limit is too low
    bare = replace(profile, offload=None).least_limits
    if any(a > b for a, b in zip(bare, profile.memory_limit, strict=True)):
        try:
            schedule = adaoffload(profile, microbatches, objective=objective)
        except NoSolution:
            return
    else:
        schedule = adaoffload(profile, microbatches, objective=objective)
    trace = simulate(schedule, profile)
    assert trace.host_peak_bytes <= (host if offload else 0)
    assert check(schedule, profile) == []


@settings(deadline=None, max_examples=40)
@given(tight(), st.integers(1, 5))
def test_works_at_the_least_limit_and_not_below(profile: CostProfile, microbatches: int) -> None:
    least = profile.least_limits
    trace = simulate(adaoffload(profile, microbatches, least), profile, least)
    assert all(peak <= limit for peak, limit in zip(trace.peak_bytes, least, strict=True))
    for device in range(profile.devices):
        if least[device] > 0:
            below = [limit - (at == device) for at, limit in enumerate(least)]
            with pytest.raises(OutOfMemory, match=f"device {device}.* {least[device]}B"):
                adaoffload(profile, microbatches, below)


def test_without_a_limit_nothing_is_offloaded_and_little_is_idle() -> None:
    profile = uniform(4)
    trace = simulate(build("adaoffload", profile, 12), profile)
    assert trace.offloaded == 0
    assert trace.makespan_ns == lower_bound(profile, 12).ns == 3 * 11 + 12 * 30
    assert trace.makespan_ns < simulate(build("zb-h1", profile, 12), profile).makespan_ns


@pytest.mark.parametrize(
    ("devices", "microbatches", "limit", "copy_ns", "best"),
    [
        (4, 8, 400, 5, 273),
        (4, 8, 200, 5, 291),
        (4, 8, 400, 16, 273),
        (4, 16, 200, 16, 553),
        (8, 16, 400, 16, 587),
        (8, 16, 266, 16, 625),
        (8, 32, 800, 5, 1037),
        (8, 32, 200, 5, 1103),
    ],
)
def test_close_to_the_best_known(
    devices: int, microbatches: int, limit: int, copy_ns: int, best: int
) -> None:
    profile = uniform(devices, limit, copy_ns)
    trace = simulate(build("adaoffload", profile, microbatches), profile)
    assert lower_bound(profile, microbatches).ns <= trace.makespan_ns <= 1.015 * best


def one_f_one_b_offloaded(profile: CostProfile, microbatches: int) -> Schedule:
    """1F1B with every activation offloaded as soon as it is there, reloaded before its B."""
    p, m = profile.devices, microbatches
    programs = []
    for s in range(p):
        warm = min(p - s - 1, m)
        kinds = [F] * warm + [F, B] * (m - warm) + [B] * warm
        count = {F: 0, B: 0}
        program: list[Op] = []
        for kind in kinds:
            j = count[kind]
            count[kind] += 1
            around = (F, O) if kind is F else (R, B, W)
            program += [Op(each, s, j) for each in around]
        programs.append(program)
    return Schedule(profile.shape(m), programs)


@pytest.mark.parametrize("engines", ["separate", "shared"])
@pytest.mark.parametrize("copy_ns", [2, 16, 40])
@pytest.mark.parametrize("limit", [100, 200, 300])
def test_scarce_memory_is_never_worse_than_1f1b_offloaded(
    limit: int, copy_ns: int, engines: str
) -> None:
    profile = uniform(4, limit, copy_ns, copy_engines=engines)
    plain = simulate(one_f_one_b_offloaded(profile, 10), profile)
    assert simulate(build("adaoffload", profile, 10), profile).makespan_ns <= plain.makespan_ns


def test_shared_links_carry_their_order() -> None:
    groups = {"host_link_groups": [[0, 1], [2, 3]]}
    schedule = build("adaoffload", uniform(4, 200, **groups), 6)
    transfers = [op for ops in schedule.programs for op in ops if op.kind in (O, R)]
    assert sorted(schedule.link_order) == ["0/O", "0/R", "1/O", "1/R"]
    assert sorted(op for ops in schedule.link_order.values() for op in ops) == sorted(transfers)
    single = build("adaoffload", uniform(4, 200, host_link="single"), 6)
    assert sorted(single.link_order) == ["0/OR", "1/OR", "2/OR", "3/OR"]
    # a queue of its own needs no order
    assert not build("adaoffload", uniform(4, 200), 6).link_order
    assert not build("adaoffload", uniform(4, 200, copy_engines="shared"), 6).link_order


def test_groups_and_shared_engines_make_it_slower() -> None:
    free = simulate(build("adaoffload", uniform(4, 200, 16), 8), uniform(4, 200, 16)).makespan_ns
    for changes in ({"copy_engines": "shared"}, {"host_link_groups": [[0, 1, 2, 3]]}):
        profile = uniform(4, 200, 16, **changes)
        assert simulate(build("adaoffload", profile, 8), profile).makespan_ns > free


def test_chunks_and_placement() -> None:
    vee = replace(uniform(2), chunks=2, placement="vee", stages=uniform(2).stages[:1] * 4)
    assert build("adaoffload", vee, 4).shape.placement == (0, 1, 1, 0)
    assert build("adaoffload", vee, 4, chunks=2).shape.placement == (0, 1, 0, 1)
    three = build("adaoffload:chunks=3,limit=250B", uniform(2), 4)
    assert three.shape.chunks == 3
    assert max(simulate(three, uniform(2), 250).peak_bytes) <= 250


def test_no_op_is_fused_and_the_setting_is_kept() -> None:
    schedule = build("adaoffload", uniform(3, 200), 5)
    assert not (schedule.table[:, 0] == BW).any()
    assert Setting(**schedule.meta["setting"]) in SETTINGS
    again = adaoffload(uniform(3, 200), 5, **schedule.meta["setting"])
    assert again == schedule


def test_when_the_time_is_up_the_first_run_that_fits_is_the_answer() -> None:
    profile = uniform(4, 250, 16)
    first = adaoffload(profile, 6, over=lambda: True)
    assert Setting(**first.meta["setting"]) == SETTINGS[0]
    assert first == adaoffload(profile, 6, **SETTINGS[0]._asdict())


def test_same_input_same_schedule() -> None:
    profile = uniform(4, 250, 16, host_link_groups=[[0, 2]])
    assert build("adaoffload", profile, 7) == build("adaoffload", profile, 7)


def test_span_objective_is_no_worse_in_span() -> None:
    profile = uniform(4, 250, 16)
    spans = {
        objective: max(simulate(adaoffload(profile, 8, objective=objective), profile).span_ns)
        for objective in ("flush", "span")
    }
    assert spans["span"] <= spans["flush"]


def test_bad_arguments() -> None:
    with pytest.raises(InvalidSchedule, match="objective: expected flush or span"):
        adaoffload(uniform(2), 2, objective="speed")
    with pytest.raises(InvalidSchedule, match="unknown parameter 'haste'; known are prefer"):
        adaoffload(uniform(2), 2, haste=1)
    with pytest.raises(OutOfMemory, match="least limit that works is 100B"):
        adaoffload(uniform(2), 2, limit=99)


def test_no_host_memory_for_what_the_limit_forces_out() -> None:
    base = uniform(2, copy_ns=1)
    two = replace(base, chunks=2, placement="loop", stages=base.stages * 2, memory_limit=(100, 100))
    assert simulate(adaoffload(two, 3), two).offloaded >= 6  # chunk 0 of each, while chunk 1 runs
    enough = replace(two, offload=replace(two.offload, host_limit_bytes=200))
    assert simulate(adaoffload(enough, 3), enough).host_peak_bytes == 200
    offload = replace(two.offload, host_limit_bytes=199)
    with pytest.raises(NoSolution, match="host_limit: the memory limits ask for 200 B"):
        adaoffload(replace(two, offload=offload), 3)


@pytest.mark.parametrize("name", ["1f1b-i", "1f1b", "zb-1p"])
@pytest.mark.parametrize("offload", [True, False])
def test_no_worse_than_schedules_that_hold_as_much(name: str, offload: bool) -> None:
    profile = uniform(4) if offload else replace(uniform(4), offload=None)
    plain = simulate(build(name, profile, 16), profile)
    held = replace(plain.profile, memory_limit=plain.peak_bytes)
    trace = simulate(build("adaoffload", held, 16), held)
    assert trace.schedule.shape == plain.schedule.shape
    assert trace.makespan_ns <= plain.makespan_ns


def test_limits_that_let_nothing_through_are_no_traceback() -> None:
    """32,768 tokens of LLaMA-3-8B on 4 H100s, where host memory is limited, too."""
    profile = estimate("llama3-8b", "h100-sxm", 4, seq=32768, levels=True)
    with pytest.raises(NoSolution, match="no run of the greedy"):
        build("adaoffload", profile, 32)


def test_limits_that_ask_for_recomputation_name_a_schedule_that_recomputes() -> None:
    full = {"name": "full", "t_ns": 4, "keep_bytes": 1, "work_bytes": 2, "b_work_bytes": 3}
    stage = {"t_f_ns": 4, "t_b_ns": 3, "t_w_ns": 2, "act_bytes": 10, "recompute": [full]}
    copies = {"t_offload_ns": 2, "t_reload_ns": 3}
    profile = load_profile(
        {"devices": 2, "stages": stage, "offload": copies, "memory_limit_bytes": 6}
    )
    with pytest.raises(NoSolution, match="which recomputes nothing, keeps the memory limit"):
        build("adaoffload", profile, 4)
    assert build("adaoffload-r", profile, 4).recompute


@pytest.mark.parametrize("groups", [[], [[0, 1], [2, 3]]])
def test_what_ops_release_is_read_from_the_table(
    groups: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a table in which W releases everything, the replay, AdaOffload and the annealer still agree."""
    common = op_table._common

    def all_at_w(cost: StageCost, *rest: Any) -> op_table._Column:
        column = common(cost, *rest)
        column.released_bytes[W] += column.released_bytes[B]
        column.released_bytes[B] = 0
        return column

    monkeypatch.setattr(op_table, "_common", all_at_w)
    # a name of its own, as profiles are kept with their tables
    profile = replace(uniform(4, 266, 16, host_link_groups=groups), name=f"all at W {groups}")
    found = Problem(profile, 12, profile.memory_limit).play(Setting())
    assert found is not None
    schedule = found.schedule(12)
    assert simulate(schedule, profile).makespan_ns <= found.cost_ns("flush")
    problem = make_problem(profile, 12)
    free = schedule.replace(link_order={})
    assert Workspace(problem).cost_ns(pack(problem, free)) == simulate(free, profile).makespan_ns
