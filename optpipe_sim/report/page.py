"""The page around the figures: one HTML file with everything in it, so that it works offline."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from bokeh.document import Document
from bokeh.resources import Resources

from .markup import folded

# What names may have and no page should: control characters, signs that turn the order of others around, and
# halves of characters (bytes of a file's name that are not UTF-8), which cannot be written.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class View:
    """A part of the page with figures of its own.

    Attributes:
        html: what stands around the figures, which go to their slots (see `slot`).
        figures: Bokeh's models. `heading`: of a view that opens and closes; others are always open.
    """

    html: str
    figures: tuple[Any, ...]
    heading: str = ""


@dataclass(frozen=True)
class Provenance:
    """What the page was made from and by: shown on every page."""

    settings: dict[str, Any]
    versions: dict[str, str | None]
    command: Sequence[str] = field(default=())


def write_page(title: str, views: Sequence[View], opened: int, provenance: Provenance) -> str:
    """Return the HTML of a page.

    Args:
        opened: how many of the views are open from the start; the others are drawn once they are.
    """
    sections = "\n".join(_section(view, at, at < opened) for at, view in enumerate(views))
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><label><input type="checkbox" id="other-colours"> light / dark</label></header>
<main>
{sections}
</main>
{_provenance(provenance)}
<script type="application/gzip" class="data">{_bokeh()}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode-escape").decode(), page)


def _section(view: View, at: int, opened: bool) -> str:
    # the link's aim is within what opens: to go there opens it
    content = (
        f"<div class='content' id='view-{at}'>{_with_figures(view)}</div>"
        f"<script type='application/gzip' class='data'>{_packed(view)}</script>"
    )
    if not view.heading:
        return f"<section class='view'>{content}</section>"
    head = f"<summary><h2>{escape(view.heading)}</h2></summary>"
    return f"<details class='view'{' open' * opened}>{head}{content}</details>"


def _with_figures(view: View) -> str:
    html = view.html
    for place, figure in enumerate(view.figures):
        html = html.replace(slot(place), f"<div class='lanes' id='{escape(figure.name)}'></div>")
    return html


def slot(place: int) -> str:
    """Return the placeholder of a figure in a view's HTML; no escaped text of a user can look like it."""
    return f"<figure-{place}>"


def _provenance(provenance: Provenance) -> str:
    found = []
    if provenance.command:
        found.append(f"command: {shlex.join(provenance.command)}")
    found.append(
        "made by: "
        + ", ".join(f"{name} {version}" for name, version in provenance.versions.items() if version)
    )
    settings = json.dumps(provenance.settings, indent=1, ensure_ascii=False)
    return folded(
        "Settings and provenance",
        f"<pre id='provenance'>{escape(chr(10).join([*found, settings]))}</pre>",
    )


def _packed(view: View) -> str:
    """Return the figures of a view, one document of Bokeh's, as compressed JSON: most of it is texts that repeat."""
    document = Document()
    with document.models.freeze():  # else each root looks for all models of those before it, too
        for figure in view.figures:
            document.add_root(figure)
    names = {figure.id: figure.name for figure in view.figures}
    items = [{"docid": "view", "roots": names, "root_ids": list(names)}]
    data = {"view": document.to_json(deferred=False)}
    text = json.dumps([data, items], separators=(",", ":"), allow_nan=False)
    return _zipped(text)


def _zipped(text: str) -> str:
    return b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


@cache
def _bokeh() -> str:
    """Return Bokeh's own code, compressed, with its log level set without an announcement."""
    found: list[str] = Resources(mode="inline", components=["bokeh"], minified=True).js_raw
    code = [part for part in found if not part.startswith("Bokeh.set_log_level")]
    return _zipped("\n".join([*code, "Bokeh.logger.set_level('warn')"]))
