"""Least times along the pipeline, and what memory admits: the building blocks of all lower bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from ..errors import OptPipeError
from ..profile import CostProfile
from ..stage_cost import StageCost
from ..trace import OBJECTIVES
from .relief import Backward, backwards


class Chains:
    """Least times along the pipeline; `objective` decides from where they count."""

    def __init__(self, profile: CostProfile, objective: str) -> None:
        if objective not in OBJECTIVES:
            raise OptPipeError(f"objective: expected flush or span, got {objective!r}")
        self.profile, self.objective = profile, objective
        self.stages_of: dict[int, list[int]] = {}
        for s, d in enumerate(profile.placement):
            self.stages_of.setdefault(d, []).append(s)

    @cached_property
    def _forward(self) -> list[int]:
        """Per stage, the earliest start of an F of it; one more entry: the end of the last F."""
        at = [0]
        for s, cost in enumerate(self.profile.stages):
            at.append(at[-1] + cost.t_f_ns + self.profile.message_ns(s, s + 1))
        return at

    @cached_property
    def _backward(self) -> list[int]:
        """Per stage, the earliest start of a backward of it."""
        at = self._forward[-1]
        starts = []
        for s in reversed(range(len(self.profile.stages))):
            starts.append(at)
            at += back_ns(self.profile.stages[s]) + self.profile.message_ns(s, s - 1)
        return starts[::-1]

    def head(self, s: int) -> int:
        """Return the earliest start of F of s; 0 for spans."""
        return self.forward_from(s) if self.objective == "flush" else 0

    def forward_from(self, s: int) -> int:
        return self._forward[s]

    def until_back(self, s: int) -> int:
        """Return the earliest start of a backward of s, counted from the start of the iteration."""
        return self._backward[s]

    def full_back(self, s: int) -> int:
        """Return the time of the backward of s with its weight gradient."""
        cost = self.profile.stages[s]
        return min(cost.t_b_ns + cost.t_w_ns, cost.fused_ns)

    def tail(self, s: int) -> int:
        """Return the time from the end of a backward of s to the end of the stages before it."""
        end = self._backward[s] + back_ns(self.profile.stages[s])
        return max(self._backward[low] + self.full_back(low) - end for low in range(s))

    def work(self, stages: Iterable[int]) -> int:
        return sum(self.profile.stages[s].work_ns for s in stages)

    def sends(self, s: int) -> tuple[int, int]:
        """Return how long the messages of a stage's F and of its backward block its device."""
        place, sending = self.profile.placement, self.profile.sending_ns
        forward = s + 1 < len(place) and place[s + 1] != place[s]
        return sending * forward, sending * (s > 0 and place[s - 1] != place[s])


def back_ns(cost: StageCost) -> int:
    return min(cost.t_b_ns, cost.fused_ns)


class Drain(NamedTuple):
    """A way to run a device's last backward, and the longest time that the W's after it can take, given
    what it holds while it runs."""

    level: int
    split: bool
    extra_ns: int
    weights_ns: int


def pending_w_ways(
    profile: CostProfile, stages: Sequence[int], microbatches: int, capacity: int | None
) -> list[Drain]:
    """Return the ways to run a device's last backward that fit."""
    costs = [profile.stages[s] for s in stages]
    every = [cost.t_w_ns * microbatches for cost in costs]
    ways: list[Drain] = []

    def add(way: Backward, weights_ns: int) -> None:
        ways.append(Drain(way.level, way.split, way.extra_ns, weights_ns))

    for way in backwards(costs[0]):
        room = None if capacity is None else capacity - way.held_bytes
        if room is None or room < 0:
            continue
        if len({(cost.t_w_ns, cost.w_bytes) for cost in costs}) == 1:  # then they count whole
            w, count = costs[0].w_bytes, microbatches * len(stages)
            add(way, costs[0].t_w_ns * (min(count, room // w + way.split) if w else count))
            continue
        weights = [
            (total, cost.w_bytes * microbatches) for total, cost in zip(every, costs, strict=True)
        ]
        own = costs[0].t_w_ns if way.split else 0
        add(way, min(sum(every), knapsack(weights, room) + own))
    return ways or [Drain(0, True, 0, sum(every))]  # no limit, or one that no schedule keeps


def least_drains(tail: int, drains: Sequence[Drain]) -> tuple[int, int]:
    """Return the least idle time of a device after its last backward, within a `tail` that its W's
    fill, in ns; and the least sum of it and of the recomputation in that backward."""
    idle = [max(0, tail - one.weights_ns) for one in drains]
    return min(idle), min(one.extra_ns + ns for one, ns in zip(drains, idle, strict=True))


def knapsack(items: Iterable[tuple[int, int]], room: int) -> int:
    """Return the largest value of divisible (value, size) items that fit; rounded down, as the
    bounded value is an integer."""
    return filled(by_worth(items), room)


def by_worth(items: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (value, size) items in the order of falling value per size."""
    return sorted(items, key=_worth_per_size, reverse=True)


def filled(items: Iterable[tuple[int, int]], room: int) -> int:
    """As `knapsack`, for items as of `by_worth`."""
    value, left = 0, room
    for worth, size in items:
        if size > left:
            return value + worth * left // size
        value += worth
        left -= size
    return value


def _worth_per_size(item: tuple[int, int]) -> tuple[bool, Fraction]:
    worth, size = item
    return size == 0, Fraction(worth, max(1, size))
