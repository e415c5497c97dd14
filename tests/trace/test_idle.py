"""Idle time divided into imbalance and bubble: by hand, and adding up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from strategies import cases
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, build, simulate
from optpipe_sim.trace import OBJECTIVES

STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 1}


def test_a_heavy_last_stage_is_imbalance_and_not_bubble() -> None:
    profile = unit_profile(2, stages=[STAGE, {**STAGE, "t_f_ms": 4}])
    trace = simulate(build("1f1b", profile, 10), profile)
    # device 1 has 6 ms a microbatch from 1 ms on, device 0 has 3, and 2 ms of them after the end
    assert trace.cost_ns == (1 + 60 + 2) * 10**6
    assert trace.imbalance == pytest.approx((60 - 30) / 2 / 63)
    assert trace.bubble == pytest.approx(3 / 63)


def test_equal_devices_have_only_a_bubble() -> None:
    profile = unit_profile(4)
    trace = simulate(build("1f1b", profile, 8), profile)
    assert trace.imbalance == 0
    assert trace.bubble == pytest.approx(3 / 11)


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_they_add_up_to_the_idle_share(case: tuple[CostProfile, Schedule]) -> None:
    profile, schedule = case
    for objective in OBJECTIVES:
        trace = simulate(schedule, profile, enforce=False, objective=objective)
        idle = 1 - sum(trace.busy_ns) / len(trace.busy_ns) / trace.cost_ns
        assert trace.imbalance + trace.bubble == pytest.approx(idle, abs=1e-12)
        assert trace.imbalance >= 0
        assert trace.bubble >= 0
        assert trace.measures()["bubble"] == trace.bubble
