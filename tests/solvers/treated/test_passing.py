"""Microbatches that overtake one another in a plan with treatments."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from plan_by_hand import COUNT, MICROBATCHES, NAMES, B, F, PlanByHand

from optpipe_sim.solvers.treated import passing


@njit
def overtake(prog, length, mode, costs, t, code, far, ahead):  # type: ignore[no-untyped-def]
    return passing.overtake(prog, length, mode, costs, t, code, far, ahead)


class Passing(PlanByHand):
    """A plan in which microbatches overtake one another, step by step."""

    def let(self, kind: int, stage: int, microbatch: int, far: int, ahead: int = 0) -> bool:
        code = kind << self.high | stage << self.low | microbatch
        return bool(self.move(overtake, code, far, ahead))


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


@pytest.mark.parametrize("name", NAMES)
def test_ops_of_an_activation_keep_their_order(name: str) -> None:
    """After many exchanges each activation still has its F, O, R, C, backward and W, in that order."""
    case = Passing(name)

    def exchange(draw: np.random.Generator) -> bool:
        kind, stage, micro = draw.choice((F, B)), draw.integers(COUNT), draw.integers(MICROBATCHES)
        case.let(
            int(kind), int(stage), int(micro), int(draw.integers(-3, 4)), int(draw.integers(8))
        )
        return case.order(B, 0) != IN_ORDER

    assert case.changed_in_order(exchange) > 20
