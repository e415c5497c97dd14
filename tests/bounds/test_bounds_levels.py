"""Lower bounds with levels of recomputation: no schedule of any treatment is below one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from exhaustive import least_cost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import SEEDS, cases, limited, that_fits
from tiny_cases import tiny_with_levels

from optpipe_sim import CostProfile, Schedule
from optpipe_sim.bounds.bounds import fill_and_drain, lower_bound, naive, one_microbatch, residency
from optpipe_sim.bounds.lp import configuration_bounds
from optpipe_sim.bounds.relaxed import relaxed
from optpipe_sim.bounds.relief import least_ns, most_saved, steps
from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile import Offload
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.race.bounds import best_bound
from optpipe_sim.stage_cost import RecomputeLevel, StageCost

OBJECTIVES = ("flush", "span")


def every_bound(problem: Problem) -> dict[str, int]:
    """All bounds of a problem by name."""
    what = problem.profile, problem.microbatches, problem.objective
    return {
        "work": naive(*what),
        "one microbatch": one_microbatch(*what[::2]),
        "fill and drain": fill_and_drain(*what, problem.limits),
        "residency": residency(*what, problem.limits),
        "configurations": max(configuration_bounds(*what, problem.limits), default=0),
        "all that a race looks for": best_bound(problem, 0.2),
    }


def assert_below(problem: Problem, cost_ns: int) -> None:
    above = {name: bound for name, bound in every_bound(problem).items() if bound > cost_ns}
    assert not above, f"above {cost_ns}: {problem}"


def test_no_bound_is_above_the_least_cost_of_tiny_problems_with_levels() -> None:
    solved = met = 0
    for seed in range(36):
        random = Random(seed)
        profile, microbatches = tiny_with_levels(random)
        problem = make_problem(profile, microbatches, objective=random.choice(OBJECTIVES))
        try:
            least = least_cost(problem, 300)
        except OverflowError:
            continue
        if least is None:  # the least limits are necessary, with one microbatch sufficient
            continue
        assert_below(problem, least)
        solved += 1
        met += max(every_bound(problem).values()) == least
    assert solved >= 18
    assert met >= solved * 0.4


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(cases(levels=True), SEEDS, st.sampled_from(OBJECTIVES))
def test_no_random_schedule_with_levels_beats_a_bound(
    case: tuple[CostProfile, Schedule], seed: int, objective: str
) -> None:
    profile, schedule = case
    profile, trace = that_fits(limited(profile, Random(seed)), schedule, objective)
    problem = Problem(profile, schedule.shape.microbatches, profile.memory_limit, objective)
    assert_below(problem, trace.cost_ns)


def cell(limit: int, copy_ns: int, devices: int = 4) -> CostProfile:
    """The small cases of the tests of recomputation: two levels, memory for a few activations."""
    stage = StageCost(
        t_f_ns=10, t_b_ns=11, t_w_ns=9, act_bytes=100, w_bytes=50,
        t_offload_ns=copy_ns, t_reload_ns=copy_ns,
        recompute=(RecomputeLevel("light", 1, 60, 20), RecomputeLevel("full", 10, 6, 30)),
    )  # fmt: skip
    return CostProfile(
        "cell", devices, (stage,) * devices, latency_ns=1, offload=Offload(),
        memory_limit=(limit,) * devices,
    )  # fmt: skip


# schedules of p = 4, m = 8 that an independent model found
@pytest.mark.parametrize(
    ("limit", "copy_ns", "found"), [(200, 5, 291), (200, 16, 291), (266, 5, 282), (266, 16, 282)]
)
def test_known_schedules_of_small_cells(limit: int, copy_ns: int, found: int) -> None:
    assert_below(make_problem(cell(limit, copy_ns), 8), found)


def test_treatments_restrict_what_a_bound_assumes() -> None:
    profile = cell(200, 16)
    kept = make_problem(profile, 8, treatments=("keep",))
    offloaded = make_problem(profile, 8, treatments=("keep", "offload"))
    assert kept.treatments == {"keep"}
    assert offloaded.treatments == {"keep", "offload"}
    assert make_problem(profile, 8).treatments == {"keep", "offload", "recompute"}
    bounds = [
        lower_bound(one.profile, 8, "flush", one.limits).ns
        for one in (kept, offloaded, make_problem(profile, 8))
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[1]
    with pytest.raises(OptPipeError, match="treatments: expected some of keep, offload, recompute"):
        make_problem(profile, 8, treatments=("drop",))


def test_a_profile_without_levels_is_its_own_relaxation() -> None:
    profile = cell(200, 16)
    plain = make_problem(profile, 8, treatments=("keep", "offload")).profile
    assert relaxed(plain) is plain
    assert relaxed(profile).stages[0].act_bytes == 6


# -- values by hand -----------------------------------------------------------------------------------


def test_steps_are_the_convex_hull_of_the_levels() -> None:
    assert steps(cell(200, 16).stages[0]) == [(40, 1), (54, 9)]
    half = RecomputeLevel("half", 9, 50)  # a mixture of the two others keeps as much for less
    more = replace(cell(200, 16).stages[0], recompute=(half, *cell(200, 16).stages[0].recompute))
    assert steps(more) == [(40, 1), (54, 9)]


def test_the_least_time_that_makes_room() -> None:
    relief = [(step, 3) for step in steps(cell(200, 16).stages[0])]
    assert least_ns(0, relief, Fraction(0)) == 0
    assert least_ns(120, relief, Fraction(0)) == 3  # all three lightly
    assert least_ns(120 + 54, relief, Fraction(0)) == 3 + 9  # and one of them thoroughly
    assert least_ns(3 * 94 + 1, relief, Fraction(0)) is None
    # copies of 10 bytes per ns cost 0.1 ns per byte: less than what is dropped thoroughly (1/6)
    assert least_ns(120 + 54, relief, Fraction(10)) == 3 + Fraction(54, 10)
    assert most_saved(relief, 3 + 9) == 120 + 54


def test_the_last_backward_by_hand() -> None:
    # The last of 8 devices starts at 77, works for 480, and what is below it takes 93 after its last
    # backward, less the W's that fit beside that: its own and two of 50 bytes.
    assert fill_and_drain(cell(200, 16, 8), 16) == 77 + 480 + 93 - 27
    # recomputed inside for a single ns it leaves room for a third one
    cheap = RecomputeLevel("cheap", 1, 6, 30)
    profile = cell(200, 16, 8).map_stages(lambda _, cost: replace(cost, recompute=(cheap,)))
    assert fill_and_drain(profile, 16) == 77 + 480 + 93 - 36 + 1


def test_blocking_messages_are_work() -> None:
    profile = replace(cell(10**6, 16), latency_ns=0, occupancy_ns=3, links="blocking")
    assert naive(profile, 8) == 26 + 8 * (30 + 3 + 3)  # of the third device, which sends both ways
    assert naive(profile, 8, "span") == 8 * 36 - 3  # all but what its last backward sends
