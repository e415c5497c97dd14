"""Pieces of HTML; every text goes through `escape`, so that a hostile name is shown as a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from ..units import format_time


class Cell(NamedTuple):
    """A cell of a table: what it shows, the number it sorts by, and whether it is prose.

    `run`: a callback (see `actions`) that a click runs, and what it is given. `view`: the view that a click
    opens.
    """

    text: str
    value: float | None = None
    prose: bool = False
    run: tuple[str, int] | None = None
    view: int = 0

    def html(self) -> str:
        shown = escape(self.text)
        if self.run is not None:
            callback, at = self.run
            shown = f"<button data-run='{escape(callback)}' data-at='{at}'>{shown}</button>"
        if self.view:
            shown = f"<a href='#view-{self.view}'>{shown}</a>"
        value = "" if self.value is None else f" data-value='{self.value!r}'"
        kind = " class='text long'" if self.prose else " class='text'" if self.value is None else ""
        return f"<td{kind}{value}>{shown}</td>"


def time_cell(time_ns: float) -> Cell:
    """Return a duration."""
    return Cell(format_time(time_ns) if time_ns else "0", time_ns)


def share_cell(share: float, digits: int = 2) -> Cell:
    """Return a share, in per cent."""
    return Cell(f"{share:.{digits}%}", share)


def table(name: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table that is sorted by a click on a head; `name` is its id."""
    body = list(rows)
    prose = [body[0][at].value is None if body else False for at in range(len(heads))]
    head = "".join(
        f"<th{' class=text' if left else ''}><button>{escape(text)}</button></th>"
        for text, left in zip(heads, prose, strict=True)
    )
    lines = "\n".join(f"<tr>{''.join(cell.html() for cell in row)}</tr>" for row in body)
    return (
        f"<div class='scroll'><table id='{escape(name)}'><thead><tr>{head}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def tiles(numbers: Iterable[tuple[str, str, str, object]]) -> str:
    """Numbers side by side: each a key (of ``simulate --json``), what it is called, its text, and
    the exact value."""
    return "<div class='tiles'>{}</div>".format(
        "".join(
            f"<div class='tile' data-key='{escape(key)}' data-value='{escape(str(value))}'>"
            f"<b>{escape(text)}</b><span>{escape(name)}</span></div>"
            for key, name, text, value in numbers
        )
    )


def switch(
    name: str, text: str, links: Iterable[tuple[str, str, Any, Any]], on: bool = False
) -> str:
    """Return a switch that sets properties of Bokeh's models: each the name of a model, the property,
    and what it is while the switch is off and on."""
    data = escape(json.dumps(list(links), separators=(",", ":")))
    box = f"<input type='checkbox' id='{escape(name)}' data-set='{data}' autocomplete='off'{' checked' * on}>"
    return f"<label class='switch'>{box} {escape(text)}</label>"


def folded(title: str, content: str) -> str:
    """Return HTML that a click unfolds."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def items(texts: Iterable[str]) -> str:
    """Return a list of sentences."""
    return "<ul>{}</ul>".format("".join(f"<li>{escape(text)}</li>" for text in texts))
