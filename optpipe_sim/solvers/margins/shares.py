"""How far reality may exceed the profile. Imports nothing heavy, so that the command line can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...errors import OptPipeError


@dataclass(frozen=True)
class Margins:
    """The share by which each quantity may exceed its profiled value (0.1: 10 %).

    Attributes:
        copies: durations of O and R.
        ops: durations of all compute ops, recomputation included.
        memory: every size, static memory included.

    Raises:
        OptPipeError: for a value that is not a share from 0 to 1.
    """

    copies: float = 0.0
    ops: float = 0.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        for name in NAMES:
            object.__setattr__(self, name, _share(name, getattr(self, name)))

    def __bool__(self) -> bool:
        return any(asdict(self).values())

    def to_json(self) -> dict[str, float]:
        """Return the margins as plain data, by name."""
        return asdict(self)

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.3g}%" for name, share in self.percents())

    def percents(self) -> list[tuple[str, float]]:
        """Return the margins above 0, in percent."""
        return [(name, 100 * share) for name, share in asdict(self).items() if share]

    def without(self, name: str) -> Margins:
        """Return the margins with one of them set to 0."""
        return replace(self, **{name: 0.0})


ALL = "all"  # of the margins, for arguments that take their names
NAMES = tuple(entry.name for entry in fields(Margins))


def as_margins(given: Margins | Mapping[str, Any] | str | None) -> Margins | None:
    """Parse the margins of ``copies=10%,ops=5%``, or of a mapping; None if there are none. They are
    separated by commas, or by a plus as in the names of schedules.

    Raises:
        OptPipeError: for an unknown name, a name given twice, or a value that is not a share.
    """
    if isinstance(given, str):
        given = _parsed(given)
    if isinstance(given, Mapping):
        for name in given:
            if name not in NAMES:
                raise OptPipeError(f"margin: knows {', '.join(NAMES)}, not {name!r}")
        given = Margins(**given)
    if given is not None and not isinstance(given, Margins):
        raise OptPipeError(f"margin: expected copies=10%,ops=5%,memory=3%, got {given!r}")
    return given or None


def _parsed(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.replace("+", ",").split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise OptPipeError(
                f"margin: expected NAME=SHARE, as in copies=10%,ops=5%,memory=3%, got {part.strip()!r}"
            )
        if name in found:
            raise OptPipeError(f"margin: {name} is there twice")
        found[name] = value
    return found


def _share(name: str, value: Any) -> float:
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if isinstance(value, bool) or not 0 <= share <= 1:
        raise OptPipeError(
            f"margin: {name} must be a share from 0 to 100%, as in 10% or 0.1, got {text!r}"
        )
    return share
