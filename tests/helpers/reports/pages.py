"""Reports as a browser would read them, and what they are made of in tests."""

from __future__ import annotations

import gzip
from base64 import b64decode
from html.parser import HTMLParser
from typing import Any

from optpipe_sim import Trace, build, simulate
from optpipe_sim.profile import CostProfile

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"
LEVELS: dict[str, Any] = {
    "name": "levels",
    "devices": 4,
    "stages": {
        "t_f_ms": 10, "t_b_ms": 11, "t_w_ms": 8, "act_mib": 1000, "w_mib": 400, "static_mib": 2000,
        "recompute": [
            {"name": "selective", "t_ms": 2, "keep_mib": 600},
            {"name": "full", "t_ms": 10, "keep_mib": 50},
        ],
    },
    "t_comm_ms": 0.6,
    "offload": {"d2h_gb_per_s": 21, "h2d_gb_per_s": 21},
    "memory_limit_gib": 7,
}  # fmt: skip


def replayed(name: str, profile: CostProfile, microbatches: int) -> Trace:
    return simulate(build(name, profile, microbatches), profile)


class Page(HTMLParser):
    """What a browser would make of a page: its elements, the rows of its tables by id, and what is packed
    for the figures of each view."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.tiles: dict[str, str | None] = {}
        self.text = ""
        self.figures: list[str] = []
        self._table = self._cell = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "table":
            self._table = self.tables.setdefault(found["id"], [])
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag == "td":
            self._table[-1].append(["", found.get("data-value")])
            self._cell = self._table[-1][-1]
        elif "data-key" in found:
            self.tiles[found["data-key"]] = found["data-value"]

    def handle_endtag(self, tag: str) -> None:
        self._cell = None if tag == "td" else self._cell
        self._table = None if tag == "table" else self._table

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == [("script", {"type": "application/gzip", "class": "data"})]:
            unpacked = gzip.decompress(b64decode(data)).decode()
            if unpacked.startswith(
                '[{"view":'
            ):  # else it is Bokeh's own code, or a line between elements
                self.figures.append(unpacked)
            return
        self.text += data
        if self._cell is not None:
            self._cell[0] += data

    def rows(self, name: str) -> list[list[tuple[str, str | None]]]:
        """The rows of a table's body."""
        return [row for row in self.tables[name] if row]
