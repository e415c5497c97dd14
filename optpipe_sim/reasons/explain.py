"""Reasons in sentences: why an op starts when it does, why a device idles, and what would help."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from ..errors import OptPipeError, require
from ..op_costs import op_costs
from ..ops import BW, COMPUTE, B, C, F, O, Op, R
from ..profile import CostProfile
from ..profile.streams import lines_of, pair_times
from ..trace import CAUSES, Trace
from ..trace.waits import MEANINGS
from ..units import format_size, format_time
from .hints import LIMITS, NONE, diagnoses, hints
from .reasons import Reason, Reasons, Step, critical_path

__all__ = ["Gap", "Step", "critical_path", "explain", "idle", "why"]


class Gap(NamedTuple):
    """Idle time of a device by one cause (see `trace.CAUSES`), before `op` (None: after the last);
    `by`: the op that it waits for; `text`: a sentence."""

    device: int
    start_ns: int
    end_ns: int
    cause: str
    op: Op | None
    by: Op | None
    text: str

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def why(trace: Trace, op: Op) -> str:
    """Explain in sentences why `op` starts when it does.

    Raises:
        OptPipeError: if the op is not in the schedule.
    """
    trace.schedule.require(op)
    reasons = Reasons(trace)
    first, *others = reasons.of_start(op)
    start, device = reasons.start[op], reasons.device[op]
    head = f"{op} starts at {format_time(start)} on device {device}"
    if reasons.entry(op) != str(op):
        head += f", in the one op {reasons.entry(op)}"
    if first.until_ns < start:
        return f"{head}, though nothing keeps it from starting at {format_time(first.until_ns)}."
    sentences = [f"{head}: {_because(reasons, op, first)}."]
    same = [
        one
        for one in others
        if one.until_ns == start
        and one.by not in (None, first.by)
        and reasons.start[one.by] < start
    ]
    sentences += [f"At the same instant {_because(reasons, op, one)}." for one in same]
    earlier = [one for one in others if one.until_ns < start and one.by is not None]
    if earlier:
        sentences.append(f"Before that, {_because(reasons, op, earlier[0])}.")
    treated = recomputed_because(trace, op)
    if treated is not None:
        sentences.append(treated)
    return " ".join(sentences)


def _because(reasons: Reasons, op: Op, reason: Reason) -> str:
    """Return a clause that says what delayed `op` until then."""
    by, time = reason.by, format_time(reason.until_ns)
    if by is None:
        return "nothing keeps it from the start"
    where = f"{by} (device {reasons.device[by]})"
    match reason.cause:
        case "stream":
            return f"the compute stream is busy with {by} until {time}"
        case "input" | "neighbour":
            return f"it needs {where}, which ends at {time}"
        case "communication":
            return (
                f"the message of {where} arrives at {time},"
                f" {format_time(reason.lag_ns)} after the op has ended"
            )
        case "reload":
            return f"its activation comes back with {by}, which ends at {time}"
        case "memory":
            size = reasons.allocates[op]
            limit = (reasons.trace.memory_limit or ())[reasons.device[op]]
            return (
                f"its {format_size(size)} fit under the limit of {format_size(limit)} only when"
                f" {by} ends at {time}"
            )
        case "anchor":
            return f"a reload is granted when the compute op before it, {by}, starts, at {time}"
        case "sending":
            return f"the device sends the message of {by} until {time}"
        case "engine":
            return f"the copy engine is busy with {by} until {time}"
    return f"host link {reasons.link_of[op]} is busy with {where} until {time}"


def recomputed_because(trace: Trace, op: Op) -> str | None:
    """Explain why the activation of `op` is recomputed: what that saves and costs, and what the
    device would hold otherwise; None if it is kept whole."""
    stage, shape = op.stage, trace.schedule.shape
    number = int(trace.schedule.levels.table[stage, shape.unit(op)])
    if not number:
        return None
    name, cost = trace.schedule.levels.names[number - 1], trace.profile.stages[stage]
    cost = cost if op.slice is None else cost.slices[op.slice]
    level = cost.level(name)
    assert level is not None  # op_costs refuses unknown levels
    apart = op._replace(kind=C)
    way = f"by {apart}" if trace.schedule.row(apart) >= 0 else "inside its backward"
    dropped = cost.act_bytes - level.keep_bytes
    head = (
        f"The activation of stage {stage}, microbatch {op.microbatch}"
        f"{'' if op.slice is None else f', slice {op.slice},'} is recomputed at level {name},"
        f" {way}: from its forward on it holds {format_size(level.keep_bytes)} of"
        f" {format_size(cost.act_bytes)}, which costs {format_time(level.t_ns)} of compute."
    )
    device = trace.profile.placement[stage]
    if trace.memory_limit is None:
        return head
    steps, limit = trace.memory[device], trace.memory_limit[device]
    backs = (op._replace(kind=kind) for kind in (C, B, BW))
    first = next(one for one in backs if trace.schedule.row(one) >= 0)
    begin, end = trace.span(op._replace(kind=F)).end_ns, trace.span(first).start_ns
    within = (steps.times_ns < end) & (np.append(steps.times_ns[1:], trace.makespan_ns) > begin)
    whole = int(steps.bytes[within].max(initial=0)) + dropped
    if whole <= limit:
        return f"{head} Kept whole it would fit as well: up to {format_size(whole)} of {format_size(limit)}."
    return f"{head} Kept whole, device {device} would hold {format_size(whole)} of {format_size(limit)}."


def idle(trace: Trace, device: int) -> list[Gap]:
    """Return the gaps of a device's compute stream in order of time, each with one cause. By cause
    they add up to ``trace.idle_by_device_ns[device]``.

    Raises:
        OptPipeError: if the device does not exist.
    """
    if not 0 <= device < trace.schedule.shape.devices:
        raise OptPipeError(
            f"device {device} does not exist; devices are 0 to {trace.schedule.shape.devices - 1}"
        )
    return _idle(Reasons(trace), device)


def gaps(trace: Trace) -> list[Gap]:
    """Return the gaps of all devices (see `idle`), the longest first."""
    reasons = Reasons(trace)
    found = [
        gap for device in range(trace.schedule.shape.devices) for gap in _idle(reasons, device)
    ]
    return sorted(found, key=lambda gap: (-gap.length_ns, gap.device, gap.start_ns))


def _idle(reasons: Reasons, device: int) -> list[Gap]:
    trace = reasons.trace
    program = [op for op in trace.schedule.flat_programs[device] if op.kind in COMPUTE]
    gaps: list[Gap] = []

    def add(start: int, end: int, cause: str, op: Op | None, by: Op | None, text: str) -> None:
        if end > start:
            span = f"idle from {format_time(start)} to {format_time(end)}"
            gaps.append(Gap(device, start, end, cause, op, by, f"device {device}: {span}: {text}"))

    first = program[0]
    begin = reasons.of_start(first)[0]
    text = f"{reasons.entry(first)} is its first op, and {_because(reasons, first, begin)}"
    add(0, reasons.start[first], "fill", first, begin.by, text)
    mark = reasons.end[first]
    for op in program[1:]:
        start = reasons.start[op]
        for cause, until, by, text in _waits(reasons, op) if start > mark else ():
            reach = max(mark, min(until, start))
            add(mark, reach, cause, op, by, f"{reasons.entry(op)} waits; {text}")
            mark = reach
        mark = reasons.end[op]
    last = max(reasons.end, key=lambda op: (reasons.end[op], reasons.start[op]))
    text = f"its last op is done, {last} on device {reasons.device[last]} is not"
    add(mark, trace.makespan_ns, "drain", None, last, text)
    return gaps


def _waits(reasons: Reasons, op: Op) -> list[tuple[str, int, Op | None, str]]:
    """Yield the parts of a wait: until when, for what cause, behind which op."""
    device = reasons.device[op]
    sent = [need for need in reasons.needs[op] if reasons.device[need] != device]
    back = [need for need in reasons.needs[op] if need.kind is R]
    found: list[tuple[str, int, Op | None, str]] = []
    for sending in reasons.sending(reasons.before[op]):
        text = _because(reasons, op, sending)
        found.append(("communication", sending.until_ns, sending.by, text))
    for need in sent:
        ends = format_time(reasons.end[need])
        text = f"{need} (device {reasons.device[need]}) ends only at {ends}"
        found.append(("neighbour", reasons.end[need], need, text))
    for need in sent:
        arrives = reasons.arrival[need, op]
        text = f"the message of {need} (device {reasons.device[need]}) arrives at {format_time(arrives)}"
        found.append(("communication", arrives, need, text))
    for need in back:
        text = (
            f"its activation comes back with {need}, which ends at {format_time(reasons.end[need])}"
        )
        found.append(("reload", reasons.end[need], need, text))
    held = reasons.of_start(op)[0]
    found.append(("memory", reasons.start[op], held.by, _because(reasons, op, held)))
    return found


# -- the report ---------------------------------------------------------------------------------------


def explain(trace: Trace, longest: int = 5) -> str:
    """Write a short report: idle time by cause, the busiest device, the longest gaps, the parts of
    the critical path, and what would shorten it (see `hints`)."""
    require("trace", trace, Trace, "make one with simulate(schedule, profile)")
    total = trace.makespan_ns
    devices = trace.schedule.shape.devices
    busiest = int(np.argmax(trace.busy_ns))
    lines = [] if trace.fits else ["It does not fit: these are the times without the memory limit."]
    flush, span = (f"{rate:.1%}" for rate in (trace.bubble_rate_flush, trace.bubble_rate))
    of_span = "" if flush == span else f", {span} of the longest device span"
    lines += [
        f"{takes(trace)}; its bubble is {flush}{of_span}.",
        f"Devices idle {trace.imbalance + trace.bubble:.1%} of it: {trace.imbalance:.1%} by imbalance (less work than"
        f" the busiest device), {trace.bubble:.1%} by the order (pipeline bubble).",
        f"The busiest device is {busiest}: it computes {format_time(trace.busy_ns[busiest])}"
        f" and idles {format_time(total - trace.busy_ns[busiest])}.",
    ]
    if trace.recomputed:
        again, every = trace.recompute_ns[busiest], sum(trace.recompute_ns)
        lines.append(
            f"{trace.recomputed} of {trace.schedule.shape.activations} activations are"
            f" recomputed, which takes {format_time(every)} on all devices ({every / sum(trace.busy_ns):.1%} of what they"
            f" compute) and {format_time(again)} on device {busiest}."
        )
    lines += _hidden(trace)
    lines += ["", f"Idle time of all {devices} devices, by cause:"]
    idle_ns = trace.idle_ns
    for cause in sorted(CAUSES, key=lambda cause: -idle_ns[cause]):
        if idle_ns[cause]:
            share = idle_ns[cause] / (total * devices)
            lines.append(
                f"  {cause:13} {format_time(idle_ns[cause]):>9}  {share:6.1%} of their time  {MEANINGS[cause]}"
            )
    found = gaps(trace)
    if found:
        lines += ["", "The longest gaps:"]
        lines += [
            f"  {format_time(gap.length_ns):>9}  {gap.cause}: {gap.text}" for gap in found[:longest]
        ]
    lines += ["", "The critical path, from time 0 to the last end, is made of:"]
    for part, time in sorted(path_parts(trace).items(), key=lambda item: -item[1]):
        lines.append(f"  {part:22} {format_time(time):>9}  {time / total:6.1%}")
    lines += ["", "What would gain, each replayed:"]
    lines += [f"  - {hint}" for hint in (hints(trace) or (NONE,))]
    found_too = diagnoses(trace)
    if found_too:
        lines += ["", f"{LIMITS}:"]
        lines += [f"  - {hint}" for hint in found_too]
    return "\n".join(lines) + "\n"


def _hidden(trace: Trace) -> list[str]:
    """Say how many forwards are one op with a backward, and what these take less than one after the other."""
    schedule = trace.schedule
    rows = np.flatnonzero(schedule.paired)
    if not len(rows):
        return []
    together = op_costs(schedule, trace.profile).duration_ns[rows].sum()
    parted = op_costs(schedule.parted(), trace.profile).duration_ns
    apart = parted[rows].sum() + parted[rows + 1].sum()
    host = _late_host(trace.profile, schedule.table[rows, 1], schedule.table[rows + 1, 1])
    return [
        f"{len(rows)} of {schedule.shape.activations} forwards are one op with a backward; these take"
        f" {format_time(int(together))} in all, {1 - together / apart:.1%} less than one after the other. The other forwards hide nothing.",
        *host,
    ]


def _late_host(profile: CostProfile, forward: np.ndarray, backward: np.ndarray) -> list[str]:
    """Say how many of the pairs of these stages the host bounds from below, where the profile's layers say so."""
    counts = [cost.layers or 0 for cost in profile.stages]
    known = any(item.streams and any(item.streams.host) for item in profile.items)
    if not known or profile.hidden_for(counts) != profile.pair_hidden:
        return []
    pairs = Counter(zip(forward.tolist(), backward.tolist(), strict=True))
    times = {pair: pair_times(*lines_of(profile, *pair)) for pair in pairs}
    late = {pair: number for pair, number in pairs.items() if times[pair].host_is_late}
    if not late:
        return ["The host is late in none of them: it issues their kernels faster than these run."]
    lost = sum(
        number * (min(times[pair].host, times[pair].alone) - times[pair].kernels)
        for pair, number in late.items()
    )
    return [
        f"In {sum(late.values())} of them the host is late: it issues their kernels more slowly than these run on the two"
        f" streams, so that they hide {format_time(round(lost))} less in all."
    ]


def takes(trace: Trace) -> str:
    """Say how long an iteration takes and, where the profile knows of more, how long its pipeline does,
    which all that follows is about."""
    whole = f"One iteration takes {format_time(trace.iteration_ns)}"
    if trace.expected_text:
        whole += f" ({trace.expected_text})"
    notes = []
    if trace.cost_ns != trace.makespan_ns:
        notes.append("iterations chain: one counts as the longest span of a device")
    if trace.iteration_ns != trace.cost_ns:
        notes.append("the rest is gradients, update and what lies between ops")
    if not notes:
        return whole
    return f"{whole}, its pipeline {format_time(trace.makespan_ns)} ({'; '.join(notes)})"


def path_parts(trace: Trace) -> dict[str, int]:
    """Return the parts of the critical path in ns: compute by device, transfers, messages; they add
    up to the makespan."""
    parts: dict[str, int] = {}

    def add(part: str, time: int) -> None:
        if time:
            parts[part] = parts.get(part, 0) + time

    for step in critical_path(trace):
        kind = {O: "offload", R: "reload"}.get(step.op.kind, "compute")
        add(f"{kind} on device {step.device}", step.until_ns - step.start_ns)
        add("slack" if step.cause == "slack" else "messages", step.lag_ns)
    return parts
