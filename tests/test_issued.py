"""What ops cost beside their kernels, microbatches that differ, and how a trainer issues the work."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from strategies import SEEDS, cases, profiles

from optpipe_sim import build, check, load_profile, simulate, solve
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.errors import InvalidSchedule, ProfileError
from optpipe_sim.execution import IDEAL, execution_to_json, load_execution
from optpipe_sim.profile_io import profile_to_json
from optpipe_sim.solvers.microbatch_order import best_order, relabelled
from optpipe_sim.solvers.problem import make_problem

STAGE = {"t_f_ns": 100, "t_b_ns": 120, "t_w_ns": 80, "act_bytes": 40, "w_bytes": 10}


def _profile(**more: object):
    return load_profile({"devices": 2, "stages": STAGE, **more})


def test_overhead_is_added_to_every_op_and_never_divided() -> None:
    plain, later = _profile(), _profile(t_overhead_ns=7)
    for name, ops in (
        ("1f1b", 2),
        ("zb-h1", 3),
    ):  # ops per microbatch and stage on the busiest device
        was, now = (simulate(build(name, each, 1), each) for each in (plain, later))
        assert now.busy_ns[0] == was.busy_ns[0] + 7 * ops
    halves = later.rechunk(2)
    assert [cost.t_f_ns for cost in halves.stages] == [57] * 4
    assert halves.rechunk(1) == later
    cut = later.with_slices(4)
    assert [part.t_f_ns for part in cut.stages[0].slices] == [32] * 4
    assert cut.with_slices(1) == later
    # the whole backward is one op
    assert later.stages[0].fused_ns == 120 + 80 + 7
    again = build("1f1b:recompute=full,apart=yes", p := _recomputing(), 1)
    assert simulate(again, p).busy_ns[0] == 100 + 50 + 200 + 3 * 7


def _recomputing():
    levels = [{"name": "full", "t_ns": 50, "keep_bytes": 5}]
    return _profile(stages={**STAGE, "recompute": levels}, t_overhead_ns=7)


def test_more_chunks_cost_what_they_launch() -> None:
    """1F1B-I with v chunks: the bubble shrinks by v, the overhead of all ops grows by v."""
    devices, m = 4, 8
    for overhead in (0, 5, 50):
        profile = load_profile(
            {
                "devices": devices,
                "stages": {"t_f_ns": 1200, "t_bw_ns": 2400, "act_bytes": 1},
                "t_overhead_ns": overhead,
            }
        )
        for v in (1, 2, 3):
            schedule = build(f"1f1b-i:chunks={v}" if v > 1 else "1f1b", profile, m)
            each = 1200 // v + overhead, 2400 // v + overhead
            assert simulate(schedule, profile).makespan_ns == (m * v + devices - 1) * sum(each)


def test_factors_multiply_times_and_sizes_of_a_microbatch_and_each_product_is_rounded() -> None:
    profile = _profile(t_overhead_ns=7, microbatch_time=[1, 0.505], microbatch_bytes=[1, 0.33])
    trace = simulate(build("zb-h1", profile, 2), profile)
    lengths = {str(span.op): span.end_ns - span.start_ns for span in trace.spans}
    assert lengths["F0.1"] == 51 + 7  # 50.5 rounded half up
    assert lengths["B0.1"] == 61 + 7
    assert lengths["W0.1"] == 40 + 7
    assert lengths["F0.0"] == 107
    assert max(trace.peak_bytes) == 40 + 13


def test_a_replay_needs_a_factor_per_microbatch() -> None:
    profile = _profile(microbatch_time=[1, 2, 1])
    with pytest.raises(InvalidSchedule, match="has the factors of 3 microbatches, not of 4"):
        build("1f1b", profile, 4)
    assert _profile(microbatch_time=[1, 1.0]) == _profile()


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("microbatch_time", [1, 0], "microbatch_time[1]: must be above 0"),
        ("microbatch_time", 2, "microbatch_time: expected a list with a factor per microbatch"),
        ("microbatch_bytes", [1, "a"], "microbatch_bytes: expected a list of numbers"),
        ("t_overhead_us", -1, "t_overhead_us: must be at least 0"),
        ("execution", "megatron", "execution: 'megatron' is neither a file nor one that ships"),
        ("execution", {"families": {"v": {}}}, "execution.families.v: no family of schedules"),
        ("execution", {"families": {"plain": {"links": "x"}}}, "execution.families.plain.links"),
        ("execution", {"error": {"common": 3}}, "execution.error.common: expected a share"),
    ],
)
def test_wrong_values_are_named(key: str, value: object, problem: str) -> None:
    with pytest.raises(ProfileError) as error:
        _profile(**{key: value})
    assert problem in str(error.value)


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ProfileError, match="lists 3 microbatches, microbatch_time 2"):
        _profile(microbatch_time=[1, 2], microbatch_bytes=[1, 2, 3])


OWN = {
    "name": "own",
    "source": "a run",
    "fitted_to": ["run 1"],
    "families": {
        "plain": {"links": "blocking", "op_us": 0.01},
        "split": {"message_us": 0.003, "split": 1.1, "iteration": "span"},
    },
    "error": {"common": 0.05, "between": 0.01},
}


def test_an_execution_adds_to_ops_and_messages_by_family() -> None:
    profile = _profile(t_comm_ns=10, execution=OWN)
    plain = simulate(build("1f1b", profile, 4), profile)
    by_hand = _profile(t_comm_ns=10, t_overhead_ns=10, links="blocking")
    assert plain.makespan_ns == simulate(build("1f1b", by_hand, 4), by_hand).makespan_ns
    assert plain.objective == "flush"
    split = simulate(build("zb-h1", profile, 4), profile)
    slower = {**STAGE, "t_b_ns": 132, "t_w_ns": 88}
    by_hand = _profile(t_comm_ns=13, stages=slower)
    assert split.makespan_ns == simulate(build("zb-h1", by_hand, 4), by_hand).makespan_ns
    assert split.objective == "span"
    assert split.cost_ns == max(split.span_ns)
    assert simulate(build("zb-h1", profile, 4), profile, objective="flush").objective == "flush"
    # interleaved schedules that nothing is said of are issued as plain ones
    assert profile.execution.issue("interleaved") == profile.execution.issue("plain")
    assert profile.execution.issue("split-interleaved") == profile.execution.issue("split")


def test_executions_are_read_back() -> None:
    own = load_execution(OWN)
    assert load_execution(execution_to_json(own)) == own
    assert load_execution("ideal") == IDEAL
    profile = _profile(execution=OWN, t_overhead_ns=3, microbatch_time=[1, 1.3])
    assert load_profile(profile_to_json(profile)) == profile


@given(profile=profiles(levels=True, slices=True), seed=SEEDS)
def test_profiles_with_overhead_and_factors_are_read_back(profile, seed) -> None:
    profile = replace(profile, microbatch_bytes=(Fraction(1), Fraction(1 + seed % 7, 4)))
    assert load_profile(profile_to_json(profile)) == profile


@pytest.mark.parametrize("engine", ["auto", "cpsat", "search", "adaoffload"])
def test_solvers_order_microbatches_that_differ(engine: str) -> None:
    profile = _profile(microbatch_time=[1, 1, 1, 3])
    found = solve(profile, 4, engine=engine, time_limit=2, chunks="own", cache=False)
    fixed = simulate(build("1f1b", profile, 4), profile).cost_ns
    assert found.lower_bound_ns <= found.objective_ns <= fixed
    assert found.objective_ns == simulate(found.schedule, profile).cost_ns
    if engine == "cpsat":
        assert found.status == "optimal"
        searched = solve(profile, 4, engine="search", time_limit=2, chunks="own", cache=False)
        assert found.objective_ns <= searched.objective_ns <= 1.02 * found.objective_ns


def test_the_milp_refuses_microbatches_that_differ() -> None:
    with pytest.raises(Exception, match="whose microbatches are alike"):
        solve(_profile(microbatch_time=[1, 2]), 2, engine="milp", chunks="own")


def test_the_bound_of_microbatches_that_differ_counts_all_their_work() -> None:
    profile = _profile(microbatch_time=[1, 1, 1, 3])
    assert lower_bound(profile, 4).ns >= 6 * 300
    same = _profile(microbatch_time=[2, 2, 2, 2])
    twice = _profile(stages={**STAGE, "t_f_ns": 200, "t_b_ns": 240, "t_w_ns": 160})
    assert lower_bound(same, 4).ns == lower_bound(twice, 4).ns


def test_a_plan_under_an_execution_pays_for_its_chunks() -> None:
    """With 100 ns per op, nine chunks of 12 ns each are no gain: the search sees that."""
    small = {"t_f_ns": 108, "t_bw_ns": 216, "act_bytes": 9, "layers": 9}
    heavy = {"name": "heavy", "families": {"plain": {"op_ns": 100}}}
    ideal = load_profile({"devices": 2, "stages": small})
    issued = load_profile({"devices": 2, "stages": small, "execution": heavy})
    chunks = [
        solve(each, 4, time_limit=2, cache=False).schedule.shape.chunks for each in (ideal, issued)
    ]
    assert chunks[0] > 1
    assert chunks[1] == 1


def test_a_better_order_of_microbatches_is_found() -> None:
    """1F1B in the given order leaves a long last microbatch alone in the drain."""
    profile = load_profile(
        {"devices": 4, "stages": STAGE, "microbatch_time": [1, 1, 1, 1, 1, 1, 1, 4]}
    )
    schedule = build("1f1b", profile, 8)
    problem = make_problem(profile, 8)
    given_ns = problem.replay(schedule).cost_ns
    better = best_order(profile, schedule, lambda one: problem.replay(one).cost_ns)
    assert problem.replay(better).cost_ns < 0.95 * given_ns
    assert check(better, profile) == []


@given(case=cases(levels=True, slices=True, offload=True, differ=True), seed=SEEDS)
def test_relabelling_keeps_a_schedule_whole(case, seed) -> None:
    profile, schedule = case
    m = schedule.shape.microbatches
    place = Random(seed).sample(range(m), m)
    moved = relabelled(schedule, place)
    assert relabelled(moved, [place.index(at) for at in range(m)]) == schedule
    same = replace(profile, microbatch_time=None, microbatch_bytes=None, memory_limit=None)
    assert simulate(moved, same).makespan_ns == simulate(schedule, same).makespan_ns


def test_a_profile_takes_an_execution_by_its_name() -> None:
    profile = replace(_profile(), execution="megatron-lm")
    assert profile.execution == load_execution("megatron-lm")
    assert load_profile(profile_to_json(profile)) == profile


def test_scaling_compute_leaves_the_overhead() -> None:
    profile = _profile(t_overhead_ns=60)
    assert [cost.t_f_ns for cost in profile.scale(compute=0.5).stages] == [50 + 60] * 2
    assert profile.scale(compute=0.5).rechunk(2).stages[0].t_f_ns == 25 + 60
