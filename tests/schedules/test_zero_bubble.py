"""The zero-bubble family: closed forms, limits, and costs of all kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import profiles
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, check, load_profile, simulate
from optpipe_sim.errors import OutOfMemory
from optpipe_sim.schedules.greedy import device_limits

ROOT = Path(__file__).parents[2]


# -- closed forms ---------------------------------------------------------------------------------


def _even(devices: int, latency: int) -> CostProfile:
    """F, B, W = 1000, 1100, 700 ns; M_B, M_W = 100, 37 bytes."""
    stages = {"t_f_ns": 1000, "t_b_ns": 1100, "t_w_ns": 700, "act_bytes": 100, "w_bytes": 37}
    return load_profile({"devices": devices, "stages": stages, "t_comm_ns": latency})


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 8), (4, 12), (8, 32)])
@pytest.mark.parametrize("latency", [0, 10])
def test_bubbles_of_zb_h1_and_zb_h2(devices: int, microbatches: int, latency: int) -> None:
    profile, busy, others = _even(devices, latency), 2800 * microbatches, devices - 1
    h1 = simulate(build("zb-h1", profile, microbatches), profile)
    assert max(h1.span_ns) - busy == others * (1000 + 1100 - 700) + 4 * others * latency
    h2 = simulate(build("zb-h2", profile, microbatches), profile)
    assert max(h2.span_ns) - busy == others * (1000 + 1100 + 2 * latency - 2 * 700)


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 8), (4, 12), (8, 32)])
def test_memory_of_zb_h1_and_zb_h2(devices: int, microbatches: int) -> None:
    """Worker i: (p-i+1) M_B + (i-1) M_W, and (2p-2i+1) M_B + (2i-2) M_W."""
    profile = _even(devices, 0)
    workers = range(1, devices + 1)
    h1 = simulate(build("zb-h1", profile, microbatches), profile)
    assert h1.peak_bytes == tuple((devices - i + 1) * 100 + (i - 1) * 37 for i in workers)
    h2 = simulate(build("zb-h2", profile, microbatches), profile)
    assert h2.peak_bytes == tuple(
        (2 * devices - 2 * i + 1) * 100 + (2 * i - 2) * 37 for i in workers
    )


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_no_bubble_at_unit_costs(devices: int) -> None:
    microbatches = 3 * devices
    for name, chunks in (("zb-h2", 1), ("zb-2p", 1), ("zb-v", 2)):
        profile = unit_profile(devices, chunks)
        trace = simulate(build(name, profile, microbatches), profile)
        assert trace.bubble_rate == 0, name
    assert trace.peak_bytes == (200 * devices,) * devices


def test_zb_1p_is_zb_h1_at_unit_costs() -> None:
    profile = unit_profile(4)
    times = {
        name: max(simulate(build(name, profile, 12), profile).span_ns)
        for name in ("zb-h1", "zb-1p")
    }
    assert times["zb-1p"] == times["zb-h1"]


def test_more_memory_costs_less_time() -> None:
    profile = load_profile(ROOT / "experiments" / "profiles" / "zb-1.5b-p8-m24.yaml")
    spans = []
    for activations in (2, 4, 8, 12, 16):
        limit = device_limits(profile, None, activations)[0]
        trace = simulate(build("zb-1p", profile, 24, limit=limit), profile, limit)
        assert max(trace.peak_bytes) <= limit
        spans.append(max(trace.span_ns))
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] < 0.5 * spans[0]
    own = build("zb-2p", profile, 24)
    assert build("zb-1p", profile, 24, limit=device_limits(profile, None, 16)[0]) == own


def test_a_limit_that_holds_no_microbatch() -> None:
    profile = unit_profile(4)
    for name, least in (("zb-1p", 100), ("zb-2p", 100), ("zb-v", 100)):
        with pytest.raises(OutOfMemory, match=f"least limit that works is {least}B"):
            build(name, profile, 4, limit=least - 1)
        trace = simulate(build(name, profile, 4, limit=least), profile, least)
        assert trace.peak_bytes == (least,) * 4


# -- any costs ------------------------------------------------------------------------------------


@given(profiles(max_chunks=2), st.integers(1, 9))
def test_any_costs_and_any_number_of_microbatches(profile: CostProfile, microbatches: int) -> None:
    profile = profile.scale(compute=2)  # a stage of 1 ns could not be divided into chunks
    for name in ("zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v"):
        schedule = build(name, profile, microbatches)
        trace = simulate(schedule, profile, enforce=False)
        assert trace.makespan_ns >= max(trace.busy_ns)
        assert check(schedule, profile, 2**50) == []


@given(profiles(offload=False), st.integers(1, 9), st.floats(0, 1))
def test_limits_are_kept_whatever_the_costs(
    profile: CostProfile, microbatches: int, share: float
) -> None:
    """From the least limit that holds one microbatch up to twice the default one."""
    profile = profile.scale(compute=2)
    for name, chunks, placement, held in (
        ("zb-1p", 1, "loop", 1),
        ("zb-2p", 1, "loop", 2),
        ("zb-v", 2, "vee", 2),
    ):
        costs = profile.rechunk(chunks, placement)
        by_default = device_limits(costs, None, held * costs.devices)
        trace = simulate(build(name, profile, microbatches), profile, enforce=False)
        assert all(peak <= most for peak, most in zip(trace.peak_bytes, by_default, strict=True))
        least = max(costs.least_limits)
        limit = least + int(share * (2 * max(by_default) - least))
        schedule = build(name, profile, microbatches, limit=limit)
        trace = simulate(schedule, profile, limit)
        assert max(simulate(schedule, profile, enforce=False).peak_bytes) <= limit
        assert check(schedule, profile, limit) == []


@given(profiles(max_chunks=1), st.integers(1, 12))
def test_the_greedy_is_never_much_worse_than_the_pattern(
    profile: CostProfile, microbatches: int
) -> None:
    profile = replace(profile, links="latency")
    for hand, automatic in (("zb-h1", "zb-1p"), ("zb-h2", "zb-2p")):
        by_hand, found = (
            max(simulate(build(name, profile, microbatches), profile, enforce=False).span_ns)
            for name in (hand, automatic)
        )
        assert found <= 1.25 * by_hand
