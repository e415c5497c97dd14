"""What pairs can hide on a device at most, however its ops are ordered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..profile import CostProfile
from ..stage_cost import StageCost


class Hidden(NamedTuple):
    """The most that pairs of a device's ops hide, in ns, by the stage of their forward and by that of their
    backward, in falling order; `each`: how many ops of one kind a stage has."""

    by_forward: tuple[int, ...]
    by_backward: tuple[int, ...]
    each: int

    def at_most(self, pairs: int) -> int:
        """Return the most that so many pairs hide together.

        Proof. A forward is in at most one pair, and hides at most the entry of its stage there; a backward
        likewise. So the pairs hide no more than the best entries of so many forwards, and of backwards.
        """
        return min(self._best(rows, pairs) for rows in (self.by_forward, self.by_backward))

    def _best(self, rows: Sequence[int], pairs: int) -> int:
        found = 0
        for row in rows:
            found += row * min(self.each, pairs)
            pairs -= min(self.each, pairs)
        return found


def hidden_on(profile: CostProfile, stages: Sequence[int], microbatches: int) -> Hidden:
    """Return what pairs of the ops of these stages hide at most: `pair_hidden`, and no more than the longest of
    either op takes."""
    forward, backward = np.ix_(stages, stages)
    costs = [profile.stages_of(*one) for one in profile.classes]
    longest = np.array([[_longest(cost[s]) for s in stages] for cost in costs]).max(axis=0)
    rows = np.minimum(
        profile.hidden_ns(forward, backward), np.minimum.outer(longest[:, 0], longest[:, 1])
    )
    by_forward, by_backward = (sorted(rows.max(axis=at).tolist(), reverse=True) for at in (1, 0))
    return Hidden(tuple(by_forward), tuple(by_backward), microbatches * profile.slices)


def _longest(cost: StageCost) -> tuple[int, int]:
    """Return the longest time of an F of a stage, and of a backward, recomputation inside."""
    parts = cost.slices or (cost,)
    return max(part.t_f_ns for part in parts), max(
        max(part.t_b_ns, part.fused_ns) + max([0, *(level.t_ns for level in part.recompute)])
        for part in parts
    )
