"""Durations that scatter: the same samples for every schedule, and schedules that stand them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases

from optpipe_sim import build, check, load_profile
from optpipe_sim.errors import Deadlock, OptPipeError, OutOfMemory
from optpipe_sim.ops import C, F, O, R, W
from optpipe_sim.sim.lower import lower
from optpipe_sim.sim.scenarios import Noise, draw_scenarios, replay_scenarios, scenario_bounds
from optpipe_sim.solvers.robust import measure, solve_robust

ALL = Noise(op=0.1, copy=0.2, device=0.05, comm=0.3, straggler=0.1)


def mixed(slots: int, copy_us: int = 16) -> object:
    """Four devices of which the third is a third slower and has half the memory more."""
    stage = {"t_f_us": 10, "t_b_us": 11, "t_w_us": 9, "act_bytes": 100, "w_bytes": 50}
    slow = {**stage, "t_f_us": 13, "t_b_us": 15, "t_w_us": 12}
    return load_profile(
        {
            "name": "mixed",
            "devices": 4,
            "stages": [stage, stage, slow, stage],
            "t_comm_us": 1,
            "offload": {"t_offload_us": copy_us, "t_reload_us": copy_us},
            "memory_limit_bytes": [100 * slots] * 2 + [150 * slots] + [100 * slots],
        }
    )


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(0, 99))
def test_a_sample_is_the_replay_with_its_durations(case, seed) -> None:
    profile, schedule = case
    try:
        lowered = lower(schedule, profile)
    except (Deadlock, OutOfMemory):
        lowered = lower(schedule, replace(profile, memory_limit=None))
    noise = replace(ALL, comm=0.0)
    drawn = draw_scenarios(profile, schedule.shape.microbatches, noise, 5, seed)
    rows = lowered.schedule.table
    for objective in ("flush", "span"):
        costs = replay_scenarios(lowered, drawn, objective)
        for sample in range(5):
            factor = drawn.own[sample][rows[:, 0], rows[:, 1], rows[:, 2]]
            durations = profile.durations_ns[rows[:, 0], rows[:, 1]].astype(float)
            durations *= drawn.drift[sample, lowered.schedule.devices] * factor
            trace = lowered.replay((durations + 0.5).astype(np.int64), objective)
            assert costs[sample] == trace.cost_ns


@given(cases(levels=True, pairs=True), st.integers(0, 99))
def test_no_schedule_beats_the_bound_of_a_sample(case, seed) -> None:
    profile, schedule = case
    profile = replace(profile, memory_limit=None)
    drawn = draw_scenarios(profile, schedule.shape.microbatches, ALL, 20, seed)
    for objective in ("flush", "span"):
        bounds = scenario_bounds(profile, drawn, objective)
        assert (bounds <= replay_scenarios(lower(schedule, profile), drawn, objective)).all()


@pytest.mark.parametrize("hidden", [0, 30, 80, 1000])
def test_pairs_take_less_than_the_work_of_a_device_but_not_than_its_bound(hidden: int) -> None:
    profile = replace(mixed(4), pair_hidden=1000 * hidden, memory_limit=None)
    schedule = build("1f1b-i:chunks=1,pairs=yes", profile, 12)
    assert schedule.has_pairs
    drawn = draw_scenarios(profile, 12, ALL, 200)
    costs = replay_scenarios(lower(schedule, profile), drawn)
    bounds = scenario_bounds(profile, drawn)
    assert (bounds <= costs).all()
    one_by_one = scenario_bounds(replace(profile, pair_hidden=0), drawn)
    assert (bounds < one_by_one).any() is np.bool_(hidden > 0)


def test_the_bound_of_a_sample_is_near_where_memory_is_ample() -> None:
    profile = mixed(8)
    drawn = draw_scenarios(profile, 24, Noise(op=0.05), 50)
    lowered = lower(build("adaoffload", profile, 24), profile)
    assert replay_scenarios(lowered, drawn).mean() < 1.1 * scenario_bounds(profile, drawn).mean()


def test_factors_scatter_as_asked_around_one() -> None:
    drawn = draw_scenarios(mixed(4), 12, Noise(op=0.2, copy=0.1, device=0.3, comm=0.5), 3000, 7)
    scatter = {F: 0.2, W: 0.2, C: 0.2, O: 0.1, R: 0.1}
    some = [(drawn.own[:, kind], sigma) for kind, sigma in scatter.items()]
    for factors, sigma in [*some, (drawn.drift, 0.3), (drawn.comm, 0.5)]:
        assert factors.mean() == pytest.approx(1, abs=0.03)
        assert np.log(factors).std() == pytest.approx(sigma, rel=0.05)


def test_without_noise_every_sample_is_the_replay() -> None:
    profile = mixed(4)
    lowered = lower(build("zb-h1", profile, 12), profile)
    drawn = draw_scenarios(profile, 12, Noise(op=0), 3)
    assert set(replay_scenarios(lowered, drawn)) == {lowered.replay().makespan_ns}


def test_measure_is_the_mean_or_a_cost_that_so_many_do_not_exceed() -> None:
    costs = np.array([5, 1, 2, 3, 4, 9, 8, 7, 6, 10])
    assert measure(costs, None) == 6
    assert [measure(costs, part) for part in (0, 0.5, 0.9, 1)] == [1, 5, 9, 10]


@pytest.mark.parametrize("quantile", [None, 0.9])
def test_robust_on_mixed_devices_is_no_worse_than_the_deterministic_optimum(quantile) -> None:
    profile, noise = mixed(2), Noise(op=0.08, copy=0.2, device=0.03)
    reported = []
    found = solve_robust(
        profile, 8, noise=noise, samples=200, quantile=quantile, time_limit=2.5,
        on_incumbent=lambda schedule, cost: reported.append(cost),
    )  # fmt: skip
    assert found.objective_ns <= found.nominal_objective_ns
    assert found.lower_bound_ns <= found.objective_ns
    assert found.tried > 20
    assert check(found.schedule, profile) == []
    assert found.trace.cost_ns >= found.nominal.lower_bound_ns
    assert min(reported) == found.nominal.objective_ns
    # the costs are those of the schedule on samples that anyone can draw again
    again = replay_scenarios(
        lower(found.schedule, profile), draw_scenarios(profile, 8, noise, 200, 1)
    )
    assert (again == found.costs_ns).all()
    shown = found.measures()
    assert shown["objective_ns"] == measure(again, quantile)
    assert list(shown["quantiles_ns"].values()) == sorted(shown["quantiles_ns"].values())


def test_robust_without_noise_is_the_deterministic_optimum() -> None:
    profile = mixed(4)
    found = solve_robust(profile, 6, noise=Noise(op=0), samples=3, time_limit=2)
    assert found.objective_ns == found.trace.cost_ns == found.nominal.objective_ns
    assert set(found.costs_ns) == {found.objective_ns}


@pytest.mark.parametrize(
    ("change", "words"), [({"quantile": 1.5}, "quantile"), ({"samples": 0}, "samples")]
)
def test_settings_that_make_no_sense_are_refused(change, words) -> None:
    with pytest.raises(OptPipeError, match=words):
        solve_robust(mixed(4), 4, noise=Noise(), **change)
