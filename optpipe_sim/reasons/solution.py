"""What a solution offloads, and for how long; where devices idle, and how much of that the binding
lower bound forces.

The forced part is separated by evaluating `bounds.fill_and_drain` several times: with unlimited
memory what is left is *fill* and *drain*; with the limit but copies that take no time *memory* adds
to the former (too few F's fit before the first B) and *few W* to the latter (too few B's and W's
can be deferred to the end); with the real copies, *copies* is added. The rest up to the bound,
which a device has to idle while another one works, or by the bound's own argument, is *others*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from ..bounds.bounds import Bound, Parts, fill_and_drain_parts, lower_bound
from ..errors import OptPipeError
from ..ops import BW, B, F, O, OpKind, R
from ..profile import CostProfile
from ..trace import CAUSES, Trace
from ..units import format_size, format_time
from .binding import Binding, analyse_binding, describe_binding
from .explain import takes

FORCED = ("fill", "memory", "copies", "drain", "few W", "others")
SHORT = "shorter span"  # for the objective span: how much earlier a device ends than the slowest


@dataclass(frozen=True)
class StageOffload:
    """The offloaded activations of a stage: which microbatches, of how many; how long they are on the host
    alone (end of O to grant of R; least, median, most); and how long activations live (start of F to start of
    their backward, median), offloaded or resident."""

    stage: int
    device: int
    microbatches: tuple[int, ...]
    of: int
    bytes_each: int
    away_ns: tuple[int, int, int] | None
    lives_gone_ns: int | None
    lives_kept_ns: int | None


@dataclass(frozen=True)
class DeviceIdle:
    """How a device idles within the cost: `idle_ns` by cause, `forced_ns` by reason (`FORCED`); and
    the most activations that it holds."""

    device: int
    work_ns: int
    idle_ns: dict[str, int]
    forced_ns: dict[str, int]
    peak_bytes: int

    @property
    def idle(self) -> int:
        return sum(self.idle_ns.values())

    @property
    def forced(self) -> int:
        return sum(self.forced_ns.values())


@dataclass(frozen=True)
class Solution:
    """An explained trace. `binding`: the device with the largest sum of fill, work and drain;
    `limits`: which limit and which treatment bind, if there is a memory limit."""

    trace: Trace
    bound: Bound
    binding: int
    stages: tuple[StageOffload, ...]
    devices: tuple[DeviceIdle, ...]
    limits: Binding | None

    @property
    def gap_ns(self) -> int:
        return self.trace.cost_ns - self.bound.ns

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cost_ns": self.trace.cost_ns,
            "lower_bound_ns": self.bound.ns,
            "bound": self.bound.name,
            "gap_ns": self.gap_ns,
            "binding_device": self.binding,
            "offloads": [asdict(stage) for stage in self.stages],
            "devices": [asdict(device) for device in self.devices],
            "limits": None if self.limits is None else self.limits.to_json(),
        }


def analyse_solution(trace: Trace, bound: Bound | None = None) -> Solution:
    """Analyse what a schedule offloads, where it idles, and how much of that is forced.

    Args:
        trace: under its memory limit.
        bound: a proven lower bound on its cost (from a solver); None: `bounds.lower_bound`.
    """
    profile, m = trace.profile, trace.schedule.shape.microbatches
    if profile.slices > 1:
        raise OptPipeError(
            "why a bound binds is known of whole sequences; this schedule is over slices:"
            " explain --op F0.0/0 says why an op waits, compare how far its time is from the bound"
        )
    limits = trace.memory_limit
    if bound is None:
        free = replace(profile, memory_limit=None) if limits is None else profile
        bound = lower_bound(free, m, trace.objective, limits)
    forced, parts = _forced(profile, m, trace.objective, limits, bound.ns)
    devices = tuple(
        DeviceIdle(
            device,
            trace.busy_ns[device],
            _idle(trace, device),
            forced[device],
            trace.peak_bytes[device],
        )
        for device in range(profile.devices)
    )
    binding = max(parts, key=lambda part: part.ns).device
    limited = None
    if limits is not None:
        limited = analyse_binding(profile, m, trace.objective, limits)
    return Solution(trace, bound, binding, _offloads(trace), devices, limited)


def _idle(trace: Trace, device: int) -> dict[str, int]:
    """Return the idle time within the cost: of the makespan, or of the longest device span."""
    idle = dict(trace.idle_by_device_ns[device])
    if trace.objective == "flush":
        return idle
    del idle["fill"], idle["drain"]
    return {**idle, SHORT: trace.cost_ns - trace.span_ns[device]}


def _forced(
    profile: CostProfile, m: int, objective: str, limits: Sequence[int] | None, bound_ns: int
) -> tuple[list[dict[str, int]], list[Parts]]:
    """Return, per device and reason, its idle time in any schedule that meets the bound; the parts
    add up to the bound less its work."""
    plain = replace(profile, memory_limit=None)
    ample = fill_and_drain_parts(plain, m, objective)
    if limits is None:
        instant = tight = ample
    else:
        tight = fill_and_drain_parts(plain, m, objective, limits)
        instant = tight
        if profile.offload is not None:
            quick = plain.map_stages(lambda _, cost: replace(cost, t_offload_ns=0, t_reload_ns=0))
            instant = fill_and_drain_parts(quick, m, objective, limits)
    forced = []
    for free, quick_part, part in zip(ample, instant, tight, strict=True):
        forced.append(
            {
                "fill": free.wait,
                "memory": quick_part.wait - free.wait,
                "copies": part.wait + part.tail - quick_part.wait - quick_part.tail,
                "drain": free.tail,
                "few W": quick_part.tail - free.tail,
                "others": max(0, bound_ns - part.ns),
            }
        )
    return forced, tight


def _offloads(trace: Trace) -> tuple[StageOffload, ...]:
    """Stage by stage."""
    shape, table = trace.schedule.shape, trace.schedule.table
    size = (len(OpKind), shape.stages, shape.microbatches)
    row = np.full(size, -1, np.int64)
    row[table[:, 0], table[:, 1], table[:, 2]] = np.arange(len(table))
    back = np.maximum(row[OpKind.B], row[OpKind.BW])
    lives = trace.start_ns[back] - trace.start_ns[row[F]]
    stages = []
    for s in range(shape.stages):
        offloaded = row[O, s] >= 0
        on_host = trace.grant_ns[row[R, s][offloaded]] - trace.end_ns[row[O, s][offloaded]]
        on_host = np.maximum(
            on_host, 0
        )  # a reload may be granted memory before the offload has ended
        stages.append(
            StageOffload(
                s,
                trace.profile.placement[s],
                tuple(np.flatnonzero(offloaded).tolist()),
                shape.microbatches,
                trace.profile.stages[s].offloadable,
                (int(on_host.min()), int(median(on_host.tolist())), int(on_host.max()))
                if offloaded.any()
                else None,
                int(median(lives[s][offloaded].tolist())) if offloaded.any() else None,
                int(median(lives[s][~offloaded].tolist())) if not offloaded.all() else None,
            )
        )
    return tuple(stages)


# -- in words -----------------------------------------------------------------------------------------


def explain_solution(trace: Trace, bound: Bound | None = None) -> str:
    """Describe in words and tables what a solution offloads, where its bubbles are and why they are
    necessary; see `analyse_solution` for the arguments."""
    found = analyse_solution(trace, bound)
    lines = [*_describe_offloads(found), "", *_describe_bound(found), _describe_order(trace), ""]
    if found.limits is not None and found.limits.without:
        lines += [*describe_binding(found.limits), ""]
    lines += _describe_idle(found)
    return "\n".join(lines) + "\n"


def _describe_offloads(found: Solution) -> list[str]:
    trace = found.trace
    total = len(found.stages) * trace.schedule.shape.microbatches
    if not trace.offloaded:
        why = (
            "the profile has no offload section"
            if trace.profile.offload is None
            else (
                "there is no memory limit"
                if trace.memory_limit is None
                else "the limit does not ask for it"
            )
        )
        return [f"Nothing is offloaded: {why}."]
    load = trace.engine_load
    target = "host" if trace.wear is None else "drives"
    lines = [
        f"Offloading: {trace.offloaded} of {total} activations go to the {target} and come back,"
        f" {format_size(trace.transferred_bytes)} in all; the host holds up to"
        f" {format_size(trace.host_peak_bytes)}. The busiest copy engine works"
        f" {max(load['offload']):.0%} of the time on the way out,"
        f" {max(load['reload']):.0%} on the way back.",
    ]
    if trace.wear is not None:
        lines.append(f"Drives: {trace.wear}.")
    rows: list[Sequence[str]] = [
        ("stage", "device", "offloaded", "microbatches", "on the host", "F to B: offloaded", "kept")
    ]
    for stage in found.stages:
        times = [stage.lives_gone_ns, stage.lives_kept_ns]
        on_host = "-"
        if stage.away_ns:
            on_host = f"{format_time(stage.away_ns[0])} to {format_time(stage.away_ns[2])}"
        rows.append(
            (
                str(stage.stage),
                str(stage.device),
                f"{len(stage.microbatches)}/{stage.of}",
                ranges(stage.microbatches),
                on_host,
                *("-" if time is None else format_time(time) for time in times),
            )
        )
    return [*lines, *_table(rows, left=(3, 4))]


def _table(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Format rows of texts as aligned lines; columns are right-aligned except those of `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            text.ljust(width) if at in left else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def ranges(numbers: Sequence[int], most: int = 4) -> str:
    """Format numbers as ``0-3, 5, 7-9``; after `most` ranges only the number of the rest."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [f"{low}" if low == high else f"{low}-{high}" for low, high in runs]
    if len(words) <= most:
        return ", ".join(words) or "-"
    rest = sum(high - low + 1 for low, high in runs[most - 1 :])
    return f"{', '.join(words[: most - 1])} and {rest} more"


