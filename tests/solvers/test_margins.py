"""Plans with safety margins: they hold where reality is off by that, and say what it costs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import SEEDS, cases, that_fits
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, simulate, solve
from optpipe_sim.errors import Deadlock, OptPipeError, OutOfMemory
from optpipe_sim.sim.lower import lower
from optpipe_sim.sim.scenarios import Noise
from optpipe_sim.solvers.frontier import frontier
from optpipe_sim.solvers.margins.plan import padded
from optpipe_sim.solvers.margins.shares import Margins, as_margins
from optpipe_sim.solvers.robust import solve_robust

SHARES = st.sampled_from([0.0, 0.03, 0.1, 0.3, 1.0])
MARGINS = st.builds(Margins, copies=SHARES, ops=SHARES, memory=SHARES)


def slow_copies(limit: int) -> CostProfile:
    """Room for two or three activations, and copies as long as an activation's own ops."""
    return unit_profile(
        4,
        offload={"t_offload_ms": 2, "t_reload_ms": 2},
        memory_limit_bytes=limit,
    )


def within(profile: CostProfile, margins: Margins, random: Random) -> CostProfile:
    """A reality that is off by no more than the margins, stage by stage."""
    worst = padded(profile, margins)

    def between(low: int | None, high: int | None) -> int | None:
        return None if low is None or high is None else random.randint(low, high)

    times = ("t_f_ns", "t_b_ns", "t_w_ns", "t_bw_ns", "t_offload_ns", "t_reload_ns", "static_bytes")
    return profile.map_stages(
        lambda at, cost: replace(
            cost,
            **{key: between(getattr(cost, key), getattr(worst.stages[at], key)) for key in times},
        )
    )


@given(cases(), MARGINS, SEEDS)
def test_a_plan_for_the_worst_holds_whatever_happens_within_it(
    case: tuple[CostProfile, Schedule], margins: Margins, seed: int
) -> None:
    profile, schedule = case
    if profile.links == "serial":  # served first come, first served
        profile = replace(profile, links="latency")
    worst, planned = that_fits(padded(profile, margins), schedule)
    limits = worst.memory_limit
    profile = replace(profile, memory_limit=limits)
    order = lower(schedule, worst).schedule.link_order  # as links were served in the plan
    fixed = schedule.replace(link_order=order)
    for reality in (profile, worst, within(profile, margins, Random(seed))):
        trace = simulate(fixed, reality, limits)
        assert all(peak <= most for peak, most in zip(trace.peak_bytes, limits or (), strict=False))
        assert trace.makespan_ns <= planned.makespan_ns


@given(cases(), MARGINS)
def test_padding_covers_a_profile_that_is_scaled_by_as_much(
    case: tuple[CostProfile, Schedule], margins: Margins
) -> None:
    profile, _ = case
    worst = padded(profile, margins)
    scaled = profile.scale(
        compute=1 + margins.ops, copy=1 + margins.copies, memory=1 + margins.memory
    )
    for most, cost in zip(worst.stages, scaled.stages, strict=True):
        for key in ("t_f_ns", "t_b_ns", "t_w_ns", "act_bytes", "w_bytes", "static_bytes"):
            assert getattr(most, key) >= getattr(cost, key)
        # what stays on the device of an offloaded activation
        assert most.act_bytes - most.offloadable >= cost.act_bytes - cost.offloadable - 1
    assert padded(profile, Margins()) is profile
    assert (worst.latency_ns, worst.memory_limit) == (profile.latency_ns, profile.memory_limit)


EFFORT = {
    "engine": "search",
    "evaluations": 400,
    "workers": 1,
    "time_limit": 60,
    "published": False,
}


def test_a_plan_with_margins_keeps_the_limit_and_its_time() -> None:
    profile = slow_copies(330)
    margins = Margins(copies=0.25, ops=0.1, memory=0.05)
    found = solve(profile, 5, margin=margins, **EFFORT, chunks="own")
    answer = found.info["margin"]
    off = profile.scale(copy=1.25, compute=1.1, memory=1.05)
    trace = simulate(found.schedule, off)
    assert max(trace.peak_bytes) <= 330
    assert trace.makespan_ns == answer["planned_ns"] >= answer["planned_bound_ns"]
    assert found.objective_ns == answer["nominal_ns"] >= found.lower_bound_ns
    assert simulate(found.schedule, profile).makespan_ns <= found.objective_ns
    # what waits for what is decided from the profile's sizes, and holds with larger ones
    lowered = lower(found.schedule, profile, answer["memory_limit_bytes"])
    assert 1.05 * max(lowered.replay().peak_bytes) <= 330
    # each margin costs something or nothing, and all of them at least as much as one of them
    for name in ("copies", "ops", "memory"):
        assert answer["without"]["all"]["planned_ns"] <= answer["without"][name]["planned_ns"]
        assert answer["without"][name]["planned_ns"] <= answer["planned_ns"]


