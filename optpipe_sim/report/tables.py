"""The numbers of a trace as HTML: measures, time by device and cause, idle intervals, legends."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..plot.style import KIND_NAMES, LIMIT, shade
from ..reasons.explain import path_parts
from ..reasons.hints import LIMITS, NONE, diagnoses, hints
from ..trace import CAUSES, Trace
from ..trace.boxes import CAUSE_COLOURS, kinds_in
from ..trace.waits import MEANINGS
from ..units import counted, format_size, format_time
from .columns import TraceColumns
from .lanes import CAUSE_PATTERNS, MARK, MESSAGE
from .markup import Cell, items, share_cell, table, tiles, time_cell
from .memory import MEMORY_COLOUR, OTHER, STATIC

MOST_GAPS = 100  # in the table; as many as `explain --json` lists
_HATCH = {  # over a plain ground
    " ": "",
    "/": "repeating-linear-gradient(135deg,#808080 0 1px,transparent 1px 4px),",
    ".": "radial-gradient(#808080 1px,transparent 1px) 0 0/4px 4px,",
    "x": "repeating-linear-gradient(45deg,#808080 0 1px,transparent 1px 4px),"
    "repeating-linear-gradient(135deg,#808080 0 1px,transparent 1px 4px),",
    "-": "repeating-linear-gradient(0deg,#808080 0 1px,transparent 1px 4px),",
}


def facts(trace: Trace) -> str:
    """Return what was replayed, in a line."""
    shape = trace.schedule.shape
    parts = [trace.profile.name, counted(shape.devices, "device")]
    if shape.chunks > 1:
        parts.append(f"{shape.chunks} chunks each")
    parts.append(counted(shape.microbatches, "microbatch", "microbatches"))
    if shape.slices > 1:
        parts.append(f"{shape.slices} slices each")
    parts.append(f"{len(trace.schedule):,} ops")
    limits = sorted(set(trace.memory_limit or ()))
    if limits:
        parts.append(f"limit {' to '.join(map(format_size, {limits[0], limits[-1]}))} per device")
    return " · ".join(parts)


PIPELINE = "pipeline time"


def pipeline_name(trace: Trace) -> str:
    """Return the name of the makespan: it is all of an iteration where the profile knows of nothing beside it, and
    iterations do not chain."""
    return "time per iteration" if trace.iteration_ns == trace.makespan_ns else PIPELINE


def measures(trace: Trace) -> str:
    """Return the measures that ``simulate --json`` gives, with the proven bound where the schedule has
    one."""
    found, activations = trace.measures(), trace.schedule.shape.activations
    peak = max(trace.peak_bytes)
    shown = [
        ("makespan_ns", pipeline_name(trace), format_time(trace.makespan_ns)),
        ("bubble_rate_flush", "bubble, of the iteration", f"{trace.bubble_rate_flush:.2%}"),
        ("bubble_rate", "bubble, of the longest device", f"{trace.bubble_rate:.2%}"),
        (
            "peak_bytes",
            f"peak memory, device {trace.peak_bytes.index(peak)}",
            trace.peak_text,
        ),
    ]
    if trace.objective == "span":
        shown.insert(1, ("cost_ns", "longest device", format_time(trace.cost_ns)))
    if pipeline_name(trace) == PIPELINE:
        shown.insert(0, ("iteration_ns", "time per iteration", format_time(trace.iteration_ns)))
    if trace.iteration_interval_ns is not None:
        low, high = map(format_time, trace.iteration_interval_ns)
        name = f"time per iteration in {trace.profile.like_it}"
        shown.insert(1, ("iteration_interval_ns", name, f"{low} to {high}"))
    if trace.offloaded:
        shown += [
            ("offloaded", f"of {activations:,} activations offloaded", f"{trace.offloaded:,}"),
            ("host_peak_bytes", "peak of pinned host memory", format_size(trace.host_peak_bytes)),
        ]
    if trace.recomputed:
        shown.append(
            ("recomputed", f"of {activations:,} activations recomputed", f"{trace.recomputed:,}")
        )
    if trace.memory_limit is not None:
        shown.append(("fits", "within the memory limit", "yes" if trace.fits else "no"))
    numbers = [(key, name, text, found[key]) for key, name, text in shown]
    bound = trace.schedule.meta.get("lower_bound_ns")
    if isinstance(bound, int):
        name = f"no schedule takes less ({trace.schedule.meta.get('bound', 'proven')})"
        numbers.append(("lower_bound_ns", name, format_time(bound), bound))
    warning = (
        ""
        if trace.fits
        else "<p class='bad'>Does not fit: these are the times without the limit.</p>"
    )
    return warning + tiles(numbers)


def by_device(trace: Trace, name: str) -> str:
    """Return where each device's time goes, the most idle device first."""
    total = trace.makespan_ns
    causes = [cause for cause in CAUSES if trace.idle_ns[cause]]
    again = ["recomputing"] if any(trace.recompute_ns) else []
    limits = trace.memory_limit
    heads = ["device", "idle", "share", *causes, "computing", *again, "peak memory"]
    heads += ["of its limit"] if limits else []
    rows = []
    for device in sorted(range(len(trace.busy_ns)), key=lambda at: (trace.busy_ns[at], at)):
        idle = trace.idle_by_device_ns[device]
        total_idle = sum(idle.values())
        row = [Cell(str(device), device, run=(f"{name}-toggle", device))]
        row += [time_cell(total_idle), share_cell(total_idle / total)]
        row += [time_cell(idle[cause]) for cause in causes]
        row.append(time_cell(trace.busy_ns[device]))
        row += [time_cell(trace.recompute_ns[device])] if again else []
        peak = trace.peak_bytes[device]
        unknown = trace.profile.memory_unknown
        row.append(Cell("not known" if unknown else format_size(peak), peak))
        if limits:
            row.append(share_cell(peak / max(limits[device], 1), 1))
        rows.append(row)
    return table(f"{name}-devices", heads, rows)


