"""A plan with treatments that a test changes move by move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optpipe_sim import Schedule, build, load_profile
from optpipe_sim.ops import OpKind
from optpipe_sim.solvers.anneal.annealer import Workspace
from optpipe_sim.solvers.anneal.loop import seed_random
from optpipe_sim.solvers.anneal.plans import Plan, bits, pack, unpack
from optpipe_sim.solvers.anneal.times import NEVER
from optpipe_sim.solvers.problem import Problem, make_problem

F, B, W, C, O, R = (int(OpKind[name]) for name in "FBWCOR")  # noqa: E741
COUNT, MICROBATCHES = 4, 6  # one stage per device
NAMES = (
    "1f1b",
    "1f1b:recompute=full",
    "zb-h1:recompute=full,apart=yes",
    "adaoffload:limit=300",
    "megatron-offload:recompute=full",
)


def problem() -> Problem:
    level = {"name": "full", "t_ns": 10, "keep_bytes": 6, "work_bytes": 30}
    stage = {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50}
    profile = load_profile(
        {
            "devices": COUNT,
            "stages": {**stage, "recompute": [level]},
            "offload": {"t_offload_ns": 24, "t_reload_ns": 24},
        }
    )
    return make_problem(profile, MICROBATCHES, 600)


class PlanByHand:
    """A plan of 4 stages and 6 microbatches, from a schedule's name; subclasses have the moves."""

    def __init__(self, name: str) -> None:
        self.problem = problem()
        self.work = Workspace(self.problem)
        schedule = build(name, self.problem.profile, MICROBATCHES)
        self.plan: Plan = pack(self.problem, schedule)
        self.low, self.high = bits(self.problem)

    def move(self, change: Any, *args: Any) -> Any:
        """Make a compiled move, with the times and slots of the plan as it is."""
        self.work.cost_ns(self.plan)
        self.work.times.filled[0] = 0
        return change(self.plan, self.work.costs, self.work.times, *args)

    @property
    def schedule(self) -> Schedule:
        return unpack(self.problem, self.plan)

    def program(self, stage: int) -> np.ndarray:
        """Return (ops, 2) the kinds and microbatches of a stage's program, a fused backward being a B."""
        rows = self.schedule.table[slice(*self.schedule.offsets[stage : stage + 2])]
        return np.stack((np.where(rows[:, 0] == OpKind.BW, B, rows[:, 0]), rows[:, 2]), axis=1)

    def order(self, kind: int, stage: int) -> list[int]:
        """Return the microbatches of a stage's ops of a kind, in order."""
        program = self.program(stage)
        return [int(microbatch) for what, microbatch in program if what == kind]

    def replays(self) -> bool:
        """Whether the plan replays within its limit; its activations must keep F, O, R, C, B, W in order."""
        for stage in range(COUNT):
            program = self.program(stage)
            for microbatch in range(MICROBATCHES):
                kinds = [int(kind) for kind, owner in program if owner == microbatch]
                assert kinds == [kind for kind in (F, O, R, C, B, W) if kind in kinds]
                fused = self.plan.mode[stage << self.low | microbatch] % 2 == 1
                assert {F, B} <= set(kinds)
                assert (W in kinds) != fused
        if self.work.cost_ns(self.plan) >= NEVER:
            return False
        self.problem.replay(self.schedule)
        return True

    def changed_in_order(self, change: Callable[[np.random.Generator], bool]) -> int:
        """Of 300 random changes, after each of which the ops of every activation have to be in order (see
        `replays`), return how many did something and still replay; the others are taken back."""
        draw, changed = np.random.default_rng(0), 0
        seed_random(0)
        for _ in range(300):
            before = self.plan.copy()
            some = change(draw)
            if self.replays():
                changed += some
            else:  # devices wait for each other, or for memory
                self.plan = before
        return changed
