"""``frontier``: the best schedule and its bound over a range of memory limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ....errors import OptPipeError
from ....units import format_size, format_time, parse_size
from ...options.kinds import names, sizes
from ...options.shared import (
    add_family,
    add_microbatches,
    add_outputs,
    add_profile,
    page_of,
)
from ...options.solving import add_search, search_options
from ...outputs.files import rewritable
from ...outputs.write import write_figure, write_page, write_rows
from ...status import DONE, NO
from ..examples import OFFLOADING

if TYPE_CHECKING:
    from ....profile import CostProfile
    from ....schedule import Schedule
    from ....solvers.frontier import Frontier, Point
    from ....solvers.options import SolveOptions
    from ....trace import Trace
    from ...outputs.show import Out, Progress

EXAMPLE = f"optpipe-sim frontier {OFFLOADING} -m 48 --limits 8GiB:48GiB:8GiB --chart f.png"
SUMMARY = "the best schedule and its bound over a range of memory limits"
COLUMNS = (
    "memory_limit_bytes",
    "status",
    "chunks",
    "iteration_ns",
    "objective_ns",
    "lower_bound_ns",
    "gap",
    "bubble_rate",
    "offloaded",
    "fixed",
    "fixed_iteration_ns",
    "fixed_cost_ns",
    "family",
    "family_iteration_ns",
    "family_cost_ns",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `frontier`."""
    add_profile(parser)
    add_microbatches(parser, required=True)
    parser.add_argument(
        "--limits",
        metavar="FROM:TO:STEP",
        required=True,
        type=sizes,
        help="memory limits per device, as 10GiB:80GiB:10GiB or 10GiB,20GiB,40GiB",
    )
    chunks = (
        "chunks per device: a number, any, or the profile's; default: any. Any: under each limit all numbers up to one"
        " layer per stage, and two in a V; the profile's is the default with --placement, --engine milp or cpsat"
    )
    time = "seconds for each limit; it ends sooner if the best schedule is proven optimal (10)"
    add_search(parser, time_limit=time, chunks=chunks)
    parser.set_defaults(time_limit=10.0)
    parser.add_argument(
        "--schedules",
        metavar="A,B,C",
        type=names,
        help="published schedules to compare with; default: all of them",
    )
    add_family(
        parser,
        "under each limit also the best that this framework can run with the profile's chunks, or those of --chunks"
        " (torchtitan: searched for in half of the time)",
    )
    add_outputs(
        parser,
        ("chart gantt", "F.png", "draw the curve and its bound"),
        page_of("the curve, and the lanes of each of its schedules"),
        ("csv", "F.csv", "write the points; whole after each of them"),
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Solve under each limit; what is finished is kept and shown on Ctrl-C."""
    from ....solvers.frontier import frontier
    from ...inputs import named, read_profile
    from ...outputs.frontier import show_frontier

    profile = read_profile(arguments)
    done: list[Point] = []
    options, family = _family(arguments)
    with out.progress("solving") as progress:
        reporter = _Reporter(arguments, profile, progress, done)
        reporter.next()
        with named(limits="--limits"):
            curve = frontier(
                profile,
                arguments.microbatches,
                arguments.limits,
                **vars(options),
                schedules=arguments.schedules,
                family=family,
                on_point=reporter.point,
                on_incumbent=reporter.incumbent,
                on_wait=out.compiling,
            )
    files: dict[str, str] = {}
    try:
        _write(arguments, out, curve, files)
    finally:  # the answer is given even if a file cannot be written
        out.result(
            {
                "profile": profile.name,
                "microbatches": arguments.microbatches,
                "objective": curve.objective,
                "family": arguments.family,
                "least_limit_bytes": curve.least_limit_bytes,
                "points": [point.to_json() for point in curve.points],
                "schedules": [asdict(at) for at in curve.schedules],
                "interrupted": curve.interrupted,
                "files": files,
            }
        )
        if not out.json:
            show_frontier(out, arguments, curve, files)
    return DONE if any(point.result for point in curve.points) else NO


def _family(
    arguments: argparse.Namespace,
) -> tuple[SolveOptions, Callable[[CostProfile], tuple[str, Trace] | None] | None]:
    """Return the options of the search, and what finds the best of ``--family``; they share the time."""
    from ....frameworks.families import FAMILIES

    options = search_options(arguments)
    if arguments.family is None:
        return options, None
    own = FAMILIES[arguments.family]
    if arguments.family == "torchtitan":
        options = replace(options, time_limit=options.time_limit / 2)
    plain = replace(options, chunks="own", placement="own", treatments=None)
    m = arguments.microbatches
    return options, lambda profile: own.best_that_fits(profile, m, plain)


def _write(arguments: argparse.Namespace, out: Out, curve: Frontier, files: dict[str, str]) -> None:
    """Write the requested files."""
    if arguments.csv:
        write_rows(arguments.csv, COLUMNS, (point.to_json() for point in curve.points))
        files[arguments.csv] = "the points"
    if any(point.result for point in curve.points):
        files |= write_figure(
            arguments.chart, lambda plot: plot.frontier_chart(curve), "time over memory"
        )
    elif arguments.chart:
        out.wait(f"{arguments.chart}: not drawn, as no limit has a schedule")
    files |= write_page(arguments, lambda page, command: page.of_frontier(curve, command))


class _Reporter:
    """Shows the current limit on stderr, and keeps the CSV complete."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        profile: CostProfile,
        progress: Progress,
        done: list[Point],
    ) -> None:
        self.arguments, self.progress, self.done = arguments, progress, done
        self.profile = profile
        self.limits = sorted(set(map(parse_size, arguments.limits)))

    def next(self, more: str = "") -> None:
        at = len(self.done)
        if at < len(self.limits):
            self.progress(f"{format_size(self.limits[at])}{more}", at, len(self.limits))

    def point(self, point: Point) -> None:
        self.done.append(point)
        if rewritable(self.arguments.csv):
            with suppress(OptPipeError):  # reported at the end
                write_rows(self.arguments.csv, COLUMNS, (point.to_json() for point in self.done))
        self.next()

    def incumbent(self, _: Schedule, cost_ns: int) -> None:
        from ....profile.iteration import iteration_ns

        self.next(f": {format_time(round(iteration_ns(self.profile, cost_ns)))}")
