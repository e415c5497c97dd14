"""Values of an experiment's parameters: checked by a task's annotations, and their notations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..errors import OptPipeError
from ..files import plain
from ..names import parse_name
from ..units import parse_size

# 0.5x 1f1b; with "or device" no more than the profile's own limit
RELATIVE = re.compile(r"(\d+(?:\.\d+)?)\s*x\s+(\S+)( or device)?")


def kind_of(annotation: Any) -> str:
    """Return the word in ``Annotated[..., word]``."""
    return str(get_args(annotation)[1]) if get_origin(annotation) is Annotated else ""


def value_of(key: str, value: Any, annotation: Any) -> Any:
    """Return the value of a parameter as plain data, or raise one line that says what would be right."""
    try:
        return _parse(value, annotation)
    except (OptPipeError, ValueError) as error:
        raise OptPipeError(f"{key}: {error}") from None


def _parse(value: Any, annotation: Any) -> Any:
    kind = kind_of(annotation)
    if kind:
        return _NOTATIONS[kind](value)
    origin = get_origin(annotation)
    if origin is Literal:
        if value in get_args(annotation) and type(value) in map(type, get_args(annotation)):
            return value
        choices = ", ".join(map(str, get_args(annotation)))
        raise ValueError(f"expected one of {choices}, got {plain(value)!r}")
    if origin in (Union, UnionType):
        problems = []
        for choice in get_args(annotation):
            try:
                return _parse(value, choice)
            except (OptPipeError, ValueError) as error:
                problems.append(str(error))
        raise ValueError("; or ".join(problems))
    if origin in (list, Sequence) or annotation is list:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {plain(value)!r}")
        inner = get_args(annotation) or (Any,)
        return [_parse(item, inner[0]) for item in value]
    if annotation is float and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return float(value)
    types = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if annotation in types and type(value) is not annotation:
        raise ValueError(f"expected {types[annotation]}, got {plain(value)!r}")
    if annotation in (None, NoneType) and value is not None:
        raise ValueError(f"expected null, got {plain(value)!r}")
    return plain(value)


def _limit(value: Any) -> Any:
    found = RELATIVE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found:
        parse_name(found[2])
        return Decimal(found[1]), found[2], found[3] is not None
    return None if value is None else _size(value)


def _size(value: Any) -> int:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return parse_size(value)
    raise ValueError(f"{plain(value)!r} is not a size: write 40GiB, 512MiB, 200B or plain bytes")


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"must be a whole number of at least 1, got {plain(value)!r}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not value > 0:
        raise ValueError(f"must be a number of seconds above 0, got {plain(value)!r}")
    return float(value)


def _schedule(value: Any) -> str:
    parse_name(str(value))
    return str(value)


def _schedules(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a list of schedules, got {plain(value)!r}")
    return [_schedule(name) for name in value]


_NOTATIONS = {
    "limit": _limit,
    "size": _size,
    "count": _count,
    "seconds": _seconds,
    "schedule": _schedule,
    "schedules": _schedules,
}
