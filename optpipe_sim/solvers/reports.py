"""What an engine reports while it runs, what it learns from other engines, and the callbacks of
`solve`.

Every engine has one function, ``run`` (`race.jobs.ROOMS` says where), which is called in its own process as

    run(problem, report, start=start, options=options, bound_ns=bound_ns, others=others)

with a schedule to start from (or None), options whose time limit, seed and workers are those of
this engine, and a proven lower bound. It reports ``("incumbent", (schedule, method))`` with the name
of the method that found it, ``("bound", ns)``,
``("named bound", (ns, name))`` if it has several kinds of bounds, ``("infeasible", None)`` or
``("size", (variables, constraints))``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..schedule import Schedule

Report = Callable[[str, Any], None]
Others = Callable[[], Schedule | None]  # the best schedule of other engines since the last call


def no_report() -> None:
    """Report that no other engine has found anything."""


@dataclass(frozen=True)
class Hooks:
    """The callbacks of `solve`, and the file for the best schedule; see there."""

    on_incumbent: Callable[[Schedule, int], None] | None = None
    watch: Callable[[Any], None] | None = None
    on_wait: Callable[[], None] = no_report
    save: str | os.PathLike[str] | None = None
