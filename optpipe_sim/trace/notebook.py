"""Pictures of traces and frontiers for notebooks."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Any

from ..lazy import drawn

MOST_OPS = 30_000  # that a picture beside a table shows; `Trace.plot` draws any number
DPI = 60


def picture_html(trace: Any) -> str:
    """Return the overview as a small picture in HTML; empty for a trace that is too long."""
    if len(trace.schedule) > MOST_OPS:
        return ""
    return _as_html(drawn("overview", trace, None, None))


def curve_html(frontier: Any) -> str:
    """Return the figure of `plot.frontier_chart` as a small picture in HTML."""
    return _as_html(drawn("frontier_chart", frontier))


def _as_html(figure: Any) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI)
    return f"<img src='data:image/png;base64,{b64encode(data.getvalue()).decode()}'/>"