REASONS = {
    "fill": "before anything can have come to it",
    "memory": "until its first B: the F's that fit its memory do not last that long",
    "copies": "until its first B and after its last F: copies take time, instant ones would do better",
    "drain": "after its last op: the last microbatch is on its way to the first device",
    "few W": "after its last F or B: memory keeps too few B's and W's for that time",
}


def _describe_bound(found: Solution) -> list[str]:
    trace, bound = found.trace, found.bound
    head = (
        takes(trace)
        if trace.objective == "flush"
        else f"The longest device span takes {format_time(trace.cost_ns)}"
    )
    gap = found.gap_ns
    if gap <= 0:
        lines = [f"{head}, and no schedule takes less: proven by {bound.name}."]
    else:
        lines = [
            f"{head}; no schedule takes less than {format_time(bound.ns)} (proven by {bound.name}):"
            f" {format_time(gap)}, {gap / max(1, bound.ns):.2%}, may or may not be avoidable."
        ]
    device = found.devices[found.binding]
    if not device.forced:
        lines.append(f"That is the work of device {device.device}: no idle time is forced on it.")
        return lines
    beyond = device.forced_ns["others"]
    if beyond:
        lines.append(
            f"Filling, working and draining alone would take {format_time(bound.ns - beyond)}; that it"
            f" takes {format_time(beyond)} more, {bound.name} proves. On device {device.device}, which"
            f" works {format_time(device.work_ns)}, this makes {format_time(device.forced)} of idle"
            " time that has to be:"
        )
    else:
        lines.append(
            f"Device {device.device} binds: it works {format_time(device.work_ns)} and has to idle"
            f" {format_time(device.forced)} beside that:"
        )
    for reason in FORCED:
        if device.forced_ns[reason]:
            words = f"as {bound.name} proves" if reason == "others" else REASONS[reason]
            lines.append(f"  {format_time(device.forced_ns[reason]):>9}  {reason:6}  {words}")
    return lines


