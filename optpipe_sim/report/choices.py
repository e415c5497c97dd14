"""Pages of many schedules: those compared, a frontier's, those that `advise` weighs. A point of the chart,
or a row of the table, opens its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from typing import NamedTuple

from ..costs.advise.rows import Advice, Point, limited_by
from ..profile import CostProfile
from ..profile.iteration import iteration_ns
from ..solvers.frontier import Frontier
from ..study.compare import Comparison
from ..trace import Trace
from ..units import format_size, format_time
from .chart import Curve, Mark, chart
from .markup import Cell, share_cell, table, time_cell
from .page import View, slot
from .views import trace_view

MOST_OPS = 100_000  # of all schedules on a page, about 4 MB; what comes after is in the table alone


_WHOLE = (
    "The times here are of the whole iteration, gradients, update and what lies between ops included;"
    " the lanes of a schedule are what it takes by itself."
)


def _told(profile: CostProfile, shown: Iterable[Choice], marks: str = "") -> str:
    """Return what the times of the choices shown include, where the profile has costs outside the pipeline, by what
    measured ones may differ, and what `marks` mean: toss-ups."""
    whole = _WHOLE if "iteration" in profile.meta else ""
    spread = profile.spread_text(any(one.trace and one.trace.offloaded for one in shown), "these")
    spread = f"Times: measured ones are {spread}." if spread else ""
    return "".join(f"<p class='what'>{escape(text)}</p>" for text in (whole, spread, marks) if text)


def _toss_ups(between: float | None, than: str, any_is: bool) -> str:
    """Return what the mark of toss-ups means, where there is any."""
    if between is None or not any_is:
        return ""
    return f"≈: in reality a toss-up with {than}; such differences are ±{between:.1%} off (docs/how-true.md)."


class Choice(NamedTuple):
    """A schedule of the page: its name in the table and above its lanes, its point on the chart, its row of the
    table."""

    name: str
    heading: str
    trace: Trace | None
    memory_bytes: float
    time_ns: float
    cells: Sequence[Cell]
    kind: str = "fits"


def comparison_views(found: Comparison) -> list[View]:
    """Return the schedules of a comparison, by time and peak memory."""
    heads = ["schedule", "time", "bubble", "peak memory", "fits", "above the bound", "over 1F1B"]
    rows = []
    for row in found.rows:
        trace, peak = row.trace, max(row.trace.peak_bytes)
        cells = [
            _marked(time_cell(trace.iteration_ns), row.is_toss_up),
            share_cell(trace.bubble_rate_flush),
            Cell(trace.peak_text, peak),
            Cell("yes" if trace.fits else "no"),
            share_cell(row.gap),
            Cell(f"{row.speedup:.3f}×", row.speedup),
        ]
        kind = "fits" if trace.fits else "over"
        rows.append(
            Choice(row.schedule, row.schedule, trace, peak, trace.iteration_ns, cells, kind)
        )
    limits = sorted(set(found.memory_limit or ()))
    text = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in found.refused.items())
    refused = f"<details><summary>Left out</summary><ul>{text}</ul></details>" if text else ""
    limit = limits[-1] if limits else None
    between = found.baseline.profile.execution_notes["between"]
    alike = _toss_ups(between, "the fastest", any(row.is_toss_up for row in found.rows))
    more = _told(found.baseline.profile, rows, alike) + refused
    return _views(heads, rows, _fastest(found), limit_bytes=limit, more=more)


def frontier_views(found: Frontier) -> list[View]:
    """Return the best schedule under each limit, with the bound below it and the published schedules."""
    heads = ["limit", "time", "chunks", "bubble", "bound", "gap", "offloaded", "status"]
    heads.append("fastest published")
    rows, bound = [], []
    for point in found.points:
        name, result = format_size(point.limit_bytes), point.result
        heading = f"limit {name}"
        if result is None or result.trace is None:
            none = [Cell("none", float("inf"))]
            cells = [*none, *[Cell("", float("inf"))] * 5, Cell(point.status), Cell("")]
            rows.append(Choice(name, heading, None, point.limit_bytes, 0, cells, "none"))
            continue
        trace = result.trace
        least = round(iteration_ns(found.profile, result.lower_bound_ns))
        bound.append((point.limit_bytes, least))
        fixed = ""
        if point.fixed is not None:
            fixed = f"{point.fixed[0]}: {format_time(point.fixed_iteration_ns or 0)}"
            fixed += " ≈" * point.is_toss_up
        chunks = trace.schedule.shape.chunks
        cells = [
            time_cell(trace.iteration_ns),
            Cell(str(chunks), chunks),
            share_cell(trace.bubble_rate_flush),
            time_cell(least),
            share_cell(result.gap),
            Cell(f"{trace.offloaded:,}", trace.offloaded),
            Cell(result.status),
            Cell(fixed),
        ]
        rows.append(
            Choice(name, heading, trace, point.limit_bytes, trace.iteration_ns, cells, "best")
        )
    best = [(row.memory_bytes, row.time_ns) for row in rows if row.trace]
    curves = [
        Curve("best schedule found", best),
        Curve(f"no schedule with {found.chunks} is faster (proven)", bound, dashed=True),
    ]
    published = [
        Mark(each.schedule, each.peak_bytes, each.iteration_ns, "published")
        for each in found.schedules
    ]
    axis = "memory limit of a device"
    between = found.profile.execution_notes["between"]
    marked = any(point.is_toss_up for point in found.points)
    alike = _toss_ups(between, "the best schedule found under this limit", marked)
    return _views(
        heads,
        rows,
        _enough(rows),
        curves=curves if best else [],
        marks=published,
        axis=axis,
        more=_told(found.profile, rows, alike),
    )


def advice_views(found: Advice) -> list[View]:
    """Return the best of each split that fits, among all configurations that were replayed."""
    heads = [
        "split",
        "schedule",
        "time",
        "tokens/s",
        "MFU, causal",
        "memory",
        "recompute",
        "limited by",
    ]
    rows = []
    for row in found.rows:
        cells = [
            Cell(row.schedule),
            _marked(time_cell(row.iteration_ns), found.is_toss_up(row)),
            Cell(f"{row.tokens_per_s:,.0f}", row.tokens_per_s),
            share_cell(row.mfu_causal),
            Cell(format_size(row.peak_bytes), row.peak_bytes),
            Cell(row.choice.recompute),
            Cell(limited_by(found.parts(row))),
        ]
        name = str(row.choice)
        heading = f"{name}: {row.schedule}"
        rows.append(Choice(name, heading, row.trace, row.peak_bytes, row.iteration_ns, cells))
    marks = [
        Mark(_described(point), point.peak_bytes, point.iteration_ns, _kind(point))
        for point in found.points
    ]
    doubts = [found.basis, *found.doubts(found.rows[0])]
    text = "".join(f"<li>{escape(doubt)}</li>" for doubt in doubts)
    alike = _toss_ups(found.between, "the fastest", any(map(found.is_toss_up, found.rows)))
    return _views(
        heads,
        rows,
        f"Fastest that fits: {rows[0].heading}, {format_time(rows[0].time_ns)} per iteration,"
        f" {found.rows[0].tokens_per_s:,.0f} tokens/s.",
        marks=marks,
        limit_bytes=found.question.limit_bytes,
        more=f"{_told(found.rows[0].profile, rows, alike)}<h3>How sure</h3><ul>{text}</ul>",
    )


def _fastest(found: Comparison) -> str:
    """Return which schedule of a comparison to run."""
    fitting = [row for row in found.rows if row.trace.fits]
    if not fitting:
        least = min(found.rows, key=lambda row: max(row.trace.peak_bytes))
        peak = format_size(max(least.trace.peak_bytes))
        return f"None of them fits; {least.schedule} needs the least memory, {peak}."
    best = min(fitting, key=lambda row: row.trace.iteration_ns)
    fits = " that fits" if found.memory_limit else ""
    return (
        f"Fastest{fits}: {best.schedule}, {format_time(best.trace.iteration_ns)} per iteration, at most"
        f" {best.gap:.1%} above the best possible with its chunks."
    )


def _enough(rows: Sequence[Choice]) -> str:
    """Return how much memory the fastest schedule of a frontier needs, and what the least costs."""
    solved = [row for row in rows if row.trace]
    if not solved:
        return "No schedule was found under these limits."
    least, best = solved[0], min(solved, key=lambda row: row.time_ns)
    if best.time_ns == least.time_ns:
        return f"{best.name} is enough: {format_time(best.time_ns)} per iteration, and no more memory helps."
    longer = least.time_ns / best.time_ns - 1
    return (
        f"The fastest, {format_time(best.time_ns)} per iteration, needs no more than {best.name}. With"
        f" {least.name} an iteration takes {longer:.0%} longer, {format_time(least.time_ns)}."
    )


def _marked(cell: Cell, toss_up: bool) -> Cell:
    """Return a cell with the mark of a toss-up."""
    return cell._replace(text=f"{cell.text} ≈") if toss_up else cell


def _kind(point: Point) -> str:
    return "replayed" if point.fits else "over"


def _described(point: Point) -> str:
    return f"{point.schedule}; " + ", ".join(
        f"{key} {value}" for key, value in asdict(point.choice).items()
    )


def _views(
    heads: Sequence[str],
    rows: Sequence[Choice],
    verdict: str,
    *,
    curves: Sequence[Curve] = (),
    marks: Sequence[Mark] = (),
    limit_bytes: int | None = None,
    axis: str = "memory of the fullest device",
    more: str = "",
) -> list[View]:
    """Return the chart and the table, then a view for each schedule that there is room for."""
    views: list[View] = []
    shown: list[int] = []  # the view of each row; 0: none
    room = MOST_OPS
    for row in rows:
        if row.trace is None or len(row.trace.schedule) > room:
            shown.append(0)
            continue
        room -= len(row.trace.schedule)
        views.append(trace_view(row.trace, f"schedule-{len(views)}", row.heading))
        shown.append(len(views))
    points = [
        Mark(row.name, row.memory_bytes, row.time_ns, row.kind, view)
        for row, view in zip(rows, shown, strict=True)
        if row.trace is not None
    ]
    lines = [[Cell(row.name, view=view), *row.cells] for row, view in zip(rows, shown, strict=True)]
    left = sum(row.trace is not None and not view for row, view in zip(rows, shown, strict=True))
    note = f" {left} have no room on this page: see `report`." if left else ""
    html = (
        f"<p class='verdict'>{escape(verdict)}</p>"
        f"<p class='what hint'>A click on a point, or on its name below, opens the schedule.{note}</p>"
        f"{slot(0)}{table('choices', heads, lines)}{more}"
    )
    return [View(html, (chart([*marks, *points], curves, limit_bytes, axis),)), *views]
