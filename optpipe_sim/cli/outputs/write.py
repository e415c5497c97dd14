"""The files that several commands write: of a trace, pages, profiles, tables."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...files import write_text

if TYPE_CHECKING:
    from ...profile import CostProfile
    from ...report.report import Report
    from ...trace import Trace
    from .show import Progress


def write_trace(
    arguments: argparse.Namespace, trace: Trace, progress: Progress | None = None
) -> dict[str, str]:
    """Write the requested files of a trace; return each with its content in words."""
    files: dict[str, str] = {}
    if arguments.save:
        trace.schedule.save(arguments.save)
        files[arguments.save] = "the schedule"
    if arguments.gantt:
        if progress:
            progress("drawing the Gantt chart", 1, 1)
        start, end = arguments.window_from, arguments.window_to
        part = f"from {start or 0} to {end or 'the end'}, " if start or end else ""
        what = f"{part}Gantt chart and memory curves"
        files |= write_figure(arguments.gantt, lambda plot: plot.overview(trace, start, end), what)
    if arguments.trace:
        from ...frameworks.chrome_trace import save_chrome_trace

        if progress:
            progress("writing the trace", 1, 1)
        save_chrome_trace(trace, arguments.trace)
        files[arguments.trace] = "trace; open it at https://ui.perfetto.dev"
    return files


def write_figure(path: str | None, draw: Callable[[Any], Any], what: str) -> dict[str, str]:
    """Write a figure if it is requested; `what` it is, in words.

    Args:
        draw: draws it, given the package `plot`, which is loaded for it.
    """
    if not path:
        return {}
    from ... import plot
    from ...plot.style import save

    save(draw(plot), path)
    return {path: what}


def write_page(
    arguments: argparse.Namespace, make: Callable[[type[Report], tuple[str, ...]], Report]
) -> dict[str, str]:
    """Write the page if it is requested.

    Args:
        make: makes the page, given `Report` and the command line, which the page shows.
    """
    if not arguments.report:
        return {}
    from ...report.report import Report

    make(Report, ("optpipe-sim", *arguments.words)).save(arguments.report)
    return {arguments.report: "the page; open it in a browser"}


def write_trace_page(arguments: argparse.Namespace, trace: Trace) -> dict[str, str]:
    """Write the page of a trace if it is requested."""
    return write_page(arguments, lambda page, command: page.of(trace, command=command))


def write_rows(path: str, heads: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write a CSV with a column per head; what a row does not have, or is None, is an empty cell."""
    text = io.StringIO()
    table = csv.DictWriter(text, heads, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


def write_profile(
    arguments: argparse.Namespace, profile: CostProfile, what: str, option: str = "save_profile"
) -> dict[str, str]:
    """Write a profile if it is requested; `what` it is, in words."""
    path = getattr(arguments, option)
    if not path:
        return {}
    from ...profile_io import save_profile

    save_profile(profile, path)
    return {path: what}
