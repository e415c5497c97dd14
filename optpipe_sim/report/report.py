"""Report: a trace, or two of them side by side, as a page that explains itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..costs.advise.rows import Advice
from ..errors import OptPipeError
from ..files import write_text
from ..profile_io import profile_to_json
from ..solvers.frontier import Frontier
from ..study.compare import Comparison
from ..study.versions import versions
from ..trace import Trace
from .choices import advice_views, comparison_views, frontier_views
from .page import Provenance, View, write_page
from .views import pair_view, titles_of, trace_view

PACKAGES = ("numpy", "numba", "bokeh")
ENDINGS = (".html", ".htm")
FRAME_PIXELS = 760  # of height, in a notebook


@dataclass(frozen=True)
class Report:
    """A page of HTML that needs nothing else: it opens from a disk, a mail or a wiki.

    `Report.of` makes one; it shows itself in a notebook.

    Attributes:
        title: of the page. `html`: all of it.
    """

    title: str
    html: str

    @classmethod
    def of(cls, trace: Trace, against: Trace | None = None, command: Sequence[str] = ()) -> Report:
        """Return the page of one trace, or of two, one above the other.

        Args:
            against: another schedule's trace, or a measured one (``Trace.load``).
            command: the command line that asked for the page, to be shown on it.
        """
        if against is None:
            title, view, traces = trace.schedule.name, trace_view(trace, "a"), [trace]
        else:
            view, traces = pair_view(trace, against), [trace, against]
            title = " against ".join(titles_of(trace, against))
        return cls(title, write_page(title, [view], 1, provenance(traces, command)))

    @classmethod
    def of_comparison(cls, found: Comparison, command: Sequence[str] = ()) -> Report:
        """Return the page of `compare_all`: every schedule, of which a click opens the lanes."""
        traces = [row.trace for row in found.rows]
        title = f"{len(traces)} schedules on {traces[0].profile.name}"
        return cls._of_many(title, comparison_views(found), traces, command)

    @classmethod
    def of_frontier(cls, found: Frontier, command: Sequence[str] = ()) -> Report:
        """Return the page of a frontier: time over memory, and the schedule of each limit."""
        results = [point.result for point in found.points if point.result]
        traces = [result.trace for result in results if result.trace]
        title = f"time over memory: {found.profile.name}, {found.microbatches} microbatches"
        return cls._of_many(title, frontier_views(found), traces, command)

    @classmethod
    def of_advice(cls, found: Advice, command: Sequence[str] = ()) -> Report:
        """Return the page of `advise`: time over memory of what was replayed, and the best of each split."""
        asked = found.question
        title = (
            f"{asked.model.name} on {asked.gpus} x {asked.machine.title}: {asked.global_batch}"
            f" sequences of {asked.seq} tokens"
        )
        traces = [row.trace for row in found.rows]
        return cls._of_many(title, advice_views(found), traces, command)

    @classmethod
    def _of_many(
        cls, title: str, views: list[View], traces: Sequence[Trace], command: Sequence[str]
    ) -> Report:
        """Make the page; the chart and the best schedule are open, a click opens the others."""
        return cls(title, write_page(title, views, min(2, len(views)), provenance(traces, command)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a .html file, whole or not at all.

        Raises:
            OptPipeError: for another ending, or a path that cannot be written.
        """
        check_ending(path)
        return write_text(path, self.html)

    def __repr__(self) -> str:
        return f"<Report: {self.title if self.title.isprintable() else '...'}>"

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for notebooks; its links lead to places in it."""
        page = self.html.replace("<head>", "<head>\n<base href='about:srcdoc'>", 1)
        return (
            f"<iframe srcdoc=\"{escape(page)}\" style='width:100%;height:{FRAME_PIXELS}px;border:0'"
            " title='report'></iframe>"
        )


def check_ending(path: str | os.PathLike[str]) -> None:
    """Refuse a name that is not one of a page.

    Raises:
        OptPipeError: says what it should end in.
    """
    if Path(path).suffix.lower() not in ENDINGS:
        raise OptPipeError(f"{path}: the name of a report must end in {', '.join(ENDINGS)}")


def provenance(traces: Sequence[Trace], command: Sequence[str]) -> Provenance:
    """Settings of traces, and who made them."""
    profiles: list[dict[str, Any]] = []
    replayed: list[dict[str, Any]] = []
    for trace in traces:
        costs = profile_to_json(trace.profile)
        if costs not in profiles:
            profiles.append(costs)
        replayed.append(
            {
                "schedule": trace.schedule.name,
                "made": {key: value for key, value in trace.schedule.meta.items() if key != "name"},
                "objective": trace.objective,
                "memory_limit_bytes": trace.memory_limit and list(trace.memory_limit),
                "profile": profiles.index(costs),
            }
        )
    return Provenance({"replayed": replayed, "profiles": profiles}, versions(PACKAGES), command)