def passing(trace: Trace) -> list[int]:
    """Return the stages on which microbatches run in another order than forward on stage 0, i.e.
    not first in, first out."""
    kinds, stages, microbatches = trace.schedule.table.T[:3]
    by_start = np.argsort(trace.start_ns, kind="stable")

    def order(stage: int, *wanted: OpKind) -> list[int]:
        here = by_start[np.isin(kinds[by_start], wanted) & (stages[by_start] == stage)]
        return [int(number) for number in microbatches[here]]

    first = order(0, F)
    return [
        stage
        for stage in range(trace.schedule.shape.stages)
        if order(stage, F) != first or order(stage, B, BW) != first
    ]


def _describe_order(trace: Trace) -> str:
    passed = passing(trace)
    if not passed:
        return "Microbatches keep their order on every stage (FIFO); no bound assumes that they do."
    return f"Microbatches pass one another on stage {ranges(passed)}; no bound assumes FIFO."


def _describe_idle(found: Solution) -> list[str]:
    causes = [
        cause
        for cause in (*CAUSES, SHORT)
        if any(device.idle_ns.get(cause) for device in found.devices)
    ]
    reasons = [
        reason for reason in FORCED if any(device.forced_ns[reason] for device in found.devices)
    ]
    rows: list[Sequence[str]] = [("device", "idle", *causes, "|", "forced", *reasons)]
    for device in found.devices:
        idle = (device.idle_ns.get(cause, 0) for cause in causes)
        forced = (device.forced_ns[reason] for reason in reasons)
        rows.append(
            (
                str(device.device),
                format_time(device.idle),
                *map(_time, idle),
                "|",
                format_time(device.forced),
                *map(_time, forced),
            )
        )
    return [
        "Idle time per device, by what it waits for, and what any schedule that meets the bound has to"
        " idle there (others: while another device works, or as the bound proves as a whole):",
        *_table(rows),
    ]


def _time(ns: int) -> str:
    return format_time(ns) if ns else "-"
