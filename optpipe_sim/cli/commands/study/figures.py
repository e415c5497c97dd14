"""``figures``: draw the figures of experiments again, from their results alone."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...status import DONE

if TYPE_CHECKING:
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim figures zb_tables --format pdf,png"
SUMMARY = "draw the figures of experiments, yours included, from their results"
FORMATS = ("pdf", "svg", "png")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `figures`."""
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="experiments, or their folders; default: every one with results and a figure",
    )
    parser.add_argument(
        "--from",
        dest="results",
        metavar="DIR",
        default="results",
        help="where the results are (default: results)",
    )
    parser.add_argument(
        "--to", metavar="DIR", help="where figures go (default: beside the results)"
    )
    parser.add_argument(
        "--format",
        metavar="A,B",
        type=_formats,
        default=FORMATS,
        help=f"of {', '.join(FORMATS)} (default: all)",
    )


def _formats(text: str) -> tuple[str, ...]:
    chosen = tuple(filter(None, (part.strip() for part in text.split(","))))
    for one in chosen or (text,):
        if one not in FORMATS:
            raise argparse.ArgumentTypeError(f"{one!r} is none of {', '.join(FORMATS)}")
    return chosen


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Draw, write, and name the files."""
    from ....study.figures import save_figures

    paths = save_figures(
        arguments.names, arguments.results, arguments.to or arguments.results, arguments.format
    )
    out.result({"files": [str(path) for path in paths]})
    for path in paths:
        out.text(str(path))
    return DONE
