"""The output of ``confirm``: makespan, ops, ranks, the causes of the difference, what was not checked."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.text import Text

from ...ops import COMPUTE, OpKind
from ...units import format_size, format_time
from .show import headline

if TYPE_CHECKING:
    from ...profile import CostProfile
    from ...runtime.confirm.verdict import Confirmation
    from ...sim.difference import KindRow
    from .show import Out

MOST_STEPS = 5  # most steps of the critical path that are shown
SHORTEST_NS = 5_000_000  # shorter ops show the overhead of the machine in a synthetic run
HOW = {
    "synthetic": "one process per rank; ops sleep, messages are real",
    "gradient": "one process per rank; stages and messages are real",
    "replay": "all stages in one process, one op after the other",
    "loop": "one rank at a time with modelled links",
}
BETWEEN = {
    "message": "messages came late",
    "copy": "copies started late",
    "launch": "ops started late",
    "slack": "slack that this path was predicted to have",
}


def show_confirmation(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    found: Confirmation,
    files: dict[str, str],
) -> None:
    """Print the whole confirmation."""
    if found.holds:
        text = "" if found.timed else ", but for its time, of which this run says nothing"
        out.print(f"✓ the prediction holds{text}", style="green")
    for problem in found.problems:
        out.text(f"✗ {problem}", style="red")
    machine, m = found.machine, found.difference.measured.schedule.shape.microbatches
    out.print(Text(arguments.schedule, "bold"), "on", headline(profile, m))
    load = "" if machine["load"] is None else f", load {machine['load']:g}"
    out.print(
        f"{found.mode} on {machine['name']}{load}, torch {machine['torch']}: {HOW[found.mode]}"
    )
    if arguments.stretch > 1:
        out.print(f"all times {arguments.stretch} times those of the profile")
    out.print()
    _makespan(out, found)
    _results(out, found)
    out.print()
    if found.timed:
        _ops(out, found)
    if found.peaks:
        _ranks(out, found)
    if found.timed:
        _causes(out, found)
    out.hint("Not confirmed by this:", style="bold")
    for text in found.not_confirmed:
        out.hint(f"  - {text}")
    out.hint()
    out.written(files)
    _hints(out, found)


def _makespan(out: Out, found: Confirmation) -> None:
    predicted, measured = found.difference.predicted, found.difference.measured
    out.line("predicted", format_time(predicted.makespan_ns))
    corrected = found.difference.corrected
    if corrected is not None:
        slower = _beside(corrected.makespan_ns, predicted.makespan_ns)
        out.line(
            "corrected", slower.append(" (ops slowed down by copies and idle gaps, as profiled)")
        )
    if not found.timed:
        took = f"{format_time(measured.makespan_ns)}, which says nothing: ranks share the cores"
        out.line("measured", took)
        return
    ends = sorted(found.makespans_ns)
    span = f"{format_time(ends[0])} to {format_time(ends[-1])}"
    fastest = f"fastest of {len(ends)} iterations, {span}"
    how = {
        "synthetic": fastest,
        "gradient": fastest,
        "replay": f"composed of per-op medians; of each of {len(ends)} iterations: {span}",
        "loop": f"composed of per-op medians; of each of {len(ends)} sweeps: {span}",
    }[found.mode]
    out.line("measured", _beside(measured.makespan_ns, predicted.makespan_ns).append(f" ({how})"))
    if found.together is not None:
        slower = _beside(found.together.makespan_ns, predicted.makespan_ns)
        said = " (these medians, slowed down by copies and idle gaps, as profiled)"
        out.line("with copies", slower.append(said))
    if found.noise_ns is not None:
        share = found.noise_ns / predicted.makespan_ns
        text = f"{format_time(found.noise_ns)}, {share:.1%}: every other run against the rest"
        out.line("noise", text)
    if found.closure_ns is not None:
        out.line("closure", f"arrivals moved by {format_time(found.closure_ns)} in the last sweep")


def _beside(time_ns: int, predicted_ns: int) -> Text:
    return Text(f"{format_time(time_ns)}, {time_ns / predicted_ns - 1:+.1%}", "bold")


def _results(out: Out, found: Confirmation) -> None:
    gradients = found.gradients
    if gradients is None:
        return
    bitwise, all_of, rounded = gradients.bitwise, gradients.parameters, gradients.rounded or 0
    if bitwise == all_of:
        text = f"all {all_of} equal the unpipelined model's bit by bit"
    elif bitwise + rounded == all_of:
        text = (
            f"all {all_of} are as close to fp64 as the unpipelined model's ({bitwise} bit by bit)"
        )
    else:
        text = (
            f"{bitwise} of {all_of} equal the unpipelined model's bit by bit;"
            + f" {rounded} are as close to fp64;" * (rounded > 0)
            + f" the rest differ by at most {gradients.difference:.2g}, {gradients.relative:.2g} of"
            f" the largest entry ({gradients.worst}; allowed: {found.tolerances.gradient:g})"
        )
    out.line("gradients", text)
    out.line("loss", f"{gradients.loss:.6g}, unpipelined {gradients.expected_loss:.6g}")


def _ops(out: Out, found: Confirmation) -> None:
    """Print a row per stage: the median durations of its ops, and their ratio to the profile's; where it is
    known what runs beside each op costs, the ratio that is expected below it."""
    rows = {(row.kind, row.stage): row for row in found.difference.kinds}
    kinds = [kind for kind in OpKind if any(kind is known for known, _ in rows)]
    cells: list[dict[str, object]] = []
    for stage in sorted({stage for _, stage in rows}):
        here = {kind.name: rows[kind, stage] for kind in kinds if (kind, stage) in rows}
        cells.append({"stage": stage, **{name: _op(row) for name, row in here.items()}})
        if found.difference.corrected is not None:
            cells.append({name: Text(_expected(row), "dim") for name, row in here.items()})
    out.table(cells, ["stage", *(kind.name for kind in kinds)])
    corrected = found.difference.corrected is not None
    how = "; below it, what copies and idle gaps make of it" if corrected else ""
    out.hint(f"medians here, and how many times the profile's that is{how}", style="dim")
    if found.interference is not None and (corrected or found.together is not None):
        said = "; ".join(found.interference.lines())
        out.hint(f"profiled beside copies, over alone: {said}", style="dim")
    for text in found.conditions:
        out.hint(text, style="dim")
    out.print()


def _op(row: KindRow) -> str:
    ratio = f"×{row.ratio:.2f}" if row.predicted_ns else "none predicted"
    return f"{format_time(round(row.median_ns))}  {ratio}"


def _expected(row: KindRow) -> str:
    return "" if row.expected_ratio is None else f"expected  ×{row.expected_ratio:.2f}"


def _ranks(out: Out, found: Confirmation) -> None:
    inside = any(peak.inside_bytes is not None for peak in found.peaks)
    by_op = any(peak.worst_op for peak in found.peaks)
    rows = []
    for peak in found.peaks:
        ratio = peak.measured_bytes / peak.predicted_bytes if peak.predicted_bytes else 1.0
        cells = {
            "rank": str(peak.rank),
            "peak beyond static: predicted": format_size(peak.predicted_bytes),
            "measured": format_size(peak.measured_bytes),
            "of predicted": f"×{ratio:.3f}",
        }
        if by_op:
            where = f" ({peak.worst_op})" if peak.worst_op else ""
            cells["furthest off after an op"] = f"{_signed(peak.off_bytes)}{where}"
        if inside:
            cells["inside ops"] = format_size(peak.inside_bytes or 0)
            cells["allocated"] = format_size(peak.allocated_bytes or 0)
            cells["reserved"] = format_size(peak.reserved_bytes or 0)
        rows.append(cells)
    out.table(rows)
    out.print()


def _signed(size: int) -> str:
    return f"{'-' if size < 0 else '+' if size else ''}{format_size(abs(size))}"


def _causes(out: Out, found: Confirmation) -> None:
    """Print where the difference arises on the measured critical path."""
    difference = found.difference
    total = difference.measured.makespan_ns - difference.predicted.makespan_ns
    heads = ["on the critical path", f"{'+' if total > 0 else ''}{format_time(total)}"]
    rows = []
    for cause, time in sorted(difference.causes_ns.items(), key=lambda item: -abs(item[1])):
        name = BETWEEN.get(cause, f"{cause} ops took {'longer' if time > 0 else 'less'}")
        rows.append({heads[0]: name, heads[1]: f"{'+' if time > 0 else ''}{format_time(time)}"})
    out.table(rows, heads)
    steps = sorted(difference.path, key=lambda step: -abs(step.longer_ns + step.late_ns))
    parts = []
    for step in steps[:MOST_STEPS]:
        after = f" after {step.waited_for}" if step.waited_for and step.late_ns else ""
        lost = step.longer_ns + step.late_ns
        parts.append(f"{step.op} {'+' if lost > 0 else ''}{format_time(lost)}{after}")
    out.hint(f"most of it: {', '.join(parts)}", style="dim")
    out.print()


def _hints(out: Out, found: Confirmation) -> None:
    rows = [row for row in found.difference.kinds if row.predicted_ns]
    shortest = min(row.predicted_ns for row in rows if row.kind in COMPUTE)
    if found.mode == "synthetic" and shortest < SHORTEST_NS:
        out.next("short ops show what the machine itself takes; try --stretch 10")
    elif found.mode == "replay":
        off = [r for r in rows if abs(r.ratio - 1) > found.tolerances.time]
        if off:
            worst = max(off, key=lambda row: abs(row.ratio - 1))
            out.next(
                f"{worst.kind.name} of stage {worst.stage} is furthest from the profile"
                f" (×{worst.ratio:.2f}): profile again, on a quiet machine"
            )
