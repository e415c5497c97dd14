"""One family of errors. Each message is a single line a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OptPipeError(Exception):
    """Whatever optpipe_sim refuses or cannot do."""


class ProfileError(OptPipeError):
    """A profile that says something impossible; names the file, the key, and what would be right."""


class InvalidSchedule(OptPipeError):
    """A schedule that is not one: an op missing, doubled, unknown, or on the wrong device."""


class Deadlock(OptPipeError):
    """A program that can never go on; names the ops that wait, where, and what for."""


class OutOfMemory(OptPipeError):
    """No order of execution fits the memory limit; names the least limit that would do."""


class NoSolution(OptPipeError):
    """No schedule was found (or none exists) for what was asked."""


class Infeasible(NoSolution):
    """Proven: what was asked has no schedule."""


class RuntimeFault(OptPipeError):
    """A real run that went wrong; names the op and the device, or the rank and its last op."""


def require(name: str, value: object, kind: type, hint: str) -> None:
    """Refuse what is not of its kind, in a line that says how to come by one.

    Raises:
        OptPipeError: names the argument, what was given, and what would be right.
    """
    if not isinstance(value, kind):
        given = (
            f"{value!r:.60}"
            if isinstance(value, str | int | float)
            else f"a {type(value).__name__}"
        )
        raise OptPipeError(f"{name}: expected a {kind.__name__}, got {given}; {hint}")


LONGEST = 1000  # characters of a complaint that are printed


def one_line(message: str) -> str:
    """`message` on one line of sensible length; what is wrong stands in front, what would be right
    at the end, so that what is too long is cut in the middle."""
    line = " ".join(message.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST - LONGEST // 4]} ... {line[-LONGEST // 4 :]}"
    return line


def hint_for(word: str, known: Iterable[str], most: int = 1) -> str:
    """``did you mean 1f1b?`` where `word` is near to a known one, whatever its case; else all of them."""
    names = list(known)
    lowered = {name.lower(): name for name in reversed(names)}
    close = difflib.get_close_matches(word.lower(), lowered, most)
    if close:
        return f"did you mean {' or '.join(lowered[name] for name in close)}?"
    return f"known are {', '.join(names)}"
