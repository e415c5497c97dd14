"""``optpipe-sim frontier``: the best schedule and its bound over a range of memory limits."""

from __future__ import annotations

import argparse
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from ..errors import OptPipeError
from ..files import write_text
from ..schedule import Schedule
from ..units import counted, format_size, format_time
from . import show
from .show import Out, Progress
from .solve import COMPILING, rechunked

if TYPE_CHECKING:
    from ..solve.frontier import Frontier, Point

HEADS = ("limit", "time", "bubble", "bound", "gap", "offloaded", "× published")
COLUMNS = (
    "memory_limit_bytes",
    "status",
    "objective_ns",
    "lower_bound_ns",
    "gap",
    "bubble_rate",
    "offloaded",
    "fixed",
    "fixed_cost_ns",
)


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Solve under each limit; what is finished is kept and shown on Ctrl-C."""
    from ..solve.frontier import frontier
    from .commands import DONE, NO, _profile

    profile = rechunked(_profile(arguments), arguments.chunks, arguments.placement)
    done: list[Point] = []
    with out.progress("solving") as progress:
        teller = _Teller(arguments, progress, done)
        teller.next()
        curve = frontier(
            profile,
            arguments.microbatches,
            arguments.limits,
            arguments.time_limit,
            arguments.objective,
            arguments.engine,
            arguments.seed,
            workers=arguments.workers,
            gap=arguments.gap,
            schedules=arguments.schedules,
            cache=not arguments.no_cache,
            on_point=teller.point,
            on_incumbent=teller.incumbent,
            on_wait=lambda: out.wait(COMPILING),
        )
    files: dict[str, str] = {}
    failed: OptPipeError | None = None
    try:
        _write(arguments, out, curve, files)
    except OptPipeError as error:  # the answer comes first
        failed = error
    out.result(
        {
            "profile": profile.name,
            "microbatches": arguments.microbatches,
            "objective": arguments.objective,
            "least_limit_bytes": curve.least_limit_bytes,
            "points": [point.to_json() for point in curve.points],
            "schedules": [
                {"schedule": at.schedule, "cost_ns": at.cost_ns, "peak_bytes": at.peak_bytes}
                for at in curve.schedules
            ],
            "interrupted": curve.interrupted,
            "files": files,
        }
    )
    if not out.json:
        _show(out, arguments, curve, files)
    if failed is not None:
        raise failed
    return DONE if any(point.result for point in curve.points) else NO


def _write(arguments: argparse.Namespace, out: Out, curve: Frontier, files: dict[str, str]) -> None:
    """The files that are asked for."""
    if arguments.csv:
        _write_csv(arguments.csv, curve.points)
        files[arguments.csv] = "the points"
    if arguments.chart and any(point.result for point in curve.points):
        from ..plot.frontier import save_frontier

        save_frontier(curve, arguments.chart)
        files[arguments.chart] = "time over memory"
    elif arguments.chart:
        out.wait(f"{arguments.chart}: not drawn, as no limit has a schedule")


class _Teller:
    """Says on stderr which limit is at work, and keeps the CSV whole."""

    def __init__(
        self, arguments: argparse.Namespace, progress: Progress, done: list[Point]
    ) -> None:
        self.arguments, self.progress, self.done = arguments, progress, done
        self.limits = sorted(set(arguments.limits))

    def next(self, more: str = "") -> None:
        at = len(self.done)
        if at < len(self.limits):
            self.progress(f"{format_size(self.limits[at])}{more}", at, len(self.limits))

    def point(self, point: Point) -> None:
        self.done.append(point)
        if self.arguments.csv:
            with suppress(OptPipeError):  # in the end it is said
                _write_csv(self.arguments.csv, self.done)
        self.next()

    def incumbent(self, _: Schedule, cost_ns: int) -> None:
        self.next(f": {format_time(cost_ns)}")


def _write_csv(path: str, points: list[Point]) -> None:
    rows = [",".join(COLUMNS)]
    for point in points:
        data = point.to_json()
        values = (data.get(name) for name in COLUMNS)
        rows.append(",".join("" if value is None else str(value) for value in values))
    write_text(path, "\n".join(rows) + "\n")


# -- for people -----------------------------------------------------------------------------------


def _show(out: Out, arguments: argparse.Namespace, curve: Frontier, files: dict[str, str]) -> None:
    head = f"{curve.profile.name}: {counted(curve.profile.devices, 'device')}"
    head += f", {counted(curve.microbatches, 'microbatch', 'microbatches')}"
    out.print(Text("Best time by memory limit", "bold"), "on", Text(head))
    out.print()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for name in HEADS:
        table.add_column(name, justify="left" if name == "× published" else "right", no_wrap=True)
    for point in curve.points:
        table.add_row(*_cells(point))
    out.print(table)
    if curve.interrupted:
        total = len(set(arguments.limits))
        text = f"interrupted: {len(curve.points)} of {total} limits"
        kept = "" if arguments.no_cache else "; the same command goes on from there"
        out.print(Text(f"{text}{kept}", "yellow"))
    if any(point.result is None for point in curve.points):
        least = curve.least_limit_bytes
        chunks = counted(curve.profile.chunks, "chunk")
        text = (
            f"✗: with {chunks} per device no schedule exists below {format_size(least)} ({least}B)"
        )
        out.print(Text(text, "dim"))
    show.written(out, files)
    path, m = shlex.quote(arguments.profile), arguments.microbatches
    shape = f" --chunks {arguments.chunks}" if arguments.chunks else ""
    shape += f" --placement {arguments.placement}" if arguments.placement else ""
    chosen = next((point for point in curve.points if point.result is not None), None)
    if chosen is not None:
        limit = show.size_text(chosen.limit_bytes)
        line = f"optpipe-sim solve {path} -m {m} --memory-limit {limit}{shape} --save best.json"
        show.hint(out, line, code=True)
    if not arguments.chart:
        show.hint(out, "draw it with --chart frontier.png")


def _cells(point: Point) -> list[Text]:
    limit = Text(format_size(point.limit_bytes))
    result = point.result
    if result is None or result.trace is None:
        why = "infeasible" if point.status == "infeasible" else "none found"
        return [limit, Text("✗", "red"), *(Text() for _ in HEADS[3:]), Text(why, "dim")]
    trace = result.trace
    flush = trace.objective == "flush"
    share = trace.offloaded / (trace.schedule.shape.stages * trace.schedule.shape.microbatches)
    fixed = Text("none fits", "dim")
    if point.fixed is not None:
        name, cost = point.fixed
        fixed = Text(f"{cost / trace.cost_ns:.3f} {name}")
    optimal = result.status == "optimal"
    return [
        limit,
        Text(format_time(trace.cost_ns), "bold"),
        Text(f"{trace.bubble_rate_flush if flush else trace.bubble_rate:.1%}"),
        Text(format_time(result.lower_bound_ns)),
        Text("optimal", "green") if optimal else Text(f"{result.gap:.2%}"),
        Text(f"{share:.0%}"),
        fixed,
    ]
