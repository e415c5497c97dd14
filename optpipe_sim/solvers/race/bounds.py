"""Expensive lower bounds for the race: configuration LPs, ever longer searches of single devices,
and, when these are exhausted, window propagation between the devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...bounds.device.best_first import NEVER
from ...bounds.device.prices import prices
from ...bounds.device.problem import OneDevice, one_device
from ...bounds.device.search import device_bound
from ...bounds.lp import configuration_bounds
from ...bounds.windows import Pipeline
from ...schedule import Schedule
from ..options import SolveOptions
from ..problem import Problem
from ..reports import Others, Report, no_report
from .identity import identity

ROOMS = (2_000, 30_000, 300_000, 1_000_000)  # nodes; a million take about 300 MB
MOST_WINDOWS = 100  # F's up to which windows proved more than single devices (measured)
QUICKEST = 500_000  # nodes per second, as a first estimate


def best_bound(
    problem: Problem,
    time_limit: float,
    goal_ns: int = NEVER,
    on_bound: Callable[[int, str], None] | None = None,
    others: Others = no_report,
) -> int:
    """Return the best bound, in ns, of the configuration LPs and of all devices within `time_limit` seconds.

    Args:
        goal_ns: the cost of a known schedule; a bound that equals it ends the search.
        on_bound: called with each better bound and its name.
        others: returns schedules of other engines; the goal decreases to their costs.
    """
    return _BoundSearch(problem, time_limit, goal_ns, on_bound, others).run()


def run(
    problem: Problem,
    report: Report,
    start: Schedule | None,
    options: SolveOptions,
    bound_ns: int = 0,
    others: Others = no_report,
) -> None:
    """Run the search for bounds as an engine of the race; it is deterministic."""
    goal = NEVER if start is None else problem.replay(start).cost_ns

    def better(bound: int, name: str) -> None:
        if bound > bound_ns:
            report("named bound", (bound, name))

    best_bound(problem, options.time_limit, goal, better, others)


class _BoundSearch:
    """The bounds so far, and the devices that may still improve them."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        goal_ns: int,
        on_bound: Callable[[int, str], None] | None,
        others: Others,
    ) -> None:
        self.problem, self.others = problem, others
        self.until = time.monotonic() + time_limit
        self.goal, self.on_bound = goal_ns, on_bound
        self.best = 0
        self.rate = float(QUICKEST)

    def _raise(self, bound: int, name: str) -> None:
        """Take a bound if it is better than the best so far."""
        if bound > self.best:
            self.best = bound
            if self.on_bound is not None:
                self.on_bound(bound, name)

    @property
    def _over(self) -> bool:
        better = self.others()
        if better is not None:
            self.goal = min(self.goal, self.problem.replay(better).cost_ns)
        return self.best >= self.goal or time.monotonic() >= self.until

    def run(self) -> int:
        problem = self.problem
        if problem.limits is None or problem.shape.slices > 1:  # these know whole sequences only
            return 0
        profile, m, limits = problem.profile, problem.microbatches, problem.limits
        left: list[tuple[int, OneDevice, Any]] = []
        for device in range(profile.devices):
            one = one_device(profile, m, device, problem.objective, limits)
            if one.possible:
                left.append((0, one, None))
        for turn, room in enumerate(ROOMS):
            left.sort(key=lambda entry: -entry[0])
            again = []
            for bound, one, price in left:
                if self._over:
                    return min(self.best, self.goal)
                if turn == 1:
                    price = prices(one)
                bound, final = self._search(one, price, room)
                self._raise(bound, "one device")
                if not final:
                    again.append((bound, one, price))
            if turn == 0:
                for bound in configuration_bounds(profile, m, problem.objective, limits):
                    self._raise(bound, "configuration LP")
                    if self._over:
                        break
            left = again
            few = m * problem.shape.stages <= MOST_WINDOWS and problem.objective == "flush"
            if turn == 1 and few and not left:
                self._narrow()
        return min(self.best, self.goal)

    def _narrow(self) -> None:
        """Try goals ever further above the best bound, then in between, as long as windows exclude them."""
        problem = self.problem
        assert problem.limits is not None
        pipeline = Pipeline(problem.profile, problem.microbatches, problem.limits)
        unit = identity(problem).time_unit_ns
        step, possible = unit, self.goal
        while not self._over and self.best + unit < possible:
            goal = min(self.best + step, self.goal)
            if goal >= possible:
                goal = self.best + (possible - self.best) // (2 * unit) * unit
            if pipeline.narrow(goal, self.until) is None:
                self._raise(goal, "windows")
                step *= 2
            else:
                possible = goal

    def _search(self, one: OneDevice, price: Any, room: int) -> tuple[int, bool]:
        """Search a device with as many nodes as the remaining time allows; the search itself has no clock."""
        began = time.monotonic()
        nodes = max(1_000, min(room, int(self.rate * (self.until - began))))
        bound, final = device_bound(one, price, nodes, self.goal)
        took = time.monotonic() - began
        if not final and nodes >= ROOMS[0] and took > 0:
            self.rate = nodes / took
        return bound, final
