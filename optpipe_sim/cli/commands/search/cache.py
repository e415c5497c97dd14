"""``cache``: solved schedules cached on disk."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ....units import format_size
from ...status import DONE

if TYPE_CHECKING:
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim cache --info"
SUMMARY = "list the solved schedules cached on disk, or delete them"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `cache`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--info", action="store_true", help="how many and how large (default)")
    group.add_argument("--clear", action="store_true", help="delete all of them")


def run(arguments: argparse.Namespace, out: Out) -> int:
    """List the schedules on disk, or delete them."""
    from ....solvers.race.cache import open_cache

    cache = open_cache()
    forgotten = cache.clear() if arguments.clear else None
    info = cache.info()
    out.result({**info, "forgotten": forgotten})
    if forgotten is not None:
        out.print(f"forgot {forgotten} solved problems in {info['folder']}")
    else:
        size, most = format_size(info["bytes"]), format_size(info["most_bytes"])
        out.print(f"{info['problems']} solved problems, {size} of {most}, in {info['folder']}")
        out.next("cache --clear", code=True)
    return DONE
