"""The parser of the command line; imports little, so that ``--help`` and usage errors are instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, NoReturn, Protocol

from ..errors import OptPipeError, hint_for, one_line
from ..units import counted
from ..version import __version__
from .commands.costs import (
    advise,
    estimate,
    evaluate,
    executions,
    imports,
    machines,
    models,
    profile,
)
from .commands.replay import check, compare, explain, export, report, simulate
from .commands.runs import confirm, train
from .commands.search import cache, frontier, solve
from .commands.study import atlas, completion, figures, sweep, versions
from .options.groups import GROUPS, group_of, is_seldom

if TYPE_CHECKING:
    from .outputs.show import Out


class Command(Protocol):
    """The interface of a command's module."""

    EXAMPLE: str
    SUMMARY: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""

    def run(self, arguments: argparse.Namespace, out: Out) -> int:
        """Run the command; return the exit status."""


COMMANDS: dict[str, Command] = {
    "simulate": simulate,
    "compare": compare,
    "solve": solve,
    "frontier": frontier,
    "check": check,
    "explain": explain,
    "report": report,
    "estimate": estimate,
    "advise": advise,
    "evaluate": evaluate,
    "profile": profile,
    "models": models,
    "machines": machines,
    "executions": executions,
    "confirm": confirm,
    "train": train,
    "sweep": sweep,
    "figures": figures,
    "atlas": atlas,
    "import": imports,
    "export": export,
    "cache": cache,
    "completion": completion,
    "versions": versions,
}
# options as Megatron-LM and others call them; each is read as ours, where the command has ours and not theirs
ALIASES = {
    "--tensor-model-parallel-size": "--tp",
    "--pipeline-model-parallel-size": "--pp",
    "--context-parallel-size": "--cp",
    "--expert-model-parallel-size": "--ep",
    "--expert-tensor-parallel-size": "--etp",
    "--data-parallel-size": "--dp",
    "--mbs": "--microbatch",
    "--micro-batch-size": "--microbatch",
    "--microbatch-size": "--microbatch",
    "--gbs": "--global-batch",
    "--global-batch-size": "--global-batch",
    "--seq-length": "--seq",
    "--seq-len": "--seq",
    "--vpp": "--chunks",
    "--virtual-pipeline-model-parallel-size": "--chunks",
    "--num-virtual-stages-per-pipeline-rank": "--chunks",
    "--recompute-granularity": "--recompute",
    "--num-gpus": "--gpus",
    "--virtual-stages": "--chunks",
    "--num-microbatches": "--microbatches",
    "--world-size": "--gpus",
}
EXAMPLES = {name: command.EXAMPLE for name, command in COMMANDS.items()}


class UsageError(OptPipeError):
    """Invalid arguments; the message begins with the command."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line, and whose help is in groups.

    Attributes:
        command: the command that it is of; empty: of the program.
    """

    command = ""

    def format_help(self, everything: bool = False) -> str:
        """Return the help: options by group, without those that are seldom needed and with the
        first sentence of each, unless `everything` is wanted."""
        if not self.command:
            return super().format_help()
        options = [action for action in self._actions if action.option_strings]
        hidden = [one for one in options if is_seldom(self.command, one)]
        shown = options if everything else [one for one in options if one not in hidden]
        if not everything:
            shown = [_in_short(one) for one in shown if one.dest not in ("help", "help_all")]
        text = self._get_formatter()
        needed = [one for one in self._actions if one.required or not one.option_strings]
        either = [group for group in self._mutually_exclusive_groups if group.required]
        needed += [one for group in either for one in group._group_actions if one not in needed]
        text.add_usage(self.usage, needed, either)
        text.add_text(self.description)
        given = [one for one in self._actions if not one.option_strings]
        places = {group: [] for group in (None, *GROUPS)}  # type: dict[str | None, list[argparse.Action]]
        for one in shown:
            places[group_of(self.command, one)].append(one)
        for title, actions in (
            ("arguments", given),
            *((g, places[g]) for g in GROUPS),
            ("other options", places[None]),
        ):
            if actions:
                text.start_section(title)
                text.add_arguments(actions)
                text.end_section()
        if hidden and not everything:
            text.add_text(
                f"{counted(len(hidden), 'option')} more, seldom needed, and all in full: {self.prog} --help-all"
            )
        text.add_text(self.epilog)
        begin = f"usage: {self.prog} "
        return text.format_help().replace(begin, f"{begin}[options] ", 1)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {one_line(message)} (see {self.prog} --help)")


