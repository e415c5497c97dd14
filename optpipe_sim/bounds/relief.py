"""The memory that recomputation and offloading free, and its cost in time.

Of an activation of act bytes a level of recomputation keeps fewer, at a cost in ns of compute. Only
levels on the lower convex hull of (bytes, ns) count here: a mixture of two others needs no more of
either.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ..op_table import KEEP, inside, make_table
from ..ops import BW, B, OpKind
from ..stage_cost import StageCost


class Step(NamedTuple):
    """The bytes per activation that one more level drops, and the cost in ns."""

    saved_bytes: int
    cost_ns: int

    @property
    def price(self) -> Fraction:
        """ns per byte."""
        return Fraction(self.cost_ns, self.saved_bytes)


def steps(cost: StageCost) -> list[Step]:
    """Return the steps from keeping all to the level that keeps least, along the convex hull: each more
    expensive per byte."""
    points = [(cost.act_bytes, 0), *((one.keep_bytes, one.t_ns) for one in cost.recompute)]
    hull: list[tuple[int, int]] = []  # from the most bytes to the fewest
    for size, time in sorted(points, key=lambda point: (-point[0], point[1])):
        if hull and size == hull[-1][0]:
            continue
        while len(hull) > 1 and _needless(hull[-2], hull[-1], (size, time)):
            hull.pop()
        hull.append((size, time))
    return [Step(one[0] - other[0], other[1] - one[1]) for one, other in pairwise(hull)]


def _needless(before: tuple[int, int], point: tuple[int, int], after: tuple[int, int]) -> bool:
    """Whether a point of bytes and ns lies on or above the line that joins its neighbours."""
    return (point[1] - before[1]) * (before[0] - after[0]) >= (after[1] - before[1]) * (
        before[0] - point[0]
    )


def least_ns(
    need_bytes: int | Fraction, relief: Iterable[tuple[Step, int]], rate: Fraction | None
) -> Fraction | None:
    """Return the least time that frees `need_bytes` of memory; None if that is impossible.

    Args:
        relief: steps, and for how many activations each can be taken.
        rate: bytes per ns that offloading frees while compute waits; None: without limit.
    """
    if need_bytes <= 0 or rate is None:
        return Fraction(0)
    left, spent = Fraction(need_bytes), Fraction(0)
    for step, count in by_price(relief):
        if rate and step.price * rate >= 1:
            break  # waiting for copies is cheaper
        taken = min(left, Fraction(step.saved_bytes * count))
        spent += taken * step.price
        left -= taken
        if not left:
            return spent
    return spent + left / rate if rate else None


def by_price(relief: Iterable[tuple[Step, int]]) -> list[tuple[Step, int]]:
    """Return steps, and how often each counts, in the order of their price."""
    return sorted(relief, key=lambda one: one[0].price)


def most_saved(relief: Iterable[tuple[Step, int]], budget_ns: int) -> Fraction:
    """Return the most bytes that recomputing for the given time saves; `relief`: as of `by_price`."""
    saved, left = 0, budget_ns
    for step, count in relief:
        if step.cost_ns * count > left:
            return saved + Fraction(left * step.saved_bytes, step.cost_ns)
        saved += step.saved_bytes * count
        left -= step.cost_ns * count
    return Fraction(saved)


def kept_bytes(cost: StageCost) -> list[int]:
    """Return the bytes of an activation between its F and its backward, kept whole and at each level."""
    return [cost.act_bytes, *(level.keep_bytes for level in cost.recompute)]


@lru_cache(maxsize=1024)
def ways(cost: StageCost, kind: OpKind) -> list[tuple[int, int, int]]:
    """Return the ns of an op, the bytes that it allocates and those that it releases: of an activation that is kept whole,
    then recomputed inside the backward at each level."""
    treatments = [KEEP, *map(inside, range(1, 1 + len(cost.recompute)))]
    table = make_table((cost,))
    return list(zip(*(array[kind, 0, treatments].tolist() for array in table[:3]), strict=True))


def copy_rate(cost: StageCost, kind: OpKind) -> Fraction | None:
    """Return the most bytes per ns that O's or R's move; None if some take no time."""
    copies = [(more + less, ns) for ns, more, less in ways(cost, kind) if more + less]
    if not all(ns for _, ns in copies):
        return None
    return max((Fraction(*copy) for copy in copies), default=Fraction(0))


class Backward(NamedTuple):
    """A way to run a backward: the level that it recomputes inside (0: none), whether as B, with a weight
    gradient still to come, or as BW; the ns that recomputing takes and the bytes held meanwhile."""

    level: int
    split: bool
    extra_ns: int
    held_bytes: int


def backwards(cost: StageCost) -> list[Backward]:
    """Return all ways to run a backward."""
    found = []
    for level, keep in enumerate(kept_bytes(cost)):
        for kind in (B, BW):
            (whole_ns, _, _), (ns, more, _) = ways(cost, kind)[0], ways(cost, kind)[level]
            found.append(Backward(level, kind is B, ns - whole_ns, keep + more))
    return found


def backward_bytes(cost: StageCost) -> int:
    """Return the least bytes that a device holds for an activation while its backward runs."""
    return min(way.held_bytes for way in backwards(cost))
