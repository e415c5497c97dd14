"""What ``models`` and ``machines`` have in common: a search among what goes by name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...status import DONE, NO

if TYPE_CHECKING:
    from rich.table import Table

    from ...outputs.show import Out

One = TypeVar("One")


def add_listing(parser: argparse.ArgumentParser, searched: str, sourced: str) -> None:
    """``TEXT ...``, which searches in what is `searched`, and ``--sources``, for what is `sourced`."""
    parser.add_argument(
        "search", metavar="TEXT", nargs="*", help=f"only those whose {searched} has all of these"
    )
    parser.add_argument("--sources", action="store_true", help=f"say where {sourced} is from")


def print_template(out: Out, kind: str) -> int:
    """A commented file of that kind, which loads as it is."""
    from ....costs.templates import template

    text = template(kind)
    out.result({"template": text})
    if not out.json:
        print(text, end="")
    return DONE


def having(words: Sequence[str], every: Iterable[One], text: Callable[[One], str]) -> list[One]:
    """Those whose text has all words, in upper or lower case."""
    wanted = [word.lower() for word in words]
    return [one for one in every if all(word in text(one).lower() for word in wanted)]


def show_listing(
    out: Out, arguments: argparse.Namespace, kind: str, found: Sequence[Any], table: Table
) -> int:
    """The table, or that no such model or machine has what is searched for; the exit status."""
    if found:
        out.print(table)
    else:
        out.print(f"no {kind} has {' and '.join(arguments.search)}; all: optpipe-sim {kind}s")
    return DONE if found else NO
