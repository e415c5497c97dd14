"""The best plan that Megatron-LM can run: a search over its family by replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...errors import OptPipeError, OutOfMemory
from ...profile import CostProfile
from ...profile.items import StageMaker, deal_items
from ...schedule import Schedule
from ...solvers.layers.bound import layout_bound
from ...solvers.layers.moved import climb, counts_of, device_work, moves
from ...solvers.microbatch_order import best_order
from ...trace import Trace
from ...units import format_size
from ..nearest import replay_unlimited
from .family import Choice, choices, needs_chunks, partial_choices

MOST_CHUNKS = 8  # more chunks only add messages
FAR_NS = 10**18  # beyond the cost of any plan that fits
ORDER = 0.5  # of the time, for the order of microbatches that differ
MOST_STARTS = 3  # choices that get other layouts, of those that fit and of those that do not


class Tried(NamedTuple):
    """A choice that was replayed: the bytes above the limit, what it costs, and its peak."""

    over: int
    cost_ns: int
    peak: int
    choice: Choice
    trace: Trace

    @property
    def key(self) -> tuple[int, int, int]:
        """Less is better: what fits, then what is faster, then what takes less memory."""
        return self[:3]


@dataclass(frozen=True)
class Found:
    """The fastest of the family that fits.

    Attributes:
        choice: its choice. `trace`: its replay, in which no op waits for memory; its profile has the
            layout of layers.
        given: the fastest with the given layout; None if that does not fit.
        partial: the fastest that fits with partial checkpoints, if it is faster than all of these: its count of kept
            microbatches is a field of Megatron-LM's configuration without an option.
        tried: how many were replayed. `fitting`: how many of them fit.
    """

    choice: Choice
    trace: Trace
    given: Trace | None
    tried: int
    fitting: int
    partial: Tried | None = None

    @property
    def layers(self) -> list[int | None]:
        """How many layers each stage has, embedding and head counted where they are items."""
        return [cost.layers for cost in self.trace.profile.stages]

    def to_json(self) -> dict[str, Any]:
        moved = self.given is None or self.given.profile != self.trace.profile
        return {
            "told": self.choice.name,
            "tried": self.tried,
            "fitting": self.fitting,
            "layers": self.layers,
            "given_ns": None if self.given is None else self.given.cost_ns,
            "moved": moved,
            "partial": self.partial and self.partial.choice.name,
            "partial_ns": self.partial and self.partial.cost_ns,
        }


def chunk_counts(profile: CostProfile) -> Sequence[int]:
    """Return the numbers of chunks per device to try: up to one layer each if stages give their
    layers, else the profile's own, 1 and 2."""
    layers = [cost.layers for cost in profile.stages]
    if None in layers:
        return sorted({1, 2, profile.chunks})
    return range(1, min(MOST_CHUNKS, sum(filter(None, layers)) // profile.devices) + 1)


def best(
    profile: CostProfile,
    microbatches: int,
    *,
    chunks: Sequence[int] | None = None,
    offload: bool = True,
    recompute: bool = True,
    objective: str | None = None,
    seconds: float = 10.0,
    on_progress: Callable[[int], None] = lambda tried: None,
) -> Found:
    """Find the fastest of the family under the profile's memory limit; ties go to the lower peak.

    What fits without offloading is not tried with it: copies never make the same order faster. Where
    the profile has its model layer by layer (`items`), the best and the fastest that do not fit are
    tried with other layouts of layers, too. Where microbatches differ, the best are tried with these in other
    orders, too.

    Args:
        chunks: the numbers to try; None: `chunk_counts`.
        offload, recompute: whether activations may be offloaded or recomputed. `objective`: flush
            or span.
        seconds: the most time, but plain plans are replayed in any case; what is left when the family has been
            replayed with the given layout is for others.
        on_progress: called with the number of replays.

    Raises:
        OutOfMemory: if none fits; names the one with the least peak.
        OptPipeError: if the family is empty for this profile and number of microbatches.
    """
    ends = time.monotonic() + seconds
    until = ends if profile.alike else ends - ORDER * seconds
    tried: list[Tried] = []
    fits: set[Choice] = set()
    for choice in _family(profile, microbatches, chunks or chunk_counts(profile)):
        if tried and time.monotonic() > until and not choice.plain:
            continue
        kept = replace(choice, fraction=None, delta=0)
        if (choice != kept and (not offload or kept in fits)) or (choice.level and not recompute):
            continue
        try:
            schedule = choice.build(profile, microbatches)
        except OptPipeError:
            continue
        tried.append(replayed(choice, schedule, profile, objective))
        if not tried[-1].over:
            fits.add(choice)
        on_progress(len(tried))
    if not tried:
        why = needs_chunks(profile, chunks or chunk_counts(profile))
        raise OptPipeError(
            f"Megatron-LM runs nothing on {profile.devices} ranks with {microbatches} microbatches"
            + (f": {why}" if why else "")
        )
    given = min(tried, key=lambda one: one.key)
    if profile.items:
        tried += other_layouts(tried, profile, microbatches, objective, until)
    if not profile.alike:
        tried += other_orders(tried, objective, ends)
    found = min(tried, key=lambda one: one.key)
    if found.over:
        least = min(tried, key=lambda one: one.peak)
        raise OutOfMemory(
            f"no schedule of Megatron-LM fits: the least peak is {format_size(least.peak)},"
            f" with {least.choice.name}"
        )
    fitting = sum(not one.over for one in tried)
    first = None if given.over else given.trace
    partial = None
    if recompute and found.choice.level is not None:
        partial = _partial(found, profile, microbatches, objective, chunks)
    return Found(found.choice, found.trace, first, len(tried), fitting, partial)


def _partial(
    found: Tried,
    profile: CostProfile,
    microbatches: int,
    objective: str | None,
    chunks: Sequence[int] | None,
) -> Tried | None:
    """Return the fastest plan with partial checkpoints that fits, on the given layout and on that of the best plan; None if it is not faster."""
    best = found
    layout = replace(found.trace.profile, memory_limit=profile.memory_limit)
    asked = [(profile, count) for count in chunks or chunk_counts(profile)]
    for costs, count in (*asked, (layout, found.choice.chunks)):
        for choice in partial_choices(costs, microbatches, count):
            one = replayed(choice, choice.build(costs, microbatches), costs, objective)
            best = min(best, one, key=lambda each: each.key)
    return best if best is not found else None


def replayed(
    choice: Choice, schedule: Schedule, profile: CostProfile, objective: str | None
) -> Tried:
    """Return a choice with its replay."""
    trace = replay_unlimited(schedule, profile)
    trace = replace(trace, objective=objective or trace.objective)
    limits = trace.memory_limit or trace.peak_bytes
    over = max(peak - limit for peak, limit in zip(trace.peak_bytes, limits, strict=True))
    return Tried(max(0, over), trace.cost_ns, max(trace.peak_bytes), choice, trace)


def other_layouts(
    tried: Sequence[Tried],
    profile: CostProfile,
    microbatches: int,
    objective: str | None,
    until: float,
) -> list[Tried]:
    """Return the most promising choices with other layers on their stages: each from the layout that
    bounds or work suggest or the given one, improved by moves of one layer."""
    fitting = sorted((one for one in tried if not one.over), key=lambda one: one.key)
    most = fitting[0].cost_ns if fitting else float("inf")
    faster = sorted(
        (one for one in tried if one.over and one.cost_ns < most),
        key=lambda one: (one.over if not fitting else 0, one.cost_ns),
    )
    starts = [*fitting[:MOST_STARTS], *faster[:MOST_STARTS]]
    found: list[Tried] = []
    for at, one in enumerate(starts):
        share = (until - time.monotonic()) / (len(starts) - at)
        if share <= 0:
            break
        found += _climb(one, profile, microbatches, objective, time.monotonic() + share)
    return found


def other_orders(tried: Sequence[Tried], objective: str | None, ends: float) -> list[Tried]:
    """Return the most promising choices with their microbatches in the best order that is found: the data comes in
    another order, the options stay."""
    starts = sorted(tried, key=lambda one: one.key)[:MOST_STARTS]
    found: list[Tried] = []
    for one in starts:
        half = (time.monotonic() + ends) / 2  # the better a choice, the more of the time
        found.append(_in_best_order(one, objective, half))
    return found


def _in_best_order(start: Tried, objective: str | None, until: float) -> Tried:
    trace, choice = start.trace, start.choice
    costs = trace.unissued

    def cost_of(schedule: Schedule) -> float:
        one = replayed(choice, schedule, costs, objective)
        return one.cost_ns if not one.over else float(FAR_NS + one.over)

    better = best_order(costs, trace.schedule, cost_of, lambda: time.monotonic() > until)
    return replayed(choice, better, costs, objective)


def _climb(
    start: Tried, profile: CostProfile, microbatches: int, objective: str | None, until: float
) -> list[Tried]:
    """Return all better layouts for one choice that are found on the way, the best last."""
    own = replace(start.trace.given_stages, items=profile.items)
    maker = StageMaker(profile.items, own.chunks)

    def at(counts: Sequence[int]) -> Tried | None:
        try:
            layout = own.with_layout(counts, maker=maker)
            return replayed(
                start.choice, start.choice.build(layout, microbatches), layout, objective
            )
        except OptPipeError:  # too few layers for a level, say
            return None

    limits = profile.memory_limit
    issued = replace(start.trace.profile, items=profile.items)
    _, suggested = layout_bound(issued, microbatches, start.trace.objective, limits, 1.0)
    suggestions = [counts_of(own), suggested or deal_items(own.items, own.placement)]
    suggestions += [deal_items(own.items, own.placement, pairs=True)] if start.choice.pairs else []
    firsts = filter(None, map(at, suggestions))
    best = min(firsts, key=lambda one: one.key, default=None)
    return [] if best is None else climb(best, _moved, at, lambda one: one.key, until)


def _moved(one: Tried) -> Iterator[list[int]]:
    """Yield the layouts one move away, from devices that have too much: memory where that does not fit, else work."""
    layout = one.trace.profile
    load = one.trace.peak_bytes if one.over else device_work(layout, one.choice.pairs)
    return moves([cost.layers or 0 for cost in layout.stages], layout, load)


def _family(profile: CostProfile, microbatches: int, chunks: Sequence[int]) -> Iterator[Choice]:
    """Yield all schedules of the family, on numbers of chunks that the profile can have."""
    for count in chunks:
        try:
            profile.rechunk(count)
        except OptPipeError:
            continue
        yield from choices(profile, microbatches, count)
