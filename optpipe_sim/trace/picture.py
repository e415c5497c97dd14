"""Pictures for `Trace.plot`, and for traces and frontiers in notebooks.

The room `plot` imports both, so it is imported here by name, when a picture is drawn.
"""

from __future__ import annotations

import io
from base64 import b64encode
from importlib import import_module
from typing import Any

MOST_OPS = 30_000  # that a picture beside a table shows; `Trace.plot` draws any number
DPI = 60


def overview_of(trace: Any, start: int | str | None, end: int | str | None) -> Any:
    """Return the figure of `plot.overview`."""
    return import_module("optpipe_sim.plot.picture").overview(trace, start, end)


def picture_html(trace: Any) -> str:
    """Return the overview as a small picture in HTML; empty for a trace that is too long."""
    if len(trace.schedule) > MOST_OPS:
        return ""
    return _as_html(overview_of(trace, None, None))


def curve_html(frontier: Any) -> str:
    """Return the figure of `plot.frontier_chart` as a small picture in HTML."""
    return _as_html(import_module("optpipe_sim.plot.frontier").frontier_chart(frontier))


def _as_html(figure: Any) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI)
    return f"<img src='data:image/png;base64,{b64encode(data.getvalue()).decode()}'/>"
