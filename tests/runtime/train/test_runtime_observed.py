"""Costs measured while a schedule runs: profiles from samples, drift, medians over iterations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from train_cases import (
    M,
    one_by_one,
    timed,
)

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.ops import BW, B, F, O, R, W
from optpipe_sim.runtime.train.observed import Sample, Window, drift, measured_profile


def test_a_profile_measured_of_a_replay_is_the_one_replayed(profile) -> None:
    wanted = replace(profile, latency_ns=123_456)
    given = wanted.scale(compute=3.0)
    for schedule in (one_by_one(), build("1f1b", wanted, M)):
        found = measured_profile(given, timed(schedule, wanted), schedule)
        assert found.t_comm_ns == 123_456
        has = {kind for program in schedule.programs for kind, _, _ in program}
        for kind in has - {O, R}:
            assert (found.durations_ns[kind] == wanted.durations_ns[kind]).all()
        for kind in (F, B, W, BW):  # the others are scaled alike
            ratio = found.durations_ns[kind] / given.durations_ns[kind]
            assert (ratio < 0.5).all()
        assert simulate(schedule, found).makespan_ns == pytest.approx(
            simulate(schedule, wanted).makespan_ns, rel=0.02
        )
        assert found.allocated_bytes.tolist() == given.allocated_bytes.tolist()


def test_what_was_measured_among_copies_is_not_slowed_down_by_them_again(profile) -> None:
    found = measured_profile(profile, timed(one_by_one(), profile), one_by_one())
    assert "interference" in profile.meta
    assert found.meta.keys() == profile.meta.keys() - {"interference"}


@pytest.mark.parametrize("how", ["recompute=full", "recompute=full,apart=yes"])
def test_times_of_recomputation_are_measured_too(with_recompute, how: str) -> None:
    wanted = replace(with_recompute, latency_ns=0)
    given = wanted.map_stages(
        lambda _, cost: replace(
            cost,
            recompute=tuple(replace(one, t_ns=2 * one.t_ns) for one in cost.recompute),
        )
    )
    schedule = build(f"1f1b:{how}", wanted, M)
    found = measured_profile(given, timed(schedule, wanted), schedule)
    for stage, cost in enumerate(found.stages):
        true = wanted.stages[stage]
        if "apart" in how:
            assert cost.level("full").t_ns == pytest.approx(true.level("full").t_ns, abs=1)
            assert cost.fused_ns == true.fused_ns
    assert simulate(schedule, found).makespan_ns == pytest.approx(
        simulate(schedule, wanted).makespan_ns, rel=1e-3
    )
    assert drift(found, timed(schedule, wanted), schedule).share < 1e-3
    assert drift(given, timed(schedule, wanted), schedule).share > 0.05


def test_drift_is_in_shares_of_the_compute_time(unit) -> None:
    profile = unit(2)
    schedule = build("zb-h1", profile, M)
    assert drift(profile, timed(schedule, profile), schedule).share == 0
    slower = load_profile(
        {
            "name": "slower",
            "devices": 2,
            "stages": [
                {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 1},
                {"t_f_ms": 1, "t_b_ms": 1.9, "t_w_ms": 1.3, "act_mib": 1},
            ],
        }
    )
    found = drift(profile, timed(schedule, slower), schedule)
    assert (found.stage, found.what) == (1, "compute")
    assert found.share == pytest.approx(0.4)


def test_windows_take_medians_over_iterations() -> None:
    window = Window(3)
    for value in (1.0, 50.0, 2.0, 3.0):
        window.samples.append(Sample(np.array([[value, np.nan]]), float("nan"), value))
    assert window.full
    found = window.medians()
    assert found.duration_ns[0, 0] == 3.0
    assert math.isnan(found.duration_ns[0, 1])
    assert math.isnan(found.latency_ns)
    assert found.makespan_ns == 3.0
