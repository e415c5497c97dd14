"""What an engine reports while it runs, what it is told of the other engines, and what callers of
`solve` are told.

Every engine has one function, ``run`` in its ``engine.py``, which is called in a process of its own as

    run(problem, report, start=start, options=options, bound_ns=bound_ns, others=others)

with a schedule to start from (or None), options whose time limit, seed and workers are those of this
engine, and a proven bound. It reports ``("incumbent", schedule)``, ``("bound", ns)``, ``("named bound",
(ns, name))`` where it has several, ``("infeasible", None)`` or ``("size", (variables, constraints))``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..schedule import Schedule

Report = Callable[[str, Any], None]
Others = Callable[[], Schedule | None]  # the best that other engines have found since the last call


def no_report() -> None:
    """There are no others."""


@dataclass(frozen=True)
class Hooks:
    """What callers of `solve` want to be told, and where the best is kept; see there."""

    on_incumbent: Callable[[Schedule, int], None] | None = None
    watch: Callable[[Any], None] | None = None
    on_wait: Callable[[], None] = no_report
    save: str | os.PathLike[str] | None = None
