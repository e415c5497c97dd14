"""Names of a package that are looked up on first use, so that to import it loads nothing; and pictures that values
draw of themselves, by functions of rooms above theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def looked_up(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562).

    Args:
        package: its ``__name__``. homes: for each name the module that has it, relative to the package.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    return find


# The module of each function that draws a value. The package fills it in (`__init__`): the rooms of the values know
# nothing of those that draw.
PICTURES: dict[str, str] = {}


def drawn(picture: str, *given: Any) -> Any:
    """Return the figure that a function of `PICTURES` draws."""
    return getattr(import_module(PICTURES[picture]), picture)(*given)
