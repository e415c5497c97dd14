"""The versions of what computes."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..version import __version__

SOLVERS = ("numpy", "numba", "scipy", "ortools", "highspy", "pyomo", "gurobipy")


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of this package, of Python and of some packages; None: not installed."""
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


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of the checkout that this code is run from, with a ``+`` where files of the package
    differ from it (the atlas's library aside, which is data); None where it is no checkout, or there is no git."""
    here = str(Path(__file__).parent.parent)

    def git(*words: str) -> str:
        # without locks: `status` would write the index anew, and half of it where the disk is full
        line = ("git", "--no-optional-locks", "-C", here, *words)
        return subprocess.run(
            line, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD") + (
            "+" if git("status", "-s", ".", ":!atlas/library") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return None
