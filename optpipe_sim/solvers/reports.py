"""What an engine reports while it runs, and what it is told of the other engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..schedule import Schedule

Report = Callable[[str, Any], None]
Others = Callable[[], Schedule | None]  # the best that other engines have found since the last call


def no_report() -> None:
    """There are no others."""
