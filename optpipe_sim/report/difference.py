"""What differs between two traces: order, treatments, times and memory; each as rows or as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..errors import Deadlock, OutOfMemory
from ..op_costs import treatments
from ..op_table import KEEP
from ..ops import BW, B, O
from ..schedule import Schedule, encode
from ..sim import simulate
from ..sim.difference import compare_traces
from ..sim.lower import lower
from ..trace import CAUSES, Trace
from ..units import format_size, format_time
from .markup import Cell, table, time_cell
from .tables import PIPELINE, pipeline_name

NOTICED = 0.1  # of its time: a smaller difference of an op's duration is not marked


class Changes(NamedTuple):
    """The ops of two traces that the other does differently: rows of either; `order`, `treatments`
    and `durations` count ops of the first that stand elsewhere, activations that are treated
    otherwise, and ops that take other times. `says` is that in words."""

    rows: tuple[list[int], list[int]]
    order: int
    treatments: int
    durations: int
    says: str


def changes(one: Trace, two: Trace) -> Changes:
    """Return what the second trace does differently.

    An op's place differs where the op before it on its compute stream is another. Schedules of
    other stages or microbatches have no ops in common. Where order and treatments are the same (a
    measured trace and its prediction), ops differ whose durations do by more than 10 %.
    """
    shapes = [(each.schedule.shape.stages, each.schedule.shape.units) for each in (one, two)]
    if shapes[0] != shapes[1]:
        says = "Other stages or microbatches: their ops cannot be set side by side one by one."
        return Changes(([], []), 0, 0, 0, says)
    before = [_before(trace.schedule) for trace in (one, two)]
    moved = before[0] != before[1]
    treated = [_treated(trace) for trace in (one, two)]
    otherwise = treated[0] != treated[1]
    if not moved.any() and not otherwise.any():
        longer = _other_durations(one, two)
        rows = [np.flatnonzero(longer[trace.schedule.codes]).tolist() for trace in (one, two)]
        says = f"{len(rows[0])} of {len(one.schedule):,} ops take over 10 % more or less time"
        says = f"The same order and treatments; {says}."
        return Changes((rows[0], rows[1]), 0, 0, len(rows[0]), says)
    rows = []
    for trace in (one, two):
        _, stages, microbatches = trace.schedule.table.T
        changed = moved[trace.schedule.codes] & ~trace.schedule.is_transfer
        rows.append(np.flatnonzero(changed | otherwise[stages, microbatches]).tolist())
    order = int((moved[one.schedule.codes] & ~one.schedule.is_transfer).sum())
    says = (
        f"{order:,} of {len(one.schedule):,} ops follow a different op in the other schedule;"
        f" {int(otherwise.sum()):,} of {otherwise.size:,} activations are treated differently."
    )
    return Changes((rows[0], rows[1]), order, int(otherwise.sum()), 0, says)


def _other_durations(one: Trace, two: Trace) -> np.ndarray:
    """Return, by op code, whether its durations in the two traces differ noticeably."""
    took = []
    for trace in (one, two):
        duration_ns = np.zeros(len(trace.schedule.rows), np.int64)
        duration_ns[trace.schedule.codes] = trace.end_ns - trace.start_ns
        took.append(duration_ns)
    longer: np.ndarray = np.abs(took[1] - took[0]) > NOTICED * took[0]
    return longer


def _before(schedule: Schedule) -> np.ndarray:
    """Return, by op code, the code of the op before it on its compute stream; -1: it is the first, -2: the schedule
    does not have it. B and BW count as one kind."""
    shape = schedule.shape
    size = len(schedule.rows)
    found = np.full(size, -2, np.int64)
    kinds, stages, microbatches = schedule.table.T.astype(np.int64)
    alike = encode(shape, np.where(kinds == BW, B, kinds), stages, microbatches)
    for first, last in zip(schedule.offsets[:-1], schedule.offsets[1:], strict=True):
        rows = first + np.flatnonzero(~schedule.is_transfer[first:last])
        found[schedule.codes[rows]] = np.concatenate(([-1], alike[rows[:-1]]))
    return found


def _treated(trace: Trace) -> np.ndarray:
    """Return (stages, units), a code of what becomes of each activation: twice its treatment (see `op_table`), plus one
    where it is offloaded."""
    found = 2 * treatments(trace.schedule, trace.profile)
    _, stages, microbatches = trace.schedule.table[trace.schedule.table[:, 0] == O].T
    found[stages, microbatches] += 1
    return found


def difference_table(one: Trace, two: Trace, names: tuple[str, str]) -> str:
    """Return where the time of a device goes in the mean, and what the second trace spends more or less."""
    rows = [
        [
            Cell(what),
            time_cell(values[0]),
            time_cell(values[1]),
            _signed(values[1] - values[0]),
        ]
        for what, *values in time_rows(one, two)
    ]
    return table("difference", ["mean over the devices", *names, "difference"], rows)


def time_rows(one: Trace, two: Trace) -> list[tuple[str, float, float]]:
    """Return the parts of the pipeline's time in ns, as means over the devices; the last row is their sum."""

    names = {pipeline_name(trace) for trace in (one, two)}
    name = PIPELINE if len(names) > 1 else names.pop()

    def parts(trace: Trace) -> dict[str, float]:
        devices = trace.schedule.shape.devices
        again = sum(trace.recompute_ns) / devices
        computing = sum(trace.busy_ns) / devices - again
        idle = {f"idle: {cause}": trace.idle_ns[cause] / devices for cause in CAUSES}
        return {
            "computing": computing,
            "recomputing": again,
            **idle,
            name: trace.makespan_ns,
        }

    first, second = parts(one), parts(two)
    return [(what, first[what], second[what]) for what in first if first[what] or second[what]]


