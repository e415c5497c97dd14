"""Visits: repeated annealing from hot to cold, from the best schedule or from one of the starts.

Which visits follow one another is up to `annealer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ...ops import BW
from ...schedule import Schedule
from ..problem import Problem, in_order_of_time
from ..reports import Others
from .loop import Cooling
from .plans import Plan, pack, unpack
from .times import NEVER

COLD = 0.01  # final temperature of visits, in typical op durations
LEAST = 200  # evaluations between two checks of the clock
PATIENCE = 10  # better plans in a row that the replay refuses, after which a search ends


class Visit(NamedTuple):
    """One annealing run: its initial temperature (in typical op durations), its evaluations per op,
    the share of its moves that let microbatches overtake, whether it starts from the best, and
    the plan."""

    heat: float
    effort: int
    passing: float
    from_best: bool
    start: Plan


class Stop(NamedTuple):
    """When a search ends: at a cost, after some seconds or evaluations, or on request."""

    goal_ns: int
    time_limit: float
    evaluations: int | None
    asked: Callable[[], bool]


class Visits:
    """The best plan so far, over visits.

    Attributes:
        follows: whether a visit from the best switches to a better schedule that another process finds while
            it runs; if not, later visits start from that.
        starts: (cost, number, plan) of the starts that fit the limits, the best first.
        best, plan: the least cost so far, and its plan.
    """

    def __init__(
        self,
        problem: Problem,
        cost_ns: Callable[[Plan], int],
        starts: Iterable[Schedule],
        stop: Stop,
        weight: float,
        follows: bool,
    ) -> None:
        self.problem, self.cost_ns = problem, cost_ns
        self.stop, self.follows, self.began = stop, follows, time.monotonic()
        self.starts: list[tuple[int, int, Plan]] = []
        for schedule in starts:
            plan, cost = self._packed(schedule)
            if cost < NEVER and _fits_host(problem, schedule):
                self.starts.append((cost, len(self.starts), plan))
        self.starts.sort(key=lambda entry: entry[:2])
        self.done, self.refused = 0, 0
        if self.starts:
            self.best: int = self.starts[0][0]
            self.plan: Plan = self.starts[0][2].copy()
            self.weight = weight / int(self.plan.length.sum())
            whole = float(np.median(problem.profile.durations_ns[:BW]))
            self.typical = whole / problem.shape.slices

    def run(
        self,
        visits: Iterator[Visit],
        anneal: Callable[[Plan, Plan, int, Cooling, float], tuple[int, int]],
        chunk_ops: int,
        on_incumbent: Callable[[Schedule, int], None] | None,
        others: Others,
    ) -> Schedule:
        """Anneal visit by visit until the search ends; returns the best schedule.

        Args:
            anneal: called with a plan, the best plan and its cost, the evaluations and temperatures,
                and the share of moves that let microbatches overtake; it changes both plans, and returns
                the best cost and the number of evaluations.
            chunk_ops: ops evaluated between two checks of the clock.
        """
        for visit in visits:
            if self._over:
                break
            start, size = visit.start, int(visit.start.length.sum())
            steps, chunk = visit.effort * size, max(LEAST, chunk_ops // size)
            hot, cold = visit.heat * self.typical, COLD * self.typical
            for at in range(0, steps, chunk):
                if self._over:
                    break
                if self._take_from(others) and visit.from_best and self.follows:
                    start = self.plan.copy()
                todo = min(chunk, steps - at)
                if self.stop.evaluations is not None:
                    todo = min(todo, self.stop.evaluations - self.done)
                begin, end = (hot * (cold / hot) ** (part / steps) for part in (at, at + todo))
                before = self.best
                kept = self.plan.copy() if self.problem.host_limit is not None else self.plan
                self.best, used = anneal(
                    start, self.plan, self.best, Cooling(todo, begin, end), visit.passing
                )
                self.done += max(used, 1)
                if self.best == before:
                    continue
                found = unpack(self.problem, self.plan)
                if not _fits_host(self.problem, found):
                    self.refused += 1
                    self.best, self.plan, start = before, kept, kept.copy()
                    continue
                self.refused = 0
                if on_incumbent is not None:
                    on_incumbent(found, self.best)
        return unpack(self.problem, self.plan)

    def evaluations_left(self) -> float:
        """Return how many evaluations are left, by the clock at the rate so far."""
        if self.stop.evaluations is not None:
            return self.stop.evaluations - self.done
        seconds = time.monotonic() - self.began
        return self.done * (self.stop.time_limit / max(seconds, 1e-9) - 1)

    @property
    def _over(self) -> bool:
        if self.best <= self.stop.goal_ns or self.refused == PATIENCE or self.stop.asked():
            return True
        if self.stop.evaluations is not None:
            return self.done >= self.stop.evaluations
        return time.monotonic() - self.began >= self.stop.time_limit

    def _packed(self, schedule: Schedule) -> tuple[Plan, int]:
        """Return a schedule as a plan, and its cost. In a plan an R counts on releases before it in the program only: where
        that takes for ever, the replay's own order of time does not."""
        plan = pack(self.problem, schedule)
        cost = self.cost_ns(plan)
        if cost == NEVER and (trace := self.problem.keeps(schedule)) is not None:
            plan = pack(self.problem, in_order_of_time(trace))
            cost = self.cost_ns(plan)
        return plan, cost

    def _take_from(self, others: Others) -> bool:
        """Take the schedule of another engine; returns whether it is better."""
        schedule = others()
        if schedule is None:
            return False
        plan, cost = self._packed(schedule)
        if cost >= self.best:
            return False
        self.best, self.plan = cost, plan
        return True


def _fits_host(problem: Problem, schedule: Schedule) -> bool:
    """Whether the offloaded activations fit the memory of the hosts."""
    return problem.host_limit is None or problem.keeps(schedule) is not None
