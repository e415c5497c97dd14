"""Lower bounds with levels of recomputation: no schedule of any treatment is below one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from exhaustive import least_cost
from hypothesis import given
from hypothesis import strategies as st
from strategies import SEEDS, cases, limited, that_fits
from tiny_cases import tiny_with_levels

from optpipe_sim import CostProfile, Schedule, load_profile
from optpipe_sim.bounds.bounds import fill_and_drain, lower_bound, naive, one_microbatch, residency
from optpipe_sim.bounds.ends import wait_of_many
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
        problem = make_problem(
            profile, microbatches, objective=random.choice(OBJECTIVES), pairs=False
        )
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


def test_activations_of_several_chunks_fit_in_one_piece() -> None:
    """Device 3 of a V of four: stages 3 and 4 of 10 ns, first backward at 80 + 30 = 110, so 80 ns for 8 F's. 330 bytes
    for 100 each, or 40 with 2 ns to recompute the rest: while the last F runs, with 100, five others fit at 40, in their
    way 8 ns each; the 30 bytes left are worth 1 ns at most, as those of one more that is kept whole."""
    stage = {
        "t_f_ns": 10, "t_b_ns": 10, "t_w_ns": 10, "act_bytes": 100, "w_bytes": 50,
        "recompute": [{"name": "half", "t_ns": 2, "keep_bytes": 40}],
    }  # fmt: skip
    data = {"name": "vee", "devices": 4, "chunks": 2, "placement": "vee", "stages": stage}
    vee = load_profile(data)
    assert wait_of_many(vee, (3, 4), 20, 330, 30, 110) == 110 - (10 + 5 * 8 + 1)
    # copies of 100 bytes in 70 ns make room for 100 in the 70 ns after the first F: two more, and 50 bytes left
    copies = load_profile({**data, "offload": {"t_offload_ns": 70, "t_reload_ns": 70}})
    assert wait_of_many(copies, (3, 4), 20, 330, 30, 110) == 110 - (10 + 8 * 8)
    # stages that differ count by bytes
    other = vee.map_stages(lambda s, cost: replace(cost, t_f_ns=cost.t_f_ns + (s == 4)))
    assert wait_of_many(other, (3, 4), 20, 330, 30, 111) < 110 - 51


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