def longest_gaps(columns: TraceColumns, name: str) -> str:
    """Return the longest idle intervals; a click leads to the interval and to what it waits for."""
    found, total = columns.idle, columns.trace.makespan_ns
    rows = [
        [
            Cell(
                format_time(gap.length_ns),
                gap.length_ns,
                run=(f"{name}-mark", at),
            ),
            share_cell(gap.length_ns / total),
            Cell(str(gap.device), gap.device),
            Cell(gap.cause),
            Cell(str(gap.op or "the\u00a0end")),
            Cell("" if gap.by is None else str(gap.by)),
            Cell(gap.text, prose=True),
        ]
        for at, gap in enumerate(found[:MOST_GAPS])
    ]
    if not rows:
        return "<p class='what'>None.</p>"
    heads = ["idle", "share", "device", "cause", "before", "waits for", "why"]
    more = f" The {MOST_GAPS} longest of {len(found):,}." if len(found) > MOST_GAPS else ""
    return f"<p class='what hint'>A click on a time shows it in the lanes.{more}</p>" + table(
        f"{name}-idle", heads, rows
    )


def path(trace: Trace, name: str) -> str:
    """Return the table of what the critical path consists of."""
    total = trace.makespan_ns
    rows = [
        [Cell(part), time_cell(time), share_cell(time / total, 1)]
        for part, time in sorted(path_parts(trace).items(), key=lambda item: -item[1])
    ]
    return table(f"{name}-path", ["on the critical path", "time", "share"], rows)


def advice(trace: Trace, level: int) -> str:
    """Return what would shorten the iteration, the largest gain first, below a heading of a given level."""
    found = [str(hint) for hint in hints(trace)]
    text = f"<h{level}>What would gain, each replayed</h{level}>{items(found or [NONE])}"
    free = [str(hint) for hint in diagnoses(trace)]
    return text + (f"<h{level}>{LIMITS}</h{level}>{items(free)}" if free else "")


def legend(*traces: Trace) -> str:
    """Return what the colours and patterns of the lanes of some traces are."""
    there = kinds_in(*traces)
    shape = max((trace.schedule.shape for trace in traces), key=lambda shape: shape.chunks)
    entries = [
        (_plain(shade(kind, 0, shape.chunks)), f"{kind.name} {KIND_NAMES[kind]}") for kind in there
    ]
    if shape.chunks > 1:
        paler = [shade(kind, 1, shape.chunks) for kind in there]
        entries.append((_beside(paler), "paler: of later chunks"))
    entries += [
        (
            f"{_HATCH[CAUSE_PATTERNS[cause]]}{_plain(CAUSE_COLOURS[cause] + '55')}",
            f"{cause}: idle {_meaning(cause, traces)}",
        )
        for cause in CAUSES
        if any(trace.idle_ns[cause] for trace in traces)
    ]
    entries.append((_plain(f"{MEMORY_COLOUR}99"), "memory held"))
    if any(any(trace.profile.static_bytes) for trace in traces):
        entries.append((_line(STATIC), "of which static"))
    if any(trace.memory_limit for trace in traces):
        entries.append((_line(LIMIT, gap=2), "limit"))
    if len(traces) > 1:
        entries.append((_line(OTHER), "memory of the other"))
    entries.append((_line(MARK), "waits for"))
    if shape.devices > 1:
        entries.append((_line(MESSAGE), "message"))
    return "<div class='legend'>{}</div>".format(
        "".join(
            f"<span><i style='background:{look}'></i>{escape(text)}</span>"
            for look, text in entries
        )
    )


def _plain(colour: str) -> str:
    return f"linear-gradient({colour},{colour})"


def _beside(colours: Sequence[str]) -> str:
    """Return bands of colours side by side."""
    width = 100 / len(colours)
    bands = (f"{one} {at * width:.1f}% {(at + 1) * width:.1f}%" for at, one in enumerate(colours))
    return f"linear-gradient(90deg,{','.join(bands)})"


def _line(colour: str, gap: int = 0) -> str:
    """Return what is drawn as a line, dashed where there is a gap."""
    dash = f"{colour} 0 5px,transparent 5px {5 + gap}px"
    return f"repeating-linear-gradient(90deg,{dash}) center/100% 2px no-repeat"


def _meaning(cause: str, traces: Sequence[Trace]) -> str:
    """Return what a cause means; a measured trace without a limit may be idle for what no profile has."""
    if cause == "memory" and not any(trace.memory_limit for trace in traces):
        return "for nothing that the profile has: there is no limit"
    return MEANINGS[cause]
