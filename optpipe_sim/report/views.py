"""What a page shows of one trace, and of two."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..trace import Trace
from ..units import format_time
from .columns import TraceColumns
from .difference import (
    changes,
    difference_table,
    is_run_of,
    measured_table,
    memory_table,
    treatment_table,
    verdict,
)
from .lanes import lanes, opens, time_label, time_range
from .markup import folded, switch
from .memory import Scales
from .page import View, slot
from .tables import advice, by_device, facts, legend, longest_gaps, measures, path

KEYS = "drag or arrow keys: pan · Ctrl + wheel, pinch or + and −: zoom · 0: all · click: why · Esc: clear"
MEASURED = "measured"  # what imported traces are called already
INVITATION = "Click an op or an idle interval to see what it waited for."


def trace_view(trace: Trace, name: str, heading: str = "") -> View:
    """Return the lanes of one trace between its measures and its tables; `name` is that of its figure."""
    columns = TraceColumns(trace)
    level = 3 if heading else 2
    html = (
        f"<p class='what'>{escape(facts(trace))}</p>{measures(trace)}{advice(trace, level)}"
        f"{_bar([columns], [name])}{_figure(name, 0)}{legend(trace)}{_tables(columns, name, level)}"
    )
    marks = {"critical": columns.critical}
    plot = lanes(columns, name, Scales.of(trace), time_range([trace]), marks=marks)
    return View(html, (plot,), heading)


def pair_view(one: Trace, two: Trace) -> View:
    """Return two traces, one above the other on one time axis, with what differs between them."""
    traces, names = (one, two), ("a", "b")
    columns = [TraceColumns(trace, moves=True) for trace in traces]
    found = changes(one, two)
    titles, measured = titles_of(one, two), ""
    if is_run_of(two, one):
        measured = f"<h2>Why measured and predicted time differ</h2>{measured_table(one, two)}"
    heads = [
        f"<h2>{escape(title)}</h2><p class='what'>{escape(facts(trace))}</p>{measures(trace)}"
        for trace, title in zip(traces, titles, strict=True)
    ]
    shown = [(f"{name}-changed", "visible", False, True) for name in names]
    differs = switch("changed", "what differs", shown) if any(found.rows) else ""
    bar = _bar(columns, names, differs, _ends_aligned(columns, names))
    tables = [
        f"<h2>{escape(title)}</h2>{advice(each.trace, 3)}{_tables(each, name, 3)}"
        for each, name, title in zip(columns, names, titles, strict=True)
    ]
    html = (
        f"<p class='verdict'>{escape(verdict(one, two, titles))}</p>"
        f"<p class='what'>{escape(found.says)}</p>"
        f"<h2>Where the difference arises</h2>{difference_table(one, two, titles)}"
        f"{measured}"
        f"{folded('Memory of each device, and treatments', memory_table(one, two, titles) + treatment_table(one, two, titles))}"
        f"{bar}{heads[0]}{_figure(names[0], 0)}{heads[1]}{_figure(names[1], 1)}{legend(one, two)}{tables[0]}{tables[1]}"
    )
    scales, times = Scales.of(*traces), time_range(traces)
    figures = [
        lanes(
            columns[at],
            names[at],
            scales,
            times,
            marks={"critical": columns[at].critical, "changed": found.rows[at]},
            other=columns[1 - at],
        )
        for at in (0, 1)
    ]
    return View(html, tuple(figures))


def titles_of(one: Trace, two: Trace) -> tuple[str, str]:
    """Return the names of both, made distinct where they are the same."""
    first, second = one.schedule.name, two.schedule.name
    if is_run_of(two, one):
        return f"{first}, predicted", second if second == MEASURED else f"{second}, {MEASURED}"
    if first != second:
        return first, second
    if one.profile.name != two.profile.name:
        return f"{first} on {one.profile.name}", f"{second} on {two.profile.name}"
    counts = [trace.schedule.shape.microbatches for trace in (one, two)]
    if counts[0] != counts[1]:
        return f"{first} of {counts[0]} microbatches", f"{second} of {counts[1]} microbatches"
    return first, f"{second} (the other)"


def _bar(columns: Sequence[TraceColumns], names: Sequence[str], *more: str) -> str:
    """Return the switches above the lanes."""
    critical = [(f"{name}-critical", "visible", False, True) for name in names]
    messages = [(f"{name}-sent", "visible", False, True) for name in names]
    unfold = []
    for each, name in zip(columns, names, strict=True):
        devices, lanes = each.layout.devices, each.layout.lanes
        unfold.append((f"{name}-unfolded", "indices", [*range(devices, lanes)], [*range(lanes)]))
    trace = columns[0].trace
    unfolded = all(opens(trace, device) for device in range(trace.schedule.shape.devices))
    switches = (
        switch(f"{names[0]}-path", "critical path", critical),
        switch(f"{names[0]}-messages", "messages", messages),
        switch(f"{names[0]}-unfold", "all devices unfolded", unfold, unfolded),
        *more,
    )
    return f"<div class='bar'>{''.join(switches)}<span class='keys'>{escape(KEYS)}</span></div>"


def _ends_aligned(columns: Sequence[TraceColumns], names: Sequence[str]) -> str:
    """Return the switch by which the shorter trace ends with the longer one."""
    one, two = (each.trace.makespan_ns for each in columns)
    shorter, later = 1 if two < one else 0, abs(two - one)
    label = time_label(columns[shorter].trace)
    begins = f"{label}; this one begins at {format_time(later)}, so that both end together"
    name = names[shorter]
    links = [(f"{name}-shift", "value", 0, later), (f"{name}-time", "axis_label", label, begins)]
    return switch("align", "ends aligned", links)


def _figure(name: str, place: int) -> str:
    """Return a figure below the line that shows the answer to a click on it; that line stays in sight as the figure
    scrolls."""
    note = f"<p class='note' id='{name}-note' role='status'>{INVITATION}</p>"
    return f"<div>{note}{slot(place)}</div>"


def _tables(columns: TraceColumns, name: str, level: int) -> str:
    head = f"h{level}"
    return (
        f"<{head}>Where the time of each device goes</{head}>{by_device(columns.trace, name)}"
        f"<{head}>The longest idle intervals</{head}>{longest_gaps(columns, name)}"
        f"{folded('What the critical path is made of', path(columns.trace, name))}"
    )
