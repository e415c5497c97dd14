"""`solve`: the one function that runs every engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import require
from ..option_fields import takes
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size
from .margins.plan import solve_with_margins
from .options import SolveOptions
from .portfolio import solve_settled
from .race.race import Race
from .reports import Hooks, no_report
from .result import SolveResult
from .treatments import restrict


@takes(SolveOptions)
def solve(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None = None,
    engine: str = "auto",
    time_limit: float = 60.0,
    objective: str | None = None,
    seed: int = 0,
    *,
    warm_start: Schedule | str | None = None,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    watch: Callable[[Race], None] | None = None,
    on_wait: Callable[[], None] = no_report,
    save: str | os.PathLike[str] | None = None,
    **more: Any,
) -> SolveResult:
    """Find the best schedule for a profile, m microbatches and a memory limit, and prove a lower
    bound.

    Args:
        memory_limit: bytes per device (a number, or one per device); None: the profile's own.
        warm_start: a schedule to start from, if it fits; ``none``: engines start from nothing.
        on_incumbent: called with each better schedule and its cost in ns. The result may be the
            last incumbent with its useless offloads removed.
        on_wait: called if the engines have to be compiled first (once per machine); the clock
            starts after compilation.
        watch: called with the race (its seconds, cost_ns, bound_ns, engine ...) whenever it makes
            progress.
        save: a file that always holds the best schedule so far, even if this process is killed. If
            it can no longer be written, ``info["failures"]["save"]`` of the result says so.
        options: the fields of `SolveOptions`.

    Raises:
        OutOfMemory: if the limit is below what one microbatch needs.
        Infeasible: if it is proven that no schedule fits. NoSolution: if none is found.
        OptPipeError: for invalid options (see `SolveOptions`), a MILP solver that is not installed,
            a MILP that is too large to build, or the failure of an engine that runs alone.
    """
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    if more.get("chunks") is None and isinstance(warm_start, Schedule):
        more["chunks"] = "own"
        if more.get("placement", "own") == "own":
            profile = profile.for_shape(warm_start.shape)
    options = SolveOptions(
        engine=engine, time_limit=time_limit, objective=objective, seed=seed, **more
    )
    hooks = Hooks(on_incumbent, watch, on_wait, save)
    profile = options.rechunked(restrict(profile, options.treatments))
    how = solve_settled if options.margin is None else solve_with_margins
    return how(profile, microbatches, memory_limit, options, warm_start, hooks)
