"""What the command line understands; light, so that ``--help`` and mistakes answer at once."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from . import advise, confirm, estimate, figures, profile, sweep, train
from .kinds import names, seconds
from .options import (
    add_limit,
    add_microbatches,
    add_objective,
    add_pictures,
    add_profile,
    add_schedule,
)
from .search_options import add_cache, add_frontier, add_solve

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
    add_solve(command("solve", "search for the best schedule, and prove how good it is"))
    add_frontier(
        command("frontier", "the best schedule and its bound over a range of memory limits")
    )
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
    add_cache(command("cache", "say which solved schedules are kept on disk, or forget them"))
    command("versions", "print the versions of optpipe-sim and of what it runs on")
    return parser, commands


def _simulate(parser: Parser) -> None:
    add_profile(parser)
    parser.add_argument(
        "--schedule",
        required=True,
        metavar="NAME_OR_FILE",
        help="a schedule by name, options after a colon (gis:group=6), or a schedule file (.json)",
    )
    add_microbatches(parser, "needed with a name; a file says it itself")
    add_limit(parser)
    add_objective(parser)
    add_pictures(parser, "the")
    parser.add_argument("--save", metavar="S.json", help="write the schedule")


def _compare(parser: Parser) -> None:
    add_profile(parser)
    add_microbatches(parser, required=True)
    add_limit(parser)
    parser.add_argument(
        "--schedules",
        metavar="A,B,C",
        type=names,
        help="names (with options: gis:group=6) or files, comma between them; default: every one",
    )
    add_objective(parser)
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds,
        default=10.0,
        help="for each schedule that is searched for (optpipe); the others need none (default: 10)",
    )
    add_pictures(parser, "the best")
    parser.add_argument(
        "--chart", metavar="F.png", help="draw time and peak memory of every schedule"
    )
    parser.add_argument("--save", metavar="S.json", help="write the best schedule")


def _check(parser: Parser) -> None:
    add_schedule(parser)
    add_profile(parser)
    add_microbatches(parser, "needed with a name; a file says it itself")
    add_limit(parser)


def _explain(parser: Parser) -> None:
    add_schedule(parser)
    add_profile(parser)
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
    add_microbatches(parser, "needed with a name; a file says it itself")
    add_limit(parser)


def _export(parser: Parser) -> None:
    add_schedule(parser)
    add_profile(parser, nargs="?", help="profile (YAML or JSON); needed for perfetto and for names")
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
    add_microbatches(parser, "needed with a name; a file says it itself")
    add_limit(parser)
