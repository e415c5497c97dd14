"""The versions of what computes."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from .. import __version__

SOLVERS = ("numpy", "numba", "scipy", "ortools", "highspy", "pyomo", "gurobipy")


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The versions of this package, of Python and of some packages; None: not installed."""
    found: dict[str, str | None] = {
        "optpipe_sim": __version__,
        "python": platform.python_version(),
    }
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