def test_without_margins_a_plan_that_fills_the_memory_does_not_fit() -> None:
    profile = slow_copies(300)
    found = solve(profile, 6, margin="memory=3%", **EFFORT, chunks="own")
    answer = found.info["margin"]
    assert answer["unguarded"] == {"fits": False, "ns": None}
    assert answer["nominal_ns"] > answer["without"]["all"]["nominal_ns"]
    assert max(found.trace.peak_bytes) <= 300 / 1.03
    with pytest.raises((Deadlock, OutOfMemory)):
        simulate(solve(profile, 6, **EFFORT, chunks="own").schedule, profile.scale(memory=1.03))


def test_margins_of_nothing_change_nothing() -> None:
    profile = slow_copies(300)
    plain, nothing = (
        solve(profile, 6, **EFFORT, chunks="own"),
        solve(profile, 6, margin="copies=0%", **EFFORT, chunks="own"),
    )
    assert nothing.schedule == plain.schedule
    assert "margin" not in nothing.info
    assert nothing.measures().keys() == plain.measures().keys()


def test_margins_over_any_chunks() -> None:
    profile = slow_copies(430)
    found = solve(profile, 6, margin={"memory": "3%"}, chunks="any", time_limit=1.5, workers=1)
    trace = simulate(found.schedule, profile.scale(memory=1.03))
    assert trace.makespan_ns <= found.info["margin"]["planned_ns"]
    assert found.lower_bound_ns <= found.objective_ns
    assert "chunks" in found.info["covers"]


@pytest.mark.parametrize("chunks", ["own", "any"])
def test_an_interrupted_plan_reports_what_is_known(chunks: str) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    profile = slow_copies(430)
    found = solve(profile, 6, margin="copies=20%", on_incumbent=stop, time_limit=5, chunks=chunks)
    assert found.info["interrupted"]
    assert found.info["margin"]["without"] == {}
    assert 0 < found.lower_bound_ns <= found.objective_ns <= found.info["margin"]["planned_ns"]


def test_a_robust_plan_with_a_margin_keeps_the_limit_with_larger_sizes() -> None:
    profile = slow_copies(330)
    found = solve_robust(
        profile, 6, noise=Noise(op=0.05), samples=20, margin="memory=5%,copies=20%", time_limit=2
    )
    lowered = lower(found.schedule, profile.scale(memory=1.05, copy=1.2))
    assert max(lowered.replay().peak_bytes) <= 330
    assert 1.05 * max(found.trace.peak_bytes) <= 330
    assert found.costs_ns.min() >= found.lower_bound_ns * 0.9
    assert found.trace.cost_ns < found.objective_ns  # planned for slower copies than profiled


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("copies", "expected NAME=SHARE, as in copies=10%,ops=5%,memory=3%, got 'copies'"),
        ("copies=-1%", "copies must be a share from 0 to 100%, as in 10% or 0.1, got '-1%'"),
        ("copies=5", "copies must be a share from 0 to 100%"),
        ("copies=nan", "copies must be a share from 0 to 100%"),
        ("copy=3%", "knows copies, ops, memory, not 'copy'"),
        ("ops=1%,ops=2%", "ops is there twice"),
        ({"memory": True}, "memory must be a share"),
        ({"host": 0.1}, "knows copies, ops, memory, not 'host'"),
        (0.1, "expected copies=10%,ops=5%,memory=3%, got 0.1"),
    ],
)
def test_what_is_no_margin_is_refused_in_one_line(given: object, message: str) -> None:
    with pytest.raises(OptPipeError) as error:
        as_margins(given)  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_margin_that_leaves_no_room_says_so() -> None:
    with pytest.raises(
        OutOfMemory, match="with a margin of memory 50%: does not fit: device 0: the limit"
    ):
        solve(slow_copies(120), 4, margin="memory=50%", time_limit=1, chunks="own")
    with pytest.raises(OptPipeError, match="margin: a frontier has none"):
        frontier(slow_copies(300), 4, [300], margin="memory=3%", chunks="own")
