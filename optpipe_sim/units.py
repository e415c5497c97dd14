"""Read and write units; inside, times and sizes are integers (nanoseconds, bytes)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from html import escape
from operator import index
from typing import Any

from .errors import OptPipeError, ProfileError, hint_for

Size = int | str  # bytes, or ``24GiB``
TIME_UNITS = {"_s": 10**9, "_ms": 10**6, "_us": 10**3, "_ns": 1}
BYTE_UNITS = {"_bytes": 1, "_mib": 2**20, "_gib": 2**30}
MAX_SIZE = 2**62  # arrays hold 64-bit integers, and sums of sizes have to fit as well
LEAST_PLAIN = 2**20  # a smaller memory limit of a real model is one whose unit was left out
MOST_MEMORY = 2**44  # 16 TiB: more than any device has
MOST_TIME_NS = 3600 * 10**9  # an hour: more than any op takes
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|ns)?", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
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
    """Return a number as the exact fraction of its decimal notation (`0.601` is 601/1000).

    Raises:
        ValueError: for anything but a finite number.
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
    """Return the nearest integer; a half goes up."""
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
    size = round_half_up(Fraction(found[1]) * _FACTORS[(found[2] or "b").lower()])
    if size > MAX_SIZE:
        raise OptPipeError(f"{text!r} is more than {MAX_SIZE} bytes, the most allowed")
    return size


def parse_share(text: str) -> Fraction:
    """Return a number from 0 to 1, exactly: ``0.8``.

    Raises:
        OptPipeError: for anything else.
    """
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= 1:
        raise OptPipeError(f"{text!r} is not a share: write a number from 0 to 1, as 0.8")
    return share


def as_size(key: str, value: Size) -> int:
    """Return the bytes of ``24GiB`` or of a whole number; reads every argument that is a size.

    Raises:
        OptPipeError: names the argument, for anything else.
    """
    if isinstance(value, str):
        try:
            return parse_size(value)
        except OptPipeError as error:
            raise OptPipeError(f"{key}: {error}") from None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptPipeError(f"{key}: expected a size, as 24GiB or whole bytes, got {value!r}")
    if index(value) > MAX_SIZE:
        raise OptPipeError(f"{key}: {value} is more than {MAX_SIZE} bytes, the most allowed")
    return index(value)


def as_limit(key: str, value: Size, tiny: bool = False) -> int:
    """Return the bytes of the memory limit of a device, given as for `as_size`.

    Args:
        tiny: devices hold less than 1 MiB: limits that small need no unit, and large ones stand for none.

    Raises:
        OptPipeError: names the argument, for anything but a size, a limit below 1 MiB without its unit,
            and one that no device has; the latter two with the size that was probably meant.
    """
    size = as_size(key, value)
    if 0 < size < LEAST_PLAIN and not tiny and not has_unit(value):
        likely = f"{value}{'GiB' if size < 1024 else 'MiB'}"
        raise OptPipeError(
            f"{key}: {value} is {counted(size, 'byte')}; did you mean {likely}?"
            " (if not, write the unit)"
        )
    if size > MOST_MEMORY and not tiny:
        raise OptPipeError(
            f"{key}: {value} is {format_size(size)}, more than any device has; did you mean"
            f" {size_text(size // 1024)}? (for no limit, leave it out)"
        )
    return size


def has_unit(value: Size) -> bool:
    """Whether a size is a text with a unit."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    return found is not None and found[2] is not None


def written_size(text: str) -> Size:
    """Return a size as it was written, for whoever knows what is plausible; plain bytes as a number.

    Raises:
        OptPipeError: for anything but a size.
    """
    size = parse_size(text)
    return text.strip() if has_unit(text) else size


def format_size(size: int, digits: int = 4) -> str:
    """Write bytes with a unit: ``13.2 GiB``."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= factor:
            return f"{size / factor:.{digits}g} {unit}"
    return f"{size} B"


def format_sizes(*sizes: int) -> list[str]:
    """Bytes for people, with as many digits as distinguish different ones: ``24 GiB``,
    ``24.00000001 GiB``."""
    return _apart(format_size, _FACTORS, sizes) or [f"{size} B" for size in sizes]


