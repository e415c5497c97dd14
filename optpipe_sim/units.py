"""Units at the doors; integers (nanoseconds, bytes) inside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from html import escape
from typing import Any

from .errors import OptPipeError

TIME_UNITS = {"_s": 10**9, "_ms": 10**6, "_us": 10**3, "_ns": 1}
BYTE_UNITS = {"_bytes": 1, "_mib": 2**20, "_gib": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?", re.IGNORECASE)
_FACTORS = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


def exact(value: Any) -> Fraction:
    """A number as the fraction its decimal notation says (`0.601` is 601/1000).

    Raises:
        ValueError: for what is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise ValueError(f"expected a number, got {value!r}")
    if isinstance(value, float | Decimal):
        number = Decimal(repr(value)) if isinstance(value, float) else value
        if not number.is_finite():
            raise ValueError(f"expected a finite number, got {value}")
        if number and abs(number.adjusted()) > 400:  # no float is; 1e999999999 takes for ever
            raise ValueError(f"expected a number of sensible size, got {value}")
        return Fraction(number)
    whole = Fraction(value)
    if abs(whole) >= 10**400:
        raise ValueError("expected a number of sensible size, got one of more than 400 digits")
    return whole


def round_half_up(value: Fraction) -> int:
    """The nearest integer; a half goes up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def parse_size(text: str | int) -> int:
    """Bytes of ``40GiB``, ``512MiB``, ``200B`` or plain bytes.

    Raises:
        OptPipeError: for anything else.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    found = _SIZE.fullmatch(str(text).strip())
    if not found:
        raise OptPipeError(f"{text!r} is not a size: write 40GiB, 512MiB, 200B or plain bytes")
    return round_half_up(Fraction(found[1]) * _FACTORS[(found[2] or "b").lower()])


def format_size(size: int, digits: int = 4) -> str:
    """Bytes for people: ``13.2 GiB``."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= factor:
            return f"{size / factor:.{digits}g} {unit}"
    return f"{size} B"


def format_sizes(*sizes: int) -> list[str]:
    """Bytes for people, with as many digits as tell different ones apart: ``24 GiB``,
    ``24.00000001 GiB``."""
    for digits in range(4, 17):
        texts = [format_size(size, digits) for size in sizes]
        if len(set(texts)) == len(set(sizes)):
            return texts
    return [f"{size} B" for size in sizes]


def is_plain(text: str) -> bool:
    """Whether a text has no control characters: it can be printed on a line."""
    return not any(ord(sign) < 32 or ord(sign) == 127 for sign in text)


def counted(number: int, thing: str, things: str = "") -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def format_time(time_ns: float) -> str:
    """Nanoseconds for people: ``1.234 s``, ``18.5 ms``."""
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(time_ns) >= factor:
            return f"{time_ns / factor:.4g} {unit}"
    return f"{time_ns:.4g} ns"


def html_table(rows: Mapping[str, object]) -> str:
    """A table of two columns for notebooks; whatever the texts hold is shown as text."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(key)}</th><td>{escape(str(value))}</td></tr>"
        for key, value in rows.items()
    )
    return f"<table>{cells}</table>"
