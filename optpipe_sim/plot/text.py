"""A Gantt chart as text: for docstrings, terminals and golden tests."""

from __future__ import annotations

from ..ops import COMPUTE, Op
from ..trace import Span, Trace


def label(op: Op, chunk: int) -> str:
    """``F0`` on chunk 0, ``f0`` on chunk 1, ``f0'`` on chunk 2, and so on; the number is the
    microbatch, followed by a slash and the slice where there are slices."""
    name = op.kind.name if chunk == 0 else op.kind.name.lower()
    return f"{name}{unit_name(op)}{chr(39) * max(0, chunk - 1)}"


def unit_name(op: Op) -> str:
    """Return the microbatch of an op, and its slice if it has one: ``3``, ``3/1``."""
    return f"{op.microbatch}" if op.slice is None else f"{op.microbatch}/{op.slice}"


def text_gantt(trace: Trace, unit_ns: int | None = None) -> str:
    """Return one line per device (and one below it for its transfers, if any), time from left to right.

    A cell is one `unit_ns` (default: the shortest compute op) wide; ``.`` is idle.
    """
    shape = trace.schedule.shape
    chunk = shape.chunk_of
    unit = unit_ns or min(
        span.end_ns - span.start_ns
        for span in trace.spans
        if span.op.kind in COMPUTE and span.end_ns > span.start_ns
    )
    width = 1 + max(len(label(span.op, chunk[span.op.stage])) for span in trace.spans if span.op)
    cells = -(-trace.makespan_ns // unit)
    lines = []

    def line(head: str, spans: list[Span], blank: str) -> str:
        row = list(blank.ljust(width) * cells)
        for span in spans:
            at = round(span.start_ns / unit * width)
            room = max(round(span.end_ns / unit * width), at + 1) - at
            row[at : at + room] = label(span.op, chunk[span.op.stage])[:room].ljust(room)
        return f"{head} {''.join(row)}".rstrip()

    for device in range(shape.devices):
        spans = [span for span in trace.spans if span.device == device]
        compute = [span for span in spans if span.op.kind in COMPUTE]
        copies = [span for span in spans if span.op.kind not in COMPUTE]
        lines.append(line(f"{device}", compute, "."))
        if copies:
            lines.append(line(" ", copies, " "))
    return "\n".join(lines) + "\n"