def format_times(*times_ns: int) -> list[str]:
    """Times for people, with as many digits as distinguish different ones: ``1.5 ms``,
    ``1.499999 ms``."""
    units = {name[1:]: factor for name, factor in TIME_UNITS.items()}
    return _apart(format_time, units, times_ns) or [f"{time} ns" for time in times_ns]


def _apart(
    form: Callable[[int, int], str], units: Mapping[str, int], values: Sequence[int]
) -> list[str] | None:
    """Return every value in as few digits as keep different ones different, where ``1000 us`` is no
    other than ``1 ms``; None where 16 digits do not."""
    for digits in range(4, 17):
        texts = [form(value, digits) for value in values]
        said = {float(number) * units[unit.lower()] for number, unit in map(str.split, texts)}
        if len(said) == len(set(values)):
            return texts
    return None


def size_text(size: Size) -> str:
    """Exactly these bytes, as options and files take them: ``40GiB``, ``71.8GiB``, ``200B``; a text as it
    is."""
    if isinstance(size, str):
        return size
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        for digits in (0, 1, 2):
            text = f"{size / factor:.{digits}f}{unit}"
            if size >= factor and parse_size(text) == size:
                return text
    return f"{size}B"


def size_above(size: int) -> str:
    """Write a size of at least these bytes, rounded up, as options take it: ``16.91GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            hundredths = -(-size * 100 // factor)
            return f"{hundredths / 100:.10g}{unit}"
    return f"{size}B"


def is_plain(text: str) -> bool:
    """Whether a text has no control characters: it can be printed on a line."""
    return not any(ord(sign) < 32 or ord(sign) == 127 for sign in text)


def as_number(value: Fraction) -> int | float:
    """Return an exact number as a file writes it: a whole number, or the float nearest to it."""
    return value.numerator if value.denominator == 1 else float(value)


def counted(number: int, thing: str, things: str = "") -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def format_parameters(number: float) -> str:
    """Return a number of parameters to three digits, in billions (``8.03B``) or, from a thousand of them on, in
    trillions (``1.03T``)."""
    return f"{number / 1e12:.3g}T" if number >= 9.995e11 else f"{number / 1e9:.3g}B"


def format_time(time_ns: float, digits: int = 4) -> str:
    """Write nanoseconds with a unit: ``1.234 s``, ``18.5 ms``."""
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(time_ns) >= factor:
            text = f"{time_ns / factor:.{digits}g}"
            whole = "e" in text and abs(time_ns) < 10**15
            return f"{time_ns / factor:.0f} {unit}" if whole else f"{text} {unit}"
    return f"{time_ns:.{digits}g} ns"


def parse_time(text: str | int) -> int:
    """Nanoseconds of ``1.5s``, ``120ms``, ``20us``, ``7ns`` or plain nanoseconds.

    Raises:
        OptPipeError: for anything else.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    found = _TIME.fullmatch(str(text).strip())
    if not found:
        raise OptPipeError(f"{text!r} is not a time: write 1.5s, 120ms, 20us, 7ns or plain ns")
    return round_half_up(Fraction(found[1]) * TIME_UNITS[f"_{(found[2] or 'ns').lower()}"])


def parse_instant(text: str | int) -> tuple[Fraction, bool]:
    """Return an instant of an iteration: a share of it (``10%`` is 1/10, True), or a time in ns (False).

    Raises:
        OptPipeError: for anything else, or a share above 100%.
    """
    found = _SHARE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        try:
            return Fraction(parse_time(text)), False
        except OptPipeError:
            raise OptPipeError(
                f"{text!r} is no instant: write 10%, 120ms, 1.5s or plain ns"
            ) from None
    if Fraction(found[1]) > 100:
        raise OptPipeError(f"{text!r}: must be at most 100%")
    return Fraction(found[1]) / 100, True


