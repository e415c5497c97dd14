"""Microbatches that overtake one another in a plan with treatments."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from optpipe_sim import build, load_profile
from optpipe_sim.ops import OpKind
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.treated import core, passing
from optpipe_sim.solvers.treated.programs import Plan, bits, pack, unpack
from optpipe_sim.solvers.treated.search import Workspace

F, B, W, C, O, R = (int(OpKind[name]) for name in "FBWCOR")  # noqa: E741
COUNT = 4  # stages, one per device


@njit
def overtake(prog, length, mode, costs, t, code, far, ahead):  # type: ignore[no-untyped-def]
    return passing.overtake(prog, length, mode, costs, t, code, far, ahead)


def problem(microbatches: int = 6) -> Problem:
    level = {"name": "full", "t_ns": 10, "keep_bytes": 6, "work_bytes": 30}
    stage = {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50}
    profile = load_profile(
        {
            "devices": COUNT,
            "stages": {**stage, "recompute": [level]},
            "offload": {"t_offload_ns": 24, "t_reload_ns": 24},
        }
    )
    return make_problem(profile, microbatches, 600)


class Passing:
    """A plan in which microbatches overtake one another, step by step."""

    def __init__(self, name: str) -> None:
        self.problem = problem()
        self.work = Workspace(self.problem)
        schedule = build(name, self.problem.profile, 6)
        self.plan: Plan = pack(self.problem, schedule)
        self.low, self.high = bits(self.problem)

    def let(self, kind: int, stage: int, microbatch: int, far: int, ahead: int = 0) -> bool:
        self.work.cost_ns(self.plan)  # which also finds where each op is
        self.work.room.filled[0] = 0
        code = kind << self.high | stage << self.low | microbatch
        work = self.work
        return bool(overtake(*self.plan, work.costs, work.room, code, far, ahead))

    def order(self, kind: int, stage: int) -> list[int]:
        schedule = unpack(self.problem, self.plan)
        begin, end = schedule.offsets[stage : stage + 2]
        rows = schedule.table[begin:end]
        kinds = (B, int(OpKind.BW)) if kind == B else (kind,)
        return [int(row[2]) for row in rows if row[0] in kinds]


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


@pytest.mark.parametrize(
    "name", ["1f1b", "1f1b:recompute=full", "zb-h1:recompute=full,apart=yes", "adaoffload"]
)
def test_ops_of_an_activation_keep_their_order(name: str) -> None:
    """After many exchanges each activation still has its F, O, R, C, backward and W, in that order."""
    case, draw = Passing(name), np.random.default_rng(0)
    core.seed_random(0)
    passed = 0
    for _ in range(300):
        kind, stage = int(draw.choice((F, B))), int(draw.integers(COUNT))
        before = case.plan.copy()
        case.let(
            kind, stage, int(draw.integers(6)), int(draw.integers(-3, 4)), int(draw.integers(8))
        )
        schedule = unpack(case.problem, case.plan)
        for stage in range(COUNT):
            begin, end = schedule.offsets[stage : stage + 2]
            for microbatch in range(6):
                own = [int(row[0]) for row in schedule.table[begin:end] if row[2] == microbatch]
                kinds = [kind for kind in own if kind != int(OpKind.BW)]
                assert kinds == [kind for kind in (F, O, R, C, B, W) if kind in kinds]
                assert own[0] == F
                assert {B, W} <= set(own) or own[-1] == int(OpKind.BW)
        if case.work.cost_ns(case.plan) < core.NEVER:
            case.problem.replay(schedule, explain=False)
            passed += case.order(B, 0) != IN_ORDER
        else:  # devices wait for each other, or for memory
            case.plan = before
    assert passed > 20
