"""CP-SAT over slices of the sequence: small optima against every program there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest

from optpipe_sim import CostProfile, Schedule, check, load_profile
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.ops import BW, B, C, F, O, Op, R, SliceOp, W
from optpipe_sim.solvers.cpsat.cpsat import CpsatOptions, solve_cpsat
from optpipe_sim.solvers.problem import Problem, make_problem

FREE = CpsatOptions(order="free")


def every_schedule(problem: Problem, ways: tuple[tuple[Any, ...], ...]) -> Iterator[Schedule]:
    """Every complete program there is, each backward fused or not, each activation treated in one of
    the `ways`: (levels of recomputation apart, offloaded) of one unit."""
    shape = problem.shape
    units = [(s, u) for s in range(shape.stages) for u in range(shape.units)]
    for chosen in product(ways, repeat=len(units)):
        ops: list[list[SliceOp]] = [[] for _ in range(shape.devices)]
        levels = {}
        for (s, u), (level, apart, away, fused) in zip(units, chosen, strict=True):
            kinds = [F, *((BW,) if fused else (B, W)), *((O, R) if away else ())]
            kinds += [C] if level and apart else []
            ops[shape.placement[s]] += [shape.op(kind, s, u) for kind in kinds]
            if level:
                levels[str(shape.op(F, s, u))[1:]] = level
        for programs in product(*(list(_orders(mine)) for mine in ops)):
            yield Schedule(shape, programs, recompute=levels)


def _orders(ops: list[Any]) -> Iterator[tuple[Op, ...]]:
    """Every order of a device's ops that no dependency between them forbids; of microbatches
    that are alike, the first comes first."""
    there = {str(op) for op in ops}

    def before(one: Any, two: Any) -> bool:
        kinds = (one.kind, two.kind)
        same = one.stage == two.stage and one.microbatch == two.microbatch
        if one.slice == two.slice and same:
            late = {F: 0, O: 1, R: 2, C: 3, B: 4, BW: 4, W: 5}
            return late[one.kind] < late[two.kind]
        if kinds == (F, F) and one.stage == two.stage and two.slice == one.slice == 0:
            return one.microbatch < two.microbatch
        if kinds == (F, F):
            return same and one.slice < two.slice
        return same and one.kind in (B, BW) and two.kind in (B, BW) and one.slice > two.slice

    def extend(made: tuple[Op, ...], left: list[Any]) -> Iterator[tuple[Op, ...]]:
        if not left:
            yield made
        for op in left:
            if not any(before(other, op) for other in left if other is not op):
                yield from extend((*made, op), [other for other in left if other is not op])

    assert len(there) == len(ops)
    return extend((), ops)


def best_of_all(problem: Problem, ways: tuple[tuple[Any, ...], ...]) -> int | None:
    """The least cost of all programs that keep the limits, or None."""
    costs = [
        trace.cost_ns
        for schedule in every_schedule(problem, ways)
        for trace in [problem.keeps(schedule)]
        if trace is not None
    ]
    return min(costs, default=None)


KEPT = (None, False, False, False)
FUSED = (None, False, False, True)
AWAY = (None, False, True, False)
FUSED_AWAY = (None, False, True, True)
AGAIN = ("full", False, False, False)
APART = ("full", True, False, False)
BOTH = ("full", False, True, False)


def random_profile(seed: int, devices: int, slices: int, splits: bool = True) -> CostProfile:
    """A few ns per op, slices unlike each other, 4 of 10 bytes keys and values."""
    random = Random(seed)

    def some(least: int = 1) -> list[int]:
        return [random.randint(least, 6) for _ in range(slices)]

    stages = []
    for _ in range(devices):
        times = {"t_b_ns": some(), "t_w_ns": some(0)} if splits else {"t_bw_ns": some()}
        stages.append(
            {"t_f_ns": some(), **times, "act_bytes": 10, "w_bytes": 4 * splits, "kv_bytes": 4}
            | {"recompute": [{"name": "full", "t_ns": some(), "keep_bytes": 5}]}
        )
    copies = {"t_offload_ns": random.randint(1, 8), "t_reload_ns": random.randint(1, 8)}
    return load_profile(
        {
            "devices": devices,
            "slices": slices,
            "stages": stages,
            "t_comm_ns": random.choice((0, 2)),
            "offload": copies,
        }
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("devices", "m", "slices", "ways", "limit", "treatments"),
    [
        (2, 1, 2, (KEPT, FUSED), None, ("keep",)),
        (2, 2, 2, (FUSED,), 30, ("keep",)),
        (1, 1, 3, (FUSED, FUSED_AWAY), 24, ("keep", "offload")),
        (1, 1, 2, (KEPT, AWAY, FUSED, AGAIN, APART, BOTH), 14, None),
    ],
)
def test_the_optimum_is_that_of_every_program(
    seed: int, devices: int, m: int, slices: int, ways: Any, limit: int | None, treatments: Any
) -> None:
    profile = random_profile(seed, devices, slices, splits=ways[0] is KEPT)
    problem = make_problem(profile, m, limit, treatments=treatments)
    found = solve_cpsat(problem, 60, options=FREE, workers=1)
    best = best_of_all(problem, ways)
    assert best == found.lower_bound_ns == found.objective_ns
    assert found.schedule is not None
    assert check(found.schedule, problem.profile, limit) == []
    assert lower_bound(problem.profile, m, "flush", limit).ns <= best
