"""A lower bound for every layout: the least bound over all ways to cut a model into stages.

A layout gives every stage a run of at least one item, in model order.

*One stage per device.* Stage s with the items from i on, before j, has a bound of its own
(`bounds.fill_and_drain`) in which the others appear only as chains: the F's before it, the F's and
backwards behind it, the backwards before it. These depend on i, j and s alone where every other stage
counts as the sum of its items, each backward as the cheaper of B and BW, no weight gradient: none of
them is longer in any layout. So the least over layouts of the worst stage's bound is found by dynamic
programming over (s, j). The bound of a run takes milliseconds to compute, a simpler one (the head of the
pipeline and the work of its items) almost nothing: all runs start with the simpler one, and those of the
best layout are refined until all of its runs are. The value is a bound at any time before, too.

*Several stages per device.* A device works for m times its items, whichever they are, after as many
messages and first items as there are stages before its first one. The least over all ways to
distribute the items, contiguous or not, of the longest such time is no more than that of any layout.
This bound ignores the memory limit: what must be recomputed or offloaded to fit is not in it.

*Microbatches that differ.* All of them count with their own work, everything else as if each were the lightest; and the
longest alone has to pass.

*Pairs.* A pair takes no less than its two ops one after the other without what they exchange, because
all else is computed by one stream; so a bound for layers that exchange nothing holds. Where layers do
not say what they exchange, only that a pair takes no less than either of its ops is known.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from ...bounds.bounds import Bound, fill_and_drain_parts
from ...bounds.device.node import NEVER
from ...profile import CostProfile
from ...profile.items import StageMaker
from ...stage_cost import StageCost

MOST_CELLS = 2**22  # runs of items on stages; with more only the work of all items is counted
MOST_RARE = 64  # most items that differ from the usual kind


class Runs:
    """Bounds of every run of items on every stage, one stage per device, and the best layouts by them.

    Attributes:
        ns: (stages, items + 1, items + 1) int64: of stage s with the items from i on, before j.

    Args:
        profile: of microbatches that are alike. work: of each item, on all microbatches; None: as many of these.
    """

    def __init__(
        self,
        profile: CostProfile,
        microbatches: int,
        objective: str = "flush",
        memory_limit: int | Sequence[int] | None = None,
        work: Sequence[int] | None = None,
    ) -> None:
        self.profile, self.microbatches, self.objective = profile, microbatches, objective
        self.limits = profile.limits(memory_limit)
        self.maker = StageMaker(profile.items, 1)
        costs = [item.cost for item in profile.items]
        self.forward = [0, *accumulate(cost.t_f_ns for cost in costs)]
        self.backward = [0, *accumulate(min(cost.t_b_ns, cost.fused_ns) for cost in costs)]
        total = np.array([0, *accumulate(work or _work(profile, microbatches))])
        count, p = len(costs), profile.devices
        heads = np.array(self.forward) if objective == "flush" else np.zeros(count + 1, int)
        run = heads[:, None] + total[None, :] - total[:, None]
        message_ns = profile.t_comm_ns if objective == "flush" else 0
        self.ns = np.array([run + s * message_ns for s in range(p)])
        at = np.arange(count + 1)
        for s in range(p):  # at least one item each, here, before and after
            allowed = (at[:, None] < at[None, :]) & (at[:, None] >= s)
            allowed &= (at[None, :] <= count - (p - 1 - s)) & ((at[:, None] == 0) == (s == 0))
            allowed &= (at[None, :] == count) == (s == p - 1)
            self.ns[s][~allowed] = NEVER
        self.known = np.zeros(self.ns.shape, bool)

    def best(self, over: Callable[[], bool]) -> tuple[int, list[int]]:
        """Return the bound of the best layout and the number of items of its stages; all of its runs have
        their bounds, unless `over` ends the search before."""
        while True:
            least, counts = self.layout()
            if least >= NEVER or over() or not self._refine(counts):
                return least, counts

    def _refine(self, counts: Sequence[int]) -> bool:
        """Compute the bounds of the runs of a layout; return whether any was missing."""
        missing = False
        for s, (first, last) in enumerate(pairwise([0, *accumulate(counts)])):
            if not self.known[s, first, last]:
                missing, self.known[s, first, last] = True, True
                found = self._bound(s, first, last)
                self.ns[s, first, last] = max(self.ns[s, first, last], found)
        return missing

    def _bound(self, s: int, first: int, last: int) -> int:
        """Return the bound of stage s with these items."""
        p, count = self.profile.devices, len(self.profile.items)
        own = self.maker.stage(first, last)
        before = [*range(s), first] if s else [0]
        behind = [*range(last, last + p - 1 - s), count] if s < p - 1 else [count]
        stages = [*map(self._chain, *_ends(before)), own, *map(self._chain, *_ends(behind))]
        others = replace(
            self.profile,
            chunks=1,
            placement=tuple(range(p)),
            stages=tuple(stages),
            memory_limit=None,
        )
        device = self.profile.placement[s] if self.profile.chunks == 1 else s
        limit = None if self.limits is None else self.limits[device]
        if limit is not None and own.static_bytes + own.least_running_bytes > limit:
            return NEVER
        return fill_and_drain_parts(others, self.microbatches, self.objective, limit, only=s)[0].ns

    def _chain(self, first: int, last: int) -> StageCost:
        """Return another stage with these items, which counts with the time to pass it."""
        f, back = (line[last] - line[first] for line in (self.forward, self.backward))
        copies = None if self.profile.offload is None else 0
        return StageCost(f, back, 0, t_offload_ns=copies, t_reload_ns=copies)

    def layout(self) -> tuple[int, list[int]]:
        """Return the least bound of a layout by the bounds so far; among the layouts that have it, the one
        with the least sum of squares over its stages."""
        least = int(_dp(self.ns, np.maximum)[0])
        if least >= NEVER:
            return NEVER, []
        scaled = np.where(self.ns <= least, (self.ns / least) ** 2, np.inf)
        _, counts = _dp(scaled, np.add)
        return least, counts


def _ends(borders: Sequence[int]) -> tuple[list[int], list[int]]:
    return list(borders[:-1]), list(borders[1:])


def _dp(ns: np.ndarray, joined: np.ufunc) -> tuple[float, list[int]]:
    """Return the least value of a layout, and its counts: the values of its runs joined, stage by stage."""
    reach, choices = ns[0, 0], []
    for own in ns[1:]:
        values = joined(reach[:, None], own)
        choices.append(values.argmin(axis=0))
        reach = values.min(axis=0)
    borders = [ns.shape[1] - 1]
    for choice in reversed(choices):
        borders.append(int(choice[borders[-1]]))
    borders.append(0)
    return reach[-1], [a - b for a, b in pairwise(borders)][::-1]


def layout_bound(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
    seconds: float = 5.0,
) -> tuple[Bound, list[int] | None]:
    """Return a bound for every layout of the profile's items on its chunks and placement; and, with one
    chunk per device, a layout whose own bound is close to it.

    Args:
        seconds: after which a weaker bound is returned.
    """
    streams = any(item.streams for item in profile.items)
    if not profile.alike and streams:  # these have no factors
        profile = replace(profile, items=tuple(replace(one, streams=None) for one in profile.items))
    longest = max(time for time, _ in profile.classes)
    least = min(size for _, size in profile.classes)
    passing = Bound(
        _one_microbatch(profile.of_class(longest, least), objective), "one microbatch, any layout"
    )
    if np.any(profile.pair_hidden):
        if (
            not streams or not profile.alike
        ):  # a short microbatch may hide more than its part of the exchange
            return passing, None
        profile = replace(profile, items=tuple(item.computing for item in profile.items))
    work, profile = _work(profile, microbatches), profile.lightest
    count, p = len(profile.items), profile.devices
    if profile.chunks > 1 or p * count * count > MOST_CELLS:
        dealt = Bound(_dealt(profile, work, objective), "work, any layout and memory")
        return max(passing, dealt), None
    until = time.monotonic() + seconds
    runs = Runs(profile, microbatches, objective, memory_limit, work)
    least_ns, counts = runs.best(lambda: time.monotonic() > until)
    return max(passing, Bound(least_ns, "fill and drain, any layout")), counts or None


def _work(profile: CostProfile, microbatches: int) -> list[int]:
    """Return the compute time of each item on all microbatches."""
    counts = Counter(profile.factors) or {profile.classes[0]: microbatches}
    costs = [(count, profile.of_class(*factors).items) for factors, count in counts.items()]
    return [
        sum(count * items[at].cost.work_ns for count, items in costs)
        for at in range(len(profile.items))
    ]


def _one_microbatch(profile: CostProfile, objective: str) -> int:
    """Return the time of all F's and backwards of a microbatch, and of its messages."""
    if objective != "flush":
        return 0
    chain = sum(
        item.cost.t_f_ns + min(item.cost.t_b_ns, item.cost.fused_ns) for item in profile.items
    )
    return chain + 2 * sum(profile.messages_ns)


