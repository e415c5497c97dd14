"""What the command line understands; light, so that ``--help`` and mistakes answer at once."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from .. import __version__
from . import advise, confirm, estimate, figures, profile, sweep, train
from .kinds import chunks, count, names, noise, seconds, share, size, sizes, whole

PROFILE = "experiments/profiles/zb-1.5b-p8-m24.yaml"
OFFLOADING = "experiments/profiles/zb-14.6b-p16-m48-offload.yaml"
EXAMPLES = {
    "simulate": f"optpipe-sim simulate {PROFILE} --schedule zb-h1 -m 24 --gantt gantt.png",
    "compare": f"optpipe-sim compare {PROFILE} -m 24 --memory-limit 40GiB",
    "solve": f"optpipe-sim solve {OFFLOADING} -m 48 --memory-limit 24GiB --save best.json",
    "frontier": f"optpipe-sim frontier {OFFLOADING} -m 48 --limits 8GiB:48GiB:8GiB --chart f.png",
    "check": f"optpipe-sim check best.json {PROFILE} --memory-limit 40GiB",
    "explain": f"optpipe-sim explain best.json {PROFILE} --op F3.7",
    "estimate": estimate.EXAMPLE,
    "advise": advise.EXAMPLE,
    "profile": profile.EXAMPLE,
    "confirm": confirm.EXAMPLE,
    "train": train.EXAMPLE,
    "sweep": sweep.EXAMPLE,
    "figures": figures.EXAMPLE,
    "export": f"optpipe-sim export best.json {PROFILE} --format perfetto",
    "cache": "optpipe-sim cache --info",
    "versions": "optpipe-sim versions",
}


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of a command; exits with status 2 and one line where they make no sense."""
    parser, commands = _parsers()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        parser.error(f"give a command: {', '.join(commands)}")
    if words[0] in commands:
        # a misspelt option first, before what is then missing
        chosen = commands[words[0]]
        for word in words[1:]:
            if (
                word.startswith("--")
                and word.partition("=")[0] not in chosen._option_string_actions
            ):
                _refuse(chosen, word)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse(commands.get(arguments.command, parser), unknown[0])
    return arguments


