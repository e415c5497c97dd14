"""The options of what searches: ``solve``, ``frontier``, ``cache``; light, as `parser` is."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable

from .kinds import chunks, count, names, noise, seconds, share, sizes, whole
from .options import add_limit, add_microbatches, add_objective, add_pictures, add_profile


def add_solve(parser: ArgumentParser) -> None:
    add_profile(parser)
    add_microbatches(parser, required=True)
    add_limit(parser)
    _search(parser, 60.0, "in all")
    parser.add_argument(
        "--solver",
        metavar="NAME",
        default="highs",
        help="for --engine milp: highs (default), gurobi, or another MILP solver that Pyomo knows",
    )
    parser.add_argument(
        "--write-model",
        metavar="F.mps",
        help="write OptPipe's MILP of this problem, whatever the engine (.lp or .mps)",
    )
    parser.add_argument(
        "--force", action="store_true", help="state that MILP even where it is very large"
    )
    parser.add_argument(
        "--evaluations",
        metavar="N",
        type=count,
        help="for --engine search: stop after so many schedules and not by the clock, so that a seed"
        " always gives the same",
    )
    parser.add_argument(
        "--warm-start",
        metavar="FILE|none",
        help="a schedule file to start from; none: engines start from nothing (default: the best"
        " of AdaOffload, the published schedules and the cache)",
    )
    parser.add_argument(
        "--noise",
        metavar="SHARES",
        type=noise,
        help="durations scatter by so much: 10%%, or each of op, copy, device, comm, straggler as in"
        " op=5%%,copy=20%%; finds the schedule with the least mean time over samples",
    )
    parser.add_argument(
        "--quantile",
        metavar="Q",
        type=share,
        help="with --noise: the least quantile instead, as 90%%",
    )
    parser.add_argument(
        "--samples", metavar="N", type=count, help="with --noise: of durations (default: 400)"
    )
    _shape(
        parser,
        chunks,
        "chunks per device; any: several numbers of chunks and placements, never worse than"
        " the best published schedule; default: the profile's own",
    )
    add_pictures(parser, "the")
    parser.add_argument(
        "--save", metavar="S.json", help="a file that always holds the best schedule so far"
    )
    parser.add_argument(
        "--log", metavar="F.csv", help="write objective and bound over time, at each improvement"
    )


def add_frontier(parser: ArgumentParser) -> None:
    add_profile(parser)
    add_microbatches(parser, required=True)
    parser.add_argument(
        "--limits",
        metavar="FROM:TO:STEP",
        required=True,
        type=sizes,
        help="memory limits per device, as 10GiB:80GiB:10GiB or 10GiB,20GiB,40GiB",
    )
    _search(parser, 10.0, "for each limit")
    parser.add_argument(
        "--schedules",
        metavar="A,B,C",
        type=names,
        help="published schedules to compare with; default: all of them",
    )
    _shape(parser, count, "chunks per device; default: the profile's own")
    parser.add_argument("--chart", "--gantt", metavar="F.png", help="draw the curve and its bound")
    parser.add_argument("--csv", metavar="F.csv", help="write the points; whole after each of them")


def _search(parser: ArgumentParser, usual: float, what: str) -> None:
    """The options of whatever searches."""
    parser.add_argument(
        "--engine",
        choices=("auto", "milp", "cpsat", "search", "adaoffload"),
        default="auto",
        help="auto (all that help, at once; default), OptPipe's MILP, CP-SAT, search over programs,"
        " or the AdaOffload greedy alone",
    )
    add_objective(parser)
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds,
        default=usual,
        help=f"{what}; it ends sooner where the best is proven (default: {usual:g})",
    )
    parser.add_argument(
        "--gap",
        metavar="SHARE",
        type=share,
        default=0.0,
        help="end where the best is proven to be this close to the best possible, as 1%% (default: 0)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=whole, default=0, help="of random choices (default: 0)"
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=count,
        help="processes at work (default: the cores there are); auto has one more for bounds, for a"
        " quarter of the time, and at least one each to search and, if small enough, for CP-SAT",
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="neither start from solved schedules kept on disk nor keep what is found",
    )


def _shape(parser: ArgumentParser, kind: Callable[[str], object], help: str) -> None:
    """The options for other chunks and placements than the profile's."""
    metavar = "V|any" if kind is chunks else "V"
    parser.add_argument("--chunks", metavar=metavar, type=kind, help=help)
    parser.add_argument(
        "--placement",
        choices=("loop", "vee"),
        help="where chunks lie: loop (stage s on device s mod p) or vee (two chunks, there and back);"
        " default: the profile's own, loop where --chunks is given",
    )


def add_cache(parser: ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--info", action="store_true", help="how many and how large (default)")
    group.add_argument("--clear", action="store_true", help="forget all of them")
