"""`solve`: one door to every engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import require
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size
from .margins.plan import solve_with_margins
from .margins.shares import Margins
from .options import SolveOptions
from .race.portfolio import Race
from .reports import Hooks, no_report
from .result import SolveResult
from .shapes import solve_settled
from .treatments import restrict


def solve(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None = None,
    engine: str = "auto",
    time_limit: float = 60.0,
    objective: str = "flush",
    seed: int = 0,
    *,
    warm_start: Schedule | str | None = None,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    watch: Callable[[Race], None] | None = None,
    on_wait: Callable[[], None] = no_report,
    save: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    evaluations: int | None = None,
    gap: float = 0.0,
    solver: str = "highs",
    force: bool = False,
    cache: bool = False,
    published: bool = True,
    treatments: Iterable[str] | None = None,
    per_stage: bool = False,
    margin: Margins | Mapping[str, Any] | str | None = None,
    chunks: int | str = "own",
    placement: str = "own",
) -> SolveResult:
    """The best schedule for a profile, m microbatches and a memory limit, and a proven bound.

    Sequences stay whole: of a profile with slices the plan and its bound are those of microbatches.

    Args:
        memory_limit: bytes per device (a number, or one per device); None: the profile's own.
        warm_start: a schedule to start from, if it fits; ``none``: engines start from nothing.
        on_incumbent: called with each better schedule and its cost in ns. The result may be the last
            of them without offloads that gain nothing.
        on_wait: called where engines have to be compiled first, once on a machine; the clock starts
            after that.
        watch: called with the race (its seconds, cost_ns, bound_ns, engine ...) at all news.
        save: a file that always holds the best schedule so far, whatever becomes of this process.
            Where it can no longer be written, ``info["failures"]["save"]`` of the result says so.
        engine: ``auto`` (all that help, at once), ``adaoffload``, ``search``, ``cpsat``, ``milp``.
        time_limit: seconds in all. `workers`: processes (default: the cores there are).
        objective: ``flush`` (makespan) or ``span`` (longest device span).
        seed: of every random choice. `evaluations`: for ``search`` alone: stop after so many
            instead of by the clock, which makes it deterministic.
        gap: end where the best is proven to be this close to the best possible (0.01: 1 %).
        solver: which MILP solver ``milp`` uses. `force`: state that model however large it is.
        cache: start from what is kept on disk of this problem or of those like it, and keep what
            is found (`race.cache`). Without it a run depends on nothing but its arguments.
        published: begin with AdaOffload and the published schedules, with every value of their
            options, so that none that fits is faster, as long as half of the time (one second at
            least) is enough for those that could be; ``info["untried"]`` says how many rules were
            left otherwise. False: `warm_start` is the best of them already.
        treatments: what may become of an activation, of ``keep, offload, recompute``; None: all
            that the profile has. `per_stage`: all activations of a stage are treated alike.
        margin: by how much copies, ops and memory may exceed the profile, as
            ``copies=10%,ops=5%,memory=3%`` or a mapping: the plan keeps the limit and its time where
            they do; ``info["margin"]`` says what that costs (`margins.plan.solve_with_margins`).
        chunks: per device: ``own`` (as the profile has them), a number, or ``any``: all numbers up
            to one layer per stage, and two in a V (`shapes.solve_shapes`).
        placement: ``loop`` or ``vee`` (two chunks); ``own``: the profile's, ``loop`` where a number
            of chunks is given.

    Raises:
        OutOfMemory: where the limit is below what one microbatch needs.
        Infeasible: where no schedule fits, proven. NoSolution: where none is found.
        OptPipeError: for options that make no sense (see `SolveOptions`), a MILP solver that is not
            there, a MILP too large to be stated, or an engine, run alone, that fails.
    """
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    options = SolveOptions(
        engine=engine, time_limit=time_limit, objective=objective, seed=seed, workers=workers,
        evaluations=evaluations, gap=gap, solver=solver, force=force, cache=cache,
        published=published, treatments=None if treatments is None else tuple(treatments),
        per_stage=per_stage, margin=margin, chunks=chunks, placement=placement,
    )  # fmt: skip
    hooks = Hooks(on_incumbent, watch, on_wait, save)
    profile = options.rechunked(restrict(profile.with_slices(1), options.treatments))
    how = solve_settled if options.margin is None else solve_with_margins
    return how(profile, microbatches, memory_limit, options, warm_start, hooks)