def _refuse(parser: Parser, word: str) -> NoReturn:
    if not word.startswith("-"):
        parser.error(f"{word!r} is one argument too many")
    known = [name for action in parser._actions for name in action.option_strings]
    close = difflib.get_close_matches(word.partition("=")[0], known, 1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    parser.error(f"unknown option {word.partition('=')[0]}; {hint}")


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    width = max(map(len, EXAMPLES))
    parser = Parser(
        prog="optpipe-sim",
        description="Simulate, compare and check pipeline-parallel training schedules.",
        epilog="examples:\n"
        + "\n".join(f"  {name:<{width}}  {text}" for name, text in EXAMPLES.items())
        + "\n\nexit status: 0 done; 1 the answer is no (does not fit, not valid); 2 bad input",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"optpipe-sim {__version__}")
    group = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    commands: dict[str, Parser] = {}

    def command(name: str, summary: str) -> Parser:
        made: Parser = group.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example:\n  {EXAMPLES[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.add_argument(
            "--json", action="store_true", help="print one JSON object, and nothing else"
        )
        made.add_argument(
            "-q", "--quiet", action="store_true", help="only the answer: no progress, no hints"
        )
        commands[name] = made
        return made

    _simulate(command("simulate", "replay one schedule and print its times and memory"))
    _compare(command("compare", "replay many schedules and set them side by side"))
    _solve(command("solve", "search for the best schedule, and prove how good it is"))
    _frontier(command("frontier", "the best schedule and its bound over a range of memory limits"))
    _check(command("check", "check a schedule, independently of the simulator"))
    _explain(command("explain", "say why devices wait, or why one op does"))
    estimate.add_options(command("estimate", estimate.SUMMARY))
    advise.add_options(command("advise", advise.SUMMARY))
    profile.add_options(command("profile", profile.SUMMARY))
    confirm.add_options(command("confirm", confirm.SUMMARY))
    train.add_options(command("train", train.SUMMARY))
    sweep.add_options(command("sweep", sweep.SUMMARY))
    figures.add_options(command("figures", figures.SUMMARY))
    _export(command("export", "write a schedule for torch, or its trace for Perfetto"))
    _cache(command("cache", "say which solved schedules are kept on disk, or forget them"))
    command("versions", "print the versions of optpipe-sim and of what it runs on")
    return parser, commands


def _simulate(parser: Parser) -> None:
    _profile(parser)
    parser.add_argument(
        "--schedule",
        required=True,
        metavar="NAME_OR_FILE",
        help="a schedule by name, options after a colon (gis:group=6), or a schedule file (.json)",
    )
    _microbatches(parser, "needed with a name; a file says it itself")
    _limit(parser)
    _objective(parser)
    _pictures(parser, "the")
    parser.add_argument("--save", metavar="S.json", help="write the schedule")


def _compare(parser: Parser) -> None:
    _profile(parser)
    _microbatches(parser, required=True)
    _limit(parser)
    parser.add_argument(
        "--schedules",
        metavar="A,B,C",
        type=names,
        help="names (with options: gis:group=6) or files, comma between them; default: every one",
    )
    _objective(parser)
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds,
        default=10.0,
        help="for each schedule that is searched for (optpipe); the others need none (default: 10)",
    )
    _pictures(parser, "the best")
    parser.add_argument(
        "--chart", metavar="F.png", help="draw time and peak memory of every schedule"
    )
    parser.add_argument("--save", metavar="S.json", help="write the best schedule")


def _solve(parser: Parser) -> None:
    _profile(parser)
    _microbatches(parser, required=True)
    _limit(parser)
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
    _pictures(parser, "the")
    parser.add_argument(
        "--save", metavar="S.json", help="a file that always holds the best schedule so far"
    )
    parser.add_argument(
        "--log", metavar="F.csv", help="write objective and bound over time, at each improvement"
    )


def _shape(parser: Parser, kind: Callable[[str], object], help: str) -> None:
    """The options for other chunks and placements than the profile's."""
    metavar = "V|any" if kind is chunks else "V"
    parser.add_argument("--chunks", metavar=metavar, type=kind, help=help)
    parser.add_argument(
        "--placement",
        choices=("loop", "vee"),
        help="where chunks lie: loop (stage s on device s mod p) or vee (two chunks, there and back);"
        " default: the profile's own, loop where --chunks is given",
    )


def _frontier(parser: Parser) -> None:
    _profile(parser)
    _microbatches(parser, required=True)
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


def _search(parser: Parser, usual: float, what: str) -> None:
    """The options of whatever searches."""
    parser.add_argument(
        "--engine",
        choices=("auto", "milp", "cpsat", "search", "adaoffload"),
        default="auto",
        help="auto (all that help, at once; default), OptPipe's MILP, CP-SAT, search over programs,"
        " or the AdaOffload greedy alone",
    )
    _objective(parser)
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


def _cache(parser: Parser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--info", action="store_true", help="how many and how large (default)")
    group.add_argument("--clear", action="store_true", help="forget all of them")


def _check(parser: Parser) -> None:
    _schedule(parser)
    _profile(parser)
    _microbatches(parser, "needed with a name; a file says it itself")
    _limit(parser)


def _explain(parser: Parser) -> None:
    _schedule(parser)
    _profile(parser)
    parser.add_argument("--op", metavar="F3.7", help="why this op starts when it does")
    parser.add_argument(
        "--solution",
        action="store_true",
        help="what it offloads, and how much of its idle time any schedule must have",
    )
    parser.add_argument(
        "--chart", metavar="F.png", help="draw that idle time, and the forced part (.png .svg .pdf)"
    )
    parser.add_argument(
        "--objective",
        choices=("flush", "span"),
        help="what counts as the time (default: what the schedule was solved for, or flush)",
    )
    _microbatches(parser, "needed with a name; a file says it itself")
    _limit(parser)


def _export(parser: Parser) -> None:
    _schedule(parser)
    _profile(parser, nargs="?", help="profile (YAML or JSON); needed for perfetto and for names")
    parser.add_argument(
        "--format",
        required=True,
        choices=("torch-csv", "perfetto"),
        help="torch-csv: compute orders for torch.distributed.pipelining; perfetto: a trace for"
        " https://ui.perfetto.dev",
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="default: the schedule's name with .csv or .trace.json"
    )
    _microbatches(parser, "needed with a name; a file says it itself")
    _limit(parser)


def _schedule(parser: Parser) -> None:
    parser.add_argument(
        "schedule", metavar="SCHEDULE", help="a schedule file (.json), or a name, with -m"
    )


def _profile(
    parser: Parser, nargs: str | None = None, help: str = "profile of costs (YAML or JSON)"
) -> None:
    parser.add_argument("profile", metavar="PROFILE", nargs=nargs, help=help)


def _microbatches(parser: Parser, note: str = "", required: bool = False) -> None:
    parser.add_argument(
        "-m",
        "--microbatches",
        metavar="M",
        type=count,
        required=required,
        help="microbatches per iteration" + (f"; {note}" if note else ""),
    )


def _limit(parser: Parser) -> None:
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=size,
        help="per device: 40GiB, 512MiB, 200B or plain bytes; default: the profile's own",
    )


def _objective(parser: Parser) -> None:
    parser.add_argument(
        "--objective",
        choices=("flush", "span"),
        default="flush",
        help="what counts as the time: flush (until all is done; default) or span (the longest"
        " device, for iterations chained without a flush)",
    )


def _pictures(parser: Parser, which: str) -> None:
    parser.add_argument(
        "--gantt",
        metavar="F.png",
        help=f"draw {which} schedule with its memory (.png, .svg or .pdf)",
    )
    parser.add_argument(
        "--trace",
        metavar="F.json",
        help=f"write the trace of {which} schedule for https://ui.perfetto.dev",
    )
