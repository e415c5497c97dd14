"""The value of memory: the time of the best split as a function of the limit per device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...bounds.bounds import lower_bound
from ...errors import NoSolution, OutOfMemory
from ...profile import CostProfile
from ...solvers.solve import solve
from ...trace import Trace
from ...units import format_size, format_time
from ..provenance import iteration_ns

GIB = 2**30
SHARES = (0.05, 0.1, 0.2)  # shares of the limit, added and subtracted; rounded to whole GiB
BOUNDS_S = 1.0  # when the time is up, bounds may take so long in all
LEAST_S = 0.2  # for one limit; with less, nothing is searched


@dataclass(frozen=True)
class Bought:
    """One limit.

    Attributes:
        limit_bytes: per device.
        iteration_ns: of the best known plan that fits; None: none is known.
        bound_ns: no plan has a shorter iteration under this limit; None: there is none at all.
    """

    limit_bytes: int
    iteration_ns: float | None
    bound_ns: float | None

    def __repr__(self) -> str:
        found = "nothing fits" if self.iteration_ns is None else format_time(self.iteration_ns)
        return f"<Bought {format_size(self.limit_bytes)}: {found}>"

    def to_json(self) -> dict[str, Any]:
        """Plain data; the keys of ``memory`` in ``advise --json``."""
        return {
            "limit_bytes": self.limit_bytes,
            "iteration_ns": self.iteration_ns and round(self.iteration_ns),
            "bound_ns": self.bound_ns and round(self.bound_ns),
        }


def limits_around(limit_bytes: int) -> list[int]:
    """Return the limit, and some whole GiB below and above it, in order."""
    steps = {max(1, round(share * limit_bytes / GIB)) * GIB for share in SHARES}
    found = {limit_bytes, *(limit_bytes + sign * step for step in steps for sign in (-1, 1))}
    return sorted(limit for limit in found if limit > 0)


def what_memory_buys(
    profile: CostProfile,
    known: Trace,
    microbatches: int,
    limit_bytes: int,
    seconds: float,
    per_stage: bool = False,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda *_: None,
) -> tuple[Bought, ...]:
    """Return the time under a limit and those around it, each searched for from the plan of the limit below.

    A plan that fits a limit fits higher ones, and a bound for a limit holds for lower ones: neither
    times nor bounds rise with memory.

    Args:
        profile: with its levels of recomputation, where these may be used.
        known: a plan for `limit_bytes`, which is not searched for again.
        seconds: in all; with too few, only what `known` fits is known, or nothing is returned.
        per_stage: all activations of a stage are treated alike, as those of `known` are. `seed`: of the searches.
        report: called with how many limits are done, and of how many.
    """
    limits = limits_around(limit_bytes)
    until = time.monotonic() + seconds
    best: Trace | None = None
    times: list[float | None] = []
    bounds: list[float | None] = []
    bounding_s = 0.0
    for at, limit in enumerate(limits):
        report(at, len(limits))
        if time.monotonic() > until and bounding_s > BOUNDS_S:
            return ()
        limited = replace(profile, memory_limit=(limit,) * profile.devices)
        plans = [best, known if max(known.peak_bytes) <= limit else None]
        share = (until - time.monotonic()) / (len(limits) - at)
        if share >= LEAST_S and limit != limit_bytes:
            plans.append(_searched(limited, microbatches, share, best, per_stage, seed))
        best = min(filter(None, plans), key=lambda trace: trace.cost_ns, default=None)
        times.append(None if best is None else iteration_ns(profile, best.cost_ns))
        fits = max(profile.least_limits) <= limit or best is not None
        began = time.monotonic()
        least_ns = lower_bound(limited, microbatches, pairs=True).ns if fits else 0
        bounding_s += time.monotonic() - began
        bounds.append(iteration_ns(profile, least_ns) if fits else None)
    for at in range(len(limits) - 2, -1, -1):
        lower, higher = bounds[at], bounds[at + 1]
        if lower is not None and higher is not None:
            bounds[at] = max(lower, higher)
    return tuple(map(Bought, limits, times, bounds))


def _searched(
    profile: CostProfile,
    microbatches: int,
    seconds: float,
    start: Trace | None,
    per_stage: bool,
    seed: int,
) -> Trace | None:
    """Return the best plan that a quick search finds; None where it finds none."""
    try:
        found = solve(
            profile,
            microbatches,
            engine="search",
            chunks="own",
            time_limit=seconds,
            warm_start=None if start is None else start.schedule,
            published=False,
            per_stage=per_stage,
            seed=seed,
        )
    except (OutOfMemory, NoSolution):
        return None
    if found.info["interrupted"]:
        raise KeyboardInterrupt
    return found.trace
