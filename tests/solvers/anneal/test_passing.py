"""Microbatches that overtake one another."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from plan_by_hand import COUNT, MICROBATCHES, NAMES, B, F, PlanByHand
from search_cases import uniform

from optpipe_sim import Schedule
from optpipe_sim.solvers.anneal import passing
from optpipe_sim.solvers.anneal.annealer import Workspace
from optpipe_sim.solvers.anneal.plans import bits, pack, unpack
from optpipe_sim.solvers.problem import make_problem


@njit
def overtake(plan, costs, t, code, far, ahead, stays, parks):  # type: ignore[no-untyped-def]
    return passing.overtake(plan, costs, t, code, far, ahead, stays, parks)


class Passing(PlanByHand):
    """A plan in which microbatches overtake one another, step by step."""

    def let(
        self, kind: int, stage: int, microbatch: int, far: int, ahead: int = 0, *,
        stays: bool = True, parks: bool = False,
    ) -> bool:  # fmt: skip
        code = kind << self.high | stage << self.low | microbatch
        return bool(self.move(overtake, code, far, ahead, stays, parks))


IN_ORDER = [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "1f1b:recompute=full", "zb-h1:recompute=full"])
def test_a_backward_passes_others_at_its_stage_and_those_before(name: str) -> None:
    case = Passing(name)
    assert case.let(B, 1, 2, 2)
    for stage in range(COUNT):
        assert case.order(F, stage) == IN_ORDER
        assert case.order(B, stage) == ([0, 1, 3, 4, 2, 5] if stage <= 1 else IN_ORDER)


def test_a_forward_passes_others_from_its_stage_on_and_in_all_backwards() -> None:
    case = Passing("1f1b:recompute=full")
    assert case.let(F, 2, 3, -1)
    for stage in range(COUNT):
        assert case.order(F, stage) == ([0, 1, 3, 2, 4, 5] if stage >= 2 else IN_ORDER)
        assert case.order(B, stage) == [0, 1, 3, 2, 4, 5]


def test_at_the_end_of_the_order_there_is_nobody_to_pass() -> None:
    case = Passing("1f1b")
    assert not case.let(B, 0, 5, 1)
    assert not case.let(F, 3, 0, -2)


@pytest.mark.parametrize("stays", [True, False])
def test_where_one_of_two_is_offloaded_it_or_the_other_is_after(stays: bool) -> None:
    """Microbatch 0, which is offloaded, is overtaken by microbatch 1 from its backward on."""
    problem = make_problem(uniform(1), 3, 1000)
    before = "0: F0.0 O0.0 F0.1 F0.2 R0.0 B0.0 W0.0 B0.1 W0.1 B0.2 W0.2"
    after = {
        True: "0: F0.0 O0.0 F0.1 F0.2 B0.1 R0.0 W0.1 B0.0 W0.0 B0.2 W0.2",
        False: "0: F0.0 F0.1 O0.1 R0.1 F0.2 B0.1 W0.1 B0.0 W0.0 B0.2 W0.2",
    }
    work = Workspace(problem)
    plan = pack(problem, Schedule.from_text(problem.shape, before))
    work.cost_ns(plan)
    code = B << bits(problem)[1]
    assert overtake(plan, work.costs, work.times, code, 1, 1, stays, False)
    assert unpack(problem, plan) == Schedule.from_text(problem.shape, after[stays])


@pytest.mark.parametrize("name", NAMES)
def test_ops_of_an_activation_keep_their_order(name: str) -> None:
    """After many exchanges each activation still has its F, O, R, C, backward and W, in that order."""
    case = Passing(name)

    def exchange(draw: np.random.Generator) -> bool:
        kind, stage, micro = draw.choice((F, B)), draw.integers(COUNT), draw.integers(MICROBATCHES)
        case.let(
            int(kind), int(stage), int(micro), int(draw.integers(-3, 4)), int(draw.integers(8)),
            stays=bool(draw.random() < 0.5), parks=bool(draw.random() < 0.5),
        )  # fmt: skip
        return case.order(B, 0) != IN_ORDER

    assert case.changed_in_order(exchange) > 20
