"""CP-SAT against an exhaustive search, its own proofs, and the replay."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from random import Random

import pytest
from exhaustive import least_cost

from optpipe_sim import CostProfile, build, check
from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile import Offload, StageCost
from optpipe_sim.solvers.cpsat.cpsat import CpsatOptions, solve_cpsat
from optpipe_sim.solvers.problem import Problem, make_problem

SHAPES = ((2, 1, 2), (1, 2, 2), (1, 1, 3), (2, 2, 1), (3, 1, 2), (1, 1, 2))


def random_stage(random: Random) -> StageCost:
    act = random.choice((1, 2, 2, 3))
    return StageCost(
        t_f_ns=random.randint(1, 3),
        t_b_ns=random.randint(1, 3),
        t_w_ns=random.randint(0, 2),
        t_bw_ns=random.choice((None, None, random.randint(1, 6))),
        act_bytes=act,
        w_bytes=random.choice((0, act // 2, act)),
        offload_bytes=random.choice((None, None, act // 2)),
        static_bytes=random.choice((0, 1)),
        t_offload_ns=random.randint(0, 5),
        t_reload_ns=random.randint(0, 5),
    )


def random_problem(seed: int) -> Problem:
    """Tiny and of any kind: uneven, chunks, engines, groups, fused ops, partial offloads, pinned
    host memory too small at times, limits down to the least."""
    random = Random(seed)
    devices, chunks, microbatches = random.choice(SHAPES)
    placement = "loop"
    if chunks == 2 and random.random() < 0.6:
        placement = "vee" if random.random() < 0.5 else sorted([*range(devices)] * 2)
    stages = [random_stage(random) for _ in range(devices * chunks)]
    offload = Offload(
        copy_engines=random.choice(("separate", "shared")),
        host_link=random.choice((None, "per_direction", "single")),
        host_link_groups=((0, 1),) if devices > 1 and random.random() < 0.5 else (),
        host_limit_bytes=random.choice((None, None, random.randint(0, 6))),
        devices_per_node=random.choice((None, 1)),
    )
    profile = CostProfile(
        name="random",
        devices=devices,
        chunks=chunks,
        placement=placement,
        stages=tuple([stages[0]] * len(stages) if random.random() < 0.3 else stages),
        latency_ns=random.randint(0, 2),
        offload=offload,
    )
    limits = [least + random.choice((0, 0, 1, 2, 3)) for least in profile.least_limits]
    return make_problem(profile, microbatches, limits, random.choice(("flush", "flush", "span")))


def pipeline(
    devices: int, *, limit: int, copy_ns: int, m: int, objective: str = "flush"
) -> Problem:
    stage = StageCost(10, 11, 9, 100, 50, t_offload_ns=copy_ns, t_reload_ns=copy_ns)
    profile = CostProfile("pipeline", devices, (stage,) * devices, latency_ns=1, offload=Offload())
    return make_problem(profile, m, limit, objective)


# Three microbatches on two devices. Device 0 parks microbatch 0 on the host while 1 and 2 pass it.
OVERTAKING = make_problem(
    CostProfile(
        "overtaking",
        2,
        (
            StageCost(3, 2, 2, 1, 1, t_offload_ns=8, t_reload_ns=9),
            StageCost(4, 4, 0, 1, 0, t_offload_ns=2, t_reload_ns=8),
        ),
        latency_ns=2,
        offload=Offload(),
    ),
    3,
    [2, 3],
)


def test_exhaustive_search_agrees_on_random_tiny_problems():
    tried = infeasible = 0
    for seed in range(60):
        problem = random_problem(seed)
        try:
            best = least_cost(problem, states=300)
        except OverflowError:
            continue
        tried += 1
        infeasible += best is None
        found = solve_cpsat(problem, 30, workers=1)
        if best is None:
            assert found.status == "infeasible", seed
            continue
        assert (found.status, found.objective_ns) == ("optimal", best), seed
        assert found.lower_bound_ns == best
        assert check(found.schedule, problem.profile, problem.limits) == []
    assert tried >= 25
    assert infeasible >= 1


def test_orders_agree_where_they_must_and_differ_where_one_is_a_restriction():
    auto = solve_cpsat(OVERTAKING, 20)
    free = solve_cpsat(OVERTAKING, 20, options=CpsatOptions(order="free"))
    fifo = solve_cpsat(OVERTAKING, 20, options=CpsatOptions(order="fifo"))
    assert auto.status == free.status == "optimal"
    assert auto.objective_ns == free.objective_ns < fifo.objective_ns
    assert fifo.lower_bound_ns <= auto.objective_ns  # what holds for one order is no bound
    ample = replace(OVERTAKING, limits=None)
    costs = {
        order: solve_cpsat(ample, 20, options=CpsatOptions(order=order))
        for order in ("fifo", "free")
    }
    assert costs["fifo"].status == costs["free"].status == "optimal"
    assert costs["fifo"].objective_ns == costs["free"].objective_ns


@pytest.mark.parametrize(("objective", "cost"), [("flush", 273), ("span", 255)])
def test_a_small_pipeline_is_solved_and_proven(objective, cost):
    problem = pipeline(4, limit=400, copy_ns=5, m=8, objective=objective)
    seen = []
    found = solve_cpsat(
        problem,
        60,
        warm_start=build("zb-h1", problem.profile, 8),
        on_incumbent=lambda seconds, cost_ns, schedule: seen.append((cost_ns, schedule)),
    )
    assert (found.status, found.objective_ns, found.bound_name) == ("optimal", cost, "cpsat")
    assert found.gap == 0
    costs = [cost_ns for _, cost_ns in found.incumbents]
    assert costs == [cost_ns for cost_ns, _ in seen] == sorted(set(costs), reverse=True)
    assert costs[-1] == cost
    assert seen[-1][1] == found.schedule
    bounds = [bound for _, bound in found.bounds]
    assert bounds == sorted(bounds)
    assert bounds[-1] == cost
    assert found.variables > 0
    assert found.constraints > 0
    assert check(found.schedule, problem.profile, problem.limits) == []


def test_a_warm_start_of_any_form_is_never_lost():
    problem = pipeline(4, limit=400, copy_ns=5, m=6)
    for name in ("1f1b", "zb-h1"):  # fused ops, and split ones
        start = build(name, problem.profile, 6)
        found = solve_cpsat(problem, 0.001, warm_start=start)
        assert found.objective_ns <= problem.replay(start).cost_ns
        assert found.incumbents[0][1] == problem.replay(start).cost_ns
    tight = pipeline(4, limit=100, copy_ns=5, m=2)  # where 1F1B does not fit
    found = solve_cpsat(tight, 20, warm_start=build("1f1b", tight.profile, 2))
    assert check(found.schedule, tight.profile, tight.limits) == []


def test_limits_that_nothing_can_keep_are_proven_so():
    problem = pipeline(2, limit=100, copy_ns=5, m=2)
    assert solve_cpsat(problem, 20).status == "optimal"
    found = solve_cpsat(replace(problem, limits=(100, 99)), 20)
    assert found.status == "infeasible"
    assert found.schedule is None


def test_pinned_host_memory_binds():
    loose = pipeline(2, limit=100, copy_ns=2, m=2)
    profile = replace(loose.profile, offload=Offload(host_limit_bytes=0))
    tight = replace(loose, profile=profile)
    without = solve_cpsat(replace(loose, profile=replace(profile, offload=None)), 20)
    with_, none = solve_cpsat(loose, 20), solve_cpsat(tight, 20)
    assert with_.objective_ns < none.objective_ns == without.objective_ns
    assert none.status == "optimal"
    assert none.trace.offloaded == 0


def test_rounded_times_keep_the_bound_a_bound():
    for objective in ("flush", "span"):
        for seed in range(4):
            random = Random(seed)
            stages = [
                StageCost(
                    *(random.randint(50, 150) for _ in range(3)),
                    1,
                    1,
                    t_offload_ns=random.randint(0, 90),
                    t_reload_ns=77,
                )
                for _ in range(2)
            ]
            profile = CostProfile("odd", 2, tuple(stages), latency_ns=13, offload=Offload())
            problem = make_problem(profile, 3, 2, objective)
            exact = solve_cpsat(problem, 30)
            rounded = solve_cpsat(problem, 30, options=CpsatOptions(quantum_ns=20))
            assert exact.status == "optimal"
            assert rounded.lower_bound_ns <= exact.objective_ns <= rounded.objective_ns
            assert rounded.lower_bound_ns > 0.8 * exact.objective_ns


def test_the_same_seed_finds_the_same():
    problem = pipeline(3, limit=200, copy_ns=16, m=4)
    one, two = (solve_cpsat(problem, 60, workers=1, seed=3) for _ in range(2))
    assert one.schedule == two.schedule
    assert [cost for _, cost in one.incumbents] == [cost for _, cost in two.incumbents]


@pytest.mark.parametrize("how", ["stopped", "interrupted"])
def test_stop_and_ctrl_c_keep_what_was_found(how):
    problem = pipeline(6, limit=200, copy_ns=16, m=12)
    stop = threading.Event()
    start = build("adaoffload", problem.profile, 12, limit=200)
    end = stop.set if how == "stopped" else lambda: os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.5, end).start()
    found = solve_cpsat(problem, 60, warm_start=start, stop=stop)
    assert 0.4 < found.seconds < 20
    assert found.info["ended"] == how
    assert found.objective_ns <= problem.replay(start).cost_ns


def test_bounds_and_models_are_reported():
    bounds, models = [], []
    problem = pipeline(3, limit=200, copy_ns=16, m=4)
    found = solve_cpsat(
        problem,
        60,
        on_bound=lambda *pair: bounds.append(pair),
        on_model=lambda *size: models.append(size),
    )
    assert tuple(bounds) == found.bounds
    assert max(models) == (found.variables, found.constraints)
    assert bounds[-1][1] == found.lower_bound_ns


def test_a_known_bound_ends_the_search():
    problem = pipeline(2, limit=200, copy_ns=5, m=4)
    best = solve_cpsat(problem, 60)
    assert best.status == "optimal"
    known = best.objective_ns
    again = solve_cpsat(problem, 60, warm_start=best.schedule, lower_bound_ns=known)
    assert (again.status, again.variables, again.bound_name) == ("optimal", 0, "given")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: solve_cpsat(p, 0), "time limit"),
        (lambda p: CpsatOptions(order="lifo"), "order: expected auto, fifo, free"),
        (
            lambda p: solve_cpsat(p, 1, options=CpsatOptions(quantum_ns=11)),
            "quantum: .* 1 to 10 ns",
        ),
        (lambda p: solve_cpsat(p, 1, options=CpsatOptions(parameters={"speed": 9})), "'speed'"),
    ],
)
def test_errors_say_what_is_wrong(call, said):
    with pytest.raises(OptPipeError, match=said):
        call(pipeline(2, limit=200, copy_ns=5, m=2))


def test_the_span_of_two_devices_is_proven_for_any_order():
    """First in, first out proves nothing here; ranks prove less than any order does."""
    found = solve_cpsat(pipeline(2, limit=200, copy_ns=16, m=6, objective="span"), 60, workers=1)
    bounds = {phase["order"]: phase["bound_ns"] for phase in found.info["phases"]}
    assert found.status == "optimal"
    assert list(bounds) == ["fifo", "ranks", "free"]
    assert bounds["ranks"] <= bounds["free"] == found.lower_bound_ns == found.objective_ns
