"""The best plan for torchtitan: any order of compute ops, one kind of checkpointing, no offloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedules.recompute import at_level, with_level
from ..solvers.options import SolveOptions
from ..solvers.solve import solve
from ..solvers.treatments import restrict
from ..trace import Trace
from ..units import format_size
from .nearest import replay_unlimited
from .torchtitan import CHECKPOINTS


@dataclass(frozen=True)
class Found:
    """The fastest plan that fits.

    Attributes:
        level: the level of recomputation of every stage; None: none.
        trace: the replay of its schedule, in which no op waits for memory.
        tried: how many kinds of checkpointing were searched. `fitting`: how many of them fit.
    """

    level: str | None
    trace: Trace
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
        return {"told": self.name, "tried": self.tried, "fitting": self.fitting, "layers": layers}


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

    Args:
        options: of `solve`; the time is shared by the kinds of checkpointing that the profile has
            costs for. `recompute`: whether there may be any.

    Raises:
        OutOfMemory: if none fits, and another `OptPipeError` as `solve`.
    """
    plain = restrict(profile, ("keep", "recompute"))
    names = {level.name for cost in plain.stages for level in cost.recompute}
    levels = [level for level in CHECKPOINTS if level is None or (recompute and level in names)]
    own = replace(
        options, time_limit=options.time_limit / len(levels), treatments=None, margin=None
    )
    found: list[tuple[int, str | None, Trace]] = []
    for level in levels:
        kept = restrict(plain, ("keep",)) if level is None else at_level(plain, level)
        try:
            solved = solve(kept, microbatches, **vars(own), watch=watch)
        except OptPipeError:
            continue
        assert solved.schedule is not None
        schedule = solved.schedule
        if level is not None:
            schedule = with_level(schedule, plain, level, apart=False)
        trace = replace(replay_unlimited(schedule, plain), objective=options.objective)
        if trace.fits:
            found.append((trace.cost_ns, level, trace))
    if not found:
        least = format_size(max(profile.least_limits))
        raise OutOfMemory(
            f"no plan for torchtitan fits: with any treatment a device needs {least} at least"
        )
    _, level, trace = min(found, key=lambda one: one[0])
    return Found(level, trace, len(levels), len(found))
