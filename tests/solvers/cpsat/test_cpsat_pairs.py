"""CP-SAT with pairs, and with microbatches that differ: its optima are those of trying every program."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from paired import Tiny, least_makespan
from strategies import SEEDS

from optpipe_sim import check, load_profile, solve
from optpipe_sim.solvers.cpsat.cpsat import solve_cpsat
from optpipe_sim.solvers.problem import Problem, make_problem

# devices, placement, microbatches, whether backwards may be two ops: 12 to 16 ops
SHAPES = [
    (1, [0, 0], 2, True), (2, [0, 1], 2, True), (1, [0, 0], 3, False), (2, [0, 1], 3, False),
    (2, [0, 1, 1, 0], 2, False), (2, [0, 1, 0, 1], 2, False), (3, [0, 1, 2], 2, False),
]  # fmt: skip


def tiny(shape: tuple[int, list[int], int, bool], seed: int, differ: bool) -> tuple[Problem, Tiny]:
    """A random problem, and the same in plain numbers. Factors make whole numbers of all times and bytes."""
    devices, place, m, splits = shape
    random, stages = Random(seed), len(place)
    alike = random.random() < 0.3
    rows = [[random.randint(1, 6) * 2 for _ in range(3)] for _ in range(stages)]
    rows = [rows[0]] * stages if alike else rows
    sizes = [[4, 2]] * stages if alike else [[4 * random.randint(1, 2), 2] for _ in range(stages)]
    latency = random.choice((0, 2, 6))
    hidden = [[random.choice((0, 2, 4, 12)) for _ in place] for _ in place]
    factors = [random.choice((0.5, 1, 1.5, 2)) if differ else 1 for _ in range(m)]
    limit = random.choice((None, 4 * m, 6 * m, 8 * m * stages // devices))
    given = {
        "devices": devices,
        "chunks": stages // devices,
        "placement": place,
        "stages": [
            {"t_f_ns": f, "act_bytes": act}
            | ({"t_b_ns": b, "t_w_ns": w, "w_bytes": held} if splits else {"t_bw_ns": b + w})
            for (f, b, w), (act, held) in zip(rows, sizes, strict=True)
        ],
        "t_comm_ns": latency,
        "pair_hidden_ns": hidden,
    }
    if differ:
        given |= {"microbatch_time": factors, "microbatch_bytes": factors}
    times = [Fraction(factor) for factor in factors]

    def of(table: list[list[int]], at: int):
        return lambda s, j: int(table[s][at] * times[j])

    f, b, w = (of(rows, at) for at in range(3))
    act, held = (of(sizes, at) for at in range(2))

    def whole(s: int, j: int) -> int:
        return b(s, j) + w(s, j)

    world = Tiny(
        tuple(place), m, f,
        b if splits else whole, w if splits else (lambda s, j: 0), whole,
        act, held if splits else (lambda s, j: 0),
        lambda s, t: hidden[s][t], latency, limit, splits, not differ,
    )  # fmt: skip
    profile = load_profile(given)
    least = max(profile.least_limits)
    if limit is not None and limit < least:
        limit = least
        world = Tiny(**{**vars(world), "limit": limit})
    return make_problem(profile, m, limit), world


@pytest.mark.parametrize("differ", [False, True], ids=["alike", "differ"])
@pytest.mark.parametrize("number", range(len(SHAPES)))
@settings(max_examples=4)
@given(seed=SEEDS)
def test_the_optimum_is_that_of_every_program(number: int, differ: bool, seed: int) -> None:
    problem, world = tiny(SHAPES[number], seed, differ)
    least = least_makespan(world)
    found = solve_cpsat(problem, 60.0)
    if least is None:
        assert found.status == "infeasible"
        return
    assert found.status == "optimal"
    assert found.objective_ns == found.lower_bound_ns == least
    assert found.schedule is not None
    assert check(found.schedule, problem.profile, problem.limits) == []
    assert problem.lower_bound.ns <= least


@pytest.mark.parametrize(
    ("f", "w", "hidden", "cost"), [(6, 4, 1, 59), (4, 2, 1, 41), (4, 4, 3, 46)]
)
def test_the_search_finds_what_is_proven_to_be_best(f: int, w: int, hidden: int, cost: int) -> None:
    stages = {"t_f_ns": f, "t_b_ns": 4, "t_w_ns": w, "act_bytes": 4, "w_bytes": 2}
    profile = load_profile({"devices": 2, "stages": stages, "pair_hidden_ns": hidden})
    problem = make_problem(profile, 4)
    proven = solve_cpsat(problem, 60.0)
    found = solve(profile, 4, engine="search", evaluations=20_000, chunks="own", published=False)
    assert found.schedule is not None
    assert proven.status == "optimal"
    assert found.objective_ns == proven.objective_ns == cost
    assert found.lower_bound_ns <= proven.lower_bound_ns
    assert found.schedule.has_pairs
    started = solve(profile, 4, engine="cpsat", time_limit=60.0, warm_start=found.schedule)
    assert started.status == "optimal"


@pytest.mark.parametrize("factors", [(2, 1), (1, 2)])
def test_any_microbatch_may_be_first_where_they_differ(factors: tuple[int, int]) -> None:
    """Device 1 works for 24: from 2 on, where the short microbatch is first, and its last backward is 2 before the end."""
    stages = [{"t_f_ns": t, "t_bw_ns": t, "act_bytes": 4} for t in (2, 4)]
    profile = load_profile({"devices": 2, "stages": stages, "microbatch_time": list(factors)})
    found = solve_cpsat(make_problem(profile, 2), 60.0)
    assert (found.status, found.objective_ns) == ("optimal", 2 + 24 + 2)
    assert found.schedule is not None
    assert found.schedule.flat_programs[0][0].microbatch == factors.index(1)


@pytest.mark.parametrize(
    ("times", "hidden", "factors"),
    [
        ((5, 5, 1), 4, (1.5, 2, 2, 1.5)),
        ((3, 6, 1), 4, (1.5, 0.5, 2, 2)),
        ((3, 4, 4), 2, (1, 1, 0.5, 0.5)),
    ],
)
def test_the_search_finds_the_order_of_microbatches_and_the_pairs_together(
    times: tuple[int, int, int], hidden: int, factors: tuple[float, ...]
) -> None:
    f, b, w = (100 * time for time in times)
    stages = {"t_f_ns": f, "t_b_ns": b, "t_w_ns": w, "act_bytes": 4, "w_bytes": 2}
    profile = load_profile(
        {
            "devices": 2,
            "stages": stages,
            "pair_hidden_ns": 100 * hidden,
            "microbatch_time": list(factors),
        }
    )
    proven = solve_cpsat(make_problem(profile, 4), 60.0)
    assert proven.status == "optimal"
    found = [
        solve(profile, 4, engine="search", evaluations=20_000, chunks="own", published=False, seed=seed).objective_ns
        for seed in (0, 1)
    ]  # fmt: skip
    assert min(found) == proven.objective_ns
