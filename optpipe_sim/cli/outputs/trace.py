"""The files that commands write of one trace."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...trace import Trace
    from .show import Progress


def write_trace(
    arguments: argparse.Namespace, trace: Trace, progress: Progress | None = None
) -> dict[str, str]:
    """The files asked for of one trace, each with what it holds."""
    files: dict[str, str] = {}
    if arguments.save:
        trace.schedule.save(arguments.save)
        files[arguments.save] = "the schedule"
    if arguments.gantt:
        from ...plot.overview import save_overview

        if progress:
            progress("drawing the Gantt chart", 1, 1)
        start, end = arguments.window_from, arguments.window_to
        save_overview(trace, arguments.gantt, start, end)
        part = f"from {start or 0} to {end or 'the end'}, " if start or end else ""
        files[arguments.gantt] = f"{part}Gantt chart and memory curves"
    if arguments.trace:
        from ...frameworks.chrome_trace import save_chrome_trace

        if progress:
            progress("writing the trace", 1, 1)
        save_chrome_trace(trace, arguments.trace)
        files[arguments.trace] = "trace; open it at https://ui.perfetto.dev"
    return files
