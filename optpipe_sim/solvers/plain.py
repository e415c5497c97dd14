"""Plain plans, which people run without a second thought: what a searched plan has to be worth more than."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import le
from typing import Any, NamedTuple

from ..errors import OptPipeError
from ..profile import CostProfile
from ..schedules import INTERLEAVED, PLAIN, build, those
from ..sim import simulate
from ..trace import Trace
from .axes import candidate_shapes
from .starts.published import FULL
from .starts.variants import recomputed_at

# of the time of the best: a plainer plan that is no slower than this is the one to name
WITHIN = 0.01


class PlainPlan(NamedTuple):
    """A plan by name and its replay; `rank`: the lower, the plainer."""

    rank: int
    name: str
    trace: Trace

    def to_json(self, best: Trace) -> dict[str, Any]:
        """Return it as plain data beside the best plan: ``plainest`` of ``solve --json``."""
        slower = self.trace.iteration_ns / best.iteration_ns - 1
        interval, difference = (
            self.trace.iteration_interval_ns,
            best.profile.difference_interval(slower),
        )
        return {
            "schedule": self.name,
            "iteration_ns": self.trace.iteration_ns,
            "iteration_interval_ns": interval and list(interval),
            "peak_bytes": max(self.trace.peak_bytes),
            "slower": slower,
            "difference_interval": difference and list(difference),
            "toss_up": best.profile.is_toss_up(slower),
        }


def plain_plans(
    profile: CostProfile,
    microbatches: int,
    limits: Sequence[int] | None,
    objective: str = "flush",
    names: Sequence[str] | None = None,
    chunks: int | None = None,
) -> Iterator[PlainPlan]:
    """Yield the plain plans that fit without waiting for memory, which no framework does, the plainest
    first: 1F1B, interleaved 1F1B with its usual group and ever more chunks, then the other schedules
    that frameworks have by name; each with the given layers per stage, nothing recomputed, or all of it.

    Args:
        names: only these schedules; None: all. chunks: only plans with so many per device; None: any number.
    """
    profile = replace(profile, memory_limit=None)
    levels = profile.level_names
    several = sorted({shape.chunks for shape in candidate_shapes(profile)} - {1})
    others = [
        name for name in those(lambda entry: entry.common) if name not in (PLAIN, INTERLEAVED)
    ]
    order = [PLAIN, *(f"{INTERLEAVED}:chunks={count}" for count in several), *others]
    for rank, name in enumerate(order):
        if names is not None and name.partition(":")[0] not in names:
            continue
        for level in (None, FULL) if FULL in levels else (None,):
            told = name if level is None else recomputed_at(name, level)
            with suppress(OptPipeError):  # not for these microbatches, or stages
                schedule = build(told, profile, microbatches)
                if chunks not in (None, schedule.shape.chunks):
                    continue
                trace = simulate(schedule, profile, objective=objective)
                if limits is None or all(map(le, trace.peak_bytes, limits)):
                    yield PlainPlan(2 * rank + (level is not None), told, trace)


def plainest(plans: Sequence[PlainPlan], best: Trace) -> PlainPlan | None:
    """Return the plainest of some plans whose iteration is at most `WITHIN` longer than the best's, else
    the fastest of them; None if there is none, or the best is such a plan."""
    if any(one.trace.schedule == best.schedule for one in plans):
        return None
    most = best.iteration_ns * (1 + WITHIN)
    close = [one for one in plans if one.trace.iteration_ns <= most]
    if close:
        return min(close, key=lambda one: one.rank)
    return min(plans, key=lambda one: (one.trace.iteration_ns, one.rank), default=None)
