"""The list of moves, and what the search finds by microbatches that pass one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from search_cases import uniform

from optpipe_sim import Schedule
from optpipe_sim.ops import B, F, OpKind, R
from optpipe_sim.schedule import validate
from optpipe_sim.solvers.anneal import moves
from optpipe_sim.solvers.anneal.annealer import search
from optpipe_sim.solvers.anneal.offloading import offload_everything, park_first
from optpipe_sim.solvers.anneal.plans import make_costs
from optpipe_sim.solvers.problem import Problem, make_problem

# p, m at two slots and copies of 16: a proven bound; FIFO schedules cost at least 2 more
DEAR = {(4, 8): 303, (4, 16): 551}


def order(schedule: Schedule, kind: OpKind, stage: int) -> list[int]:
    """The microbatches in the order of a kind of op at a stage."""
    program = schedule.programs[schedule.shape.placement[stage]]
    return [op.microbatch for op in program if (op.kind, op.stage) == (kind, stage)]


def test_each_operator_is_drawn_by_its_weight_where_a_problem_has_what_it_needs() -> None:
    offloading = make_problem(uniform(4), 8, 200)
    shares = shares_of(offloading, 0.0)
    assert shares["move an op"] / shares["offload or keep an activation"] == pytest.approx(5)
    assert {name for name, share in shares.items() if share == 0} == {
        "treat an activation", "treat a run of microbatches", "overtake", "tighten a trip",
        "pair or part", "pair or part a run of microbatches",
    }  # fmt: skip
    assert shares_of(offloading, 0.3)["overtake"] == pytest.approx(0.15)
    kept = shares_of(make_problem(uniform(4), 8), 0.0)  # without a limit
    assert {name for name, share in kept.items() if share > 0} == {
        "move an op", "move the ops of a run of microbatches", "copy a neighbour's program",
    }  # fmt: skip
    for problem in (offloading, replace(offloading, per_stage=True)):
        assert sum(shares_of(problem, 0.3).values()) == pytest.approx(1)
    assert shares_of(replace(offloading, per_stage=True), 0.0)["exchange two treatments"] == 0


def shares_of(problem: Problem, passing: float) -> dict[str, float]:
    """The chance of each operator, by its name."""
    chances = moves.chances(make_costs(problem), passing)
    shares = np.diff(np.minimum(chances, 1.0), prepend=0.0)
    return {one.name: float(share) for one, share in zip(moves.OPERATORS, shares, strict=True)}


@pytest.mark.parametrize("passed", [0, 1, 2, 5])
def test_the_first_is_parked_until_so_many_have_passed(passed: int) -> None:
    problem = make_problem(uniform(4, 16), 8, 200)
    schedule = park_first(problem, passed, [1] * 4)
    validate(schedule)
    later = [*range(1, passed + 1), 0, *range(passed + 1, 8)]
    for stage in range(4):
        assert order(schedule, F, stage) == list(range(8))
        assert order(schedule, B, stage) == order(schedule, R, stage) == later
    assert problem.replay(schedule).fits


@pytest.mark.parametrize("cell", DEAR, ids=str)
def test_passing_beats_first_in_first_out_to_an_optimum(cell: tuple[int, int]) -> None:
    p, m = cell
    problem = make_problem(uniform(p, 16), m, 200)
    starts = [offload_everything(problem, p)]
    found = search(problem, starts, goal_ns=DEAR[cell], evaluations=2_000_000, seed=3)
    assert found is not None
    assert problem.replay(found).makespan_ns == DEAR[cell]
    orders = np.array([order(found, B, stage) for stage in range(p)])
    assert (orders[:, 1:] < orders[:, :-1]).any()
