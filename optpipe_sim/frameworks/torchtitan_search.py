"""The best plan for torchtitan: any order of compute ops, one kind of checkpointing, no offloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..profile.items import StageMaker
from ..schedules.recompute import everywhere, fused_at_levels, with_level
from ..solvers.layers.moved import climb, counts_of, moves
from ..solvers.options import SolveOptions
from ..solvers.solve import solve
from ..solvers.treatments import restrict
from ..trace import Trace
from ..units import format_size
from .nearest import replay_unlimited
from .torchtitan import CHECKPOINTS

LAYOUT_SHARE = 0.2  # of the time, at most, for other layouts of layers


@dataclass(frozen=True)
class Found:
    """The fastest plan that fits.

    Attributes:
        level: the level of recomputation of every stage; None: none.
        trace: the replay of its schedule, in which no op waits for memory.
        given: the replay with the given layout of layers, where others were tried; else `trace`.
        tried: how many kinds of checkpointing were searched. `fitting`: how many of them fit.
    """

    level: str | None
    trace: Trace
    given: Trace
    tried: int
    fitting: int

    @property
    def name(self) -> str:
        """Name the plan in words."""
        shape = self.trace.schedule.shape
        place = shape.placement_name
        where = place if isinstance(place, str) else "as listed"
        chunks = f", {shape.chunks} chunks in a {where}" if shape.chunks > 1 else ""
        return f"an order of its own{chunks}, checkpointing {CHECKPOINTS[self.level]}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        layers = [cost.layers for cost in self.trace.profile.stages]
        return {
            "told": self.name,
            "tried": self.tried,
            "fitting": self.fitting,
            "layers": layers,
            "given_ns": self.given.cost_ns,
            "moved": self.given.profile != self.trace.profile,
        }


def best(
    profile: CostProfile,
    microbatches: int,
    options: SolveOptions,
    *,
    recompute: bool = True,
    watch: Callable[[Any], None] | None = None,
) -> Found:
    """Find the best plan for torchtitan: `solve` once for each kind of checkpointing, all stages alike.

    A CSV holds any order of compute ops, on stages in a loop or a V. Its program frees memory in the
    order in which it runs, so that it needs no more than in the search, which waits for none.

    Where the profile has its model layer by layer (`items`), layers of the best are moved between its
    stages as long as the same order then takes less time.

    Args:
        options: of `solve`; the time is shared by the kinds of checkpointing that the profile has
            costs for. `recompute`: whether there may be any.

    Raises:
        OutOfMemory: if none fits, and another `OptPipeError` as `solve`.
    """
    plain = restrict(profile, ("keep", "recompute"))
    names = plain.level_names
    levels = [level for level in CHECKPOINTS if level is None or (recompute and level in names)]
    own = replace(
        options, time_limit=options.time_limit / len(levels), treatments=None, margin=None
    )
    found: list[tuple[int, str | None, Trace]] = []
    for level in levels:
        if level is None:
            kept = restrict(plain, ("keep",))
        else:  # a split backward would hold what its forward recomputed until its W
            kept = fused_at_levels(plain, everywhere(plain, level))
        try:
            solved = solve(kept, microbatches, **vars(own), watch=watch)
        except OptPipeError:
            continue
        assert solved.schedule is not None
        schedule = solved.schedule
        if level is not None:
            schedule = with_level(schedule, plain, level, apart=False)
        trace = replay_unlimited(schedule, plain)
        trace = replace(trace, objective=options.objective or trace.objective)
        if trace.fits:
            found.append((trace.cost_ns, level, trace))
    if not found:
        least = format_size(max(profile.least_limits))
        raise OutOfMemory(
            f"no plan for torchtitan fits: with any treatment a device needs {least} at least"
        )
    _, level, given = min(found, key=lambda one: one[0])
    trace = given
    if profile.items:
        until = time.monotonic() + LAYOUT_SHARE * options.time_limit
        trace = _with_layers_moved(given, plain, until)
    return Found(level, trace, given, len(levels), len(found))


def _with_layers_moved(given: Trace, profile: CostProfile, until: float) -> Trace:
    """Return the replay of the same order on a layout that moves of one layer each have led to."""
    own = replace(given.given_stages, items=profile.items)
    maker = StageMaker(own.items, own.chunks)

    def at(counts: Sequence[int]) -> Trace | None:
        with suppress(OptPipeError):  # a stage without layers that could be recomputed, say
            layout = own.with_layout(counts, maker=maker)
            trace = replay_unlimited(given.schedule, layout)
            return replace(trace, objective=given.objective) if trace.fits else None
        return None

    def moved(one: Trace) -> Iterator[list[int]]:
        return moves(counts_of(replace(one.profile, items=own.items)), one.profile)

    best = at(counts_of(own))
    if best is None or best.cost_ns > given.cost_ns:
        best = given
    return climb(best, moved, at, lambda one: one.cost_ns, until)[-1]
