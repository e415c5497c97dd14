"""What a page shows of one trace, and of two."""

from __future__ import annotations

from html import escape

from ..trace import Trace
from .columns import TraceColumns
from .difference import (
    changes,
    difference_table,
    is_run_of,
    measured_table,
    memory_table,
    treatment_table,
)
from .lanes import FOLDED_FROM, description, lanes, memory_scale
from .markup import folded, switch
from .page import View, slot
from .tables import by_device, facts, legend, longest_gaps, measures, path_and_hints, title_of

KEYS = "drag or arrow keys: pan · Ctrl + wheel, pinch or + and −: zoom · 0: all · click: why · Esc: clear"
INVITATION = "Click an op or an idle interval to see what it waited for."


def trace_view(trace: Trace, name: str, heading: str = "") -> View:
    """The lanes of one trace between its measures and its tables; `name` is that of its figure."""
    columns, scale = TraceColumns(trace), memory_scale([trace])
    html = (
        f"{heading}<p class='what'>{escape(facts(trace))}</p>{measures(trace)}"
        f"{_bar(trace)}{slot(0)}{legend(trace)}{_tables(columns, name)}"
        f"{path_and_hints(trace, name)}"
    )
    return View(html, (lanes(columns, name, scale),), (description(columns, name, scale),))


def pair_view(one: Trace, two: Trace) -> View:
    """Two traces, one above the other on one time axis, with what differs between them."""
    traces, names = (one, two), ("a", "b")
    columns = [TraceColumns(trace) for trace in traces]
    found, scale = changes(one, two), memory_scale([one, two])
    titles, measured = titles_of(one, two), ""
    if is_run_of(two, one):
        measured = f"<h3>Why measured and predicted time differ</h3>{measured_table(one, two)}"
    heads = [
        f"<h2>{escape(title)}</h2><p class='what'>{escape(facts(trace))}</p>{measures(trace)}"
        for trace, title in zip(traces, titles, strict=True)
    ]
    edges = "".join(
        switch("", f"aligned by {edge}", on=edge == "start", edge=edge) for edge in ("start", "end")
    )
    bar = _bar(one, switch("changed", "what differs") if any(found.rows) else "", edges)
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
    charts = tuple(
        {**description(each, name, scale), "changed": rows}
        for each, name, rows in zip(columns, names, found.rows, strict=True)
    )
    figures = (
        lanes(columns[0], names[0], scale, columns[1]),
        lanes(columns[1], names[1], scale, columns[0]),
    )
    return View(html, figures, charts)


def titles_of(one: Trace, two: Trace) -> tuple[str, str]:
    """The names of both, told apart where they are the same."""
    first, second = title_of(one), title_of(two)
    if is_run_of(two, one):
        return f"{first}, predicted", f"{second}, measured"
    if first != second:
        return first, second
    if one.profile.name != two.profile.name:
        return f"{first} on {one.profile.name}", f"{second} on {two.profile.name}"
    return first, f"{second} (the other)"


def _bar(trace: Trace, *more: str) -> str:
    """The buttons above the lanes, and the line that answers clicks."""
    unfolded = trace.schedule.shape.devices < FOLDED_FROM
    buttons = (
        switch("critical", "critical path"),
        switch("messages", "messages"),
        switch("unfold", "all devices unfolded", on=unfolded),
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
