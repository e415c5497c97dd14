"""What a figure says of its ops, idle intervals and memory: a text per row for each line of a hover."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from ..op_costs import op_costs
from ..ops import BW, B, C, F, O, Op, OpKind, R, W
from ..reasons.explain import Gap
from ..reasons.reasons import Reason
from ..trace import Trace
from ..trace.steps import Steps
from ..units import format_size, format_time

Texts = dict[str, list[str]]
BECAUSE = {
    "start": "nothing keeps it from the start",
    "stream": "the compute stream, busy with {by}",
    "sending": "the device to send the message of {by}",
    "input": "{by}",
    "neighbour": "{by}",
    "communication": "the message of {by}",
    "reload": "its activation, back with {by}",
    "memory": "memory, freed at the end of {by}",
    "anchor": "the start of {by}, before which a reload is not granted",
    "engine": "the copy engine, busy with {by}",
    "link": "the host link, busy with {by}",
}


def op_texts(trace: Trace, reasons: Sequence[Reason]) -> Texts:
    """Return, for each op, its name, place and duration, what it waited for last (`reasons`), and its bytes."""
    schedule, placement = trace.schedule, trace.profile.placement
    ops = [op for program in schedule.flat_programs for op in program]
    waited = np.sum(list(trace.waits_ns.values()), axis=0).tolist()
    costs = op_costs(schedule, trace.profile)
    sizes = zip(costs.allocated_bytes.tolist(), costs.released_bytes.tolist(), strict=True)
    return {
        "name": [str(op) for op in ops],
        "op": [
            f"{op}: stage {op.stage} (chunk {schedule.shape.chunk_of[op.stage]}),"
            f" microbatch {op.microbatch}{'' if op.slice is None else f', slice {op.slice}'},"
            f" device {placement[op.stage]}"
            for op in ops
        ],
        "took": [_length(time) for time in (trace.end_ns - trace.start_ns).tolist()],
        "waited": [
            _waited(trace, reason, idle, start - reason.until_ns)
            for reason, idle, start in zip(reasons, waited, trace.start_ns.tolist(), strict=True)
        ],
        "bytes": [_sizes(*pair) for pair in sizes],
    }


def gap_texts(trace: Trace, gaps: Sequence[Gap]) -> Texts:
    """Return, for each idle interval, its place, length and cause."""
    idle = [
        f"device {gap.device}, {span(gap.start_ns, gap.end_ns)}, {format_time(gap.length_ns)}"
        for gap in gaps
    ]
    cause = [
        f"{gap.cause}: {gap.op or 'the end'} comes after"
        + ("" if gap.by is None else f", it waits for {_where(trace, gap.by)}")
        for gap in gaps
    ]
    return {"name": [gap.cause for gap in gaps], "idle": idle, "cause": cause}


def memory_texts(steps: Steps, end_ns: int) -> Texts:
    """Return, for each step of a memory curve, the bytes held and the interval."""
    times = [*steps.times_ns.tolist(), end_ns]
    return {
        "held": [format_size(size) for size in steps.bytes.tolist()],
        "time": [span(*pair) for pair in pairwise(times)],
    }


@cache
def instant(time_ns: int) -> str:
    """Return the text of a time on the axis, with more digits than durations have."""
    return format_time(time_ns, 6)


def span(start_ns: int, end_ns: int) -> str:
    """Return the text of an interval, from its start to its end."""
    return f"{instant(start_ns)} to {instant(end_ns)}"


_length = cache(format_time)


@cache
def _sizes(allocated: int, released: int) -> str:
    at_start = [f"+{format_size(allocated)} at its start"] if allocated else []
    at_end = [f"−{format_size(released)} at its end"] if released else []
    return ", ".join(at_start + at_end) or "none"


def _where(trace: Trace, op: Op) -> str:
    return f"{op} (device {trace.profile.placement[op.stage]})"


def _waited(trace: Trace, reason: Reason, idle_ns: int, slack_ns: int) -> str:
    """Return what an op waited for last, how long its device stood idle, and what nothing explains."""
    text = BECAUSE[reason.cause]
    if reason.by is not None:
        text = f"for {text.format(by=_where(trace, reason.by))}"
    idle = f"{format_time(idle_ns)} idle, " if idle_ns else ""
    late = f"; then {format_time(slack_ns)} for no reason the profile knows" if slack_ns > 0 else ""
    return f"{idle}{text}{late}"


def life_texts(trace: Trace) -> Texts:
    """Return, for each activation by stage, the intervals in which it is held, offloaded and recomputed."""
    schedule, levels = trace.schedule, trace.schedule.levels
    starts, ends = trace.start_ns.tolist(), trace.end_ns.tolist()
    found: Texts = {"activation": [], "offloaded": [], "recomputed": []}
    for stage in range(schedule.shape.stages):
        for unit in range(schedule.shape.units):
            rows = {kind: schedule.row(schedule.shape.op(kind, stage, unit)) for kind in OpKind}
            times = {kind: span(starts[row], ends[row]) for kind, row in rows.items() if row >= 0}
            back = rows[B] if B in times else rows[BW]
            held = span(starts[rows[F]], ends[back])
            if W in times:
                held += f", what W needs to {instant(ends[rows[W]])}"
            level, again = int(levels.table[stage, unit]), "no"
            if level:
                again = f"{levels.names[level - 1]}, {times.get(C, 'inside its backward')}"
            copied = f"{times[O]}, back {times[R]}" if O in times else "no"
            for line, text in zip(found.values(), (held, copied, again), strict=True):
                line.append(text)
    return found
