"""Expensive lower bounds for the race: configuration LPs, searches of single devices, best first and then in
layers of ever more nodes, and, when these are exhausted, window propagation between the devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...bounds.device.device_bound import device_bound, layered_bound
from ...bounds.device.node import NEVER
from ...bounds.device.prices import prices
from ...bounds.device.problem import OneDevice, one_device
from ...bounds.lp import configuration_bounds
from ...bounds.windows import Pipeline
from ..problem import Problem
from ..reports import Job, Others, Report, no_report
from .identity import identity

ROOMS = (2_000, 30_000)  # nodes of the searches best first
MORE_ROOMS = (300_000, 1_000_000)  # where layers have too many nodes; a million take about 300 MB
WIDTHS = 4  # the first search in layers; each further one has so many times as many nodes as the one before
WIDEST = 1 << 16
SHARE = 0.5  # of the remaining time, for the next search in layers as far as the one before it tells, or all first ones
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


def run(job: Job, report: Report, others: Others = no_report) -> None:
    """Run the search for bounds as an engine of the race; it is deterministic."""
    goal = NEVER if job.start is None else job.problem.replay(job.start).cost_ns

    def better(bound: int, name: str) -> None:
        if bound > job.bound_ns:
            report("named bound", (bound, name))

    best_bound(job.problem, job.options.time_limit, goal, better, others)


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
        # these know whole sequences only, and ops one by one
        if problem.limits is None or problem.shape.slices > 1 or problem.may_pair:
            return 0
        profile, m, limits = problem.profile.lightest, problem.microbatches, problem.limits
        left: list[_Open] = []
        for device in range(profile.devices):
            one = one_device(profile, m, device, problem.objective, limits)
            if one.possible:
                left.append(_Open(one))
        for turn, room in enumerate(ROOMS):
            left.sort(key=lambda entry: -entry.bound)
            again = []
            for entry in left:
                if self._over:
                    return min(self.best, self.goal)
                if turn == 1:
                    entry.prices = prices(entry.device)
                if not self._search(entry, room):
                    again.append(entry)
            if turn == 0:
                for bound in configuration_bounds(profile, m, problem.objective, limits):
                    self._raise(bound, "configuration LP")
                    if self._over:
                        break
            left = again
            few = m * problem.shape.stages <= MOST_WINDOWS and problem.objective == "flush"
            if turn == 1 and few and not left:
                self._narrow()
        self._deepen(left)
        return min(self.best, self.goal)

    def _deepen(self, left: list[_Open]) -> None:
        """Search devices of one stage in layers: each once, then the best one again and again; others
        best first."""
        stopped = [entry for entry in left if len(entry.device.stages) > 1]
        left = [entry for entry in left if len(entry.device.stages) == 1]
        while left and not self._over:
            entry = max(left, key=lambda entry: (entry.width == 1, entry.bound))
            first = sum(entry.width == 1 for entry in left)
            if self._search_layers(entry, SHARE / max(1, first)):
                left.remove(entry)
                stopped.append(entry)
        for room in MORE_ROOMS:
            for entry in sorted(stopped, key=lambda entry: -entry.bound):
                if self._over:
                    return
                if self._search(entry, room):
                    stopped.remove(entry)

    def _narrow(self) -> None:
        """Try goals ever further above the best bound, then in between, as long as windows exclude them."""
        problem = self.problem
        assert problem.limits is not None
        pipeline = Pipeline(problem.profile.lightest, problem.microbatches, problem.limits)
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

    def _search(self, entry: _Open, room: int) -> bool:
        """Search a device with as many nodes as the remaining time allows; return whether more prove no more. The
        search itself has no clock."""
        began = time.monotonic()
        nodes = max(1_000, min(room, int(self.rate * (self.until - began))))
        bound, final = device_bound(entry.device, entry.prices, nodes, self.goal)
        entry.bound = max(entry.bound, bound)
        self._raise(bound, "one device")
        took = time.monotonic() - began
        if not final and nodes >= ROOMS[0] and took > 0:
            self.rate = nodes / took
        return final

    def _search_layers(self, entry: _Open, share: float) -> bool:
        """Search a device with more nodes in its layers than before, within a share of the time; return
        whether there is no more to be proven, or no time to do so."""
        began = time.monotonic()
        width = WIDTHS * entry.width
        if entry.took:
            width = min(width, int(entry.width * share * (self.until - began) / entry.took))
        if width <= entry.width or width > WIDEST:
            return True
        most = max(1_000, int(self.rate * share * (self.until - began)))
        bound, final = layered_bound(entry.device, entry.prices, width, self.goal, most)
        entry.bound, entry.width = max(entry.bound, bound), width
        self._raise(bound, "one device")
        entry.took = time.monotonic() - began
        return final


@dataclass
class _Open:
    """A device whose searches may still prove more: the best that they have proven, their prices of ops,
    and how many nodes of the same counts the last search in layers had, and what it took, in s."""

    device: OneDevice
    bound: int = 0
    prices: Any = None
    width: int = 1
    took: float = 0.0
