"""The trip of one microbatch in a plan with treatments, tightened."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from plan_by_hand import COUNT, MICROBATCHES, NAMES, O, PlanByHand, R, W

from optpipe_sim.solvers.anneal import tightening

AS_IT_IS, RECOMPUTED = -1, 2  # modes with B and W apart


@njit
def tightened(plan, costs, t, micro, base, top, new, keeps, forwards, backwards):  # type: ignore[no-untyped-def]
    return tightening.tighten(plan, costs, t, micro, base, top, new, keeps, forwards, backwards)


class Tightening(PlanByHand):
    """A plan in which the trips of microbatches are tightened, one by one."""

    def tighten(
        self, micro: int, base: int, top: int, *, new: int = AS_IT_IS, keeps: bool = False,
        forwards: bool = False, backwards: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        found = self.move(tightened, micro, base, top, new, keeps, forwards, backwards)
        return int(found[0]), int(found[1])

    def text(self, stage: int) -> str:
        return " ".join(f"{'FBWxCOR'[kind]}{micro}" for kind, micro in self.program(stage))


def test_backwards_begin_once_the_message_of_the_next_stage_arrives() -> None:
    """F takes 10, a fused backward 20, messages nothing: those of microbatch 0 may begin at 40, 60, 80 and 100, the
    forwards end at 60, 70, 80 and 90."""
    case = Tightening("gpipe")
    assert case.tighten(0, 0, 3, backwards=True) == (0, 3)
    assert case.text(3) == "F0 B0 F1 F2 F3 F4 F5 B1 B2 B3 B4 B5"
    assert case.text(2) == "F0 F1 F2 F3 B0 F4 F5 B1 B2 B3 B4 B5"
    assert case.text(1) == case.text(0) == "F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5"


def test_a_forward_ends_just_before_the_next_stage_needs_it() -> None:
    """The second device of 1F1B runs F5 at 160; the backwards of the first begin at 100, 130, 160, ..., so that
    F5 may follow two of them."""
    case, late = Tightening("gpipe"), Tightening("1f1b")
    case.plan.prog[1:] = late.plan.prog[1:]
    before = case.work.cost_ns(case.plan)
    assert case.text(0) == "F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5"
    assert case.tighten(5, 0, 0, forwards=True) == (0, 0)
    assert case.text(0) == "F0 F1 F2 F3 F4 B0 B1 F5 B2 B3 B4 B5"
    assert case.work.cost_ns(case.plan) <= before


def test_a_weight_gradient_follows_its_backward() -> None:
    case = Tightening("gpipe")
    case.plan.mode[:] = 0
    for stage in range(COUNT):  # all W's at the end
        program = [
            kind << case.high | stage << case.low | micro for kind, micro in case.program(stage)
        ]
        units = [stage << case.low | micro for micro in range(MICROBATCHES)]
        whole = [*program, *(W << case.high | unit for unit in units)]
        case.plan.prog[stage, : len(whole)] = whole
        case.plan.length[stage] = len(whole)
    assert case.replays()
    case.tighten(2, 1, 1, backwards=True)
    assert case.text(1) == "F0 F1 F2 F3 F4 F5 B0 B1 B2 W2 B3 B4 B5 W0 W1 W3 W4 W5"


def test_the_treatment_changes_along_the_trip_and_copies_go() -> None:
    case = Tightening("adaoffload:limit=300")
    offloaded = [(stage, micro) for stage in range(COUNT) for micro in case.order(O, stage)]
    stage, micro = offloaded[0]
    case.tighten(micro, stage, COUNT - 1, new=RECOMPUTED, keeps=True)
    for here in range(stage, COUNT):
        assert micro not in case.order(O, here) + case.order(R, here)
        assert case.plan.mode[here << case.low | micro] == RECOMPUTED
    assert case.replays()


@pytest.mark.parametrize("name", NAMES)
def test_ops_of_an_activation_keep_their_order(name: str) -> None:
    """After many such moves each activation still has its F, O, R, C, backward and W, in that order."""
    case = Tightening(name)

    def tighten(draw: np.random.Generator) -> bool:
        before, top = case.plan.copy(), int(draw.integers(COUNT))
        first, last = case.tighten(
            int(draw.integers(MICROBATCHES)), int(draw.integers(top + 1)), top,
            new=int(draw.integers(-1, 6)), keeps=bool(draw.integers(2)),
            forwards=bool(draw.integers(2)), backwards=bool(draw.integers(2)),
        )  # fmt: skip
        same = (case.plan.prog == before.prog).all(axis=1)
        assert same[:first].all()
        assert same[last + 1 :].all()
        return not same.all()

    assert case.changed_in_order(tighten) > 20
