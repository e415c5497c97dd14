"""The output of ``frontier``: a table by memory limit, and the next commands."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from ...units import counted, format_size, format_time, parse_size, size_above, size_text
from .show import Out, hint, plain_table, written

if TYPE_CHECKING:
    from ...solvers.frontier import Frontier, Point

HEADS = ("limit", "time", "chunks", "bubble", "bound", "gap", "offloaded", "× published")


def show_frontier(
    out: Out, arguments: argparse.Namespace, curve: Frontier, files: dict[str, str]
) -> None:
    head = f"{curve.profile.name}: {counted(curve.profile.devices, 'device')}"
    head += f", {counted(curve.microbatches, 'microbatch', 'microbatches')}"
    out.print(Text("Best time by memory limit", "bold"), "on", Text(head))
    out.print()
    heads = [*HEADS, *([f"× {arguments.family}"] if arguments.family else [])]
    table = plain_table(*heads, left=heads[7:])
    for point in curve.points:
        table.add_row(*_cells(point, len(heads), "" if curve.shapes else f" for {curve.chunks}"))
    out.print(table)
    short = sum(point.untried > 0 for point in curve.points)
    if short:
        text = f"× published: at {counted(short, 'limit')} the time was too short to try them all; raise --time-limit"
        out.print(Text(text, "yellow"), soft_wrap=True)
    if curve.interrupted:
        total = len(set(map(parse_size, arguments.limits)))
        text = f"interrupted: {len(curve.points)} of {total} limits"
        kept = "" if arguments.no_cache else "; the same command goes on from there"
        out.print(Text(f"{text}{kept}", "yellow"))
    if any(point.result is None for point in curve.points):
        least = curve.least_limit_bytes
        text = f"✗: with {curve.chunks} no schedule exists below {size_above(least)}"
        out.print(Text(text, "dim"))
    written(out, files)
    path, m = shlex.quote(arguments.profile), arguments.microbatches
    shape = f" --chunks {arguments.chunks}" if arguments.chunks else ""
    shape += f" --placement {arguments.placement}" if arguments.placement else ""
    chosen = next((point for point in curve.points if point.result is not None), None)
    if chosen is not None:
        limit = size_text(chosen.limit_bytes)
        command = f"optpipe-sim solve {path} -m {m} --memory-limit {limit}{shape} --save best.json"
        hint(out, command, code=True)
    if not arguments.chart:
        hint(out, "draw it with --chart frontier.png")


def _cells(point: Point, count: int, only: str) -> list[Text]:
    """Return the cells of a row; `only`: what a proof is restricted to."""
    limit = Text(format_size(point.limit_bytes))
    result = point.result
    if result is None or result.trace is None:
        why = "infeasible" if point.status == "infeasible" else "none found"
        return [limit, Text("✗", "red"), *(Text() for _ in HEADS[3:]), Text(why, "dim")]
    trace = result.trace
    flush = trace.objective == "flush"
    share = trace.offloaded / (trace.schedule.shape.stages * trace.schedule.shape.units)
    others = [
        Text(f"{one[1] / trace.cost_ns:.3f} {one[0]}") if one else Text("none fits", "dim")
        for one in (point.fixed, point.family)
    ]
    optimal = result.status == "optimal"
    return [
        limit,
        Text(format_time(trace.cost_ns), "bold"),
        Text(str(trace.schedule.shape.chunks)),
        Text(f"{trace.bubble_rate_flush if flush else trace.bubble_rate:.1%}"),
        Text(format_time(result.lower_bound_ns)),
        Text(f"optimal{only}", "green") if optimal else Text(f"{result.gap:.2%}"),
        Text(f"{share:.0%}"),
        *others[: count - len(HEADS) + 1],
    ]