def _dealt(profile: CostProfile, work: Sequence[int], objective: str) -> int:
    """Return the least maximum device time over all ways to distribute the items.

    Args:
        work: of each item, on all microbatches.
    """
    first, *body, last = work
    place, p = profile.placement, profile.devices
    heads, pinned, held = [0] * p, [0] * p, [0] * p
    forward = [0, *accumulate(item.cost.t_f_ns for item in profile.items)]
    for d in range(p):
        s = place.index(d)
        if objective == "flush":
            heads[d] = forward[s] + sum(profile.messages_ns[:s])
    for item, device in ((first, place[0]), (last, place[-1])):
        pinned[device] += item
        held[device] += 1
    own = [head + work for head, work in zip(heads, pinned, strict=True)]
    kinds = Counter(body).most_common()
    low = max(*own, -(-(sum(own) + sum(ns * n for ns, n in kinds)) // p)) if p > 1 else sum(own)
    most, rare = kinds[:1], kinds[1:]
    if not most or len(rare) > 1 or sum(n for _, n in rare) > MOST_RARE:
        return low
    least = [max(0, profile.chunks - n) for n in held]
    ns, count = most[0]
    other, few = rare[0] if rare else (1, 0)
    high = max(own) + count * ns + few * other
    while low < high:
        middle = (low + high) // 2
        room = [middle - each for each in own]
        if _holds(room, least, ns, count, other, few):
            high = middle
        else:
            low = middle + 1
    return low


def _holds(
    room: Sequence[int], least: Sequence[int], ns: int, count: int, other: int, few: int
) -> bool:
    """Whether `count` items of `ns` each and `few` of `other` fit into the time left on the devices, each of
    which takes at least its least number of items."""
    reach = [0] + [
        -1
    ] * few  # the most items of the usual kind, by how many of the other are placed
    for space, needed in zip(room, least, strict=True):
        after = [-1] * (few + 1)
        for placed, usual in enumerate(reach):
            for more in range(few - placed + 1 if usual >= 0 else 0):
                if more * other > space:
                    break
                number = (space - more * other) // ns if ns else count
                if number + more >= needed:
                    at = placed + more
                    after[at] = max(after[at], usual + number)
        reach = after
    return reach[few] >= count
