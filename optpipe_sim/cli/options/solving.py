"""The options of `solve` on the command line; light, as `parser` is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ...solvers.options import KINDS, SolveOptions
from .fields import add_fields
from .kinds import (
    MOST_PROCESSES,
    count_or_any,
    count_to,
    margin,
    seconds,
    share,
    treatments,
    whole,
    yes_or_no,
)
from .shared import add_execution, add_flags

# how the options of `solve` are typed, where the command line has them otherwise than Python
_TYPED: dict[str, dict[str, Any]] = {
    "time_limit": {"type": seconds},
    "gap": {"type": share},
    "seed": {"type": whole},
    "workers": {"type": count_to(MOST_PROCESSES)},
    "treatments": {"type": treatments},
    "pairs": {"type": yes_or_no},
    "margin": {"type": margin},
    "chunks": {"type": count_or_any, "metavar": "V|any|profile"},
    "placement": {"default": None, "choices": ("loop", "vee")},
    "slices": {"type": count_or_any, "default": None, "metavar": "N|any|profile"},
}
_OF_ALL = [
    *("engine", "objective", "time_limit", "gap", "seed", "workers"),
    *("treatments", "per_stage", "pairs", "chunks", "placement"),
]


def add_of_solve(parser: ArgumentParser, *names: str, **helps: str) -> None:
    """Add options of `SolveOptions`; `helps`: what some of them mean in this command."""
    for name in names:
        changes = {**_TYPED.get(name, {}), **({"help": helps[name]} if name in helps else {})}
        add_fields(parser, SolveOptions, name, group="", **{name: changes})


def add_search(parser: ArgumentParser, *more: str, **helps: str) -> None:
    """Add the options of a search, those of every one and `more`."""
    add_execution(parser)
    add_of_solve(parser, *_OF_ALL, *more, **helps)
    add_flags(parser, ("no-cache", "neither start from cached schedules nor cache the result"))


def add_objective(parser: ArgumentParser) -> None:
    """Add ``--execution`` and ``--objective``."""
    add_execution(parser)
    add_of_solve(parser, "objective")


def search_options(arguments: Namespace, **changes: Any) -> SolveOptions:
    """Return the options of `solve` given on the command line; `changes` take precedence."""
    given = {name: value for name, value in vars(arguments).items() if name in KINDS}
    given = {name: value for name, value in given.items() if value is not None}
    for name in ("chunks", "slices"):
        if given.get(name) == "profile":
            given[name] = "own"
    return SolveOptions(**{**given, "cache": not arguments.no_cache, **changes})
