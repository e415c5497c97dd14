"""Options of commands that are fields of dataclasses (`option_fields`); light, as `parser` is."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field
from functools import cache
from shlex import quote
from typing import Any, get_type_hints

from ...errors import OptPipeError
from ...option_fields import Option, how, options_of
from ...units import size_text
from .groups import RUN, VARY
from .kinds import by, count, counts, names


def add_fields(
    parser: ArgumentParser,
    kind: type,
    *only: str,
    group: str = RUN,
    **changes: Mapping[str, Any],
) -> None:
    """Add the fields of a dataclass that are options, all or those named.

    Args:
        group: of the help.
        changes: by field, keywords of `add_argument`, or how it is read (``read``), that this command has in the
            place of the field's own.
    """
    for name, one in options_of(kind).items():
        if only and name not in only:
            continue
        keywords = _keywords(kind, one, dict(changes.get(name, {})))
        action = parser.add_argument(_flag(one), dest=name, **keywords)
        action.group, action.seldom = group, how(one).seldom  # type: ignore[attr-defined]


def add_several(parser: ArgumentParser, kind: type, *only: str, **defaults: str) -> None:
    """Add fields that are whole numbers as options that take several, to choose from; `defaults`: what is chosen
    from, where that is not all that there is, by field."""
    for name in only:
        one = options_of(kind)[name]
        help = how(one).help.partition("; default:")[0]
        usual = f"; default: {defaults[name]}" if name in defaults else ""
        changes = {
            "type": _some_of(how(one).choices) if how(one).choices else counts,
            "metavar": "A,B,...",
            "default": None,
            "choices": None,
            "help": f"only these: {help}{usual}",
        }
        add_fields(parser, kind, name, group=VARY, **{name: changes})


def given(arguments: Any, *kinds: type) -> dict[str, Any]:
    """Return the options of dataclasses that a command has, as they were given."""
    typed = vars(arguments)
    return {name: typed[name] for name in options_of(*kinds) if name in typed}


def same(arguments: Any, *names: str) -> dict[str, Any]:
    """Return options of a command as keywords of a function that has the same."""
    return {name: getattr(arguments, name) for name in names}


def refuse_options(arguments: Any, *names: str, why: str) -> None:
    """Refuse options that were given.

    Raises:
        OptPipeError: names the option and says `why`.
    """
    for name in names:
        if getattr(arguments, name, None):
            flag = name.removeprefix("window_").replace("_", "-")
            raise OptPipeError(f"--{flag}: {why}")


def as_words(arguments: Any, kind: type, only: Iterable[str]) -> list[str]:
    """Return the options of a dataclass that a command was given, as another command takes them: those
    that are not as usual."""
    words = []
    for name, one in options_of(kind).items():
        value: Any = getattr(arguments, name, one.default)
        if name not in only or value == one.default:
            continue
        words.append(_flag(one))
        if isinstance(value, str | float):
            words.append(str(value))
        elif not isinstance(value, bool):
            words.append(",".join(map(str, value)))
    return words


def as_given(arguments: Any, *names: str) -> str:
    """Return options that a command was given, behind a space each, as the next command takes them."""
    text = ""
    for name in names:
        value = getattr(arguments, name, None)
        if value is None or value is False:
            continue
        text += f" --{name.replace('_', '-')}"
        if name == "memory_limit":
            value = size_text(value)
        if value is not True:
            words = value if isinstance(value, list) else [value]
            text += " " + quote(
                ",".join(f"{w:g}" if isinstance(w, float) else str(w) for w in words)
            )
    return text


def _flag(one: Field[Any]) -> str:
    no = "no-" if how(one).off else ""
    return f"--{how(one).flag or no + one.name.replace('_', '-')}"


_annotations = cache(get_type_hints)  # which evaluates those of all fields


def _keywords(kind: type, one: Field[Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return what `add_argument` takes for a field, with the changes of a command."""
    said, annotated = how(one), _annotations(kind)[one.name]
    text = changes.pop("read", said.read)
    if annotated is bool:
        action = "store_false" if said.off else "store_true"
        return {"action": action, "help": _percent(said.off or said.help), **changes}
    found: dict[str, Any] = (
        {"required": True} if one.default is MISSING else {"default": one.default}
    )
    found |= {"metavar": said.metavar, "choices": said.choices or None, **changes}
    found["help"] = _percent(changes.get("help") or _with_default(said, found.get("default")))
    if said.bare is not None:
        found |= {"nargs": "?", "const": said.bare}
    if "type" not in changes:
        read = text and by(one.name)(text)
        if annotated in (int, int | None):
            read = int if said.choices else count
        elif read is None and annotated == tuple[str, ...]:
            read = _several
        found["type"] = read
    return found


def _several(text: str) -> tuple[str, ...]:
    return tuple(names(text))


def _some_of(choices: tuple[int, ...]) -> Callable[[str], tuple[int, ...]]:
    """Return what reads some of a field's whole numbers."""

    def read(text: str) -> tuple[int, ...]:
        known = {str(one): one for one in choices}
        if not set(text.split(",")) <= known.keys():
            raise ArgumentTypeError(f"expected some of {', '.join(known)}, got {text!r}")
        return tuple(known[part] for part in text.split(","))

    return read


def _with_default(said: Option, usual: Any) -> str:
    """Return a help with the default in brackets, unless it says it."""
    help = said.help
    if not isinstance(usual, int | float | str) or usual == "" or "default:" in help:
        return help
    share = (said.metavar or "").endswith("%")
    text = f"{usual:.0%}" if share else f"{usual:g}" if isinstance(usual, float) else str(usual)
    first, dot, rest = help.partition(". ")
    return f"{first} ({text}){dot}{rest}"


def _percent(text: str) -> str:
    return text.replace("%", "%%")
