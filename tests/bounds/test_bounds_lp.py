"""The expensive lower bounds (configuration LP, search of one device): never above what can be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from bound_cases import best_device_bound, configuration_bound, devices_of
from exhaustive import least_cost
from greedy_cases import any_setting, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS, limited, profiles, schedules, that_fits
from tiny_cases import tiny

from optpipe_sim import CostProfile, simulate
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.bounds.configurations import configurations
from optpipe_sim.bounds.device.device_bound import device_bound, layered_bound
from optpipe_sim.bounds.device.node import NEVER
from optpipe_sim.bounds.device.prices import prices
from optpipe_sim.bounds.device.problem import one_device
from optpipe_sim.bounds.linear import Linear
from optpipe_sim.bounds.lp import early_order, orders, usual_order
from optpipe_sim.bounds.phases import DeviceRows
from optpipe_sim.ops import F
from optpipe_sim.profile import Offload
from optpipe_sim.schedules.adaoffload.runs import Problem as Greedy
from optpipe_sim.solvers.anneal.annealer import search
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race.bounds import best_bound
from optpipe_sim.solvers.race.bounds import run as run_bounds
from optpipe_sim.solvers.reports import Job
from optpipe_sim.stage_cost import StageCost

OBJECTIVES = ("flush", "span")


def bounds(profile: CostProfile, microbatches: int, objective: str, nodes: int) -> dict[str, int]:
    """Every expensive bound: searches of each device with and without prices, whole or cut short."""
    found = {"configurations": configuration_bound(profile, microbatches, objective)}
    for d, problem in enumerate(devices_of(profile, microbatches, objective)):
        found[f"device {d}"] = device_bound(problem, nodes=nodes)[0]
        found[f"device {d} with prices"] = device_bound(problem, prices(problem), nodes)[0]
        found[f"device {d} in layers"] = layered_bound(problem, None, 1, most=2000)[0]
    return found


def assert_below(found: dict[str, int], cost_ns: int) -> None:
    above = {name: bound for name, bound in found.items() if bound > cost_ns}
    assert not above, f"above {cost_ns}"


def test_no_bound_is_above_the_least_cost_of_tiny_problems() -> None:
    solved = met = 0
    for seed in range(36):
        random = Random(seed)
        profile, microbatches = tiny(random)
        objective = random.choice(OBJECTIVES)
        try:
            least = least_cost(make_problem(profile, microbatches, objective=objective), 400)
        except OverflowError:
            continue
        assert least is not None
        found = bounds(profile, microbatches, objective, 5000)
        assert_below(found, least)
        solved += 1
        met += max(found.values()) == least
    assert solved >= 10
    assert met >= solved * 0.7  # and rarely below: on so few devices one alone tells nearly all


@given(profiles(), st.data(), st.sampled_from(OBJECTIVES))
def test_no_random_schedule_beats_a_bound(
    profile: CostProfile, data: st.DataObject, objective: str
) -> None:
    schedule = data.draw(schedules(profile))
    profile = limited(profile, Random(data.draw(SEEDS)))
    profile, trace = that_fits(profile, schedule, objective)
    found = bounds(
        profile, schedule.shape.microbatches, objective, data.draw(st.sampled_from((20, 2000)))
    )
    assert_below(found, trace.cost_ns)


@given(profiles(offload=True), st.integers(1, 9), SEEDS, st.sampled_from(OBJECTIVES))
def test_no_schedule_that_was_searched_for_beats_a_bound(
    profile: CostProfile, microbatches: int, seed: int, objective: str
) -> None:
    random = Random(seed)
    profile = replace(limited(profile, random), links="latency")
    greedy = Greedy(profile, microbatches, profile.memory_limit)
    runs = [greedy.play(any_setting(random)) for _ in range(10)]
    cost = min(run.cost_ns(objective) for run in runs if run is not None)
    best = search(
        make_problem(profile, microbatches, objective=objective), (), evaluations=400, seed=seed
    )
    if best is not None:
        cost = min(cost, simulate(best, profile, objective=objective).cost_ns)
    assert_below(bounds(profile, microbatches, objective, random.choice((100, 3000))), cost)


# -- the search ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(profiles(offload=True, max_chunks=2), st.integers(1, 5), SEEDS)
def test_more_room_and_prices_change_only_how_soon_the_bound_is_found(
    profile: CostProfile, microbatches: int, seed: int
) -> None:
    for problem in devices_of(limited(profile, Random(seed)), microbatches, "flush"):
        whole, final = device_bound(problem, nodes=60_000)
        rooms = [device_bound(problem, nodes=nodes)[0] for nodes in (1, 30, 300)]
        assert rooms == sorted(rooms)
        assert rooms[-1] <= whole
        if final:
            assert device_bound(problem, prices(problem), 60_000) == (whole, True)
            assert device_bound(problem, goal_ns=whole - 1) == (whole - 1, True)


@pytest.mark.parametrize("bound", ["search", "configurations"])
@pytest.mark.parametrize("copy_ns", [5, 16, 40])
def test_more_memory_never_raises_a_bound(bound: str, copy_ns: int) -> None:
    kinds: dict[str, Callable[[CostProfile], int]] = {
        "search": lambda profile: max(
            device_bound(one)[0] for one in devices_of(profile, 6, "flush")
        ),
        "configurations": lambda profile: configuration_bound(profile, 6),
    }
    found = [kinds[bound](uniform(4, limit, copy_ns)) for limit in range(100, 500, 25)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


@pytest.mark.parametrize(
    ("devices", "microbatches", "limit", "copy_ns", "before", "after"),
    [
        (4, 8, 200, 16, 291, 303),
        (4, 16, 200, 16, 531, 551),
        (8, 16, 266, 16, 614, 625),
        (8, 16, 200, 16, 623, 643),
        (8, 32, 266, 16, 1094, 1105),
        (8, 32, 200, 16, 1103, 1139),
        (8, 16, 200, 24, 632, 754),
    ],
)
def test_cells_with_few_slots_and_expensive_copies(
    devices: int, microbatches: int, limit: int, copy_ns: int, before: int, after: int
) -> None:
    problem = make_problem(uniform(devices, limit, copy_ns), microbatches)
    assert best_device_bound(problem.profile, microbatches, nodes=200_000) == after
    assert lower_bound(problem.profile, microbatches).ns == before < after
    between = configuration_bound(problem.profile, microbatches)
    assert between <= after
    row = f"| {devices}, {microbatches} | {limit} | {copy_ns} | {before} | {between} | {after} |"
    assert row in (Path(__file__).parents[2] / "docs" / "bounds.md").read_text()


# -- the configuration LP -----------------------------------------------------------------------------


def test_configurations_by_hand() -> None:
    device = devices_of(uniform(2, 200, 5), 2, "flush")[0]
    found = {tuple(part[:2] for part in one.parts): one.room for one in configurations(device)}
    assert found[()] == 200
    assert found[("F", 0),] == 100
    assert found[("W", 0),] == 100  # 150 bytes are left: one activation
    assert found[("F", 0), ("O", 0)] == 0
    assert (("F", 0), ("O", 0), ("R", 0)) not in found
    assert (("W", 0), ("O", 0), ("R", 0)) not in found
    assert ((("O", 0), ("R", 0))) in found


def test_the_period_that_expensive_copies_impose() -> None:
    # Two slots: beside F, B and W (10, 11 and 9 ns) one copy can run, beside nothing two. Of a
    # microbatch both copies take 48 ns, so at least 9 ns of each period the device is idle.
    more = [configuration_bound(uniform(8, 200, 24), m) for m in (60, 80)]
    assert more[1] - more[0] == 20 * 39
    # an engine for both takes them in turn: it pays to let some stay
    shared = [configuration_bound(uniform(8, 200, 24, copy_engines="shared"), m) for m in (60, 80)]
    assert 20 * 39 < shared[1] - shared[0] < 20 * 48


def test_devices_on_one_link_take_turns() -> None:
    alone = uniform(8, 200, 16)
    paired = replace(alone, offload=Offload(host_link_groups=((0, 1), (2, 3), (4, 5), (6, 7))))
    single = replace(
        alone, offload=Offload(host_link="single", host_link_groups=((0, 1, 2, 3), (4, 5, 6, 7)))
    )
    found = [configuration_bound(one, 32) for one in (alone, paired, single)]
    assert found == sorted(found)
    assert found[2] > found[1]


def test_the_orders_of_events() -> None:
    assert orders([5]) == [usual_order([5]), early_order(5)]
    every = orders([2, 3])
    assert every[0] == usual_order([2, 3])
    assert len(every) == len({tuple(order) for order in every}) == 14
    for order in every:
        at = {event: k for k, event in enumerate(order)}
        for which in ("first", "last"):
            assert at[which, "F", 2] < at[which, "F", 3] < at[which, "B", 3] < at[which, "B", 2]
        assert all(at["first", kind, s] <= at[which, kind, s] for which, kind, s in order)


def test_ops_run_only_where_those_of_the_device_s_other_stage_let_them() -> None:
    vee = uniform(4, 400, 24).rechunk(2, "vee")
    low, high = (device := devices_of(vee, 8)[1]).stages
    rows = DeviceRows(Linear(), device, usual_order([low, high]), 0)
    assert rows.at["first", "F", high] == 1
    assert rows.at["last", "F", low] + 1 == rows.at["last", "F", high] == 5
    runs = {
        (kind, i): [k for k in range(8) if rows._may_run(kind, i, k)]
        for kind in ("F", "B", "W", "O")
        for i in (0, 1)
    }
    # the last F of the earlier stage has ended when the last one of the later stage starts
    assert runs["F", 0] == [0, 1, 2, 3, 4]
    assert runs["F", 1] == [1, 2, 3, 4, 5]
    assert runs["B", 1] == [2, 3, 4, 5, 6]
    assert runs["B", 0] == runs["W", 0] == [3, 4, 5, 6, 7]
    assert runs["W", 1] == [2, 3, 4, 5, 6, 7]
    assert runs["O", 0] == [0, 1, 2, 3, 4, 5, 6]
    assert runs["O", 1] == [1, 2, 3, 4, 5]


def test_the_lp_of_a_real_profile_is_as_good_as_in_small_numbers() -> None:
    # the same problem in ns and MiB, or both some thousand times as large
    def times(cost: StageCost, ns: int, size: int) -> StageCost:
        return StageCost(
            *(ns * time for time in (cost.t_f_ns, cost.t_b_ns, cost.t_w_ns)),
            *(size * held for held in (cost.act_bytes, cost.w_bytes, cost.offloadable)),
            t_offload_ns=ns * (cost.t_offload_ns or 0),
            t_reload_ns=ns * (cost.t_reload_ns or 0),
        )

    small = uniform(4, 200, 24)
    large = replace(
        small.map_stages(lambda _, cost: times(cost, 10**6, 1 << 20)),
        latency_ns=10**6,
        occupancy_ns=0,
        memory_limit=(200 << 20,) * 4,
    )
    assert small.t_comm_ns * 10**6 == large.t_comm_ns
    found = [configuration_bound(small, 24), configuration_bound(large, 24)]
    assert found[0] > lower_bound(small, 24).ns
    assert found[0] == -(-found[1] // 10**6)


def test_rounded_prices_prove_what_the_solver_found() -> None:
    model = Linear()
    one, other = model.variable(), model.variable(3)
    model.at_least([(0, 1), (one, -3), (other, -2)], 0)
    model.at_least([(one, 7), (other, 5)], 71)
    # 3 of the second (6 ns for 15), the rest of the first: 24 and 6
    assert model.proven() == 30
    assert Linear(rows=[({0: 1}, 17)]).proven() == 17


def test_prices_are_left_out_where_they_would_not_fit() -> None:
    profile = uniform(2, 200).map_stages(lambda _, cost: replace(cost, t_f_ns=10**12))
    device = devices_of(profile, 8, "flush")[0]
    assert prices(device) is None
    assert device_bound(device, prices(device))[0] >= 8 * 10**12


# -- the search -----------------------------------------------------------------------------------------


def test_the_search_reports_what_it_proves_and_stops_at_the_goal() -> None:
    problem = make_problem(uniform(4, 200, 16), 8)
    news: list[tuple[int, str]] = []
    assert best_bound(problem, 20.0, on_bound=lambda *each: news.append(each)) == 303
    values = [bound for bound, _ in news]
    assert values == sorted(set(values))
    assert news[-1] == (303, "one device")
    assert best_bound(problem, 20.0, goal_ns=300) == 300
    messages: list[tuple[str, tuple[int, str]]] = []
    job = Job(problem, None, SolveOptions(time_limit=20), 300)
    run_bounds(job, lambda *news: messages.append(news))
    assert messages[-1] == ("named bound", (303, "one device"))
    assert all(bound > 300 for _, (bound, _) in messages)  # what the race has already is no news
    devices = devices_of(problem.profile, 8)
    assert [device_bound(one, prices(one))[0] for one in devices] == [291, 303, 302, 291]
    assert best_bound(make_problem(uniform(4, 200, 16), 8, objective="span"), 20.0) < 303


def test_what_later_devices_still_have_to_run_after_a_forward() -> None:
    """F, B, W = 10, 11, 9, P2P latency 1, room for two activations or four pending W's: after the n-th F of
    the first device the last one waits for 2 F's and 3 messages and has m - n + 1 F's and B's to
    run, and the W's but three; then the last B is 3 messages, 3 B's and a W from the end."""
    first, *_, last = devices_of(uniform(4, 200, 16), 8)
    left = np.arange(8, 0, -1)
    assert (first.later[F, 0] == 23 + 21 * left + 9 * np.maximum(0, left - 3) + 45).all()
    # nothing comes after the last device: its own backward and the chain below
    assert last.later[F, 0, -1] == 11 + 45
    assert (devices_of(uniform(4, 200, 16), 8, "span")[0].later[F, 0] == 3 * 21 + 6 + 11).all()


def test_without_a_limit_there_is_nothing_to_search() -> None:
    profile = replace(uniform(4), memory_limit=None)
    assert best_bound(make_problem(profile, 4), 1.0) == 0
    assert configuration_bound(profile, 4) == 0


def test_a_limit_below_one_activation_bounds_nothing() -> None:
    device = one_device(uniform(2, 200), 4, 0, "flush", (90, 90))
    assert not device.possible
    assert device_bound(device) == (0, True)


def test_bounds_of_large_problems_are_quick() -> None:
    profile = uniform(16, 400, 16)
    device = one_device(profile, 64, 15, "flush", profile.memory_limit or ())
    assert device_bound(device, goal_ns=NEVER) == (lower_bound(profile, 64).ns, True)
    assert np.array_equal(device.earliest[F, 0], 15 * 11 + 10 * np.arange(64))
