"""`solve`: the one function that runs every engine."""

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
    objective: str | None = None,
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
    pairs: bool | None = None,
    margin: Margins | Mapping[str, Any] | str | None = None,
    chunks: int | str | None = None,
    placement: str = "own",
    slices: int | str = "own",
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
        engine: ``auto`` (every engine that helps, in parallel), ``adaoffload``, ``search``,
            ``cpsat``, ``milp``.
        time_limit: total seconds. `workers`: processes (default: one per core).
        objective: ``flush`` (makespan) or ``span`` (longest device span); None: what an iteration takes under the
            profile's execution, ``flush`` where that is ideal.
        seed: seeds every random choice. `evaluations`: only for ``search``: stop after this many
            evaluations instead of by the clock, which makes the search deterministic.
        gap: stop when the incumbent is proven to be within this optimality gap (0.01: 1 %).
        solver: the MILP solver that ``milp`` uses. `force`: build the model however large it is.
        cache: start from cached results of this problem or of similar ones, and cache the result
            (`race.cache`). Without the cache a run depends only on its arguments.
        published: begin with AdaOffload and the published schedules, with every value of their
            options, so that none of them that fits is faster than the result, provided that half of
            the time limit (at least one second; for several shapes see `shapes.solve_shapes`) is
            enough to try those that could be; ``info["untried"]`` counts the rules that were not tried. False: `warm_start` is already
            the best of them.
        treatments: the allowed treatments of an activation, out of ``keep, offload, recompute``;
            None: all that the profile has. `per_stage`: all activations of a stage get the same
            treatment.
        pairs: whether a forward and a backward may run as one op (docs/semantics.md, "Pairs"); None: where the profile's
            execution has that, or, where that is ideal, where the profile says what pairs hide.
        margin: by how much copies, ops and memory may exceed the profile, as
            ``copies=10%,ops=5%,memory=3%`` or a mapping: within these margins the plan keeps its
            memory limit and its time; ``info["margin"]`` says what that costs
            (`margins.plan.solve_with_margins`).
        chunks: chunks per device: ``own`` (those of the profile), a number, or ``any``: all numbers
            up to one layer per stage, and two in a V (`shapes.solve_shapes`). None: those of a `warm_start`; the
            profile's own with a placement, with evaluations and with the engines ``milp`` and ``cpsat``; else any.
        placement: ``loop`` or ``vee`` (two chunks); ``own``: the profile's, or ``loop`` if a number
            of chunks is given.
        slices: slices per sequence: ``own`` (those of the profile), a number (1: whole sequences;
            else equal slices, for a profile without slices), or ``any``: whole sequences and the
            profile's own slices, or 2, 4 and 8 equal ones if it has none.

    Raises:
        OutOfMemory: if the limit is below what one microbatch needs.
        Infeasible: if it is proven that no schedule fits. NoSolution: if none is found.
        OptPipeError: for invalid options (see `SolveOptions`), a MILP solver that is not installed,
            a MILP that is too large to build, or the failure of an engine that runs alone.
    """
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    if chunks is None and isinstance(warm_start, Schedule):
        chunks = "own"
        profile = profile if placement != "own" else profile.for_shape(warm_start.shape)
    options = SolveOptions(
        engine=engine, time_limit=time_limit, objective=objective, seed=seed, workers=workers,
        evaluations=evaluations, gap=gap, solver=solver, force=force, cache=cache,
        published=published, treatments=None if treatments is None else tuple(treatments),
        per_stage=per_stage, pairs=pairs, margin=margin, chunks=chunks, placement=placement, slices=slices,
    )  # fmt: skip
    hooks = Hooks(on_incumbent, watch, on_wait, save)
    profile = options.rechunked(restrict(profile, options.treatments))
    how = solve_settled if options.margin is None else solve_with_margins
    return how(profile, microbatches, memory_limit, options, warm_start, hooks)