def _in_short(action: argparse.Action) -> argparse.Action:
    """Return an option with the first sentence of its help."""
    found = copy(action)
    found.help = (action.help or "").partition(". ")[0]
    return found


class _HelpAll(argparse.Action):
    """Print the help with every option, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, Parser)
        parser._print_message(parser.format_help(everything=True), sys.stdout)
        parser.exit()


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments of a command.

    Raises:
        UsageError: if they are invalid.
        SystemExit: after ``--help`` and ``--version``.
    """
    words = typed = list(sys.argv[1:] if argv is None else argv)
    # the others, and their hundreds of options, take longer than most commands; completion lists them
    only = words[0] if words and words[0] != "completion" and words[0] in COMMANDS else None
    parser, commands = _parsers(only)
    if not words:
        parser.error(f"give a command: {', '.join(commands)}")
    if words[0] not in commands:
        _check_first(parser, commands, words[0])
    else:
        chosen = commands[words[0]]
        words = [_translated(chosen, word) for word in words]
        typed = words
        if words[0] == "evaluate":
            words = evaluate.expanded(words)
        # report a misspelt option before the arguments that are then missing
        for word in words[1:]:
            if (
                word.startswith("--")
                and word.partition("=")[0] not in chosen._option_string_actions
            ):
                _refuse(chosen, word)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse(commands.get(arguments.command, parser), unknown[0])
    arguments.parsers = commands  # for `completion`
    arguments.words = typed  # for what says where it comes from
    return arguments


def _translated(command: Parser, word: str) -> str:
    """Return an argument with one of `ALIASES` as the option that it stands for."""
    name, equals, value = word.partition("=")
    if name not in ALIASES or name in command._option_string_actions:
        return word
    known = ALIASES[name]
    return known + equals + value if known in command._option_string_actions else word


def _check_first(parser: Parser, commands: dict[str, Parser], word: str) -> None:
    """Refuse a first word that is neither a command nor an option without one."""
    if not word.startswith("-"):
        parser.error(f"{word!r} is not a command; {hint_for(word, commands)}")
    name = word.partition("=")[0]
    if name in parser._option_string_actions:
        return
    if any(name in command._option_string_actions for command in commands.values()):
        parser.error(f"{name}: options follow the command: {parser.prog} COMMAND {name}")
    _refuse(parser, word)


def _refuse(parser: Parser, word: str) -> NoReturn:
    if not word.startswith("-"):
        parser.error(f"{word!r} is one argument too many")
    known = [name for action in parser._actions for name in action.option_strings]
    name = word.partition("=")[0]
    if name == "--gpus" and "--devices" in known and "--dp" in known:
        parser.error(f"{name}: give --devices, the GPUs of one replica, and --dp, the replicas")
    parser.error(f"unknown option {name}; {hint_for(name, known)}")


def _parsers(only: str | None = None) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser, and that of each command, or of one `only`."""
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
        made.add_argument(
            "--help-all",
            action=_HelpAll,
            nargs=0,
            help="this text with every option, those seldom needed too, and what each means in full",
        )
        made.command = name
        commands[name] = made
        return made

    for name, module in COMMANDS.items():
        if only in (None, name):
            module.add_options(command(name, module.SUMMARY))
    return parser, commands
