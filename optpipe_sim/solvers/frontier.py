"""The best schedule and the lower bound over a range of memory limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import NoSolution, OptPipeError, OutOfMemory, require
from ..profile import CostProfile
from ..schedule import Schedule
from ..trace import Trace
from ..trace.picture import curve_html
from ..units import Size, as_limit, counted, format_size, format_time, html_table, size_text
from .covers import candidate_shapes, covers
from .fixed import FixedPoint, best_fixed, fixed_points, published
from .options import SolveOptions, listing, solve_parameters
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
        fixed: the fastest published schedule that fits, and its cost in ns; None if none fits.
        family: the same of the fastest schedule of a framework's family; None as well if none was asked for.
    """

    limit_bytes: int
    result: SolveResult | None = None
    status: str = UNKNOWN
    reason: str | None = None
    fixed: tuple[str, int] | None = None
    family: tuple[str, int] | None = None

    def __repr__(self) -> str:
        found = "no schedule" if self.result is None else format_time(self.result.objective_ns)
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
            "family": told,
            "family_cost_ns": told_ns,
            "objective_ns": None,
            "lower_bound_ns": None,
            "gap": None,
        }
        if self.result is None or self.result.schedule is None:
            return data
        shape = self.result.schedule.shape
        return data | self.result.measures() | {"chunks": shape.chunks}


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
            if point.result is None
            else f"{format_time(point.result.objective_ns)}, gap {point.result.gap:.2%}"
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


@listing(solve_parameters("margin"))
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
        schedules: names of published schedules to compare with; None: all of them.
        family: called with the profile under each limit; returns the fastest schedule of some family, by
            name, and its replay, to compare with; None if none fits. What fits a limit fits the next.
        on_point: called with each finished point. `on_incumbent, on_wait`: as for `solve`.
        options: the other options of `solve` (`SolveOptions`). With ``cache``, points that an
            earlier run solved for at least as long are reused, so that an interrupted frontier
            resumes where it stopped. With ``chunks="any"`` each point is searched for over all
            shapes, on its own: it starts from the cache, not from the previous point, whose
            schedule it keeps if it finds no better one. ``slices`` cannot be ``any``.

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
    objective = settings.objective
    if isinstance(limits, str | int) or not limits:
        raise OptPipeError(f"limits: give a list of at least one size, got {limits!r}")
    sizes = sorted({as_limit("limits", limit, profile.tiny) for limit in limits})
    if sizes[0] < 0:
        raise OptPipeError(f"limits: must be at least 0 bytes, got {sizes[0]}")
    points: list[Point] = []
    known: list[FixedPoint] = []
    before: SolveResult | None = None
    interrupted = False

    def run(limit: int) -> Point:
        if settings.cache and not shapes:
            found = _finished(profile, microbatches, limit, settings, before)
            if found is not None:
                return Point(limit, found, found.status)
        result = solve(
            profile, microbatches, size_text(limit), **vars(settings), on_incumbent=on_incumbent,
            on_wait=on_wait, warm_start=before.schedule if before and not shapes else None,
        )  # fmt: skip
        if before is not None:
            result = _with_schedule(result, before, limit, microbatches, objective)
        return Point(limit, result, result.status)

    try:
        built = published(profile, microbatches, schedules)
        known = fixed_points(built, profile, objective)
        for limit in sizes:
            try:
                point = run(limit)
                interrupted = bool(point.result and point.result.info.get("interrupted"))
            except (OutOfMemory, NoSolution) as error:
                point = Point(limit, None, status_of(error), str(error))
            same = (limit,) * profile.devices
            fixed = best_fixed(built, profile, same, objective)
            point = replace(point, fixed=fixed and (fixed[0], fixed[1].cost_ns))
            if family is not None:
                told = family(replace(profile, memory_limit=same))
                found = [told and (told[0], told[1].cost_ns), *(one.family for one in points[-1:])]
                best = min(filter(None, found), key=lambda one: one[1], default=None)
                point = replace(point, family=best)
            before = point.result or before
            points.append(point)
            if on_point is not None:
                on_point(point)
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    return Frontier(
        profile, microbatches, objective, _levelled(points, microbatches, objective), known,
        interrupted, shapes,
    )  # fmt: skip


def _finished(
    profile: CostProfile,
    microbatches: int,
    limit: int,
    options: SolveOptions,
    before: SolveResult | None,
) -> SolveResult | None:
    """Return the cached point if it is proven to the gap or was solved for at least as long, and is
    no worse than the previous point."""
    problem = make_problem(
        profile, microbatches, limit, options.objective, per_stage=options.per_stage
    )
    entry = open_cache().get(problem)
    if entry is None:
        return None
    bound = entry.bound * entry.problem.time_unit_ns
    result = make_result(
        problem, "cache", entry.schedule, bound, entry.bound_name, 0.0,
        info={"found_by": "cache", "spent_s": entry.seconds},
    )  # fmt: skip
    worse = before is not None and before.objective_ns < result.objective_ns
    close = within(result.objective_ns, result.lower_bound_ns, options.gap)
    enough = close or entry.seconds >= options.time_limit
    return result if enough and not worse else None


def _levelled(points: list[Point], microbatches: int, objective: str) -> list[Point]:
    """Give each point the best bound of the points above it, and the schedule of the next higher
    point if that happens to fit."""
    levelled: list[Point] = []
    for point in reversed(points):
        above = levelled[-1].result if levelled else None
        if point.result is not None and above is not None:
            result = _with_schedule(point.result, above, point.limit_bytes, microbatches, objective)
            if above.lower_bound_ns > result.lower_bound_ns:
                bound, name = above.lower_bound_ns, above.bound_name
                result = replace(result, lower_bound_ns=bound, bound_name=name)
            result = _judged(result)
            point = replace(point, result=result, status=result.status)
        levelled.append(point)
    return levelled[::-1]


def _with_schedule(
    result: SolveResult, other: SolveResult, limit: int, microbatches: int, objective: str
) -> SolveResult:
    """Return a result with the schedule of another limit, with its own chunks, if that is better and fits."""
    assert other.trace is not None
    if other.objective_ns >= result.objective_ns or max(other.trace.peak_bytes) > limit:
        return result
    problem = make_problem(other.trace.profile, microbatches, limit, objective)
    trace = problem.replay(other.schedule)  # type: ignore[arg-type]
    return _judged(replace(result, schedule=other.schedule, trace=trace, engine=other.engine))


def _judged(result: SolveResult) -> SolveResult:
    """Return a result with the status that its schedule and its bound give it."""
    proven = result.objective_ns <= result.lower_bound_ns
    return replace(result, status=OPTIMAL if proven else FEASIBLE)
