"""The best schedule over all numbers of chunks per device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ..errors import OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size
from .anneal.search import shares_links
from .covers import candidate_shapes, candidate_slices, covers
from .options import SolveOptions
from .problem import Problem, make_problem
from .race.cache import open_cache
from .race.compiling import compile_engines
from .race.portfolio import Race
from .race.shapes import LEAST_S, RECALL_SHARE, Shapes
from .race.single import solve_problem
from .reports import Hooks
from .result import SolveResult
from .treatments import restrict

SIMPLER_SHARE = 0.5  # share of the time, if links are shared, for the same problem without copies


def _problems(
    shapes: Sequence[CostProfile],
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
) -> tuple[list[Problem], list[tuple[int, OptPipeError]]]:
    """Make the problem of each shape that the limit admits, and for the other shapes the reason,
    with the least limit they need."""
    problems: list[Problem] = []
    reasons: list[tuple[int, OptPipeError]] = []
    for shaped in shapes:
        try:
            problem = make_problem(
                shaped, microbatches, memory_limit, options.objective, per_stage=options.per_stage,
                pairs=options.pairs,
            )  # fmt: skip
            problems.append(problem)
        except OutOfMemory as error:
            reasons.append((max(shaped.least_limits), error))
    return problems, reasons


def solve_shapes(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
    warm_start: Schedule | str | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008  (frozen)
    shapes: Sequence[CostProfile] = (),
) -> SolveResult:
    """Run `solve` over all numbers of chunks, up to one layer per stage, and all placements. The
    result is never worse than a published schedule that fits, with any options, provided that a
    quarter of the time (half of it, up to two seconds) is enough to build those that could be better
    (``info["untried"]`` of the result is 0).

    The published schedules are tried on every candidate shape; the most promising of those that
    their bound does not rule out are then solved in rounds, each with fewer shapes and for longer.
    The lower bound covers all shapes: it is the least of their bounds, and its name says which
    chunks and placements it covers.

    Args:
        warm_start: only ``none`` is accepted: the engines then start without a schedule, not even
            the best published one.
        hooks: `Hooks.watch` is called with one race for all shapes. The cache keeps the best
            schedule with its own shape.
        shapes: the profiles to choose from; none: `candidate_shapes`, and of each `candidate_slices` if
            `options.slices` is ``any``.

    Raises:
        OutOfMemory, NoSolution: if no shape has a schedule; names the shape that needs least
            memory.
        OptPipeError: for a warm start, or a MILP solver that is not installed.
    """
    if warm_start not in (None, "none"):
        raise OptPipeError("warm start: a schedule is of one shape; expected 'none' for any shape")
    if options.engine == "milp":
        from .milp.solvers import require_solver

        require_solver(options.solver)
    given = shapes
    if not shapes:
        one = options.slices == "any" and options.chunks != "any"
        shapes = [profile] if one else candidate_shapes(profile)
        if options.slices == "any":
            shapes = [cut for shape in shapes for cut in candidate_slices(shape)]
    problems, reasons = _problems(shapes, microbatches, memory_limit, options)
    if not problems:
        raise min(reasons, key=lambda reason: reason[0])[1]
    compiling_s = sum(compile_engines(problem, hooks.on_wait) for problem in problems)
    whole = Race(
        problems[0],
        options.gap,
        save=hooks.save,
        on_incumbent=hooks.on_incumbent,
        watch=hooks.watch,
        compiling_s=compiling_s,
    )
    common = Shapes(problems, whole)
    kept = open_cache() if options.cache else None
    try:
        if kept is not None and warm_start != "none":
            common.recall(kept, RECALL_SHARE * options.time_limit)
        if warm_start is None and _simpler_first(common, options):
            _solve_without_copies(common, profile, memory_limit, options, given)
        common.quick(options)
        _solve_each(common, options, warm_start)
    except KeyboardInterrupt:
        whole.interrupted = True
        if whole.best is None:
            raise
    return common.result(options.engine, covers(shapes), kept)


def _simpler_first(common: Shapes, options: SolveOptions) -> bool:
    """Whether to solve the problem without copies first: on shared links the search over all
    treatments only approximates copies (`anneal.stand_ins`) and may end worse than a search
    without them."""
    return SIMPLER_SHARE * options.time_limit >= LEAST_S and any(
        each.may_recompute and shares_links(each) for each in common.problems
    )


def _solve_without_copies(
    common: Shapes,
    profile: CostProfile,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
    shapes: Sequence[CostProfile],
) -> None:
    """Offer the result of `solve` without offloading, in a share of the time."""
    own = replace(options, time_limit=SIMPLER_SHARE * options.time_limit, cache=False)
    without = ("keep", "recompute")
    kept, shapes = restrict(profile, without), [restrict(each, without) for each in shapes]
    microbatches = common.problems[0].microbatches

    def take(race: Race) -> None:
        if race.best is not None and race.cost_ns < common.race.cost_ns:
            common.offer(race.best, race.engine)

    with suppress(OptPipeError):  # no schedule fits without copies
        hooks = Hooks(watch=take)
        found = solve_shapes(kept, microbatches, memory_limit, own, None, hooks, shapes)
        assert found.schedule is not None
        common.offer(found.schedule, found.info["found_by"])
        if found.info["interrupted"]:
            raise KeyboardInterrupt


def _solve_each(common: Shapes, options: SolveOptions, warm_start: Schedule | str | None) -> None:
    """Solve the shapes in turn, each from its best schedule so far."""
    for at, seconds, brief in common.turns(options.time_limit - common.replay_s):
        own = replace(
            options,
            time_limit=seconds,
            published=False,
            cache=False,
            chunks="own",
            slices="own",
        )
        hooks = Hooks(watch=common.watcher(at))
        try:
            found = solve_problem(
                common.problems[at], own, warm_start or common.starts[at], hooks,
                () if warm_start else common.races[at].starts, brief,
            )  # fmt: skip
        except OptPipeError as error:  # the MILP may be too large for one shape but not for another
            common.without(at, error)
        else:
            common.solved(at, found)


def solve_settled(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
    warm_start: Schedule | str | None,
    hooks: Hooks,
) -> SolveResult:
    """Run `solve` on a profile that already has the requested treatments and number of chunks; over
    all shapes with ``chunks=any`` or ``slices=any``.

    Raises: as `solve`.
    """
    if "any" in (options.chunks, options.slices):
        return solve_shapes(profile, microbatches, memory_limit, options, warm_start, hooks)
    if isinstance(warm_start, str) and warm_start != "none":
        raise OptPipeError(f"warm start: expected a schedule or 'none', got {warm_start!r}")
    problem = make_problem(
        profile, microbatches, memory_limit, options.objective, per_stage=options.per_stage,
        pairs=options.pairs,
    )  # fmt: skip
    return solve_problem(problem, options, warm_start, hooks)
