"""The types of option values; each refuses other values with a short message."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import inf
from typing import TypeVar

from ...errors import OptPipeError
from ...units import Size, as_limit, has_unit, parse_instant, parse_size, size_text, written_size

MOST_PROCESSES = 1024
# what people type for a framework
FRAMEWORKS = {
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "mcore": "megatron",
    "torch-titan": "torchtitan",
}
MOST_REPEATS = 100_000  # of one measurement


_Value = TypeVar("_Value")


def by(name: str = "") -> Callable[[Callable[[str], _Value]], Callable[[str], _Value]]:
    """Let what reads a value refuse it as argparse does, without the option's `name`, which it prints itself."""

    def decorate(read: Callable[[str], _Value]) -> Callable[[str], _Value]:
        def checked(text: str) -> _Value:
            try:
                return read(text)
            except OptPipeError as error:
                problem = str(error).removeprefix(f"{name}: ")
                raise argparse.ArgumentTypeError(problem) from None

        return checked

    return decorate


def _number(
    text: str, read: Callable[[str], _Value], fits: Callable[[_Value], bool], what: str
) -> _Value:
    """Return the number in a text; refuse others with `what` it must be."""
    try:
        value = read(text)
    except ValueError:
        pass
    else:
        if fits(value):
            return value
    raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}")


def count(text: str) -> int:
    return _number(text, int, lambda value: value >= 1, "a whole number of at least 1")


def counts(text: str) -> tuple[int, ...]:
    """``1,2,4``."""
    return tuple(map(count, text.split(",")))


def count_to(most: int) -> Callable[[str], int]:
    """Return the type of counts of at most `most`."""

    def limited(text: str) -> int:
        value = count(text)
        if value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, got {text!r}")
        return value

    return limited


def count_or_any(text: str) -> int | str:
    return text if text in ("any", "profile") else count(text)


def yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"expected yes or no, got {text!r}")
    return text == "yes"


def whole(text: str) -> int:
    """Parse a whole number of at least 0, usable as a seed."""
    return _number(text, int, lambda value: 0 <= value < 2**63, "a whole number from 0 to 2^63")


def seconds(text: str) -> float:
    return _number(text, float, lambda value: 0 < value < inf, "a number of seconds above 0")


def positive(text: str) -> float:
    return _number(text, float, lambda value: 0 < value < inf, "a number above 0")


def share(text: str) -> float:
    """``5%`` or ``0.05``."""
    each = 100 if text.endswith("%") else 1
    return _share_of(text, each, "a share, as in 5% or 0.05")


def percent(text: str) -> float:
    """``5%`` or ``5``."""
    return _share_of(text, 100, "per cent, as 5%")


def _share_of(text: str, each: int, what: str) -> float:
    number = text.removesuffix("%")
    return _number(text, lambda _: float(number) / each, lambda value: 0 <= value < inf, what)


def noise(text: str) -> dict[str, float]:
    """``10%`` of every op, or ``op=5%,copy=20%``."""
    known = ("op", "copy", "device", "comm", "straggler")
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        name = name.strip() if equals else "op"
        if name not in known:
            raise argparse.ArgumentTypeError(f"knows {', '.join(known)}, not {name!r}")
        found[name] = share(value.strip())
    return found


@by("margin")
def margin(text: str) -> object:
    """``copies=10%,ops=5%,memory=3%``, or some of these."""
    from ...solvers.margins.shares import as_margins

    return as_margins(text)


def framework(text: str) -> str:
    """``megatron``, also as ``megatron-lm``."""
    return FRAMEWORKS.get(text.lower(), text)


@by()
def size(text: str) -> Size:
    """Parse a size; with a unit it stays as it was written."""
    return written_size(text)


@by()
def real_size(text: str) -> Size:
    """Parse a memory limit for a real model: below 1 MiB it needs its unit."""
    as_limit("", written_size(text))
    return size(text)


@by()
def instant(text: str) -> str:
    """``10%`` of the iteration, ``120ms`` or plain nanoseconds, as it was written."""
    parse_instant(text)
    return text


def sizes(text: str) -> list[Size]:
    """``10GiB:80GiB:10GiB`` (the end included) or ``10GiB,20GiB``; with units as they were written."""
    parts = text.split(":")
    if len(parts) == 1:
        return [size(part) for part in text.split(",")]
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"write FROM:TO:STEP or sizes with commas, got {text!r}")
    first, last, step = (parse_size(size(part)) for part in parts)
    if step < 1 or last < first:
        raise argparse.ArgumentTypeError(f"must go up, by a step above 0, got {text!r}")
    if (last - first) // step >= 1000:
        raise argparse.ArgumentTypeError(f"makes more than 1000 limits: {text!r}")
    found = range(first, last + 1, step)
    return list(map(size_text, found)) if any(map(has_unit, parts)) else list(found)


def treatments(text: str) -> list[str]:
    """``keep,offload,recompute``, or some of them."""
    from ...solvers.options import TREATMENTS

    given = list(filter(None, map(str.strip, text.split(","))))
    if not given or not set(given) <= set(TREATMENTS):
        raise argparse.ArgumentTypeError(f"must be some of {','.join(TREATMENTS)}, got {text!r}")
    return given


def names(text: str) -> list[str]:
    """``1f1b,gis:group=6,chunks=3,zb-v`` as three names: KEY=VALUE continues the previous name."""
    names: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not names:
        raise argparse.ArgumentTypeError("must name at least one schedule, as in 1f1b,zb-h1")
    return names
