"""Schedules over slices: closed forms, what they are with one slice, and what they hold."""

from __future__ import annotations

import pytest
from unit_profiles import UNIT, unit_profile

from optpipe_sim import build, check, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.plot.text import text_gantt
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.schedules.sliced.exchange import with_context_exchange

NAMES = tuple(name for name, entry in REGISTRY.items() if entry.sliced)
FILLED = """\
0 F0/0 F0/1 F1/0 F1/1 F2/0 .    .    .    B0/1 F2/1 B0/0 F3/0 B1/1 F3/1 B1/0 W0/1 B2/1 W0/0 W1/1 B2/0 W1/0 W2/1 B3/1 W2/0 B3/0 W3/1 W3/0
1 .    F0/0 F0/1 F1/0 F1/1 .    .    B0/1 F2/0 B0/0 F2/1 B1/1 F3/0 B1/0 F3/1 B2/1 W0/1 W0/0 B2/0 W1/1 W1/0 B3/1 W2/1 B3/0 W2/0 W3/1 W3/0
2 .    .    F0/0 F0/1 F1/0 .    B0/1 F1/1 B0/0 F2/0 B1/1 F2/1 B1/0 F3/0 B2/1 W0/1 F3/1 B2/0 W0/0 W1/1 B3/1 W1/0 B3/0 W2/1 W2/0 W3/1 W3/0
3 .    .    .    F0/0 F0/1 B0/1 F1/0 B0/0 F1/1 B1/1 F2/0 B1/0 F2/1 B2/1 W0/1 F3/0 B2/0 W0/0 F3/1 B3/1 W1/1 B3/0 W1/0 W2/1 W2/0 W3/1 W3/0
"""
COPIES = {"t_offload_ms": 0.5, "t_reload_ms": 0.5}


@pytest.mark.parametrize("p", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_seq1f1b_takes_the_time_of_its_closed_form(p: int, n: int, m: int) -> None:
    stage = {"t_f_ms": 7, "t_b_ms": 8, "t_w_ms": 3, "act_bytes": 10}
    profile = unit_profile(p, slices=n, stages=stage)
    trace = simulate(build("seq1f1b", profile, m), profile)
    assert trace.makespan_ns == (n * m + p - 1) * 18_000_000
    assert trace.bubble_rate_flush == pytest.approx((p - 1) / (n * m + p - 1))
    held = [peak // 10 for peak in trace.peak_bytes]
    assert held == [min(n * m, p - rank + n - 1) for rank in range(p)]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("seq1f1b", "1f1b"),
        ("slimpipe", "1f1b"),
        ("seq-zb", "zb-h1"),
        ("seq1f1b-i", "1f1b-i"),
        ("sppo:offloaded=0", "1f1b"),
    ],
)
def test_with_one_slice_it_is_the_plain_schedule(name: str, plain: str) -> None:
    profile = unit_profile(4, offload=COPIES)
    assert build(name, profile, 8).programs == build(plain, profile, 8).programs


@pytest.mark.parametrize("name", [*NAMES, "gis", "gis-h", "po", "seq1f1b-i:chunks=3"])
@pytest.mark.parametrize(("n", "m"), [(2, 8), (4, 4), (8, 2)])
def test_every_schedule_over_slices_runs(name: str, n: int, m: int) -> None:
    profile = unit_profile(4, t_comm_ms=0.1, offload=COPIES)
    separator = "," if ":" in name else ":"
    schedule = build(f"{name}{separator}slices={n}", profile, m)
    assert schedule.shape.slices == n
    assert check(schedule, profile) == []
    trace = simulate(schedule, profile)
    assert trace == simulate(schedule, profile, engine="simpy")
    plain = simulate(build("1f1b", profile, m), profile)
    assert trace.makespan_ns < plain.makespan_ns
    assert max(trace.peak_bytes) < max(plain.peak_bytes)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_name_cuts_sequences_or_does_not_know_the_option(name: str) -> None:
    profile = unit_profile(4, offload=COPIES)
    if "slices" in REGISTRY[name].options:
        schedule = build(f"{name}:slices=2", profile, 8)
        assert schedule.shape.slices == 2
        assert check(schedule, profile) == []
    else:
        with pytest.raises(InvalidSchedule, match="unknown option 'slices'; known are "):
            build(f"{name}:slices=2", profile, 8)


def test_groups_that_would_cut_microbatches_are_refused() -> None:
    with pytest.raises(InvalidSchedule, match="slices have to divide the 4 devices"):
        build("seq1f1b-i:slices=3", unit_profile(4), 8)


def test_mepipe_fills_waits_with_weight_gradients() -> None:
    profile = unit_profile(4, slices=2)
    schedule = build("mepipe", profile, 4)
    assert text_gantt(simulate(schedule, profile)) == FILLED
    assert simulate(schedule, profile).makespan_ns == 27_000_000


def test_sppo_offloads_leading_slices() -> None:
    profile = unit_profile(2, slices=4, stages=UNIT | {"kv_bytes": 20}, offload=COPIES)
    gone = {
        op.slice for op in build("sppo:offloaded=2", profile, 4).programs[0] if op.kind.name == "O"
    }
    assert gone == {0, 1}
    full = simulate(build("seq1f1b", profile, 4), profile)
    less = simulate(build("sppo", profile, 4), profile)
    assert max(less.peak_bytes) < max(full.peak_bytes)
    assert less.makespan_ns == full.makespan_ns
    with pytest.raises(InvalidSchedule, match="from 0 to 4, the slices"):
        build("sppo:offloaded=5", profile, 4)


def test_context_exchange_levels_the_slices() -> None:
    profile = unit_profile(
        4, slices=4, stages=UNIT | {"t_f_ms": [1, 2, 3, 4], "t_b_ms": [2, 4, 6, 8]}
    )
    level = with_context_exchange(profile, exchange_ns=1000)
    assert {part.t_f_ns for part in level.stages[0].slices} == {2_501_000}
    assert {part.t_b_ns for part in level.stages[0].slices} == {5_001_000}
    uneven = simulate(build("slimpipe", profile, 4), profile)
    even = simulate(build("slimpipe", level, 4), level)
    assert even.makespan_ns < uneven.makespan_ns