def html_table(rows: Mapping[str, object]) -> str:
    """Return a table of two columns for notebooks; texts are escaped."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(key)}</th><td>{escape(str(value))}</td></tr>"
        for key, value in rows.items()
    )
    return f"<table>{cells}</table>"


class Reader:
    """A mapping of a profile, read key by key with units in the keys; unknown keys are refused at
    the end.

    Raises:
        ProfileError: from every method, for a value that is wrong; names the key.
    """

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ProfileError(f"{where or 'profile'}: expected a mapping, got {data!r}")
        self.left, self.where = dict(data), where
        self._keys: dict[str, str] = {}  # by stem, as they were given

    def fail(self, key: str, problem: str) -> ProfileError:
        return ProfileError(f"{self.where}.{key}: {problem}" if self.where else f"{key}: {problem}")

    def take(self, key: str, default: Any = None) -> Any:
        return self.left.pop(key, default)

    def count(self, key: str, default: int | None) -> int | None:
        value = self.take(key, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.fail(key, f"expected a whole number, got {value!r}")
        return value

    def quantity(self, stem: str, units: Mapping[str, int]) -> tuple[str, Any, int] | None:
        """Return the key with that stem in any unit, its raw value and the unit's factor; None without."""
        given = [stem + unit for unit in units if stem + unit in self.left]
        if len(given) > 1:
            raise self.fail(given[1], f"given twice, also as {given[0]}")
        if not given:
            return None
        self._keys[stem] = given[0]
        return given[0], self.left.pop(given[0]), units[given[0][len(stem) :]]

    def key_of(self, stem: str) -> str:
        """Return the key that was read for a stem, with the unit that it has."""
        return self._keys.get(stem, stem)

    def whole(self, key: str, value: Any, factor: int, positive: bool = False) -> int:
        """`value` times its unit, rounded half up once."""
        try:
            number = exact(value)
        except ValueError as error:
            raise self.fail(key, str(error)) from None
        if number < 0 or (positive and number == 0):
            raise self.fail(key, f"must be {'above' if positive else 'at least'} 0, got {value}")
        result = round_half_up(number * factor)
        if positive and result == 0:
            raise self.fail(key, f"{value} rounds to 0 ns, must be above")
        self._plausible(key, value, result)
        return result

    def _plausible(self, key: str, value: Any, amount: int) -> None:
        """Refuse times and sizes that no op and no device has, with the key that was probably meant."""
        if amount > MOST_MEMORY and key.endswith(tuple(BYTE_UNITS)):
            units, usual, most, what = BYTE_UNITS, 2**30, MOST_MEMORY, "device has"
            written = format_size(amount)
        elif amount > MOST_TIME_NS and key.endswith(tuple(TIME_UNITS)):
            units, usual, most, what = TIME_UNITS, 10**7, MOST_TIME_NS, "op takes"
            written = f"{amount / 3600e9:.4g} h"
        else:
            return
        stem = next(key.removesuffix(unit) for unit in units if key.endswith(unit))
        number = exact(value)

        def off(unit: str) -> Fraction:
            meant = number * units[unit] / usual
            return max(meant, 1 / meant)

        best = min(units, key=off)
        likely = f"; did you mean {stem}{best}?" if number * units[best] <= most else ""
        raise self.fail(key, f"{value} is {written}, more than any {what}{likely}")

    def missing(self, stem: str, units: Mapping[str, int], more: str = "") -> ProfileError:
        """Return the error of a key that is not there in any unit; it names a key that was probably
        meant for it."""
        options = ", ".join(stem + unit for unit in units)
        meant = [key for key in self.left if str(key) == stem or str(key).startswith(f"{stem}_")]
        if meant:
            return self.fail(meant[0], f"unknown key; write one of {options}")
        return self.fail(stem + list(units)[1], f"missing (one of {options}){more}")

    def amount(
        self, stem: str, units: Mapping[str, int], positive: bool = False, needed: bool = False
    ) -> int | None:
        found = self.quantity(stem, units)
        if found is None:
            if needed:
                raise self.missing(stem, units)
            return None
        key, value, factor = found
        return self.whole(key, value, factor, positive)

    def finish(self, known: str) -> None:
        for key in self.left:
            raise self.fail(
                str(key), f"unknown key; {hint_for(str(key), re.split(', | or ', known))}"
            )
