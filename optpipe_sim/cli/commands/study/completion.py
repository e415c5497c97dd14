"""``completion``: a script with which a shell completes commands, options and their values."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ...status import DONE

if TYPE_CHECKING:
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim completion bash >> ~/.bashrc"
SUMMARY = "print a script that completes commands, options and values in bash, zsh or fish"
SCHEDULES = ("--schedule", "--schedules")  # options whose values are names of schedules


class Option(NamedTuple):
    """An option of a command: its names, its known values, its help; `takes`: whether it takes a value."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    help: str
    takes: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `completion`."""
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="which shell")


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Print the script."""
    from ....names import ENTRIES

    commands = {
        name: _options(parser, tuple(ENTRIES)) for name, parser in arguments.parsers.items()
    }
    helps = {name: parser.description or "" for name, parser in arguments.parsers.items()}
    script = _SCRIPTS[arguments.shell](commands, helps)
    out.result({"shell": arguments.shell, "script": script})
    if not out.json:
        print(script, end="")
    return DONE


def _options(parser: argparse.ArgumentParser, schedules: tuple[str, ...]) -> list[Option]:
    found = []
    for action in parser._actions:
        names = tuple(action.option_strings)
        values = tuple(map(str, action.choices or ()))
        if set(names) & set(SCHEDULES):
            values = schedules
        text = (action.help or "").replace("%%", "%")
        takes = action.nargs != 0
        if names or values:
            found.append(Option(names, values, text, takes))
    return found


def _bash(commands: Mapping[str, list[Option]], helps: Mapping[str, str]) -> str:
    values: list[str] = []
    options = []
    for command, known in commands.items():
        named = [name for option in known for name in option.names]
        free = [value for option in known if not option.names for value in option.values]
        options.append(f"    {command}) words={_quoted(named)} free={_quoted(free)} ;;")
        values += [
            f'    "{command} {name}") COMPREPLY=($(compgen {_offers(option)} -- "$current")); return ;;'
            for option in known
            for name in option.names
            if option.takes
        ]
    return "\n".join(
        [
            "_optpipe_sim() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '  local command="${COMP_WORDS[1]}" words free',
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    COMPREPLY=($(compgen -W {_quoted(commands)} -- "$current")); return',
            "  fi",
            '  case "$command $before" in',
            *values,
            "  esac",
            '  case "$command" in',
            *options,
            "  esac",
            '  case "$current" in',
            '    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;',
            '    *) COMPREPLY=($(compgen -W "$free" -- "$current") $(compgen -f -- "$current")) ;;',
            "  esac",
            "}",
            "complete -o filenames -F _optpipe_sim optpipe-sim",
            "",
        ]
    )


def _offers(option: Option) -> str:
    """Return what `compgen` offers as the value of an option: words, or files."""
    return f"-W {_quoted(option.values)}" if option.values else "-f"


def _zsh(commands: Mapping[str, list[Option]], helps: Mapping[str, str]) -> str:
    head = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return head + _bash(commands, helps)


def _fish(commands: Mapping[str, list[Option]], helps: Mapping[str, str]) -> str:
    lines = []
    for command, known in commands.items():
        about = shlex.quote(helps[command])
        lines.append(f"complete -c optpipe-sim -n __fish_use_subcommand -f -a {command} -d {about}")
        where = f"complete -c optpipe-sim -n '__fish_seen_subcommand_from {command}'"
        for option in known:
            names = (
                ("-l ", name[2:]) if name[:2] == "--" else ("-s ", name[1:])
                for name in option.names
            )
            words = [where, *map("".join, names)]
            if option.values:
                words.append(f"{'-x ' if option.names else '-f '}-a {_quoted(option.values)}")
            elif option.takes:
                words.append("-r")
            lines.append(f"{' '.join(words)} -d {shlex.quote(option.help)}")
    return "\n".join(lines) + "\n"


def _quoted(words: Mapping[str, object] | tuple[str, ...] | list[str]) -> str:
    return f"'{' '.join(words)}'"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
