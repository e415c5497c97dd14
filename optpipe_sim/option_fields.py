"""Options that are written once, as fields of dataclasses.

A field made by `option` has the default of an option, its help, and how it is written. From there come the option
of the command line (`cli/options/fields.py`), the keyword of the Python function with its lines of the docstring
(`takes`), and the keys that experiments, names of schedules and files of measurements know. Light, as the command
line's parser is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import wraps
from inspect import Parameter, cleandoc, signature
from textwrap import indent, wrap
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_KEY = "option"  # of a field's metadata
_WIDTH = 110  # of docstrings


@dataclass(frozen=True)
class Option:
    """How an option is written and what it means.

    Attributes:
        help: what it means, for ``--help-all`` and docstrings, its first sentence for ``--help``; it names other
            options as ``--name``.
        metavar: what stands for its value in the help.
        choices: the values that there are; empty: any that `read` takes.
        read: from a text to a value, an `OptPipeError` for a wrong one; None: as the field is annotated.
        bare: the value of the option without a word; None: it needs one.
        off: of a flag that is on unless ``--no-NAME`` is given: the help of that.
        flag: its name on the command line, where that is not the field's (nor ``no-`` and that).
        seldom: ``--help`` leaves it out, ``--help-all`` has it.
    """

    help: str
    metavar: str | None = None
    choices: tuple[Any, ...] = ()
    read: Callable[[str], Any] | None = None
    bare: Any = None
    off: str = ""
    flag: str = ""
    seldom: bool = False


def option(default: Any, help: str, **more: Any) -> Any:
    """Return a field that is an option; `default` MISSING: it has to be given. `more`: of `Option`."""
    return field(default=default, metadata={_KEY: Option(help, **more)})


def options_of(*kinds: type) -> dict[str, Field[Any]]:
    """Return the fields of dataclasses that are options, by name."""
    return {one.name: one for kind in kinds for one in fields(kind) if _KEY in one.metadata}


def how(one: Field[Any]) -> Option:
    """Return how a field that is an option is written."""
    found: Option = one.metadata[_KEY]
    return found


def made_of(options: Mapping[str, Any], *kinds: type, **more: Any) -> list[Any]:
    """Return an object of each kind, of the options (and of `more`) that are its fields."""
    given = {**options, **more}
    return [kind(**{key: given[key] for key in options_of(kind) if key in given}) for kind in kinds]


def listing(parameters: Iterable[Parameter]) -> Callable[[_Function], _Function]:
    """Replace ``**options`` in a function's signature by keyword parameters, for help and completion; those that
    the function names already are unchanged."""

    def decorate(function: _Function) -> _Function:
        own = signature(function)
        named = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        more = [one for one in parameters if one.name not in own.parameters]
        function.__signature__ = own.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def parameters_of(
    *kinds: type, without: Iterable[str] = (), several: Iterable[str] = (), **defaults: Any
) -> list[Parameter]:
    """Return the options of dataclasses as keyword parameters.

    Args:
        several: those that may have several values to choose from; None, their default: all that make sense.
        defaults: in the place of the fields' own.
    """
    found = []
    for name, one in options_of(*kinds).items():
        usual = defaults.get(name, Parameter.empty if one.default is MISSING else one.default)
        kind: Any = one.type
        if name in several:
            each = str(one.type).removesuffix(" | None")
            usual, kind = None, f"{each} | Sequence[{each}] | None"
        if name not in without:
            found.append(Parameter(name, Parameter.KEYWORD_ONLY, default=usual, annotation=kind))
    return found


def takes(
    *kinds: type, without: Iterable[str] = (), several: Iterable[str] = (), **defaults: Any
) -> Callable[[_Function], _Function]:
    """Let a function with ``**options`` take the fields of `kinds`, and no other keyword.

    Its signature then has each of them, and its docstring what each means, in the place of the paragraph that
    begins with ``options: the fields of``, unless it says that itself. `several`, `defaults`: see
    `parameters_of`.
    """

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            for name in options:
                if name not in known:
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    )
            return function(*args, **{**defaults, **options})

        taken = parameters_of(*kinds, without=without, several=several, **defaults)
        made = listing(taken)(checked)
        known = signature(made).parameters
        made.__doc__ = _documented(
            cleandoc(function.__doc__ or ""),
            {name: one for name, one in options_of(*kinds).items() if name in known},
        )
        return made  # type: ignore[return-value]

    return decorate


def _documented(text: str, taken: Mapping[str, Field[Any]]) -> str:
    """Return a docstring with what each option means in the place of its paragraph on them."""

    def said(name: str, one: Field[Any]) -> str:
        help = re.sub(
            r"--([a-z][a-z-]*)",
            lambda found: f"`{key}`" if (key := found[1].replace("-", "_")) in taken else found[0],
            how(one).help,
        )
        texts = wrap(f"{name}: {help}", _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        return indent("\n".join(texts), " " * 4)

    own = {
        word
        for line in re.findall(r"^ {4}([\w, `]+):", text, re.MULTILINE)
        for word in re.findall(r"\w+", line)
    }
    lines = "\n".join(said(name, one) for name, one in taken.items() if name not in own)
    paragraph = r"^ {4}options: the fields of .*(\n {5,}.*)*"
    return re.sub(paragraph, lambda _: lines, text, flags=re.MULTILINE)
