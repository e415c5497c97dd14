"""Every layout of a small model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from optpipe_sim import CostProfile


def layouts(profile: CostProfile) -> Iterator[list[int]]:
    """Every way to share out the items."""
    count, stages = len(profile.items), len(profile.stages)
    for borders in combinations(range(1, count), stages - 1):
        yield [b - a for a, b in pairwise([0, *borders, count])]
