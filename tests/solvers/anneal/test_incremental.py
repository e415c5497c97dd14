"""What a move on a plan changes, against all times evaluated anew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from strategies import SEEDS, cases, that_fits

from optpipe_sim.compiled import njit
from optpipe_sim.errors import Deadlock
from optpipe_sim.ops import OpKind
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim.lower import lower
from optpipe_sim.solvers.anneal import evaluate, loop, marks, moves, tails, times
from optpipe_sim.solvers.anneal.annealer import Workspace, shares_links
from optpipe_sim.solvers.anneal.plans import Plan, pack, unpack
from optpipe_sim.solvers.problem import Problem

FAR = 4  # times the makespan is where evaluations give up
NO_PATH = np.empty(0, np.int64)
PASSING = 0.3  # share of the moves


# What follows has no door to Python, and takes 40 s to compile. `make test` runs it in Python, where moves and
# updates are the same lines, in a process in which nothing is compiled; `make test-slow` compiles it.
compiles = (lambda function: function) if njit is None else njit


@compiles
def moved(plan, saved, costs, t, path, chances):  # type: ignore[no-untyped-def]
    t.filled[0] = 0
    first, last = moves.change(plan, costs, t, path, chances)
    if first < 0:
        return False, 0
    times.begin(t)
    soonest, gone, _ = marks.mark_move(plan, saved, first, last, costs, t)
    return soonest < times.NEVER, gone


@compiles
def updated(plan, costs, t, total, most, ahead):  # type: ignore[no-untyped-def]
    return evaluate.update(plan, costs, t, total, evaluate.Goal(most, 0.0, 0), ahead, True)


@compiles
def longest(plan, costs, t):  # type: ignore[no-untyped-def]
    return evaluate.longest(plan, costs, t)


@compiles
def taken_back(plan, saved, t):  # type: ignore[no-untyped-def]
    times.undo(t)
    loop._restore(plan, saved, t)


@compiles
def renew_tails(plan, saved, costs, t, anew, span_counts):  # type: ignore[no-untyped-def]
    if anew:
        tails.begin_tails(plan, costs, t, span_counts)
    else:
        tails.mark_tails(plan, saved, costs, t)
    tails.renew_tails(plan, costs, t)


class Walk:
    """A plan that is changed at random, and its times, kept up to date."""

    def __init__(self, problem: Problem, start: Schedule, seed: int) -> None:
        self.problem, self.random = problem, Random(seed)
        loop.seed_random(seed)
        self.work, self.anew = Workspace(problem), Workspace(problem)
        self.costs, self.t = self.work.costs, self.work.times
        self.plan: Plan = pack(problem, start)
        self.saved = self.plan.copy()
        self.makespan, _, self.total = self.work.evaluate(self.plan)

    def move(self) -> bool:
        """Make a move; returns whether it made any difference."""
        some, self.gone = moved(
            self.plan, self.saved, self.costs, self.t, NO_PATH, moves.chances(self.costs, PASSING)
        )
        return bool(some)

    def update(self) -> bool:
        """Bring the times up to date; returns whether the plan can go on."""
        most, ahead = float(FAR * self.makespan), self.random.choice((0, 1, 5, 50))
        self.t.tail[:] = 0
        total = updated(self.plan, self.costs, self.t, self.total - self.gone, most, ahead)
        makespan, span, correct = self.anew.evaluate(self.plan)
        if makespan > most:
            assert total == times.FAILED
            return False
        assert total == correct
        assert longest(self.plan, self.costs, self.t) == (makespan, span)
        self.compare()
        return True

    def compare(self) -> None:
        codes = self.codes
        for name in ("end", "before", "slot"):
            found, correct = getattr(self.t, name), getattr(self.anew.times, name)
            assert (found[codes] == correct[codes]).all(), name

    @property
    def codes(self) -> np.ndarray:
        rows = zip(self.plan.prog, self.plan.length, strict=True)
        return np.concatenate([row[:size] for row, size in rows])

    def renew_tails(self, spans: bool, anew: bool) -> None:
        renew_tails(self.plan, self.saved, self.costs, self.t, anew, spans)

    def take(self) -> None:
        """Go on from the changed plan."""
        self.saved = self.plan.copy()
        self.makespan, _, self.total = self.anew.evaluate(self.plan)

    def take_back(self) -> None:
        taken_back(self.plan, self.saved, self.t)
        self.anew.evaluate(self.plan)
        assert (self.plan.mode == self.saved.mode).all()
        assert (self.t.slot == self.anew.times.slot).all()
        self.compare()


@st.composite
def walks(draw: st.DrawFn) -> Walk:
    """A walk from a lowered schedule that fits; copies over links of their own, with levels, slices and pairs, or plain."""
    more = draw(st.booleans())
    profile, schedule = draw(cases(levels=more, slices=more, differ=more, pairs=more))
    profile, _ = that_fits(profile, schedule)
    profile = profile.for_shape(schedule.shape)
    try:
        schedule = lower(schedule, profile).schedule
    except Deadlock:  # its own peaks are not always enough: another order of grants may need more
        reject()
    problem = Problem(
        profile, schedule.shape.microbatches, profile.memory_limit, "flush", draw(st.booleans())
    )
    assume(not shares_links(problem) and problem.host_limit is None)
    found = Walk(problem, schedule, draw(SEEDS))
    assume(found.makespan < times.NEVER)
    return found


def test_updates_in_python() -> None:
    test = f"{__file__}::test_incremental_updates_equal_a_full_evaluation"
    run = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        run, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout  # without any test that ran it is 5


@pytest.mark.slow
def test_incremental_updates_equal_a_full_evaluation() -> None:
    """The times of every op; and some op on each critical path ends, with its tail, with the last op, and none later."""
    covered: Counter[str] = Counter()

    @settings(max_examples=60)
    @given(walks(), st.booleans())
    def follow(here: Walk, spans: bool) -> None:
        here.renew_tails(spans, anew=True)
        for _ in range(10):
            check_tails(here, spans)
            tail = here.t.tail.copy()
            if not here.move():
                continue
            goes_on = here.update()
            covered["goes on" if goes_on else "given up"] += 1
            covered["pairs"] += unpack(here.problem, here.plan).has_pairs
            here.t.tail[:] = tail
            if not goes_on or here.random.random() < 0.2:
                here.take_back()
                continue
            here.renew_tails(
                spans, anew=spans
            )  # to the longest span: devices may begin at other times
            here.take()

    follow()
    assert covered["goes on"] > 100, covered
    assert covered["given up"] > 10, covered
    assert covered["pairs"] > 10, covered


def check_tails(here: Walk, spans: bool) -> None:
    codes = here.codes
    computes = codes[codes >> here.costs.high < OpKind.O]
    ends = here.t.end[computes] + here.t.tail[computes]
    makespan, span = longest(here.plan, here.costs, here.t)
    assert ends.max() == (span if spans else makespan)
