"""GPipe, 1F1B and interleaved 1F1B against their closed forms, and on costs of all kinds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import profiles
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, load_profile, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.ops import BW, F


@pytest.mark.parametrize(("devices", "microbatches"), [(1, 3), (4, 4), (4, 9), (7, 2)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_fraction_without_communication(name: str, devices: int, microbatches: int) -> None:
    profile = unit_profile(devices)
    trace = simulate(build(name, profile, microbatches), profile)
    bubble = (devices - 1) / (microbatches + devices - 1)
    assert trace.bubble_rate_flush == pytest.approx(bubble, abs=1e-12)


@pytest.mark.parametrize("microbatches", [1, 2, 5, 12])
def test_peaks(microbatches: int) -> None:
    profile = unit_profile(4)
    gpipe = simulate(build("gpipe", profile, microbatches), profile)
    assert gpipe.peak_bytes == (100 * microbatches,) * 4
    one = simulate(build("1f1b", profile, microbatches), profile)
    assert one.peak_bytes == tuple(100 * min(microbatches, 4 - rank) for rank in range(4))


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (4, 12), (8, 32)])
def test_1f1b_with_communication(devices: int, microbatches: int) -> None:
    """bubble = (p-1)(F+B+W) + (2(p-1)m/p + 2(p-2)) c, for a small c."""
    stages = {"t_f_ns": 1000, "t_b_ns": 1100, "t_w_ns": 700, "act_bytes": 1}
    latency = 10
    profile = load_profile({"devices": devices, "stages": stages, "t_comm_ns": latency})
    trace = simulate(build("1f1b", profile, microbatches), profile)
    p = devices
    hops = 2 * (p - 1) * microbatches // p + 2 * (p - 2)
    assert max(trace.span_ns) == 2800 * (microbatches + p - 1) + hops * latency


@pytest.mark.parametrize(
    ("devices", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 3, 12), (8, 3, 24)]
)
def test_interleaved_bubble_and_peak(devices: int, chunks: int, microbatches: int) -> None:
    """bubble = (p-1)(F+B+W)/v + 2(pv-1) c; rank 0 holds pv+p-1 chunks."""
    stages = {"t_f_ns": 1000, "t_b_ns": 1100, "t_w_ns": 700, "act_bytes": 1}
    latency = 10
    profile = load_profile(
        {"devices": devices, "chunks": chunks, "stages": stages, "t_comm_ns": latency}
    )
    trace = simulate(build("1f1b-i", profile, microbatches), profile)
    busy = 2800 * chunks * microbatches
    bubble = 2800 * (devices - 1) + 2 * (devices * chunks - 1) * latency
    assert max(trace.span_ns) == busy + bubble
    assert trace.peak_bytes[0] == devices * chunks + devices - 1
    assert trace.schedule.shape.placement_name == "loop"


def test_interleaved_rechunks_the_profile_and_one_chunk_is_allowed() -> None:
    profile = unit_profile(4)
    assert build("1f1b-i", profile, 4).shape.chunks == 2
    assert build("1f1b-i:chunks=5", unit_profile(4, 3), 4).shape.chunks == 5
    alone = simulate(build("1f1b-i:chunks=1", profile, 8), profile)
    plain = simulate(build("1f1b", profile, 8), profile)
    assert alone.makespan_ns == plain.makespan_ns


@pytest.mark.parametrize(("microbatches", "hint"), [(6, "4 or 8"), (3, "take 4")])
def test_interleaved_needs_whole_groups(microbatches: int, hint: str) -> None:
    with pytest.raises(InvalidSchedule, match="multiple of the devices, 4") as caught:
        build("1f1b-i", unit_profile(4), microbatches)
    assert hint in str(caught.value)
    with pytest.raises(InvalidSchedule, match="chunks"):
        build("1f1b-i", unit_profile(4), 4, chunks=0)


@given(profiles(), st.integers(1, 9))
def test_any_costs_and_any_number_of_microbatches(profile: CostProfile, microbatches: int) -> None:
    profile = profile.scale(compute=6)  # a stage of 1 ns could not be divided into chunks
    groups = (microbatches - 1) // profile.devices + 1
    for name, count in (
        ("gpipe", microbatches),
        ("1f1b", microbatches),
        ("1f1b-i", groups * profile.devices),
    ):
        trace = simulate(build(name, profile, count), profile, enforce=False)
        assert sorted(set(trace.schedule.table[:, 0])) == [F, BW]
        assert trace.makespan_ns >= max(trace.busy_ns)
