"""Options that ``solve`` and ``frontier`` have in common; light, as `parser` is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ...solvers.options import ENGINES, KINDS, SolveOptions
from .kinds import MOST_PROCESSES, chunks, count_to, seconds, share, slices, yes_or_no
from .shared import add_objective, add_per_stage, add_seed, add_treatments


def add_search(parser: ArgumentParser, usual: float, what: str) -> None:
    """Add the options of a search."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="auto (every engine that helps, in parallel; default), the reconstructed MILP, CP-SAT, search over programs,"
        " or the AdaOffload greedy alone",
    )
    add_objective(parser)
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds,
        default=usual,
        help=f"{what}; it ends sooner if the best schedule is proven optimal (default: {usual:g})",
    )
    parser.add_argument(
        "--gap",
        metavar="SHARE",
        type=share,
        default=0.0,
        help="stop when the best schedule is proven to be within this optimality gap, as 1%% (default: 0)",
    )
    add_seed(parser)
    parser.add_argument(
        "--workers",
        metavar="N",
        type=count_to(MOST_PROCESSES),
        help="worker processes (default: one per core); auto has one more for bounds, for a"
        " quarter of the time, and at least one each to search and, if small enough, for CP-SAT",
    )
    add_treatments(parser, "default: all that the profile has; keeping is always possible")
    add_per_stage(parser, "treat all activations of a stage alike")
    parser.add_argument(
        "--pairs",
        metavar="yes|no",
        type=yes_or_no,
        help="whether a forward and a backward may run as one op (profile: pair_hidden); default: where the execution has"
        " that, or, where that is ideal, where the profile says what pairs hide",
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="neither start from cached schedules nor cache the result",
    )


def add_shape(parser: ArgumentParser, help: str, cut: bool) -> None:
    """Add the options for other chunks and placements than the profile's, and for other slices if it may be
    `cut`."""
    parser.add_argument("--chunks", metavar="V|any|profile", type=chunks, help=help)
    parser.add_argument(
        "--placement",
        choices=("loop", "vee"),
        help="placement of chunks: loop (stage s on device s mod p) or vee (two chunks, there and back);"
        " default: the profile's own, loop if a number of --chunks is given",
    )
    if cut:
        parser.add_argument(
            "--slices",
            metavar="N|any|profile",
            type=slices,
            help="slices of each sequence that pass the pipeline one after the other; 1: whole sequences;"
            " any: whole ones and the profile's own, or 2, 4 and 8 equal ones; default: the profile's",
        )


def search_options(arguments: Namespace, **changes: Any) -> SolveOptions:
    """Return the options of `solve` given on the command line; `changes` take precedence."""
    given = {name: value for name, value in vars(arguments).items() if name in KINDS}
    given = {name: value for name, value in given.items() if value is not None}
    for name in ("chunks", "slices"):
        if given.get(name) == "profile":
            given[name] = "own"
    return SolveOptions(**{**given, "cache": not arguments.no_cache, **changes})