def verdict(one: Trace, two: Trace, names: tuple[str, str]) -> str:
    """Return which trace is faster, and the two parts of the iteration that contribute most to it."""
    *parts, (name, first, second) = time_rows(one, two)
    longer = second - first
    if not longer:
        per = "in the pipeline" if name == PIPELINE else "per iteration"
        return f"Both take {format_time(first)} {per}."
    changed = sorted(
        ((after - before, what) for what, before, after in parts),
        key=lambda part: -part[0] * longer,
    )
    most = [f"{what} ({_signed(by).text})" for by, what in changed[:2] if by * longer > 0]
    doubt, slower = "", two.iteration_ns / one.iteration_ns - 1
    if not is_run_of(two, one) and one.profile.execution_notes == two.profile.execution_notes:
        doubt = f"; an iteration takes {slower:+.1%}" if name == PIPELINE else ""
        doubt += one.profile.toss_up_text(slower)
    return (
        f"{names[1]} takes {format_time(abs(longer))} ({abs(longer) / first:.1%})"
        f" {'longer' if longer > 0 else 'less'} than {names[0]}, mostly {' and '.join(most)}{doubt}."
    )


def memory_table(one: Trace, two: Trace, names: tuple[str, str]) -> str:
    """Return the peak of each device in both, and the activations that are not kept whole."""
    rows = []
    for device in range(min(len(one.peak_bytes), len(two.peak_bytes))):
        first, second = one.peak_bytes[device], two.peak_bytes[device]
        more = second - first
        sign = "+" if more > 0 else "−" if more < 0 else ""
        rows.append(
            [
                Cell(str(device), device),
                Cell(format_size(first), first),
                Cell(format_size(second), second),
                Cell(f"{sign}{format_size(abs(more))}", more),
            ]
        )
    heads = ["device", f"peak of {names[0]}", f"peak of {names[1]}", "difference"]
    return table("memory-difference", heads, rows)


def treatment_rows(trace: Trace) -> dict[str, int]:
    """Return how many activations are kept, offloaded, recomputed, or both."""
    treated = _treated(trace)
    away, again = treated % 2 == 1, treated // 2 != KEEP
    counts = {
        "kept whole": ~away & ~again,
        "offloaded": away & ~again,
        "recomputed": again & ~away,
        "recomputed and offloaded": away & again,
    }
    return {name: int(which.sum()) for name, which in counts.items()}


def treatment_table(one: Trace, two: Trace, names: tuple[str, str]) -> str:
    """Return how many activations are treated in which way."""
    first, second = treatment_rows(one), treatment_rows(two)
    rows = [
        [
            Cell(what),
            Cell(f"{first[what]:,}", first[what]),
            Cell(f"{second[what]:,}", second[what]),
            Cell(f"{second[what] - first[what]:+,}", second[what] - first[what]),
        ]
        for what in first
        if first[what] or second[what]
    ]
    return table("treatments", ["activations", *names, "difference"], rows)


def is_run_of(measured: Trace, predicted: Trace) -> bool:
    """Whether a trace has times of its own for what another one plans. Traces of one schedule on two
    profiles are no run of one another if a replay gives the times of either."""
    if predicted == measured or predicted.profile.devices != measured.profile.devices:
        return False
    profile = predicted.profile
    if not predicted.fits:  # its times are those without the limit
        profile = replace(profile, memory_limit=None)
    lowered = lower(predicted.schedule, profile)
    if lowered.schedule.flat_programs != measured.schedule.flat_programs:
        return False
    return predicted.profile == measured.profile or not _is_replay(measured)


def _is_replay(trace: Trace) -> bool:
    """Whether a replay of its schedule gives a trace's times."""
    limit = trace.memory_limit
    enforce = limit is not None and trace.fits
    try:
        again = simulate(trace.schedule, trace.profile, memory_limit=limit, enforce=enforce)
    except (Deadlock, OutOfMemory):
        return False
    return again.makespan_ns == trace.makespan_ns and bool((again.start_ns == trace.start_ns).all())


def measured_table(predicted: Trace, measured: Trace) -> str:
    """Return what makes up a measured makespan beside a predicted one of the same schedule: on the measured
    critical path, how much longer ops took and how much later messages, copies and launches came.

    Raises:
        InvalidSchedule: where the two are not of one schedule (see `is_run_of`).
    """
    found = compare_traces(lower(predicted.schedule, predicted.profile), measured)
    rows = [
        [Cell(_CAUSES.get(cause, f"{cause} ops took longer")), _signed(time)]
        for cause, time in sorted(found.causes_ns.items(), key=lambda item: -abs(item[1]))
    ]
    rows.append(
        [Cell("measured − predicted"), _signed(measured.makespan_ns - found.predicted.makespan_ns)]
    )
    return table("measured", ["on the measured critical path", "time"], rows)


_CAUSES = {
    "message": "messages came later",
    "copy": "copies came later",
    "launch": "launches came later",
    "slack": "less slack than was predicted",
}


def _signed(time_ns: float) -> Cell:
    sign = "+" if time_ns > 0 else "−" if time_ns < 0 else ""
    return Cell(f"{sign}{time_cell(abs(time_ns)).text}", time_ns)
