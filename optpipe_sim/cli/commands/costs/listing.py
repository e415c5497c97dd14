"""The common part of ``models`` and ``machines``: a search in the named entries."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ...status import DONE, NO

if TYPE_CHECKING:
    from rich.table import Table

    from ...outputs.show import Out

One = TypeVar("One")


def add_listing(parser: argparse.ArgumentParser, searched: str, sourced: str) -> None:
    """Add ``TEXT ...``, a search in `searched`, and ``--sources`` for `sourced`."""
    parser.add_argument(
        "search", metavar="TEXT", nargs="*", help=f"only those whose {searched} has all of these"
    )
    parser.add_argument("--sources", action="store_true", help=f"say where {sourced} is from")


def print_template(out: Out, kind: str) -> int:
    """Print a commented file of a kind; it can be loaded unchanged."""
    from ....costs.machine_files import template

    text = template(kind)
    out.result({"template": text})
    if not out.json:
        print(text, end="")
    return DONE


def having(words: Sequence[str], every: Iterable[One], text: Callable[[One], str]) -> list[One]:
    """Return the entries whose text contains all words, ignoring case."""
    wanted = [word.lower() for word in words]
    return [one for one in every if all(word in text(one).lower() for word in wanted)]


def show_listing(out: Out, arguments: argparse.Namespace, kind: str, table: Table) -> int:
    """Print the table, or that nothing matches the search; returns the exit status."""
    if table.rows:
        out.print(table)
    else:
        out.print(f"no {kind} has {' and '.join(arguments.search)}; all: optpipe-sim {kind}s")
    return DONE if table.rows else NO
