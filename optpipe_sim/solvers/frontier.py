"""The best schedule and the lower bound over a range of memory limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import cpu_count
from typing import Any

from ..errors import NoSolution, OptPipeError, OutOfMemory, require
from ..option_fields import listing, parameters_of
from ..profile import CostProfile
from ..schedule import Schedule
from ..trace import Trace
from ..trace.notebook import curve_html
from ..units import Size, as_limit, counted, format_size, format_time, html_table, size_text
from .axes import candidate_shapes, covers, problem_of
from .fixed import Best, FixedPoint, best_fixed, best_rule, fixed_points, published
from .options import SolveOptions
from .problem import make_problem
from .race.cache import open_cache
from .reports import no_report
from .result import FEASIBLE, OPTIMAL, UNKNOWN, SolveResult, make_result, status_of, within
from .solve import solve
from .treatments import restrict


@dataclass(frozen=True)
class Point:
    """One memory limit: the best schedule under it with its bound, or the reason why there is none.

    Attributes:
        limit_bytes: the limit of every device.
        result: see `SolveResult`; None if no schedule was found.
        status: that of the result, else ``infeasible`` (proven) or ``unknown``.
        reason: one line that says why there is no result.
        fixed: the fastest published schedule that fits, over every value of its options (see
            `fixed.best_rule`), and its cost (the pipeline's time) in ns; None if none fits. `untried`:
            the rules for such schedules that time did not allow.
        family: the same of the fastest schedule of a framework's family; None as well if none was asked for.
        fixed_iteration_ns, family_iteration_ns: the time of an iteration of the two, the rest of it included.
    """

    limit_bytes: int
    result: SolveResult | None = None
    status: str = UNKNOWN
    reason: str | None = None
    fixed: tuple[str, int] | None = None
    family: tuple[str, int] | None = None
    untried: int = 0
    fixed_iteration_ns: int | None = None
    family_iteration_ns: int | None = None

    def __repr__(self) -> str:
        trace = None if self.result is None else self.result.trace
        found = "no schedule" if trace is None else format_time(trace.iteration_ns)
        return f"<Point {format_size(self.limit_bytes)}: {found}, {self.status}>"

    def to_json(self) -> dict[str, Any]:
        """Return the point as plain data; the keys are those of ``frontier --json``."""
        name, cost = self.fixed or (None, None)
        told, told_ns = self.family or (None, None)
        data: dict[str, Any] = {
            "memory_limit_bytes": self.limit_bytes,
            "status": self.status,
            "reason": self.reason,
            "chunks": None,
            "fixed": name,
            "fixed_cost_ns": cost,
            "fixed_iteration_ns": self.fixed_iteration_ns,
            "fixed_untried": self.untried,
            "fixed_toss_up": False,
            "family": told,
            "family_cost_ns": told_ns,
            "family_iteration_ns": self.family_iteration_ns,
            "iteration_ns": None,
            "objective_ns": None,
            "lower_bound_ns": None,
            "gap": None,
        }
        if self.result is None or self.result.schedule is None:
            return data
        shape = self.result.schedule.shape
        more = {"chunks": shape.chunks, "fixed_toss_up": self.is_toss_up}
        return data | self.result.measures() | more

    @property
    def is_toss_up(self) -> bool:
        """Whether the best published schedule may in reality be as fast, by the errors of differences
        under the execution."""
        trace = None if self.result is None else self.result.trace
        if trace is None or self.fixed_iteration_ns is None:
            return False
        return trace.profile.is_toss_up(self.fixed_iteration_ns / trace.iteration_ns - 1)


@dataclass(frozen=True)
class Frontier:
    """The curve, from the lowest limit to the highest.

    Attributes:
        points: the points that were finished.
        schedules: the published schedules without a memory limit, for comparison.
        interrupted: whether Ctrl-C ended it before the higher limits.
        shapes: the profile with each number of chunks and placement that its schedules may have; none: as it is.
    """

    profile: CostProfile
    microbatches: int
    objective: str
    points: list[Point]
    schedules: list[FixedPoint]
    interrupted: bool = False
    shapes: Sequence[CostProfile] = ()

    def __repr__(self) -> str:
        limits = [format_size(point.limit_bytes) for point in self.points]
        ends = f", {limits[0]} to {limits[-1]}" if limits else ""
        return f"<Frontier {self.profile.name}: {len(limits)} limits{ends}>"

    def _repr_html_(self) -> str:
        """Return a small table with the curve, for notebooks."""
        rows = {
            format_size(point.limit_bytes): point.reason or point.status
            if point.result is None or point.result.trace is None
            else f"{format_time(point.result.trace.iteration_ns)}, gap {point.result.gap:.2%}"
            for point in self.points
        }
        solved = any(point.result for point in self.points)
        return html_table(rows) + (curve_html(self) if solved else "")

    @property
    def least_limit_bytes(self) -> int:
        """The least limit under which a schedule exists."""
        return min(max(each.least_limits) for each in self.shapes or [self.profile])

    @property
    def chunks(self) -> str:
        """The chunks that its schedules and bounds are about, in words."""
        if self.shapes:
            return covers(self.shapes)
        return f"{counted(self.profile.chunks, 'chunk')} per device"


COMPARING = 0.3  # of the time of each search, for the best published schedule


@listing(parameters_of(SolveOptions, without=["margin"]))
def frontier(
    profile: CostProfile,
    microbatches: int,
    limits: Sequence[Size],
    time_limit: float = 10.0,
    *,
    schedules: Sequence[str] | None = None,
    family: Callable[[CostProfile], tuple[str, Trace] | None] | None = None,
    on_point: Callable[[Point], None] | None = None,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    on_wait: Callable[[], None] = no_report,
    **options: Any,
) -> Frontier:
    """Solve under each limit, from the lowest to the highest, each warm-started from the previous
    schedule.

    A schedule that fits a limit fits any higher one, so the curve never rises; a lower bound under
    a limit holds under any lower one, so the bound never rises either. Ctrl-C ends the run and
    keeps the finished points.

    Args:
        limits: memory limits in bytes; each applies to every device.
        time_limit: seconds for each limit.
        schedules: names of published schedules to compare with, as they are; None: all of them, with
            every value of their options.
        family: called with the profile under each limit; returns the fastest schedule of some family, by
            name, and its replay, to compare with; None if none fits. What fits a limit fits the next.
        on_point: called with each finished point. `on_incumbent, on_wait`: as for `solve`.
        options: the other options of `solve` (`SolveOptions`). With ``cache``, points that an
            earlier run solved for at least as long are reused, so that an interrupted frontier
            resumes where it stopped. With ``chunks="any"`` each point is searched for over all
            shapes, on its own: it starts from the cache, not from the previous point, whose
            schedule it keeps if it finds no better one. ``slices`` cannot be ``any``. The best published
            schedule is looked for within `COMPARING` of the time beside that of each search.

    Raises:
        OptPipeError: without limits, or for invalid options.
    """
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    settings = SolveOptions(time_limit=time_limit, **options)
    if settings.margin is not None:
        raise OptPipeError("margin: a frontier has none; solve under one limit with it")
    if settings.slices == "any":
        raise OptPipeError("slices: those of a frontier are given; give a number, or own")
    profile = settings.rechunked(restrict(profile, settings.treatments))
    shapes = candidate_shapes(profile) if settings.chunks == "any" else ()
    chunks = "any" if shapes else "own"
    settings = replace(settings, chunks=chunks, placement="own", slices="own", treatments=None)
    objective = settings.objective or profile.objective
    sizes = _sizes(limits, profile.tiny)
    points: list[Point] = []
    known: list[FixedPoint] = []
    best_known: Best | None = None
    before: SolveResult | None = None
    interrupted = False

    def run(limit: int) -> Point:
        if settings.cache and not shapes:
            found = _finished(profile, microbatches, limit, settings, before)
            if found is not None:
                return Point(limit, found, found.status)
        result = solve(
            profile,
            microbatches,
            size_text(limit),
            **vars(settings),
            on_incumbent=on_incumbent,
            on_wait=on_wait,
            warm_start=before.schedule if before and not shapes else None,
        )
        if before is not None:
            result = _with_schedule(result, before.trace, before.engine, limit)
        return Point(limit, result, result.status)

    try:
        built = published(profile, microbatches, schedules)
        known = fixed_points(built, profile, settings.objective)
        for limit in sizes:
            try:
                point = run(limit)
                interrupted = bool(point.result and point.result.info.get("interrupted"))
            except (OutOfMemory, NoSolution) as error:
                point = Point(limit, None, status_of(error), str(error))
            same = (limit,) * profile.devices
            if schedules is None and not interrupted:
                best_known = _best_published(profile, microbatches, same, settings, best_known)
            elif schedules is not None:
                named = best_fixed(built, profile, same, settings.objective)
                best_known = named and Best(*named)
            if best_known is not None:
                point = _beside(point, best_known, bool(shapes))
            if family is not None:
                told = family(replace(profile, memory_limit=same))
                point = _with_family(point, told, points)
            before = point.result or before
            points.append(point)
            if on_point is not None:
                on_point(point)
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    return Frontier(profile, microbatches, objective, _levelled(points), known, interrupted, shapes)


def _best_published(
    profile: CostProfile,
    microbatches: int,
    limits: tuple[int, ...],
    options: SolveOptions,
    known: Best | None,
) -> Best | None:
    """Return the best published schedule under some limits, which may be the one that is known from lower ones."""
    return best_rule(
        profile,
        microbatches,
        limits,
        options.objective,
        per_stage=options.per_stage,
        pairs=options.pairs,
        known=known,
        seconds=COMPARING * options.time_limit,
        workers=1 if options.evaluations else options.workers or cpu_count() or 1,
    )


def _sizes(limits: Sequence[Size], tiny: bool) -> list[int]:
    if isinstance(limits, str | int) or not limits:
        raise OptPipeError(f"limits: give a list of at least one size, got {limits!r}")
    sizes = sorted({as_limit("limits", limit, tiny) for limit in limits})
    if sizes[0] < 0:
        raise OptPipeError(f"limits: must be at least 0 bytes, got {sizes[0]}")
    return sizes


def _beside(point: Point, best: Best, any_shape: bool) -> Point:
    """Return a point with the best published schedule beside it, and in the place of what a search for `any_shape`
    found whose time was too short to try it."""
    point = replace(
        point,
        fixed=(best.name, best.trace.cost_ns),
        fixed_iteration_ns=best.trace.iteration_ns,
        untried=best.untried,
    )
    if point.result is None or not any_shape:
        return point
    result = _with_schedule(point.result, best.trace, best.name, point.limit_bytes)
    return replace(point, result=result, status=result.status)


def _with_family(point: Point, told: tuple[str, Trace] | None, before: Sequence[Point]) -> Point:
    """Return a point with the best of a family: `told` for its limit, or that of the limit below."""
    known = before[-1] if before else point
    if told is None or (known.family is not None and known.family[1] <= told[1].cost_ns):
        return replace(point, family=known.family, family_iteration_ns=known.family_iteration_ns)
    name, trace = told
    return replace(point, family=(name, trace.cost_ns), family_iteration_ns=trace.iteration_ns)


def _finished(
    profile: CostProfile,
    microbatches: int,
    limit: int,
    options: SolveOptions,
    before: SolveResult | None,
) -> SolveResult | None:
    """Return the cached point if it is proven to the gap or was solved for at least as long, and is
    no worse than the previous point."""
    problem = problem_of(profile, microbatches, limit, options)
    entry = open_cache().get(problem)
    if entry is None:
        return None
    bound = entry.bound * entry.problem.time_unit_ns
    result = make_result(
        problem,
        "cache",
        entry.schedule,
        bound,
        entry.bound_name,
        0.0,
        info={"found_by": "cache", "spent_s": entry.seconds},
    )
    worse = before is not None and before.objective_ns < result.objective_ns
    close = within(result.objective_ns, result.lower_bound_ns, options.gap)
    enough = close or entry.seconds >= options.time_limit
    return result if enough and not worse else None


def _levelled(points: list[Point]) -> list[Point]:
    """Give each point the best bound of the points above it, and the schedule of the next higher
    point if that happens to fit."""
    levelled: list[Point] = []
    for point in reversed(points):
        above = levelled[-1].result if levelled else None
        if point.result is not None and above is not None:
            result = _with_schedule(point.result, above.trace, above.engine, point.limit_bytes)
            if above.lower_bound_ns > result.lower_bound_ns:
                bound, name = above.lower_bound_ns, above.bound_name
                result = replace(result, lower_bound_ns=bound, bound_name=name)
            result = _judged(result)
            point = replace(point, result=result, status=result.status)
        levelled.append(point)
    return levelled[::-1]


def _with_schedule(
    result: SolveResult, other: Trace | None, engine: str, limit: int
) -> SolveResult:
    """Return a result with the schedule of another limit, or of a rule, with its own chunks, if that is
    better and fits."""
    assert other is not None
    if other.cost_ns >= result.objective_ns or max(other.peak_bytes) > limit:
        return result
    schedule, m = other.schedule, other.schedule.shape.microbatches
    problem = make_problem(other.profile, m, limit, other.objective)
    trace = problem.replay(schedule)
    return _judged(replace(result, schedule=schedule, trace=trace, engine=engine))


def _judged(result: SolveResult) -> SolveResult:
    """Return a result with the status that its schedule and its bound give it."""
    proven = result.objective_ns <= result.lower_bound_ns
    return replace(result, status=OPTIMAL if proven else FEASIBLE)
