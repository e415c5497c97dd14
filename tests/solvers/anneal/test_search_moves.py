"""Moves that let microbatches pass one another: what they leave, and what the search finds by them."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from search_cases import problems, uniform
from strategies import SEEDS

from optpipe_sim import Schedule
from optpipe_sim.ops import B, F, O, OpKind, R, W
from optpipe_sim.schedule import validate
from optpipe_sim.solvers.anneal import moves
from optpipe_sim.solvers.anneal.search import Programs, Workspace, pack, search, unpack
from optpipe_sim.solvers.anneal.times import NEVER
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.starts import offload_everything, park_first

# p, m at two slots and copies of 16: a proven bound; FIFO schedules cost at least 2 more
DEAR = {(4, 8): 303, (4, 16): 551}


def overtake(
    problem: Problem,
    programs: Programs,
    kind: OpKind,
    stage: int,
    microbatch: int,
    far: int,
    *,
    stays: bool = True,
    parks: bool = False,
    ahead: int = 1,
) -> bool:
    work = Workspace(problem)
    low, high = work.costs.low, work.costs.high
    code = int(kind) << high | stage << low | microbatch
    slot = work.slots(programs).copy()
    passed = moves.overtake(
        programs.prog, programs.length, slot, work.costs, code, far, stays, parks, ahead
    )
    assert (slot == work.slots(programs)).all()
    return bool(passed)


def order(schedule: Schedule, kind: OpKind, stage: int) -> list[int]:
    """The microbatches in the order of a kind of op at a stage."""
    program = schedule.programs[schedule.shape.placement[stage]]
    return [op.microbatch for op in program if (op.kind, op.stage) == (kind, stage)]


@given(problems(), SEEDS)
def test_programs_stay_valid_when_microbatches_overtake(
    case: tuple[Problem, Schedule], seed: int
) -> None:
    problem, schedule = case
    random, m = Random(seed), problem.microbatches
    programs = pack(problem, schedule)
    before = Counter(map(str, (op for program in schedule.programs for op in program)))
    for _ in range(20):
        kind, stage = random.choice((F, B)), random.randrange(problem.shape.stages)
        micro, far = random.randrange(m), random.choice((-1, 1)) * random.randint(1, m)
        stays, parks = random.random() < 0.5, random.random() < 0.5
        passed = overtake(
            problem, programs, kind, stage, micro, far,
            stays=stays, parks=parks, ahead=random.randint(1, 11),
        )  # fmt: skip
        assert m > 1 or not passed
        schedule = unpack(problem, programs)
        validate(schedule)
        after = Counter(map(str, (op for program in schedule.programs for op in program)))
        changed = (before - after) + (after - before)
        assert all(name[0] in "OR" for name in changed)
        for program in schedule.programs:
            slot = {op: at for at, op in enumerate(program)}
            for op in program:
                if op.kind in (O, R):
                    chain = [slot[op._replace(kind=kind)] for kind in (F, O, R, B)]
                    assert chain == sorted(chain)


def test_those_passed_are_passed_on_all_devices() -> None:
    problem = make_problem(uniform(4, 16), 8, 200)
    programs = pack(problem, offload_everything(problem, 4))
    assert overtake(problem, programs, F, 2, 1, 3)
    found = unpack(problem, programs)
    fifo, passed = list(range(8)), [0, 2, 3, 4, 1, 5, 6, 7]
    assert [order(found, F, stage) for stage in range(4)] == [fifo, fifo, passed, passed]
    for kind in (B, W, R):
        assert [order(found, kind, stage) for stage in range(4)] == [passed] * 4
    assert [order(found, O, stage) for stage in range(4)] == [fifo, fifo, passed, passed]
    assert overtake(problem, programs, F, 2, 1, -3)
    assert unpack(problem, programs) == offload_everything(problem, 4)
    assert not overtake(problem, programs, F, 2, 0, -3)  # nothing is ahead of the first


@pytest.mark.parametrize("stays", [True, False])
def test_where_one_of_two_is_offloaded_it_or_the_other_is_after(stays: bool) -> None:
    problem = make_problem(uniform(1), 3, 1000)
    before = "0: F0.0 O0.0 F0.1 F0.2 R0.0 B0.0 W0.0 B0.1 W0.1 B0.2 W0.2"
    after = {
        True: "0: F0.0 O0.0 F0.1 F0.2 B0.1 R0.0 W0.1 B0.0 W0.0 B0.2 W0.2",
        False: "0: F0.0 F0.1 O0.1 R0.1 F0.2 B0.1 W0.1 B0.0 W0.0 B0.2 W0.2",
    }
    programs = pack(problem, Schedule.from_text(problem.shape, before))
    assert overtake(problem, programs, B, 0, 0, 1, stays=stays)
    assert unpack(problem, programs) == Schedule.from_text(problem.shape, after[stays])


def test_many_proposals_can_go_on() -> None:
    """Else the annealing would spend its time on them for nothing."""
    problem = make_problem(uniform(4, 16), 8, 200)
    work, able, tried = Workspace(problem), 0, 0
    for start in (park_first(problem, 2, [1] * 4), offload_everything(problem, 4)):
        for kind, stage in ((F, 1), (F, 2), (F, 3), (B, 0), (B, 1), (B, 2), (B, 3)):
            for micro in range(8):
                for far in (-2, -1, 1, 2):
                    programs = pack(problem, start)
                    if overtake(problem, programs, kind, stage, micro, far, parks=True):
                        tried += 1
                        able += work.evaluate(programs)[0] < NEVER
    assert able > 0.8 * tried


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
