"""One family of errors. Each message is a single line a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from itertools import accumulate


class OptPipeError(Exception):
    """Whatever optpipe_sim refuses or cannot do; `message`: one line that a user can act on."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class ProfileError(OptPipeError):
    """A profile with an impossible value; names the file, the key, and what is expected."""


class InvalidSchedule(OptPipeError):
    """An invalid schedule: an op missing, doubled, unknown, or on the wrong device."""


class Deadlock(OptPipeError):
    """A program that cannot continue; names the waiting ops, their devices, and what they wait for.

    To find that out takes longer than a replay, and a search tries many orders that deadlock: `message` may be a function, which is called
    when the error is read.
    """

    def __init__(self, message: str | Callable[[], str] = "") -> None:
        super().__init__()
        self._message = message

    def __str__(self) -> str:
        if not isinstance(self._message, str):
            self._message = self._message()
        return self._message

    def __reduce__(self) -> tuple[type[Deadlock], tuple[str]]:
        return type(self), (str(self),)


class OutOfMemory(OptPipeError):
    """No order of execution fits the memory limit; names the least limit that suffices."""


class NoSolution(OptPipeError):
    """No schedule was found, or none exists, under the given restrictions."""


class Infeasible(NoSolution):
    """Proven: no schedule exists under the given restrictions."""


class RuntimeFault(OptPipeError):
    """A real run that went wrong; names the op and the device, or the rank and its last op."""


def require(name: str, value: object, kind: type, hint: str) -> None:
    """Refuse an argument of the wrong type, in one line that says how to obtain a right one.

    Raises:
        OptPipeError: names the argument, what was given, and what is expected.
    """
    if not isinstance(value, kind):
        given = (
            f"{value!r:.60}"
            if isinstance(value, str | int | float)
            else f"a {type(value).__name__}"
        )
        raise OptPipeError(f"{name}: expected a {kind.__name__}, got {given}; {hint}")


LONGEST = 1000  # characters of a message that are printed


def one_line(message: str) -> str:
    """Return `message` on one line of at most `LONGEST` characters, cut in the middle: the error is at its
    start, the hint at its end."""
    line = " ".join(message.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST - LONGEST // 4]} ... {line[-LONGEST // 4 :]}"
    return line


MOST_KNOWN = 300  # letters of known names in a hint
BEGINS = 4  # letters that are enough to tell what they begin


def hint_for(word: str, known: Iterable[str], most: int = 1) -> str:
    """``did you mean 1f1b?`` where `word` begins a known one or is close to it, ignoring case; else all of them, or the
    first of many."""
    names = list(known)
    lowered = {name.lower(): name for name in reversed(names)}
    begun = [name for name in lowered if len(word) >= BEGINS and name.startswith(word.lower())]
    begun.sort(key=len)
    close = [*dict.fromkeys([*begun, *difflib.get_close_matches(word.lower(), lowered, most)])]
    if close := close[:most]:
        return f"did you mean {' or '.join(lowered[name] for name in close)}?"
    first = names[: max(1, sum(size <= MOST_KNOWN for size in accumulate(map(len, names))))]
    more = "" if len(first) == len(names) else f", ... ({len(names)} in all)"
    return f"known are {', '.join(first)}{more}"
