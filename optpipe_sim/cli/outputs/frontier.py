"""The output of ``frontier``: a table by memory limit, and the next commands."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from ...units import counted, format_size, format_time, parse_size, size_above, size_text
from ..options.fields import as_given
from .show import Out, spread

if TYPE_CHECKING:
    from ...solvers.frontier import Frontier, Point

HEADS = (
    "limit",
    "time",
    "pipeline",
    "chunks",
    "bubble",
    "bound",
    "gap",
    "offloaded",
    "× published",
)


def show_frontier(
    out: Out, arguments: argparse.Namespace, curve: Frontier, files: dict[str, str]
) -> None:
    out.text(_answer(curve))
    head = f"{curve.profile.name}: {counted(curve.profile.devices, 'device')}"
    head += f", {counted(curve.microbatches, 'microbatch', 'microbatches')}"
    out.print("on", Text(head))
    out.print()
    family = f"× {arguments.family}" if arguments.family else ""
    heads = [*HEADS, *([family] if family else [])]
    beside = any(_beside_pipeline(point) for point in curve.points)
    if not beside:  # the pipeline's time is the iteration's
        heads.remove("pipeline")
    chunks = "" if curve.shapes else f" for {curve.chunks}"
    rows = (_cells(point, chunks, family) for point in curve.points)
    left = [head for head in heads if head.startswith("×")]
    out.table(rows, heads, left)
    if beside:
        text = "time: of an iteration; bubble, bound and gap are those of its pipeline"
        out.text(text, style="dim")
    results = (point.result for point in curve.points if point.result)
    spread(out, curve.profile, (result.trace for result in results if result.trace))
    alike = next((point for point in curve.points if point.is_toss_up), None)
    if alike is not None and alike.result is not None and alike.result.trace is not None:
        notes = alike.result.trace.profile.execution_notes
        text = (
            f"≈: in reality a toss-up; differences replayed as {notes.get('judged', notes['name'])} were within ±{notes['between']:.1%}"
            " of measured ones in four cases of five (docs/how-true.md)"
        )
        out.text(text, style="dim")
    if arguments.family:
        chunks = counted(curve.profile.chunks, "chunk")
        text = f"× {arguments.family}: over the best of its family with {chunks} per device; solve --family {arguments.family} tries any number"
        out.text(text, style="dim")
    short = sum(point.untried > 0 for point in curve.points)
    if short:
        text = f"× published: at {counted(short, 'limit')} the time was too short to try them all; raise --time-limit"
        out.text(text, style="yellow")
    if curve.interrupted:
        total = len(set(map(parse_size, arguments.limits)))
        text = f"interrupted: {len(curve.points)} of {total} limits"
        kept = "" if arguments.no_cache else "; the same command goes on from there"
        out.print(f"{text}{kept}", style="yellow")
    if any(point.result is None for point in curve.points):
        least = curve.least_limit_bytes
        text = f"✗: with {curve.chunks} no schedule exists below {size_above(least)}"
        out.print(text, style="dim")
    out.written(files)
    path, m = shlex.quote(arguments.profile), arguments.microbatches
    shape = as_given(arguments, "chunks", "placement")
    chosen = next((point for point in curve.points if point.result is not None), None)
    if chosen is not None:
        limit = size_text(chosen.limit_bytes)
        command = f"solve {path} -m {m} --memory-limit {limit}{shape} --save best.json"
        out.next(command, code=True)
    if not arguments.chart:
        out.next("draw it with --chart frontier.png")


def _answer(curve: Frontier) -> Text:
    """Return the first line: the fastest schedule of the curve and the least limit that has it, and the
    price of the lowest limit with a schedule."""
    found = [
        (point, point.result.trace)
        for point in curve.points
        if point.result is not None and point.result.trace is not None
    ]
    if not found:
        text = f"no schedule fits: with {curve.chunks} none exists below"
        return Text(f"{text} {size_above(curve.least_limit_bytes)}", "bold red")
    fastest = min(trace.iteration_ns for _, trace in found)
    enough = next(point for point, trace in found if trace.iteration_ns == fastest)
    least, slowest = found[0]
    text = (
        f"{format_time(fastest)} per iteration from a limit of {format_size(enough.limit_bytes)} on"
    )
    if slowest.iteration_ns > fastest:
        longer = slowest.iteration_ns / fastest - 1
        text += f"; {format_time(slowest.iteration_ns)} ({longer:+.1%}) in {format_size(least.limit_bytes)}"
    return Text(text, "bold")


def _beside_pipeline(point: Point) -> bool:
    trace = None if point.result is None else point.result.trace
    return trace is not None and trace.iteration_ns != trace.cost_ns


def _cells(point: Point, only: str, family: str) -> dict[str, Text]:
    """Return the cells of a row; `only`: what a proof is restricted to; `family`: the column of that."""
    limit = Text(format_size(point.limit_bytes))
    result = point.result
    if result is None or result.trace is None:
        why = "infeasible" if point.status == "infeasible" else "none found"
        return {"limit": limit, "time": Text("✗", "red"), HEADS[-1]: Text(why, "dim")}
    trace = result.trace
    flush = trace.objective == "flush"
    share = trace.offloaded / trace.schedule.shape.activations

    def over(other: tuple[str, int] | None, iteration_ns: int | None, mark: str = "") -> Text:
        if other is None or iteration_ns is None:
            return Text("none fits", "dim")
        return Text(f"{iteration_ns / trace.iteration_ns:.3f}{mark} {other[0]}")

    optimal = result.status == "optimal"
    return {
        "limit": limit,
        "time": Text(format_time(trace.iteration_ns), "bold"),
        "pipeline": Text(format_time(trace.cost_ns)),
        "chunks": Text(str(trace.schedule.shape.chunks)),
        "bubble": Text(f"{trace.bubble_rate_flush if flush else trace.bubble_rate:.1%}"),
        "bound": Text(format_time(result.lower_bound_ns)),
        "gap": Text(f"optimal{only}", "green") if optimal else Text(f"{result.gap:.2%}"),
        "offloaded": Text(f"{share:.0%}"),
        HEADS[-1]: over(point.fixed, point.fixed_iteration_ns, "≈" if point.is_toss_up else ""),
        family: over(point.family, point.family_iteration_ns),
    }
