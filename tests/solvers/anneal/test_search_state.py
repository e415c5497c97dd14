"""What a change of the programs changes, against all times found anew."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from numba import njit
from search_cases import problems
from strategies import SEEDS

from optpipe_sim.ops import OpKind
from optpipe_sim.schedule import Schedule
from optpipe_sim.solvers.anneal import core, moves, state, tails, times
from optpipe_sim.solvers.anneal.search import Programs, Workspace, pack, shares_links
from optpipe_sim.solvers.problem import Problem

FAR = 4  # times the makespan is where evaluations give up


# what follows is compiled without a door to Python


@njit
def changed(prog, length, saved, saved_length, t, high):  # type: ignore[no-untyped-def]
    state.begin(t)
    some = False
    for device in range(len(length)):
        some |= state.mark(prog, length, saved, saved_length, device, t, high)
    return some


@njit
def updated(prog, length, costs, t, total, most, ahead):  # type: ignore[no-untyped-def]
    return times.update(prog, length, costs, t, total, most, 0.0, 0, ahead, True)


@njit
def longest(prog, length, costs, t):  # type: ignore[no-untyped-def]
    return times.longest(prog, length, costs, t)


@njit
def undone(t):  # type: ignore[no-untyped-def]
    state.undo(t)


@njit
def find_tails(prog, length, costs, t, span_counts):  # type: ignore[no-untyped-def]
    tails.find_tails(prog, length, costs, t, span_counts)


@njit
def renew_tails(prog, length, saved, saved_length, costs, t):  # type: ignore[no-untyped-def]
    tails.renew_tails(prog, length, saved, saved_length, costs, t)


class Walk:
    """Programs that are changed at random, and their times, kept up to date."""

    def __init__(self, problem: Problem, start: Schedule, seed: int) -> None:
        self.problem, self.random = problem, Random(seed)
        core.seed_random(seed)
        self.work, self.anew = Workspace(problem), Workspace(problem)
        self.costs, self.t = self.work.costs, self.work.times
        self.high = self.costs.high
        self.programs = pack(problem, start)
        self.saved = self.programs.copy()
        self.makespan, _, self.total = self.work.evaluate(self.programs)

    def change(self) -> bool:
        """Change something; returns whether it made any difference."""
        prog, length = self.programs
        random, slot = self.random, self.t.slot
        device = random.randrange(len(length))
        at = random.randrange(length[device])
        code = int(prog[device, at])
        draw, offloads = random.random(), self.problem.may_offload
        if draw < 0.2:
            moves.repeat(prog, length, slot, self.costs, code, offloads)
        elif draw < 0.4:
            moves.let_pass(
                prog, length, slot, self.costs, code >> self.high, code & (1 << self.high) - 1
            )
        elif draw < 0.6 and offloads:
            unit = code & (1 << self.high) - 1
            moves.toggle(prog, length, slot, device, unit, random.randint(1, 11), self.high)
        else:
            to = min(max(0, at + random.randint(-8, 8)), int(length[device]) - 1)
            moves.shift(prog, slot, device, at, to, self.costs.low, self.high)
        assert (slot == self.anew.slots(self.programs)).all()
        return bool(changed(prog, length, *self.saved, self.t, self.high))

    def update(self) -> bool:
        """Bring the times up to date; returns whether the programs can go on."""
        most, ahead = float(FAR * self.makespan), self.random.choice((0, 1, 5, 50))
        self.t.tail[:] = 0
        total = updated(*self.programs, self.costs, self.t, self.total, most, ahead)
        makespan, span, correct = self.anew.evaluate(self.programs)
        if makespan > most:
            assert total == times.FAILED
            return False
        assert total == correct
        assert longest(*self.programs, self.costs, self.t) == (makespan, span)
        self.compare("end", "before")
        return True

    def compare(self, *names: str) -> None:
        codes = codes_of(self.programs)
        for name in names:
            found, correct = getattr(self.t, name), getattr(self.anew.times, name)
            assert (found[codes] == correct[codes]).all(), name

    def take(self) -> None:
        """Go on from the changed programs."""
        self.saved = self.programs.copy()
        self.makespan, _, self.total = self.anew.evaluate(self.programs)

    def take_back(self) -> None:
        prog, length = self.programs
        undone(self.t)
        for device, first in enumerate(self.t.changed[:, 0]):
            if first >= 0:
                core._restore(prog, length, self.t.slot, *self.saved, device, first)
        self.anew.evaluate(self.programs)
        assert (codes_of(self.programs) == codes_of(self.saved)).all()
        assert (self.t.slot == self.anew.times.slot).all()
        self.compare("end", "before")


def codes_of(programs: Programs) -> np.ndarray:
    return np.concatenate([row[:n] for row, n in zip(*programs, strict=True)])


def walk(case: tuple[Problem, Schedule], seed: int) -> Walk:
    """A walk from a schedule; the example does not count where it deadlocks under its limit."""
    problem, schedule = case
    assert problem.host_limit is None
    assert not shares_links(problem)
    found = Walk(problem, schedule, seed)
    assume(found.makespan < times.NEVER)
    return found


def test_incremental_updates_equal_a_full_evaluation() -> None:
    covered: Counter[str] = Counter()

    @given(problems(shared=False), SEEDS)
    def follow(case: tuple[Problem, Schedule], seed: int) -> None:
        here = walk(case, seed)
        for _ in range(25):
            if not here.change():
                covered["without effect"] += 1
                continue
            goes_on = here.update()
            covered["goes on" if goes_on else "given up"] += 1
            if goes_on and here.random.random() < 0.7:
                here.take()
            else:
                here.take_back()

    follow()
    assert covered["goes on"] > 100, covered
    assert covered["given up"] > 10, covered


def test_tails_end_with_the_last() -> None:
    """No op and its tail end after everything, some op on each critical path with it, and what is
    kept up to date is what would be found anew."""
    covered: Counter[str] = Counter()

    @given(problems(shared=False), SEEDS, st.booleans())
    def follow(case: tuple[Problem, Schedule], seed: int, spans: bool) -> None:
        _follow_tails(walk(case, seed), spans, covered)

    follow()
    assert covered["renewed"] > 100, covered
    assert covered["compared"] > 20, covered


def _follow_tails(here: Walk, spans: bool, covered: Counter[str]) -> None:
    find_tails(*here.programs, here.costs, here.t, spans)
    _check_tails(here, spans)
    for _ in range(25):
        tail = here.t.tail.copy()
        if not here.change():
            continue
        if not here.update():
            here.t.tail[:] = tail
            here.take_back()
            continue
        here.t.tail[:] = tail
        begun = here.t.end[here.programs.prog[:, 0]].tolist()
        renew_tails(*here.programs, *here.saved, here.costs, here.t)
        here.take()
        kept = here.t.tail.copy()
        find_tails(*here.programs, here.costs, here.t, spans)
        if not spans and _takers_hold(here):
            covered["compared"] += 1
            codes = codes_of(here.programs)
            known = (kept[codes] > state.UNKNOWN // 2) | (here.t.tail[codes] > state.UNKNOWN // 2)
            assert (kept[codes] == here.t.tail[codes])[known].all(), begun
        covered["renewed"] += 1
        _check_tails(here, spans)


def _check_tails(here: Walk, spans: bool) -> None:
    codes = codes_of(here.programs)
    computes = codes[codes >> here.high < OpKind.O]
    ends = here.t.end[computes] + here.t.tail[computes]
    makespan, span = longest(*here.programs, here.costs, here.t)
    assert ends.max() == (span if spans else makespan)


def _takers_hold(here: Walk) -> bool:
    """Whether all memory that went to an op still does: else a tail may be too long for a while."""
    t = here.t
    anew = here.anew.times
    outs = [code for code in codes_of(here.programs) if code >> here.high == OpKind.O]
    return bool((t.taker[outs] == anew.taker[outs]).all())
