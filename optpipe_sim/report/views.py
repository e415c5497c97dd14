"""What a page shows of one trace, and of two."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..trace import Trace
from ..units import format_time
from .actions import align
from .columns import TraceColumns
from .difference import (
    changes,
    difference_table,
    is_run_of,
    measured_table,
    memory_table,
    treatment_table,
)
from .lanes import FOLDED_FROM, lanes, time_range
from .markup import folded, switch
from .memory import Scales
from .page import View, slot
from .tables import by_device, facts, legend, longest_gaps, measures, path_and_hints, title_of

KEYS = "drag or arrow keys: pan · Ctrl + wheel, pinch or + and −: zoom · 0: all · click: why · Esc: clear"
INVITATION = "Click an op or an idle interval to see what it waited for."


def trace_view(trace: Trace, name: str, heading: str = "") -> View:
    """The lanes of one trace between its measures and its tables; `name` is that of its figure."""
    columns = TraceColumns(trace)
    html = (
        f"<p class='what'>{escape(facts(trace))}</p>{measures(trace)}"
        f"{_bar([name], trace)}{slot(0)}{legend(trace)}{_tables(columns, name)}"
        f"{path_and_hints(trace, name)}"
    )
    plot = lanes(columns, name, Scales.of(trace), time_range([trace]))
    return View(html, (plot,), heading)


def pair_view(one: Trace, two: Trace) -> View:
    """Two traces, one above the other on one time axis, with what differs between them."""
    traces, names = (one, two), ("a", "b")
    columns = [TraceColumns(trace, moves=True) for trace in traces]
    found = changes(one, two)
    titles, measured = titles_of(one, two), ""
    if is_run_of(two, one):
        measured = f"<h3>Why measured and predicted time differ</h3>{measured_table(one, two)}"
    heads = [
        f"<h2>{escape(title)}</h2><p class='what'>{escape(facts(trace))}</p>{measures(trace)}"
        for trace, title in zip(traces, titles, strict=True)
    ]
    later = two.makespan_ns - one.makespan_ns
    shorter = 1 if later < 0 else 0
    differs = switch("what differs", _all(names, "changed"), mark="") if any(found.rows) else ""
    ends = switch("ends aligned", f"{names[shorter]}-align")
    bar = _bar(names, one, differs, ends)
    tables = [
        f"<h2>{escape(title)}</h2>{_tables(each, name)}{path_and_hints(each.trace, name)}"
        for each, name, title in zip(columns, names, titles, strict=True)
    ]
    html = (
        f"<p class='what'>{escape(found.says)}</p>"
        f"<h3>Where the difference arises</h3>{difference_table(one, two, titles)}"
        f"{measured}"
        f"{folded('Memory of each device, and treatments', memory_table(one, two, titles) + treatment_table(one, two, titles))}"
        f"{bar}{heads[0]}{slot(0)}{heads[1]}{slot(1)}{legend(one, two)}{tables[0]}{tables[1]}"
    )
    scales, times = Scales.of(*traces), time_range(traces)
    figures = [
        lanes(columns[at], names[at], scales, times, changed=found.rows[at], other=columns[1 - at])
        for at in (0, 1)
    ]
    begins = f"this one begins at {format_time(abs(later))}, so that both end together"
    align(figures[shorter], columns[shorter].shift, abs(later), begins)
    return View(html, tuple(figures))


def titles_of(one: Trace, two: Trace) -> tuple[str, str]:
    """The names of both, made distinct where they are the same."""
    first, second = title_of(one), title_of(two)
    if is_run_of(two, one):
        return f"{first}, predicted", f"{second}, measured"
    if first != second:
        return first, second
    if one.profile.name != two.profile.name:
        return f"{first} on {one.profile.name}", f"{second} on {two.profile.name}"
    return first, f"{second} (the other)"


def _all(names: Sequence[str], action: str) -> str:
    """An action of several figures."""
    return " ".join(f"{name}-{action}" for name in names)


def _bar(names: Sequence[str], trace: Trace, *more: str) -> str:
    """The buttons above the lanes, and the line that answers clicks."""
    unfolded = trace.schedule.shape.devices < FOLDED_FROM
    buttons = (
        switch("critical path", _all(names, "critical"), mark=""),
        switch("messages", _all(names, "messages")),
        switch("all devices unfolded", _all(names, "unfold"), on=unfolded),
        *more,
    )
    return (
        f"<div class='bar'>{''.join(buttons)}<span class='keys'>{escape(KEYS)}</span></div>"
        f"<p class='note' role='status'>{INVITATION}</p>"
    )


def _tables(columns: TraceColumns, name: str) -> str:
    return (
        f"<h3>Where the time of each device goes</h3>{by_device(columns.trace, name)}"
        f"<h3>The longest idle intervals</h3>{longest_gaps(columns, name)}"
    )
