"""The lower bounds: never above what any schedule reaches, and often met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest
from greedy_cases import any_setting, uniform
from hypothesis import given
from hypothesis import strategies as st
from strategies import SEEDS, limited, profiles, schedules

from optpipe_sim import CostProfile, Schedule, build, simulate
from optpipe_sim.bounds.bounds import (
    fill_and_drain,
    lower_bound,
    naive,
    one_microbatch,
    residency,
)
from optpipe_sim.bounds.chains import Drain
from optpipe_sim.bounds.ends import after_last_forward
from optpipe_sim.errors import (
    Deadlock,
    InvalidSchedule,
    NoSolution,
    OptPipeError,
    OutOfMemory,
)
from optpipe_sim.profile import Offload
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.schedules.adaoffload.runs import Problem
from optpipe_sim.sim import simulate_or_report
from optpipe_sim.stage_cost import StageCost

OBJECTIVES = ("flush", "span")


def all_bounds(profile: CostProfile, microbatches: int, objective: str) -> dict[str, int]:
    return {
        "work": naive(profile, microbatches, objective),
        "one microbatch": one_microbatch(profile, objective),
        "fill and drain": fill_and_drain(profile, microbatches, objective),
        "residency": residency(profile, microbatches, objective),
    }


def assert_below(profile: CostProfile, microbatches: int, objective: str, cost_ns: int) -> None:
    for name, bound in all_bounds(profile, microbatches, objective).items():
        assert bound <= cost_ns, name


# -- every program of tiny instances ------------------------------------------------------------------


def orders(stage: int, fused: tuple[bool, ...]) -> Iterator[list[str]]:
    """Every order of the ops of one stage; two microbatches, each with B and W or with BW."""
    chains = [
        [f"F{stage}.{j}", f"BW{stage}.{j}"]
        if whole
        else [f"F{stage}.{j}", f"B{stage}.{j}", f"W{stage}.{j}"]
        for j, whole in enumerate(fused)
    ]
    size = sum(map(len, chains))
    for first in combinations(range(size), len(chains[0])):
        one, other = iter(chains[0]), iter(chains[1])
        yield [next(one) if at in first else next(other) for at in range(size)]


def offloading(program: list[str], stage: int) -> Iterator[list[str]]:
    """The program with one microbatch offloaded: O after its F, R at every place up to its B."""
    for j in range(2):
        forward = program.index(f"F{stage}.{j}")
        backward = next(
            at for at, op in enumerate(program) if op in (f"B{stage}.{j}", f"BW{stage}.{j}")
        )
        for at in range(forward + 1, backward + 1):
            copies = [*program[:at], f"R{stage}.{j}", *program[at:]]
            yield [*copies[: forward + 1], f"O{stage}.{j}", *copies[forward + 1 :]]


def best_of_all(profile: CostProfile) -> dict[str, int]:
    """The least makespan and span over all programs of two microbatches on two stages; where the
    profile offloads, with at most one offload, on device 0."""
    every = []
    for stage in range(2):
        programs = [
            order for fused in product((False, True), repeat=2) for order in orders(stage, fused)
        ]
        if stage == 0:  # the two microbatches are alike
            programs = [p for p in programs if p[0] == "F0.0"]
        if profile.offload:
            # FIFO is enough here, and keeps the number of pairs small
            programs = [p for p in programs if p.index(f"F{stage}.0") < p.index(f"F{stage}.1")]
            programs = [p for p in programs if not any(op.startswith("BW") for op in p)]
        if profile.offload and stage == 0:
            programs += [more for p in programs for more in offloading(p, stage)]
        every.append(programs)
    best = dict.fromkeys(OBJECTIVES, 2**62)
    for pair in product(*every):
        try:
            trace = simulate(Schedule(profile.shape(2), pair), profile)
        except Deadlock:
            continue
        best["flush"] = min(best["flush"], trace.makespan_ns)
        best["span"] = min(best["span"], max(trace.span_ns))
    return best


def two_stages(random: Random, *, copies: bool) -> CostProfile:
    stages = tuple(
        StageCost(
            t_f_ns=random.randint(1, 6),
            t_b_ns=random.randint(1, 6),
            t_w_ns=random.randint(0, 6),
            t_bw_ns=random.choice((None, random.randint(1, 8))),
            act_bytes=2,
            w_bytes=random.randint(0, 2),
            offload_bytes=random.randint(1, 2),
            t_offload_ns=random.randint(0, 6),
            t_reload_ns=random.randint(0, 6),
        )
        for _ in range(2)
    )
    return CostProfile(
        "two",
        2,
        stages,
        latency_ns=random.randint(0, 4),
        offload=Offload(random.choice(("separate", "shared"))) if copies else None,
        memory_limit=(random.randint(2, 5), random.randint(2, 5)),
    )


def test_no_program_of_two_microbatches_beats_a_bound() -> None:
    met = 0
    for seed in range(3):
        profile = two_stages(Random(seed), copies=seed == 2)
        best = best_of_all(profile)
        for objective in OBJECTIVES:
            assert_below(profile, 2, objective, best[objective])
            met += lower_bound(profile, 2, objective).ns == best[objective]
    assert met >= 2  # and not far below: often the best bound is the optimum itself


# -- random instances ---------------------------------------------------------------------------------


@given(profiles(), st.data(), st.sampled_from(OBJECTIVES))
def test_no_random_schedule_beats_a_bound(
    profile: CostProfile, data: st.DataObject, objective: str
) -> None:
    schedule = data.draw(schedules(profile))
    trace, reason = simulate_or_report(schedule, profile, objective=objective)
    if reason is not None:
        profile = replace(profile, memory_limit=None)
    assert_below(profile, schedule.shape.microbatches, objective, trace.cost_ns)


@given(profiles(offload=True), st.integers(1, 8), SEEDS, st.sampled_from(OBJECTIVES))
def test_no_greedy_run_under_a_limit_beats_a_bound(
    profile: CostProfile, microbatches: int, seed: int, objective: str
) -> None:
    random = Random(seed)
    profile = limited(profile, random)
    problem = Problem(profile, microbatches, profile.memory_limit)
    for _ in range(8):
        run = problem.play(any_setting(random))
        assert run is not None
        assert_below(profile, microbatches, objective, run.cost_ns(objective))


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_published_schedule_beats_a_bound(name: str, objective: str) -> None:
    random = Random(3)
    base = uniform(4, 400, 16)
    uneven = base.map_stages(
        lambda _, cost: replace(cost, t_f_ns=random.randint(6, 14), t_b_ns=random.randint(8, 14))
    )
    for profile in (base, uneven):
        try:
            schedule = build(name, profile, 8)
        except (InvalidSchedule, OutOfMemory, NoSolution):
            continue
        trace, reason = simulate_or_report(schedule, profile, objective=objective)
        held = trace.profile if reason is None else replace(trace.profile, memory_limit=None)
        assert_below(held, 8, objective, trace.cost_ns)
    assert trace.cost_ns > 0


# -- values by hand -----------------------------------------------------------------------------------


def test_work_by_hand() -> None:
    profile = uniform(4)
    assert naive(profile, 6) == 3 * (10 + 1) + 6 * 30
    assert naive(profile, 6, "span") == 6 * 30


def test_one_microbatch_by_hand() -> None:
    profile = uniform(4)
    # four F's and three hops, four B's and three hops, one W
    assert one_microbatch(profile) == 4 * 10 + 3 + 4 * 11 + 3 + 9
    # the same, for all of it starts and ends on device 0
    assert one_microbatch(profile, "span") == one_microbatch(profile)


def test_the_cheaper_backward_counts() -> None:
    profile = uniform(2).map_stages(lambda _, cost: replace(cost, t_bw_ns=15))
    assert naive(profile, 4, "span") == 4 * 25
    assert one_microbatch(profile) == 2 * 10 + 1 + 11 + 1 + 15


def test_fill_by_hand() -> None:
    # Device 0 of two may hold one activation and offload none: F0, then it waits for B0 at 10 + 1 +
    # 10 + 11 + 1 = 33 ns, and still has three microbatches less one F to do. After the last F it
    # waits another 23 ns, with nothing to do but a W of 9 ns at best, and none when memory is full.
    profile = replace(uniform(2), offload=None, memory_limit=(100, 1000))
    assert fill_and_drain(profile, 3) == 33 + 3 * 30 - 10 + 23
    assert fill_and_drain(replace(profile, memory_limit=(150, 1000)), 3) == 33 + 3 * 30 - 10 + 14
    # With copies of 30 ns the second F starts at 10 + 30 and ends at 50: no better; but after the
    # last one a backward can start 30 ns after it did, 3 ns before its own.
    slow = uniform(2, copy_ns=30)
    assert fill_and_drain(replace(slow, memory_limit=(100, 1000)), 3) == 33 + 3 * 30 - 10 + 20
    # With copies of 8 ns it ends at 28, in time.
    fast = uniform(2, copy_ns=8)
    assert fill_and_drain(replace(fast, memory_limit=(100, 1000)), 3) == 33 + 3 * 30 - 20


def test_the_last_forward_by_hand() -> None:
    # Four devices that hold two activations and offload none. The last F of device 0 ends with one other
    # activation on it; its own comes back 3 * (10 + 1) + 3 * (11 + 1) = 69 ns later. Meanwhile it has a B
    # and a W (20 ns), or no other activation, but two pending W's (18 ns).
    last = after_last_forward(uniform(4).stages[0], 8, 200, 69, 0, [Drain(0, True, 0, 72)], False)
    assert last == (49, 49, 49)
    # One with copies of 30 ns has R's that end 30 and 60 ns after the start of that F: 19 ns are left
    # of 79 after the second, too few for its B and W.
    copies = after_last_forward(
        uniform(4, copy_ns=30).stages[0], 8, 200, 69, 0, [Drain(0, True, 0, 72)], True
    )
    assert copies.before == 10
    # Ample memory fills all of it; a tail of 45 ns, with W's for 9 of it, stays.
    ample = after_last_forward(uniform(4).stages[0], 8, 1000, 69, 45, [Drain(0, True, 0, 9)], False)
    assert ample == (0, 36, 36)


@pytest.mark.parametrize(("forward", "back", "weight"), [(10, 11, 9), (12, 11, 9), (20, 18, 9)])
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_zb_h1_is_optimal_for_its_memory(
    forward: int, back: int, weight: int, devices: int
) -> None:
    profile = replace(uniform(devices, 100 * devices), offload=None).map_stages(
        lambda _, cost: replace(cost, t_f_ns=forward, t_b_ns=back, t_w_ns=weight)
    )
    trace = simulate(build("zb-h1", profile, 2 * devices), profile)
    assert fill_and_drain(profile, 2 * devices) == trace.makespan_ns
    assert fill_and_drain(replace(profile, memory_limit=None), 2 * devices) < trace.makespan_ns


def test_drain_by_hand() -> None:
    # The last of four devices can put off one W only; after its last backward three B's, three hops and
    # a W of device 0 remain: 45 ns, of which that W fills 9.
    profile = replace(uniform(4), offload=None, memory_limit=(1000, 1000, 1000, 100))
    assert fill_and_drain(profile, 6) == 3 * 11 + 6 * 30 + (3 * 12 + 9) - 9


def test_residency_by_hand() -> None:
    # Without offloading device 0 holds 100 bytes from F to B, 10 + 1 + 10 + 11 + 1 ns, then B, and 50
    # during W; its limit holds one at a time.
    profile = replace(uniform(2), offload=None, memory_limit=(100, 1000))
    byte_ns = 100 * (33 + 11) + 50 * 9
    assert residency(profile, 20) == -(-20 * byte_ns // 100)
    assert residency(profile, 20) > fill_and_drain(profile, 20)
    # each ns of a shared engine saves less than it costs elsewhere, but it saves
    shared = replace(uniform(2, copy_ns=5, copy_engines="shared"), memory_limit=(100, 1000))
    assert naive(profile, 20, "span") <= residency(shared, 20) < residency(profile, 20)


def test_the_best_bound_and_its_name() -> None:
    assert lower_bound(uniform(4), 8) == (273, "work")
    assert lower_bound(uniform(4, 200), 8) == (291, "fill and drain")
    assert lower_bound(uniform(4), 8, memory_limit=200) == (291, "fill and drain")
    assert lower_bound(uniform(4), 1).name == "one microbatch"
    profile = replace(uniform(2), offload=None, memory_limit=(100, 1000))
    assert lower_bound(profile, 20).name == "residency"


def test_more_memory_never_raises_a_bound() -> None:
    for copy_ns in (5, 16, 40):
        bounds = [lower_bound(uniform(6, limit, copy_ns), 12).ns for limit in range(100, 1300, 50)]
        assert bounds == sorted(bounds, reverse=True)
        assert bounds[-1] == naive(uniform(6), 12)


def test_unknown_objective() -> None:
    with pytest.raises(OptPipeError, match="objective: expected flush or span, got 'speed'"):
        lower_bound(uniform(2), 2, "speed")
